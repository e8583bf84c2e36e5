// The test suite of LangGraph for checkpointers. Vitest runs it.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { validate } from "@langchain/langgraph-checkpoint-validation";
import { Client } from "@parleyhq/client";
import { ParleySaver } from "@parleyhq/client/langgraph";

let folder: string;
let server: ChildProcess;
let client: Client;

validate({
  checkpointerName: "ParleySaver",

  async beforeAll() {
    folder = await mkdtemp(join(tmpdir(), "parley-"));
    const flags = ["--grpc-address=127.0.0.1:0", "--http-address=", "--log-format=json", "--store=bolt"];
    server = spawn(process.env["PARLEYD"]!, [...flags, `--data-dir=${folder}`], {
      stdio: ["ignore", "ignore", "pipe"],
    });
    for await (const line of createInterface(server.stderr!)) {
      const [, address] = /"msg":"serving grpc".*"address":"([^"]+)"/.exec(line) ?? [];
      if (address) {
        client = new Client(address);
        return;
      }
    }
    throw new Error("parleyd ended");
  },

  async afterAll() {
    client.close();
    const ended = once(server, "exit"); // Until then, it writes files.
    server.kill();
    await ended;
    await rm(folder, { recursive: true });
  },

  async createCheckpointer() {
    return new ParleySaver({ server: client });
  },

  // Some tests list the checkpoints of all threads.
  async destroyCheckpointer() {
    const { conversations } = await client.listConversations({ pageSize: 1000 });
    for (const { conversation } of conversations) {
      await client.deleteConversation({ conversationId: conversation!.id });
    }
  },
});
