import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";

import {
  Agent,
  AgentError,
  type Client,
  type Message,
  type Piece,
  type TurnEvent,
  type TurnFinished,
} from "@parleyhq/client";

import { textOf } from "./model.js";
import { connect, options, ScriptedAgent, serveAgent, startParleyd, tempFolder } from "./parleyd.js";
import { startShop } from "./process.js";
import { startProxy } from "./proxy.js";
import { read } from "./streams.js";

/** Sends a message and calls onEvent with each event. Returns the last event, finished. */
async function chat(
  client: Client,
  content: string,
  onEvent: (event: TurnEvent) => void = () => {},
): Promise<TurnFinished> {
  for await (const event of client.chat({ conversationId: "c", content })) {
    if (event.event?.$case === "finished") {
      return event.event.value;
    }
    onEvent(event);
  }
  throw new Error("the stream ended without finished");
}

function shown({ content, status, summary, structuredData }: Message): unknown {
  return { content, status, summary, structuredData };
}

test("three turns are stored with their structured data", options, async (t) => {
  const client = connect(t, (await startParleyd(t, { agent: (await startShop(t)).address })).address);
  const turns = [
    {
      content: "create three products",
      text: "Created Flour, Sugar and Salt.",
      summary: "created three products",
      list: [{ name: "Flour" }, { name: "Sugar" }, { name: "Salt" }],
    },
    {
      content: "Sugar costs 50 cents",
      text: "Sugar costs 50 cents.",
      summary: "set a price",
      list: [{ name: "Flour" }, { name: "Sugar", cents: 50 }, { name: "Salt" }],
    },
    {
      content: "the second one is sold out",
      text: "Sugar is sold out.",
      summary: "marked a product as sold out",
      list: [{ name: "Flour" }, { name: "Sugar", cents: 50, sold_out: true }, { name: "Salt" }],
    },
  ];
  const stored: unknown[] = [];
  for (const { content, text, summary, list } of turns) {
    const events: TurnEvent[] = [];
    const { turn, messages } = await chat(client, content, (event) => events.push(event));
    const structuredData = [{ type: "product_list", value: list }];
    const answer = { content: text, status: "MESSAGE_STATUS_COMPLETE", summary, structuredData };
    assert.equal(turn?.state, "TURN_STATE_COMPLETED", turn?.error?.message);
    assert.equal(textOf(events), text);
    const values = events.flatMap(({ event }) => (event?.$case === "structuredData" ? [event.value] : []));
    assert.deepEqual(values, structuredData);
    assert.deepEqual(messages.map(shown), [answer]);
    stored.push(
      { content: content, status: "MESSAGE_STATUS_COMPLETE", summary: "", structuredData: [] },
      answer,
    );
  }
  const { messages } = await client.getContext({ conversationId: "c" });
  assert.deepEqual(messages.map(shown), stored);
});

test("the text of an agent that fails or is killed is stored", options, async (t) => {
  const shop = await startShop(t);
  const client = connect(t, (await startParleyd(t, { agent: shop.address })).address);
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

test("an agent may send all types of pieces", options, async (t) => {
  const pieces: Piece[] = [
    { progress: { text: "thinking" } },
    "Let me see. ",
    { structuredData: { type: "note", value: { deep: [null, 1] } } },
    { toolCall: { id: "1", name: "look", arguments: "{}" } },
    { toolResult: { callId: "1", content: "found" } },
    { nextAgent: "other" },
    { text: "Here: ü😀" },
    { usage: { model: "m", inputTokens: 3, outputTokens: 5 } },
    { finishReason: "stop" },
    { summary: "looked" },
  ];
  class Everything extends Agent {
    override async *respond(): AsyncGenerator<Piece> {
      yield* pieces;
    }
  }
  const { address } = await serveAgent(t, new Everything());
  const client = connect(t, (await startParleyd(t, { agent: address })).address);
  const notes: string[] = [];
  const { turn, messages } = await chat(client, "hello", ({ event }) => {
    if (event?.$case === "progress") {
      notes.push(event.value.text);
    }
  });
  assert.equal(turn?.state, "TURN_STATE_COMPLETED", turn?.error?.message);
  assert.deepEqual(notes, ["thinking"]);
  const [call, result, answer] = messages;
  assert.equal(messages.length, 3);
  assert.deepEqual(call?.structuredData, [{ type: "note", value: { deep: [null, 1] } }]);
  assert.deepEqual(call.toolCalls, [{ id: "1", name: "look", arguments: "{}" }]);
  assert.equal(result?.toolResult?.content, "found");
  const { agent, content, usage, finishReason, summary } = answer!;
  assert.deepEqual([agent, content, finishReason, summary], ["other", "Here: ü😀", "stop", "looked"]);
  assert.equal(usage?.outputTokens, 5);
});

test("the message of an AgentError reaches the user", options, async (t) => {
  class Failing extends Agent {
    override async *respond({ messages }: { messages: Message[] }): AsyncGenerator<Piece> {
      yield "So ";
      throw messages.at(-1)?.content === "fail with AgentError"
        ? new AgentError("RESOURCE_EXHAUSTED", "out of tea")
        : new RangeError("a secret");
    }
  }
  const { address } = await serveAgent(t, new Failing());
  const client = connect(t, (await startParleyd(t, { agent: address })).address);
  const sent = (await chat(client, "fail with AgentError")).turn;
  assert.match(sent?.error?.message ?? "", /out of tea/);
  assert.equal(sent?.error?.retryable, true);
  const hidden = (await chat(client, "fail with RangeError")).turn?.error?.message ?? "";
  assert.match(hidden, /RangeError.*log/);
  assert.doesNotMatch(hidden, /secret/);
});

/** Starts an agent, a server and a proxy in front of it. Returns them with a client of the proxy. */
async function behindProxy(t: Parameters<typeof tempFolder>[0], { data }: { data?: string } = {}) {
  const scripted = new ScriptedAgent();
  const agent = (await serveAgent(t, scripted)).address;
  const server = await startParleyd(t, { agent, data });
  const proxy = await startProxy(t, server.address);
  return { scripted, agent, server, proxy, client: connect(t, proxy.address) };
}

test("chat resumes over reset connections", options, async (t) => {
  const { scripted, proxy, server, client } = await behindProxy(t);
  const pieces = Array.from({ length: 40 }, (_, i) => `größer ${i}, `);
  scripted.send(pieces[0]!);
  let sent = 1;
  const { items, error } = await read(client.chat({ conversationId: "c", content: "go" }), ({ event }) => {
    if (event?.$case !== "textDelta") {
      return;
    }
    if (sent === pieces.length) {
      scripted.send({ summary: "counted" });
      scripted.end();
    } else if (sent % 2 === 1) {
      proxy.cut();
    } else {
      proxy.cutAfter(200 + 40 * sent); // Within the next bytes.
      proxy.cut();
    }
    scripted.send(...pieces.slice(sent, ++sent));
  });
  assert.ifError(error);
  assert.equal(textOf(items), pieces.join(""));
  assert.deepEqual(
    items.map(({ index }) => index),
    items.map((_, i) => i + 1),
  );
  const last = items.at(-1)?.event;
  assert.ok(last?.$case === "finished" && items[0]?.event?.$case === "started");
  assert.equal(last.value.messages[0]?.content, pieces.join(""));
  assert.equal(items[0].event.value.replayed, false);
  assert.equal(scripted.runs, 1);
  assert.ok(proxy.opened > 20, `${proxy.opened} connections`);

  const direct = connect(t, server.address);
  const again = await read(direct.resumeTurn({ conversationId: "c" }));
  assert.ifError(again.error);
  assert.equal(textOf(again.items), pieces.join(""));
});

test("chat resumes after a server is killed and restarted", options, async (t) => {
  const data = await tempFolder(t);
  const { scripted, agent, server, proxy, client } = await behindProxy(t, { data });
  scripted.send("Once ", "upon ", "a ", "time");
  const restart = async () => {
    server.kill("SIGKILL");
    await server.ended;
    proxy.aim((await startParleyd(t, { agent, data })).address);
  };
  let restarted: Promise<void> | undefined;
  const { items, error } = await read(client.chat({ conversationId: "c", content: "go" }), (_, count) => {
    if (count === 5) {
      restarted = restart();
    }
  });
  await restarted;
  assert.ifError(error);
  assert.equal(textOf(items), "Once upon a time");
  assert.equal(items.length, 6);
  const last = items.at(-1);
  assert.ok(last?.event?.$case === "finished" && last.index > 5);
  assert.equal(last.event.value.turn?.state, "TURN_STATE_INTERRUPTED");
  const { messages } = await client.loadConversation({ conversationId: "c" });
  assert.deepEqual(last.event.value.messages, messages.slice(1));
  assert.ok("Once upon a time".startsWith(messages[1]?.content ?? ""));
  assert.equal(scripted.runs, 1);
});

test("a watch resumes over reset connections and a restart", options, async (t) => {
  const data = await tempFolder(t);
  const { agent, server, proxy, client } = await behindProxy(t, { data });
  let direct = connect(t, server.address);
  const append = (content: string) =>
    direct.appendMessages({ conversationId: "c", messages: [{ role: "ROLE_USER", content }] });
  const seen: string[] = [];
  const steps: Record<string, () => Promise<unknown>> = {
    async first() {
      proxy.cut();
      await append("second");
    },
    async second() {
      server.kill("SIGKILL");
      await server.ended;
      const { address } = await startParleyd(t, { agent, data });
      direct = connect(t, address);
      await append("unseen");
      proxy.aim(address);
    },
    // The change "unseen" is missing. A program reads the state again after the gap.
    gap: () => append("third"),
  };
  for await (const { kind, payload } of client.watchConversations({ conversationIds: ["c"] })) {
    if (kind === "CHANGE_KIND_HEARTBEAT") {
      if (seen.length === 0) {
        await append("first");
      }
      continue;
    }
    const what =
      kind === "CHANGE_KIND_GAP" ? "gap" : payload?.$case === "message" ? payload.value.content : "";
    if (what) {
      seen.push(what);
      await steps[what]?.();
    }
    if (what === "third") {
      break;
    }
  }
  assert.deepEqual(seen, ["first", "second", "gap", "third"]);
});

test("a call is repeated while the server restarts", options, async (t) => {
  const { proxy, client } = await behindProxy(t);
  const request = { conversationId: "c", messages: [{ role: "ROLE_USER" as const, content: "hello" }] };
  await client.appendMessages(request);
  proxy.cut();
  proxy.cutAfter(60); // The reset cuts the reply or the HTTP/2 settings.
  const { conversation } = await client.appendMessages(request);
  assert.equal(conversation?.lastSequence, 2);
});

test("CancelTurn aborts the signal of the agent", options, async (t) => {
  const cancelled = new EventTarget();
  class Slow extends Agent {
    override async *respond(_: unknown, { signal }: { signal: AbortSignal }): AsyncGenerator<Piece> {
      yield "tick";
      await once(signal, "abort");
      cancelled.dispatchEvent(new Event("done"));
    }
  }
  const { address } = await serveAgent(t, new Slow());
  const client = connect(t, (await startParleyd(t, { agent: address })).address);
  const done = once(cancelled, "done");
  const { turn } = await chat(client, "go", ({ turnId, event }) => {
    if (event?.$case === "textDelta") {
      void client.cancelTurn({ conversationId: "c", turnId });
    }
  });
  assert.equal(turn?.state, "TURN_STATE_CANCELLED");
  await done;
});
