import type { BigIntStats } from "node:fs";
import { readFile, stat } from "node:fs/promises";

import { ParleyError } from "./errors.js";
import { CallerError } from "./request.js";

/**
 * The bearer token of a client: the token itself, or a function that returns it or promises it. The
 * client calls the function before each call and each attempt of a stream, and again after the server
 * has rejected its token. A function that fetches tokens should cache them until they are about to
 * expire. An error of the function is thrown unchanged by the call.
 */
export type Token = string | (() => string | Promise<string>);

/** Where the tokens of a client come from. */
export interface TokenSource {
  /** Returns the token of the next call. */
  current(): Promise<string>;
  /** Returns the token of the next call after the server has rejected a token. */
  afterRejection(): Promise<string>;
}

/** The maximum length of a token. The server accepts 16 KiB of headers. */
const maxTokenBytes = 12 << 10;
/** The maximum size of a token file, with the white space around the token. */
const maxFileBytes = maxTokenBytes + 1024;

/** Returns what is wrong with a token, or undefined. The text does not contain the token. */
export function tokenFault(token: unknown): string | undefined {
  if (typeof token !== "string") {
    return `is ${token === null ? "null" : typeof token}, want a string`;
  }
  if (token === "") {
    return "is empty";
  }
  if (token.length > maxTokenBytes) {
    return `has ${token.length} characters, want at most ${maxTokenBytes}`;
  }
  if (!/^[!-~]*$/.test(token)) {
    return (
      "contains a space, a line break or another character that is not printable ASCII; " +
      'set only the token, without "Bearer"'
    );
  }
  return undefined;
}

/** Returns the source of a token that never changes. */
export function fixedToken(token: string): TokenSource {
  const current = async () => token;
  return { current, afterRejection: current };
}

/** Returns the source of the tokens that a function returns. */
export function tokenFunction(next: () => string | Promise<string>): TokenSource {
  const current = async () => {
    let token: unknown;
    try {
      token = await next();
    } catch (error) {
      throw new CallerError(error);
    }
    const fault = tokenFault(token);
    if (fault) {
      throw unusable(`the result of the token function ${fault}`);
    }
    return token as string;
  };
  return { current, afterRejection: current };
}

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

/** Returns the error of a call that has no token to send. */
function unusable(fault: string, cause?: unknown): ParleyError {
  return new ParleyError("UNAUTHENTICATED", fault, { cause });
}
