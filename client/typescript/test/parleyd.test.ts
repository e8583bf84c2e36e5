import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";

import { createChannel, createClient, type Client } from "nice-grpc";
import { ConversationServiceDefinition, type Message, type TurnEvent, type TurnFinished } from "parley";

import { start, startShop } from "./process.js";

const parleyd = process.env["PARLEYD"];
const options = {
  timeout: 60_000,
  skip: parleyd ? false : "PARLEYD does not name a built parleyd",
};

/** Starts parleyd, with the agent at this address as its only one, and returns a client of it. */
async function serve(t: TestContext, agent: string): Promise<Client<ConversationServiceDefinition>> {
  const dir = await mkdtemp(join(tmpdir(), "parley-"));
  t.after(() => rm(dir, { recursive: true }));
  const config = join(dir, "parley.yaml");
  await writeFile(config, [
    "grpc_address: 127.0.0.1:0",
    'http_address: ""',
    "store: memory",
    "interaction_log: false",
    "log_format: text",
    "default_agent: shop",
    `agents: {shop: {kind: remote, address: "${agent}"}}`,
  ].join("\n"));
  const server = start(t, parleyd!, "--config", config);
  const channel = createChannel(await server.find(/msg="serving grpc".* address=(\S+)/));
  t.after(() => channel.close());
  return createClient(ConversationServiceDefinition, channel);
}

/** Says something, calls seen with each event, and returns how the turn ended. */
async function chat(
  client: Client<ConversationServiceDefinition>,
  content: string,
  seen: (event: TurnEvent) => void = () => {},
): Promise<TurnFinished> {
  for await (const { event } of client.chat({ conversationId: "c", content })) {
    if (event?.event?.$case === "finished") {
      return event.event.value;
    }
    seen(event!);
  }
  throw new Error("the stream ended without finished");
}

function shown({ content, status, summary, structuredData }: Message): unknown {
  return { content, status, summary, structuredData };
}

test("three turns, kept with their structured data", options, async (t) => {
  const client = await serve(t, (await startShop(t)).address);
  const turns = [
    { say: "create three products", text: "Created Flour, Sugar and Salt.", summary: "created three products",
      list: [{ name: "Flour" }, { name: "Sugar" }, { name: "Salt" }] },
    { say: "Sugar costs 50 cents", text: "Sugar costs 50 cents.", summary: "set a price",
      list: [{ name: "Flour" }, { name: "Sugar", cents: 50 }, { name: "Salt" }] },
    { say: "the second one is sold out", text: "Sugar is sold out.", summary: "marked a product as sold out",
      list: [{ name: "Flour" }, { name: "Sugar", cents: 50, sold_out: true }, { name: "Salt" }] },
  ];
  const kept: unknown[] = [];
  for (const { say, text, summary, list } of turns) {
    let streamed = "";
    const values: unknown[] = [];
    const { turn, messages } = await chat(client, say, ({ event }) => {
      if (event?.$case === "textDelta") {
        streamed += event.value.text;
      } else if (event?.$case === "structuredData") {
        values.push(event.value);
      }
    });
    const structuredData = [{ type: "product_list", value: list }];
    const answer = { content: text, status: "MESSAGE_STATUS_COMPLETE", summary, structuredData };
    assert.equal(turn?.state, "TURN_STATE_COMPLETED", turn?.error?.message);
    assert.equal(streamed, text);
    assert.deepEqual(values, structuredData);
    assert.deepEqual(messages.map(shown), [answer]);
    kept.push({ content: say, status: "MESSAGE_STATUS_COMPLETE", summary: "", structuredData: [] }, answer);
  }
  const { messages } = await client.getContext({ conversationId: "c" });
  assert.deepEqual(messages.map(shown), kept);
});

test("what an agent had said is kept, whether it fails or is killed", options, async (t) => {
  const shop = await startShop(t);
  const client = await serve(t, shop.address);
  const failed = await chat(client, "fail");
  assert.equal(failed.turn?.state, "TURN_STATE_FAILED");
  assert.equal(failed.turn.error?.reason, "AGENT_FAILED");
  assert.match(failed.turn.error.message, /the shop is closed/);
  assert.deepEqual(failed.messages.map(shown), [
    { content: "This will ", status: "MESSAGE_STATUS_INCOMPLETE", summary: "", structuredData: [] },
  ]);

  const killed = await chat(client, "slow", ({ event }) => {
    if (event?.$case === "textDelta") {
      shop.kill("SIGKILL");
    }
  });
  assert.equal(killed.turn?.state, "TURN_STATE_FAILED");
  assert.equal(killed.turn.error?.reason, "AGENT_FAILED");
  const [rest] = killed.messages;
  assert.equal(rest?.status, "MESSAGE_STATUS_INCOMPLETE");
  assert.match(rest.content, /^(tick )+$/);
});
