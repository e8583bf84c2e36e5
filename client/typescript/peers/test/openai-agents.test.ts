import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";

import {
  Agent,
  type AgentInputItem,
  MemorySession,
  run,
  setTracingDisabled,
  tool,
  UserError,
} from "@openai/agents-core";
import { assistantMessage, functionCall, ScriptedModel } from "@openai/agents-core/testing";
import { ParleySession } from "@parleyhq/client/openai-agents";
import { z } from "zod";

import { oddIds, Parleyd } from "./server.js";

setTracingDisabled(true);

const options = { timeout: 600_000 };
const long = { ...options, skip: !process.env["PARLEY_LONG"] && "PARLEY_LONG is not set" };

function user(content: string): AgentInputItem {
  return { type: "message", role: "user", content };
}

function texts(items: AgentInputItem[]): unknown[] {
  return items.map((item) => ("content" in item ? item.content : item.type));
}

async function session(t: TestContext, sessionId = "s") {
  const server = await Parleyd.start(t);
  return { server, session: new ParleySession({ server: server.client, sessionId }) };
}

test("it does what the SDK's own session does", options, async (t) => {
  const { session: ours } = await session(t);
  const own = new MemorySession({ sessionId: "s" });
  const call: AgentInputItem = {
    type: "function_call",
    callId: "c",
    name: "f",
    arguments: "{}",
    status: "completed",
  };
  const image: AgentInputItem = {
    type: "function_call_result",
    callId: "c",
    name: "draw",
    status: "completed",
    output: [
      {
        type: "input_image",
        image: "data:image/png;base64,AAEC",
        providerData: { $bytes: "no", $$bytes: 1 },
      },
    ],
  };
  const bytes = {
    ...user("file"),
    providerData: { data: new Uint8Array([0, 255]), float: 1.5, nested: [null, true, { "": "é" }] },
  } as AgentInputItem;
  const items = [user("a"), assistantMessage("b"), call, image, bytes];
  const compaction = [{ type: "compaction", encrypted_content: "e" }, user("z")] as AgentInputItem[];
  const steps: [name: string, step: (session: MemorySession | ParleySession) => Promise<unknown>][] = [
    ["id", (s) => s.getSessionId()],
    ["pop of nothing", (s) => s.popItem()],
    ["read of nothing", (s) => s.getItems()],
    ["clear of nothing", (s) => s.clearSession()],
    ["add nothing", (s) => s.addItems([])],
    ["add", (s) => s.addItems(items)],
    ["add more", (s) => s.addItems([user("c"), user("d")])],
    ...[undefined, -1, 0, 1, 3, 7, 100].map(
      (limit) =>
        [`limit ${limit}`, (s: MemorySession | ParleySession) => s.getItems(limit)] as [string, () => never],
    ),
    ["pop", (s) => s.popItem()],
    ["append", (s) => apply(s, "o1", { type: "append_items", items: [user("e")] })],
    ["append again", (s) => apply(s, "o1", { type: "append_items", items: [user("e")] })],
    ["other append", (s) => apply(s, "o1", { type: "append_items", items: [user("f")] })],
    ["replace", (s) => replace(s, "o2", [user("c"), user("e")], [user("g"), user("h"), user("i")])],
    ["replace again", (s) => replace(s, "o2", [user("c"), user("e")], [user("g"), user("h"), user("i")])],
    ["other suffix", (s) => replace(s, "o3", [user("c")], [user("j")])],
    ["long suffix", (s) => replace(s, "o4", [...items, ...items], [user("j")])],
    ["empty suffix", (s) => replace(s, "o5", [], [user("j")])],
    ["empty replacement", (s) => replace(s, "o6", [user("j")], [])],
    ["nothing", (s) => replace(s, "o7", [], [])],
    ["no id", (s) => apply(s, " ", { type: "append_items", items: [] })],
    ["no type", (s) => apply(s, "o8", { type: "other" })],
    ["no items", (s) => apply(s, "o9", { type: "append_items" })],
    ["no item", (s) => apply(s, "o10", { type: "append_items", items: [{ type: "message", role: 1 }] })],
    [
      "function",
      (s) => apply(s, "o11", { type: "append_items", items: [{ ...user("f"), providerData: { f() {} } }] }),
    ],
    ["odd operation", (s) => apply(s, "a/\n ", { type: "append_items", items: [user("k")] })],
    ["read", (s) => s.getItems()],
    ["clear", (s) => s.clearSession()],
    ["read after clear", (s) => s.getItems()],
    ["operation after clear", (s) => apply(s, "o1", { type: "append_items", items: compaction })],
    ["last read", (s) => s.getItems()],
  ];
  for (const [name, step] of steps) {
    await t.test(name, async () => {
      const [got, want] = await Promise.all([result(step(ours)), result(step(own))]);
      assert.deepEqual(got, want);
    });
  }
});

function apply(session: MemorySession | ParleySession, operationId: string, transaction: unknown) {
  return session.applyHistoryTransaction({ operationId, transaction } as never);
}

function replace(
  session: MemorySession | ParleySession,
  operationId: string,
  expectedSuffix: AgentInputItem[],
  replacement: AgentInputItem[],
) {
  return apply(session, operationId, { type: "replace_suffix", expectedSuffix, replacement });
}

/** Returns the value of a promise, or the kind of its error. */
async function result(promise: Promise<unknown>): Promise<unknown> {
  try {
    return await promise;
  } catch (error) {
    return error instanceof UserError ? "UserError" : error;
  }
}

const lookUp = tool({
  name: "price",
  description: "the price of a product",
  parameters: z.object({ product: z.string() }),
  execute: ({ product }) => `${product} costs 50 cents`,
});

/** The SDK needs half a second to send 1200 items to a model, whatever the session. */
const sessionInputCallback = (history: AgentInputItem[], added: AgentInputItem[]) => [
  ...history.slice(-4),
  ...added,
];

test("300 turns of an agent, with crashes of the server, lose nothing", long, async (t) => {
  const { server, session: ours } = await session(t, "app/1");
  const own = new MemorySession();
  for (const session of [ours, own]) {
    const model = new ScriptedModel();
    const agent = new Agent({ name: "shop", model, tools: [lookUp] });
    for (let turn = 0; turn < 300; turn++) {
      const callId = `call-${turn}`;
      model.enqueue(
        [functionCall("price", { product: `p${turn}` }, { callId })],
        [assistantMessage(`answer ${turn}`)],
      );
      const crash = session === ours && turn % 60 === 30 ? server.crash() : undefined;
      const { finalOutput } = await run(agent, `question ${turn}`, { session, sessionInputCallback });
      assert.equal(finalOutput, `answer ${turn}`);
      await crash;
    }
  }
  const items = await ours.getItems();
  assert.equal(items.length, 1200);
  assert.deepEqual(items, JSON.parse(JSON.stringify(await own.getItems())));

  // Parley's own readers have the texts.
  const { messages } = await server.client.listMessages({ conversationId: "app/1", pageSize: 4 });
  assert.deepEqual(messages.map(({ role, content }) => [role, content]).reverse(), [
    ["ROLE_USER", "question 299"],
    ["ROLE_ASSISTANT", 'price({"product":"p299"})'],
    ["ROLE_ASSISTANT", "p299 costs 50 cents"],
    ["ROLE_ASSISTANT", "answer 299"],
  ]);
  const { summary } = await server.client.getRoutingSummary({ conversationId: "app/1" });
  assert.match(summary!.text, /answer 299$/);
});

test("1500 items keep their order, one by one and in one batch", options, async (t) => {
  const { server, session: ours } = await session(t);
  const items = Array.from({ length: 1500 }, (_, i) => user(`item ${i}`));
  for (let start = 0; start < 1500; start += 7) {
    await ours.addItems(items.slice(start, start + 7));
  }
  assert.deepEqual(await ours.getItems(), items);
  assert.deepEqual(await ours.getItems(1100), items.slice(-1100));

  const batch = new ParleySession({ server: server.client, sessionId: "batch" });
  await batch.addItems(items);
  const { conversation } = await server.client.getConversation({ conversationId: "batch" });
  assert.deepEqual([conversation?.version, conversation?.messageCount], [1, 100]);
  assert.deepEqual(await batch.getItems(), items);
  assert.deepEqual(await batch.getItems(20), items.slice(-20));
  assert.deepEqual(await batch.popItem(), items[1499]);
  await replace(batch, "o", items.slice(1480, 1499), [user("end")]);
  assert.deepEqual(await batch.getItems(), [...items.slice(0, 1480), user("end")]);
});

test("each odd id is a session of its own", options, async (t) => {
  const server = await Parleyd.start(t);
  const sessions = oddIds.map((sessionId) => new ParleySession({ server: server.client, sessionId }));
  for (const [i, each] of sessions.entries()) {
    await each.addItems([user(`of ${i}`)]);
  }
  for (const [i, each] of sessions.entries()) {
    assert.equal(await each.getSessionId(), oddIds[i]);
    assert.deepEqual(await each.getItems(), [user(`of ${i}`)]);
  }
  assert.throws(() => new ParleySession({ server: server.client, sessionId: "" }), RangeError);
  const [first, second] = [1, 2].map(() => new ParleySession({ server: server.client }));
  assert.notEqual(await first!.getSessionId(), await second!.getSessionId());
});

test("1001 sessions are all kept", options, async (t) => {
  const server = await Parleyd.start(t);
  const sessions = Array.from(
    { length: 1001 },
    (_, i) => new ParleySession({ server: server.client, sessionId: `s${i}` }),
  );
  await Promise.all(sessions.map((each, i) => each.addItems([user(`of ${i}`)])));
  for (const [i, each] of sessions.entries()) {
    assert.deepEqual(await each.getItems(), [user(`of ${i}`)]);
  }
});

test("two writers on one session lose nothing, and the late one gets a UserError", options, async (t) => {
  const { server, session: first } = await session(t);
  const second = new ParleySession({ server: server.client, sessionId: "s" });
  await Promise.all(
    [first, second].flatMap((each, i) => [1, 2, 3].map((n) => each.addItems([user(`${i} ${n}`)]))),
  );
  assert.equal((await first.getItems()).length, 6);

  const [last] = await second.getItems(1);
  const read = await first.getItems();
  await second.addItems([user("new")]);
  await assert.rejects(replace(first, "o", [last!], [user("lost")]), UserError);
  await assert.rejects(
    first.replaceHistoryWithCompaction([{ type: "compaction", encrypted_content: "e" }]),
    UserError,
  );
  assert.deepEqual(await first.getItems(), [...read, user("new")]);
  await first.replaceHistoryWithCompaction([{ type: "compaction", encrypted_content: "e" }, user("new")]);
  assert.deepEqual(texts(await second.getItems()), ["compaction", "new"]);
});

test("an operation of two processes is applied once", options, async (t) => {
  const { server, session: first } = await session(t);
  const second = new ParleySession({ server: server.client, sessionId: "s" });
  await first.addItems([user("a"), user("b")]);
  for (let i = 0; i < 20; i++) {
    const expected = await first.getItems(1);
    await Promise.all([first, second].map((each) => replace(each, `r${i}`, expected, [user(`b${i}`)])));
    await Promise.all(
      [first, second].map((each) => apply(each, `a${i}`, { type: "append_items", items: [user("c")] })),
    );
    assert.equal((await first.getItems()).length, 3 + i);
  }
  // More than the 32 request ids that the server remembers lie between.
  await apply(second, "a0", { type: "append_items", items: [user("c")] });
  assert.equal((await first.getItems()).length, 22);
});

test("concurrent pops return each item once", options, async (t) => {
  const { session: ours } = await session(t);
  const items = Array.from({ length: 20 }, (_, i) => user(`item ${i}`));
  await ours.addItems(items);
  const popped = await Promise.all(items.map(() => ours.popItem()));
  assert.deepEqual(texts(popped as AgentInputItem[]).sort(), texts(items).sort());
  assert.equal(await ours.popItem(), undefined);
});

test("large items are stored completely, and their records end with them", options, async (t) => {
  const { server, session: ours } = await session(t);
  const recordCount = async () =>
    (await server.client.getConversation({ conversationId: "s" })).conversation?.recordCount;
  const large = [300 << 10, 5 << 20, 200].map((size) => user("é".repeat(size / 2)));
  for (const item of large) {
    await ours.addItems([item]);
  }
  assert.deepEqual(await ours.getItems(), large);
  assert.deepEqual(await ours.getItems(2), large.slice(1));

  const many = Array.from({ length: 250 }, (_, i) => user(`${i} ${"x".repeat(100 << 10)}`));
  await ours.addItems(many);
  assert.deepEqual(await ours.getItems(), [...large, ...many]);
  await apply(ours, "o", { type: "append_items", items: many.slice(0, 60) });
  assert.deepEqual(await ours.getItems(60), many.slice(0, 60));
  await replace(ours, "p", many.slice(0, 60), [large[1]!]);
  assert.deepEqual(await ours.popItem(), large[1]);
  assert.deepEqual(await ours.popItem(), many.at(-1));
  await ours.getItems();
  await ours.replaceHistoryWithCompaction([{ type: "compaction", encrypted_content: "e" }, large[1]!]);
  assert.deepEqual(texts(await ours.getItems()), ["compaction", (large[1] as { content: string }).content]);
  await ours.clearSession();
  assert.equal(await recordCount(), 0);
  await ours.addItems(large);
  assert.deepEqual(await ours.getItems(), large);
});

test("what cannot be stored is refused, and nothing is stored", options, async (t) => {
  const { session: ours } = await session(t);
  for (const value of [() => {}, Symbol("s"), 1n, Number.NaN, new Map(), new Date(0), [undefined]]) {
    const item = { ...user("b"), providerData: { value } } as AgentInputItem;
    await assert.rejects(ours.addItems([user("a"), item]), UserError);
  }
  assert.deepEqual(await ours.getItems(), []);
});

test("messages of other clients are items, too", options, async (t) => {
  const { server, session: ours } = await session(t);
  await server.client.appendMessages({
    conversationId: "s",
    messages: [
      { role: "ROLE_SYSTEM", content: "be short" },
      { role: "ROLE_USER", content: "price?" },
      { role: "ROLE_ASSISTANT", content: "wait", toolCalls: [{ id: "c", name: "price", arguments: "{}" }] },
      { role: "ROLE_TOOL", toolResult: { callId: "c", name: "price", content: "1" } },
      { role: "ROLE_ASSISTANT", content: "one" },
    ],
  });
  await ours.addItems([user("thanks")]);
  const items = await ours.getItems();
  assert.deepEqual(
    items.map(({ type }) => type),
    ["message", "message", "message", "function_call", "function_call_result", "message", "message"],
  );
  const model = new ScriptedModel([[assistantMessage("bye")]]);
  await run(new Agent({ name: "shop", model }), "end", { session: ours });
  assert.equal((model.lastCall!.request.input as AgentInputItem[]).length, 8);
  // Also a result whose call stays.
  for (const item of (await ours.getItems()).reverse()) {
    assert.deepEqual(await ours.popItem(), item);
  }
  assert.equal(await ours.popItem(), undefined);
});

test("100 tool outputs of 80 KiB fit in a session of 3 MiB of messages", options, async (t) => {
  const server = await Parleyd.start(t, undefined, "--max-conversation-bytes=3MiB");
  const ours = new ParleySession({ server: server.client, sessionId: "s" });
  const items = Array.from({ length: 100 }, (_, i) => user(`${i} ${"x".repeat(80 << 10)}`));
  for (const item of items) {
    await ours.addItems([item]);
  }
  assert.deepEqual(await ours.getItems(), items);
});

test("the newest items are read without the others, also if they are large", options, async (t) => {
  const { server, session: ours } = await session(t);
  const items = Array.from({ length: 300 }, (_, i) => user(`${i} ${"x".repeat(15 << 10)}`));
  for (let start = 0; start < items.length; start += 30) {
    await ours.addItems(items.slice(start, start + 30)); // A page has 3 MiB, not 120 of them.
  }
  const { client } = server;
  const list = client.listMessages;
  let read = 0;
  client.listMessages = async (...request) => {
    const reply = await list.apply(client, request);
    read += reply.messages.length;
    return reply;
  };
  assert.deepEqual(await ours.getItems(120), items.slice(-120));
  assert.ok(read < 250, `getItems(120) read ${read} messages`);
});

test("each acknowledged item survives kill -9 of server and client", options, async (t) => {
  const { server, session: ours } = await session(t);
  const writer = fileURLToPath(new URL("writer.js", import.meta.url));
  let acknowledged = -1;
  for (let round = 0; round < 4; round++) {
    const child = spawn(process.execPath, [writer, server.address, String(acknowledged + 1)], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const exit = once(child, "exit");
    let lines = 0;
    for await (const line of createInterface(child.stdout)) {
      acknowledged = Number(line);
      lines++;
      if (lines === 20 && round % 2 === 0) {
        await server.crash();
      } else if (lines === 60) {
        child.kill("SIGKILL");
      }
    }
    await exit;
    assert.ok(lines >= 60);
    const items = await ours.getItems();
    // The last operation may have been committed before its process ended.
    assert.ok(items.length === 2 * (acknowledged + 1) || items.length === 2 * (acknowledged + 2));
    assert.deepEqual(
      texts(items),
      items.map((_, i) => `${Math.floor(i / 2)} ${i % 2}`),
    );
  }
});

test("the snippet of the documentation works", options, async (t) => {
  const { server, session: ours } = await session(t, "anna@example.com");
  const { readFile, writeFile } = await import("node:fs/promises");
  const code = await readFile(new URL("../snippets/openai-agents.mjs", import.meta.url), "utf8");
  const model = `import { setDefaultModelProvider, setTracingDisabled } from "@openai/agents-core";
    import { assistantMessage, ScriptedModel } from "@openai/agents-core/testing";
    setTracingDisabled(true);
    setDefaultModelProvider({ getModel: () => new ScriptedModel([[assistantMessage("Eggs.")], [assistantMessage("Two.")]]) });\n`;
  const program = fileURLToPath(new URL("openai-agents-snippet.mjs", import.meta.url));
  await writeFile(
    program,
    model +
      code.replace("127.0.0.1:50051", server.address).replace('"@openai/agents"', '"@openai/agents-core"'),
  );
  const child = spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "inherit"] });
  const lines: string[] = [];
  for await (const line of createInterface(child.stdout)) {
    lines.push(line);
  }
  assert.equal(lines.length, 1);
  assert.equal((await ours.getItems()).length, 4);
});
