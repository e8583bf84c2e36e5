import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { type Agent, Client, serve } from "@parleyhq/client";

import { type Program, start } from "../../dist/test/process.js";

const parleyd = process.env["PARLEYD"]!;

/** A parleyd with a bolt store, which a test can kill and start again at the same address. */
export class Parleyd {
  readonly #t: TestContext;
  readonly #data: string;
  readonly #flags: string[];
  #program!: Program;
  address = "127.0.0.1:0";
  client!: Client;

  private constructor(t: TestContext, data: string, flags: string[]) {
    this.#t = t;
    this.#data = data;
    this.#flags = flags;
  }

  /** Starts a server. The agent answers its turns, else the echo of the server. */
  static async start(t: TestContext, agent?: Agent, ...flags: string[]): Promise<Parleyd> {
    const data = await mkdtemp(join(tmpdir(), "parley-"));
    const server = new Parleyd(t, data, flags);
    if (agent) {
      const { address, stop } = await serve(agent, "127.0.0.1:0", { grace: 0, log: () => {} });
      t.after(stop);
      const config = join(data, "parley.yaml");
      await writeFile(config, `default_agent: own\nagents: {own: {kind: remote, address: "${address}"}}\n`);
      server.#flags.push(`--config=${config}`);
    }
    await server.#run();
    server.client = new Client(server.address);
    t.after(async () => {
      server.client.close();
      server.#program.kill("SIGKILL");
      await server.#program.ended;
      await rm(data, { recursive: true, force: true });
    });
    return server;
  }

  /** Returns the URL of the HTTP listener, if the flags set its address. */
  async httpURL(): Promise<string> {
    return `http://${await this.#program.find(/"msg":"serving http".*"address":"([^"]+)"/)}`;
  }

  /** Kills the server as a power cut would end it, and starts it again. */
  async crash(): Promise<void> {
    await this.stop();
    await this.restart();
  }

  /** Kills the server as a power cut would end it. */
  async stop(): Promise<void> {
    this.#program.kill("SIGKILL");
    await this.#program.ended;
  }

  async restart(): Promise<void> {
    await this.#run();
  }

  async #run(): Promise<void> {
    const flags = [`--grpc-address=${this.address}`, "--http-address=", "--log-format=json"];
    const more = ["--store=bolt", `--data-dir=${this.#data}`, "--interaction-log=false"];
    this.#program = start(
      this.#t,
      parleyd,
      ...flags,
      ...more,
      "--max-conversation-bytes=67108864",
      "--max-conversations=2000",
      ...this.#flags,
    );
    this.address = await this.#program.find(/"msg":"serving grpc".*"address":"([^"]+)"/);
    assert.ok(this.address);
  }
}

/** Ids that people and programs use. */
export const oddIds = [
  "user@example.com",
  "app/1",
  "100%",
  " a ",
  "a\nb\u2028c\x00",
  ".",
  "..",
  "__proto__",
  "\u{1f469}\u200d\u{1f52c}",
  "é".repeat(200),
  "x".repeat(2000),
];
