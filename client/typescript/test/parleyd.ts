import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import {
  Agent,
  type AgentServer,
  type Answering,
  Client,
  type Piece,
  type RespondRequest,
  serve,
} from "@parleyhq/client";

import { type Program, start } from "./process.js";

const parleyd = process.env["PARLEYD"];

/** The options of tests that need parleyd. */
export const options = {
  timeout: 60_000,
  skip: parleyd ? false : "PARLEYD is not set to the path of a parleyd",
};

/** Creates a folder. The end of the test removes it. */
export async function tempFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "parley-"));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** The settings of a parleyd. Without a data folder it uses the memory store. */
export interface Settings {
  readonly agent?: string | undefined;
  readonly data?: string | undefined;
  /** More settings, by their keys in the configuration. */
  readonly more?: Readonly<Record<string, unknown>>;
}

/** Starts parleyd on a free port. */
export async function startParleyd(
  t: TestContext,
  { agent, data, more = {} }: Settings = {},
): Promise<Program & { address: string }> {
  const config = join(await tempFolder(t), "parley.yaml");
  const settings = [
    "grpc_address: 127.0.0.1:0",
    ...("http_address" in more ? [] : ['http_address: ""']),
    ...(data ? ["store: bolt", `data_dir: ${JSON.stringify(data)}`] : ["store: memory"]),
    ...("interaction_log" in more ? [] : ["interaction_log: false"]),
    "log_format: json",
    ...(agent ? ["default_agent: own", `agents: {own: {kind: remote, address: "${agent}"}}`] : []),
    ...Object.entries(more).map(([key, value]) => `${key}: ${JSON.stringify(value)}`),
  ];
  await writeFile(config, settings.join("\n"));
  const program = start(t, parleyd!, "--config", config);
  return { ...program, address: await program.find(/"msg":"serving grpc".*"address":"([^"]+)"/) };
}

/** Creates a token in a file of parleyd, with flags such as "--role=writer". */
export async function createToken(t: TestContext, file: string, ...flags: string[]): Promise<string> {
  const program = start(t, parleyd!, "token", "create", `--file=${file}`, ...flags);
  const token = await program.find(/^(parley_[\w-]{43})$/);
  assert.equal(await program.ended, 0, program.lines.join("\n"));
  return token;
}

/** Returns a client of this server. The end of the test closes it. */
export function connect(t: TestContext, address: string): Client {
  const client = new Client(address);
  t.after(() => client.close());
  return client;
}

/** Serves an agent on a free port until the end of the test. */
export async function serveAgent(t: TestContext, agent: Agent): Promise<AgentServer> {
  const server = await serve(agent, "127.0.0.1:0", { grace: 0, log: () => {} });
  t.after(() => server.stop());
  return server;
}

/** An agent whose answer the test sends piece by piece. */
export class ScriptedAgent extends Agent {
  /** The number of calls of respond. */
  runs = 0;
  readonly #pieces: Piece[] = [];
  readonly #changes = new EventTarget();
  #isDone = false;

  send(...pieces: Piece[]): void {
    this.#pieces.push(...pieces);
    this.#changes.dispatchEvent(new Event("change"));
  }

  end(): void {
    this.#isDone = true;
    this.send();
  }

  override async *respond(_: RespondRequest, { signal }: Answering): AsyncGenerator<Piece> {
    this.runs++;
    for (let sent = 0; ; ) {
      const piece = this.#pieces[sent];
      if (piece !== undefined) {
        sent++;
        yield piece;
      } else if (this.#isDone) {
        return;
      } else {
        await once(this.#changes, "change", { signal });
      }
    }
  }
}
