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
} from "parley";

import { textOf } from "./model.js";
import { connect, folderOf, options, Puppet, serveAgent, startParleyd } from "./parleyd.js";
import { startShop } from "./process.js";
import { startProxy } from "./proxy.js";
import { read } from "./streams.js";

/** Says something, calls seen with each event, and returns how the turn ended. */
async function chat(
  client: Client,
  content: string,
  seen: (event: TurnEvent) => void = () => {},
): Promise<TurnFinished> {
  for await (const event of client.chat({ conversationId: "c", content })) {
    if (event.event?.$case === "finished") {
      return event.event.value;
    }
    seen(event);
  }
  throw new Error("the stream ended without finished");
}

function shown({ content, status, summary, structuredData }: Message): unknown {
  return { content, status, summary, structuredData };
}

test("three turns, kept with their structured data", options, async (t) => {
  const client = connect(t, (await startParleyd(t, { agent: (await startShop(t)).address })).address);
  const turns = [
    {
      say: "create three products",
      text: "Created Flour, Sugar and Salt.",
      summary: "created three products",
      list: [{ name: "Flour" }, { name: "Sugar" }, { name: "Salt" }],
    },
    {
      say: "Sugar costs 50 cents",
      text: "Sugar costs 50 cents.",
      summary: "set a price",
      list: [{ name: "Flour" }, { name: "Sugar", cents: 50 }, { name: "Salt" }],
    },
    {
      say: "the second one is sold out",
      text: "Sugar is sold out.",
      summary: "marked a product as sold out",
      list: [{ name: "Flour" }, { name: "Sugar", cents: 50, sold_out: true }, { name: "Salt" }],
    },
  ];
  const kept: unknown[] = [];
  for (const { say, text, summary, list } of turns) {
    const events: TurnEvent[] = [];
    const { turn, messages } = await chat(client, say, (event) => events.push(event));
    const structuredData = [{ type: "product_list", value: list }];
    const answer = { content: text, status: "MESSAGE_STATUS_COMPLETE", summary, structuredData };
    assert.equal(turn?.state, "TURN_STATE_COMPLETED", turn?.error?.message);
    assert.equal(textOf(events), text);
    const values = events.flatMap(({ event }) => (event?.$case === "structuredData" ? [event.value] : []));
    assert.deepEqual(values, structuredData);
    assert.deepEqual(messages.map(shown), [answer]);
    kept.push({ content: say, status: "MESSAGE_STATUS_COMPLETE", summary: "", structuredData: [] }, answer);
  }
  const { messages } = await client.getContext({ conversationId: "c" });
  assert.deepEqual(messages.map(shown), kept);
});

test("what an agent had said is kept, whether it fails or is killed", options, async (t) => {
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

test("an agent may send all kinds of pieces", options, async (t) => {
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

test("what an agent says of its failure reaches the user", options, async (t) => {
  class Failing extends Agent {
    override async *respond({ messages }: { messages: Message[] }): AsyncGenerator<Piece> {
      yield "So ";
      throw messages.at(-1)?.content === "say so"
        ? new AgentError("RESOURCE_EXHAUSTED", "out of tea")
        : new RangeError("a secret");
    }
  }
  const { address } = await serveAgent(t, new Failing());
  const client = connect(t, (await startParleyd(t, { agent: address })).address);
  const said = (await chat(client, "say so")).turn;
  assert.match(said?.error?.message ?? "", /out of tea/);
  assert.equal(said?.error?.retryable, true);
  const unsaid = (await chat(client, "do not")).turn?.error?.message ?? "";
  assert.match(unsaid, /RangeError.*log/);
  assert.doesNotMatch(unsaid, /secret/);
});

/** A puppet behind a server behind a proxy, and a client of that. */
async function behindProxy(t: Parameters<typeof folderOf>[0], { data }: { data?: string } = {}) {
  const puppet = new Puppet();
  const agent = (await serveAgent(t, puppet)).address;
  const server = await startParleyd(t, { agent, data });
  const proxy = await startProxy(t, server.address);
  return { puppet, agent, server, proxy, client: connect(t, proxy.address) };
}

test("the connection cut in mid-answer goes unnoticed", options, async (t) => {
  const { puppet, proxy, server, client } = await behindProxy(t);
  const words = Array.from({ length: 40 }, (_, i) => `größer ${i}, `);
  puppet.say(words[0]!);
  let said = 1;
  const { items, error } = await read(client.chat({ conversationId: "c", content: "go" }), ({ event }) => {
    if (event?.$case !== "textDelta") {
      return;
    }
    if (said === words.length) {
      puppet.say({ summary: "counted" });
      puppet.end();
    } else if (said % 2 === 1) {
      proxy.cut();
    } else {
      proxy.cutAfter(200 + 40 * said); // Somewhere in what comes next.
      proxy.cut();
    }
    puppet.say(...words.slice(said, ++said));
  });
  assert.ifError(error);
  assert.equal(textOf(items), words.join(""));
  assert.deepEqual(
    items.map(({ index }) => index),
    items.map((_, i) => i + 1),
  );
  const last = items.at(-1)?.event;
  assert.ok(last?.$case === "finished" && items[0]?.event?.$case === "started");
  assert.equal(last.value.messages[0]?.content, words.join(""));
  assert.equal(items[0].event.value.replayed, false);
  assert.equal(puppet.runs, 1);
  assert.ok(proxy.opened > 20, `${proxy.opened} connections`);

  const direct = connect(t, server.address);
  const again = await read(direct.resumeTurn({ conversationId: "c" }));
  assert.ifError(again.error);
  assert.equal(textOf(again.items), words.join(""));
});

test("a server that is killed and started again goes unnoticed", options, async (t) => {
  const data = await folderOf(t);
  const { puppet, agent, server, proxy, client } = await behindProxy(t, { data });
  puppet.say("Once ", "upon ", "a ", "time");
  const killed = async () => {
    server.kill("SIGKILL");
    await server.ended;
    proxy.aim((await startParleyd(t, { agent, data })).address);
  };
  let restarted: Promise<void> | undefined;
  const { items, error } = await read(client.chat({ conversationId: "c", content: "go" }), (_, count) => {
    if (count === 5) {
      restarted = killed();
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
  assert.equal(puppet.runs, 1);
});

test("a watch goes on over broken connections and a restart", options, async (t) => {
  const data = await folderOf(t);
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
    // What was committed meanwhile is behind the gap, and read anew.
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
  proxy.cutAfter(60); // The reply, or the server's settings, are cut off.
  const { conversation } = await client.appendMessages(request);
  assert.equal(conversation?.lastSequence, 2);
});

test("an answer that nobody wants any more is not worked on", options, async (t) => {
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
