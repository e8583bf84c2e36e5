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
} from "parley";

import { type Program, start } from "./process.js";

const parleyd = process.env["PARLEYD"];

/** Of tests that need a built parleyd. */
export const options = {
  timeout: 60_000,
  skip: parleyd ? false : "PARLEYD does not name a built parleyd",
};

/** A folder that goes with the test. */
export async function folderOf(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "parley-"));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

/** Starts parleyd on a port of its own, in memory unless it is given a folder for its data. */
export async function startParleyd(
  t: TestContext,
  { agent, data }: { agent?: string | undefined; data?: string | undefined } = {},
): Promise<Program & { address: string }> {
  const config = join(await folderOf(t), "parley.yaml");
  const settings = [
    "grpc_address: 127.0.0.1:0",
    'http_address: ""',
    ...(data ? ["store: bolt", `data_dir: ${JSON.stringify(data)}`] : ["store: memory"]),
    "interaction_log: false",
    "log_format: json",
    ...(agent ? ["default_agent: own", `agents: {own: {kind: remote, address: "${agent}"}}`] : []),
  ];
  await writeFile(config, settings.join("\n"));
  const program = start(t, parleyd!, "--config", config);
  return { ...program, address: await program.find(/"msg":"serving grpc".*"address":"([^"]+)"/) };
}

/** A client of this server, until the end of the test. */
export function connect(t: TestContext, address: string): Client {
  const client = new Client(address);
  t.after(() => client.close());
  return client;
}

/** Serves an agent on a port of its own until the end of the test. */
export async function serveAgent(t: TestContext, agent: Agent): Promise<AgentServer> {
  const server = await serve(agent, "127.0.0.1:0", { grace: 0, log: () => {} });
  t.after(() => server.stop());
  return server;
}

/** An agent that says what the test has it say. */
export class Puppet extends Agent {
  /** How often it was asked. */
  runs = 0;
  readonly #pieces: Piece[] = [];
  readonly #news = new EventTarget();
  #isDone = false;

  say(...pieces: Piece[]): void {
    this.#pieces.push(...pieces);
    this.#news.dispatchEvent(new Event("news"));
  }

  end(): void {
    this.#isDone = true;
    this.say();
  }

  override async *respond(_: RespondRequest, { signal }: Answering): AsyncGenerator<Piece> {
    this.runs++;
    for (let said = 0; ; ) {
      const piece = this.#pieces[said];
      if (piece !== undefined) {
        said++;
        yield piece;
      } else if (this.#isDone) {
        return;
      } else {
        await once(this.#news, "news", { signal });
      }
    }
  }
}
