import type { BigIntStats } from "node:fs";
import { readFile, stat } from "node:fs/promises";

import { ParleyError } from "./errors.js";
import { maxTokenBytes, type TokenSource, tokenFault, unusable } from "./token.js";

/** The maximum size of a token file, with the white space around the token. */
const maxFileBytes = maxTokenBytes + 1024;

/**
 * The token in a file, without the white space around it. The file is read again when it has changed,
 * and after the server has rejected its token.
 */
export class TokenFile implements TokenSource {
  readonly #path: string;
  /** The last valid token. */
  #token: string | undefined;
  /** Identifies the content from which the token was read. */
  #version = "";

  constructor(path: string) {
    this.#path = path;
  }

  async current(): Promise<string> {
    try {
      return await this.#read(false);
    } catch (error) {
      // A program that writes the file in place has not finished. If the token is no longer valid,
      // the server rejects it, and then the call throws this error.
      if (this.#token === undefined) {
        throw error;
      }
      return this.#token;
    }
  }

  afterRejection(): Promise<string> {
    return this.#read(true);
  }

  async #read(always: boolean): Promise<string> {
    const name = `the token file ${JSON.stringify(this.#path)}`;
    let content: string;
    let version: string;
    try {
      const stats = await stat(this.#path, { bigint: true });
      if (!stats.isFile()) {
        throw unusable(`${name} is not a regular file`);
      }
      if (stats.size > maxFileBytes) {
        throw unusable(`${name} has ${stats.size} bytes, want a token of at most ${maxFileBytes} bytes`);
      }
      version = versionOf(stats);
      if (!always && this.#token !== undefined && version === this.#version) {
        return this.#token;
      }
      content = await readFile(this.#path, "utf8");
    } catch (error) {
      throw error instanceof ParleyError
        ? error
        : unusable(`${name} cannot be read: ${(error as Error).message}`, error);
    }
    const token = content.trim();
    const fault = tokenFault(token);
    if (fault) {
      throw unusable(`the token in ${name} ${fault}`);
    }
    this.#token = token;
    this.#version = version;
    return token;
  }
}

function versionOf({ dev, ino, size, mtimeNs, ctimeNs }: BigIntStats): string {
  return `${dev} ${ino} ${size} ${mtimeNs} ${ctimeNs}`;
}
