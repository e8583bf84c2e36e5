import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";

import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import { Annotation, Command, interrupt, MessagesAnnotation, Send, StateGraph } from "@langchain/langgraph";
import {
  type BaseCheckpointSaver,
  emptyCheckpoint,
  MemorySaver,
  uuid6,
} from "@langchain/langgraph-checkpoint";
import { Client } from "@parleyhq/client";
import { ParleySaver } from "@parleyhq/client/langgraph";

import { oddIds, Parleyd } from "./server.js";

const options = { timeout: 600_000 };
const long = { ...options, skip: !process.env["PARLEY_LONG"] && "PARLEY_LONG is not set" };

/** A graph that answers each message. */
function echo(checkpointer: BaseCheckpointSaver) {
  return new StateGraph(MessagesAnnotation)
    .addNode("answer", ({ messages }) => {
      return { messages: [new AIMessage(`re: ${messages.at(-1)!.text}`)] };
    })
    .addEdge("__start__", "answer")
    .addEdge("answer", "__end__")
    .compile({ checkpointer });
}

function thread(thread_id: string) {
  return { configurable: { thread_id } };
}

async function saver(t: TestContext) {
  const server = await Parleyd.start(t);
  return { server, saver: new ParleySaver({ server: server.client }) };
}

test("300 turns of a graph, with crashes of the server, lose nothing", long, async (t) => {
  const { server, saver: ours } = await saver(t);
  const graph = echo(ours);
  for (let turn = 0; turn < 300; turn++) {
    const crash = turn % 60 === 30 ? server.crash() : undefined;
    await graph.invoke({ messages: [new HumanMessage(`${turn} ${"x".repeat(2000)}`)] }, thread("app/1"));
    await crash;
  }
  // Another process reads it.
  const reader = echo(new ParleySaver({ server: server.address }));
  const { values } = await reader.getState(thread("app/1"));
  const messages: BaseMessage[] = values["messages"];
  assert.equal(messages.length, 600);
  assert.ok(messages.every((message, i) => (i % 2 ? AIMessage : HumanMessage).isInstance(message)));
  assert.deepEqual(
    messages.map(({ text }) => text.split(" x")[0]),
    Array.from({ length: 600 }, (_, i) => (i % 2 ? `re: ${(i - 1) / 2}` : `${i / 2}`)),
  );
  let checkpoints = 0;
  for await (const { values } of reader.getStateHistory(thread("app/1"), { limit: 60 })) {
    assert.equal(values["messages"]?.length ?? 0, 600 - 2 * Math.floor(checkpoints / 3) - (checkpoints % 3));
    checkpoints++;
  }
  assert.equal(checkpoints, 60);
  const keys = server.client.records("app/1").list({ prefix: "langgraph/checkpoints//", keysOnly: true });
  let states = 0;
  for await (const { key } of keys) {
    states += Number(key.endsWith("/state"));
  }
  assert.equal(states, 900);
  const { conversation } = await server.client.getConversation({ conversationId: "app/1" });
  // Without shared pieces, the lists alone would have 600 versions of 1.3 MB on average.
  assert.ok(conversation!.recordBytes < 32 << 20, String(conversation!.recordBytes));
});

test("a client killed in a turn leaves its input, and another one ends the turn", options, async (t) => {
  const { server, saver: ours } = await saver(t);
  const program = fileURLToPath(new URL("dying.js", import.meta.url));
  const child = spawn(process.execPath, [program, server.address], { stdio: "inherit" });
  const [, signal] = await once(child, "exit");
  assert.equal(signal, "SIGKILL");
  const graph = echo(ours);
  const texts = ({ messages }: { messages: BaseMessage[] }) => messages.map(({ text }) => text);
  const before = ["0", "re: 0", "1", "re: 1", "2", "re: 2", "3"];
  const { next, values } = await graph.getState(thread("dying"));
  assert.deepEqual([next, texts(values)], [["answer"], before]);
  assert.deepEqual(texts(await graph.invoke(null, thread("dying"))), [...before, "re: 3"]);
});

test("branches of a thread keep their values", options, async (t) => {
  const { saver: ours } = await saver(t);
  const graph = echo(ours);
  await graph.invoke({ messages: [new HumanMessage("a")] }, thread("t"));
  const { config } = await graph.getState(thread("t"));
  const ends = [];
  for (const text of ["b", "c"]) {
    await graph.invoke({ messages: [new HumanMessage(text)] }, config);
    ends.push((await graph.getState(thread("t"))).config);
  }
  for (const [i, text] of ["b", "c"].entries()) {
    const { values } = await graph.getState(ends[i]!);
    const texts = values["messages"].map((message: BaseMessage) => message.text);
    assert.deepEqual(texts, ["a", "re: a", text, `re: ${text}`]);
  }
});

test("interrupts, parallel tasks and errors resume as with MemorySaver", options, async (t) => {
  const { saver: ours } = await saver(t);
  const state = Annotation.Root({
    items: Annotation<string[]>({ reducer: (a, b) => a.concat(b), default: () => [] }),
  });
  const results = [];
  for (const checkpointer of [ours, new MemorySaver()]) {
    let failures = 1;
    const graph = new StateGraph(state)
      .addNode("plan", () => ({ items: ["plan"] }))
      .addNode("work", ({ n }: { n: number }) => {
        if (n === 1 && failures-- > 0) {
          throw new Error("broken");
        }
        return { items: [`work ${n}`] };
      })
      .addNode("ask", () => ({ items: [`asked ${interrupt("sure?")}`] }))
      .addEdge("__start__", "plan")
      .addConditionalEdges("plan", () => [2, 1, 0].map((n) => new Send("work", { n })), ["work"])
      .addEdge("work", "ask")
      .addEdge("ask", "__end__")
      .compile({ checkpointer });
    await assert.rejects(graph.invoke({ items: ["in"] }, thread("t")), /broken/);
    const waiting = await graph.invoke(null, thread("t"));
    const state1 = await graph.getState(thread("t"));
    const { items } = await graph.invoke(new Command({ resume: "yes" }), thread("t"));
    results.push([
      waiting.items,
      state1.next,
      state1.tasks.map((task) => task.interrupts.map(({ value }) => value)),
      items,
    ]);
  }
  assert.deepEqual(results[0], results[1]);
  assert.deepEqual(results[0]!.at(-1), ["in", "plan", "work 2", "work 1", "work 0", "asked yes"]);
});

test("each odd id is a thread of its own", options, async (t) => {
  const { saver: ours } = await saver(t);
  const graph = echo(ours);
  for (const [i, id] of oddIds.entries()) {
    await graph.invoke({ messages: [new HumanMessage(`of ${i}`)] }, thread(id));
  }
  for (const [i, id] of oddIds.entries()) {
    const { values, config } = await graph.getState(thread(id));
    assert.equal(values["messages"][0].text, `of ${i}`);
    assert.equal(config.configurable?.["thread_id"], id);
  }
  let checkpoints = 0;
  for await (const _ of ours.list({})) {
    checkpoints++;
  }
  assert.equal(checkpoints, 3 * oddIds.length);
  await assert.rejects(graph.invoke({ messages: [] }, thread("")), /"thread_id"/);
});

test("two processes on one thread lose nothing", options, async (t) => {
  const { server, saver: first } = await saver(t);
  const second = new ParleySaver({ server: server.client });
  const list = Array.from({ length: 20 }, (_, i) => `item ${i}`);
  const put = async (by: ParleySaver, ns: string, i: number) => {
    const checkpoint = { ...emptyCheckpoint(), id: uuid6(i) };
    checkpoint.channel_values = { list: [...list, `${ns} ${i}`] };
    checkpoint.channel_versions = { list: i + 1 };
    const metadata = { source: "loop" as const, step: i, parents: {} };
    const config = { configurable: { thread_id: "t", checkpoint_ns: ns } };
    await by.put(config, checkpoint, metadata, checkpoint.channel_versions);
  };
  await Promise.all(Array.from({ length: 15 }, (_, i) => [put(first, "a", i), put(second, "b", i)]).flat());
  for (const ns of ["a", "b"]) {
    const found = [];
    for await (const { checkpoint } of first.list({ configurable: { thread_id: "t", checkpoint_ns: ns } })) {
      found.push((checkpoint.channel_values["list"] as string[]).at(-1));
    }
    assert.deepEqual(found.sort(), Array.from({ length: 15 }, (_, i) => `${ns} ${i}`).sort());
  }
});

test("writes of a task that runs again are kept, and special ones replaced", options, async (t) => {
  const { saver: ours } = await saver(t);
  const own = new MemorySaver();
  const checkpoint = { ...emptyCheckpoint(), id: uuid6(1) };
  const results = [];
  for (const each of [ours, own]) {
    const metadata = { source: "loop" as const, step: 0, parents: {} };
    const config = await each.put(
      { configurable: { thread_id: "t", checkpoint_ns: "" } },
      checkpoint,
      metadata,
      {},
    );
    await each.putWrites(
      config,
      [
        ["a", 1],
        ["b", 2],
      ],
      "task1",
      "p2",
    );
    await each.putWrites(
      config,
      [
        ["a", 3],
        ["b", 4],
        ["c", { large: "x".repeat(2 << 20) }],
      ],
      "task1",
      "p2",
    );
    await each.putWrites(config, [["a", 5]], "task1", "p2");
    await each.putWrites(config, [["__error__", "first"]], "task2", "p1");
    await each.putWrites(config, [["__error__", "second"]], "task2", "p1");
    await each.putWrites(config, [["d", null]], "task0");
    results.push((await each.getTuple(config))?.pendingWrites);
  }
  assert.equal(results[0]?.length, 5);
  assert.deepEqual(
    results[0]?.map(([, channel]) => channel),
    ["d", "__error__", "a", "b", "c"],
  );
  assert.deepEqual(results[0], results[1]);

  // MemorySaver cannot read bytes again.
  const config = { configurable: { thread_id: "t", checkpoint_ns: "", checkpoint_id: checkpoint.id } };
  await ours.putWrites(config, [["e", new Uint8Array([0, 255])]], "task3", "p3");
  assert.deepEqual((await ours.getTuple(config))?.pendingWrites?.at(-1), [
    "task3",
    "e",
    new Uint8Array([0, 255]),
  ]);
});

test("large values are stored completely", options, async (t) => {
  const { saver: ours } = await saver(t);
  const graph = echo(ours);
  const text = "é".repeat(5 << 19);
  await graph.invoke({ messages: [new HumanMessage(text)] }, thread("t"));
  const { values } = await graph.getState(thread("t"));
  assert.equal(values["messages"][0].text, text);
  const many = Array.from({ length: 130 }, (_, i) => [`c${i}`, `${i}${"x".repeat(40_000)}`] as const);
  const checkpoint = { ...emptyCheckpoint(), id: uuid6(1), channel_values: Object.fromEntries(many) };
  checkpoint.channel_versions = Object.fromEntries(many.map(([channel]) => [channel, 1]));
  const metadata = { source: "loop" as const, step: 0, parents: {} };
  const config = await ours.put(thread("u"), checkpoint, metadata, checkpoint.channel_versions);
  assert.deepEqual((await ours.getTuple(config))?.checkpoint, checkpoint);
});

test("a deleted thread can be used again, also by a process that has used it before", options, async (t) => {
  const { server, saver: first } = await saver(t);
  const [one, two] = [echo(first), echo(new ParleySaver({ server: server.client }))];
  const say = async (graph: typeof one, text: string) => {
    const messages = Array.from(
      { length: 20 },
      (_, i) => new HumanMessage({ id: `m${i}`, content: `${text} ${i}` }),
    );
    await graph.invoke({ messages }, thread("t"));
  };
  await say(one, "hello");
  await new ParleySaver({ server: server.client }).deleteThread("t");
  assert.equal(await first.getTuple(thread("t")), undefined);
  await assert.rejects(server.client.getConversation({ conversationId: "t" }), {
    reason: "CONVERSATION_NOT_FOUND",
  });
  await say(one, "hello"); // The same pieces, which the first saver has already stored once.
  assert.equal((await two.getState(thread("t"))).values["messages"].length, 21);

  // Messages of the conversation stay.
  await server.client.appendMessages({
    conversationId: "t",
    messages: [{ role: "ROLE_USER", content: "hi" }],
  });
  await first.deleteThread("t");
  const { conversation } = await server.client.getConversation({ conversationId: "t" });
  assert.deepEqual([conversation?.messageCount, conversation?.recordCount], [1, 0]);
  await say(two, "hello");
  assert.equal((await one.getState(thread("t"))).values["messages"].length, 21);
  await first.deleteThread("missing");
});

test("a checkpoint that is put during the deletion of its thread is complete", options, async (t) => {
  const { server, saver: ours } = await saver(t);
  const { client } = server;
  const list = (count: number) => Array.from({ length: count }, (_, i) => `item ${i}`);
  const put = (id: number, items: string[], version: number) =>
    ours.put(
      thread("t"),
      {
        ...emptyCheckpoint(),
        id: uuid6(id),
        channel_values: { list: items },
        channel_versions: { list: version },
      },
      { source: "loop", step: id, parents: {} },
      { list: version },
    );
  await put(0, list(100), 1);
  await client.appendMessages({ conversationId: "t", messages: [{ role: "ROLE_USER", content: "hi" }] });
  const write = client.writeRecords;
  client.writeRecords = async (...request) => {
    client.writeRecords = write;
    await put(1, list(101), 2); // Between the list of what to delete and the deletion.
    return await write.apply(client, request);
  };
  await ours.deleteThread("t");
  assert.equal(await ours.getTuple(thread("t")), undefined);
  await put(2, list(102), 3);
  assert.deepEqual((await ours.getTuple(thread("t")))?.checkpoint.channel_values["list"], list(102));
});

test("a checkpoint of another language is refused, and left out of all threads", options, async (t) => {
  const { server, saver: ours } = await saver(t);
  await ours.put(thread("ours"), emptyCheckpoint(), { source: "input", step: -1, parents: {} }, {});
  await server.client.loadConversation({ conversationId: "t" });
  const { key, mediaType } = { key: "langgraph/checkpoints//1/state", mediaType: "application/x-msgpack" };
  await server.client.records("t").put(key, Buffer.from([0x90]), { mediaType });
  await assert.rejects(ours.getTuple(thread("t")), /another language/);
  const threads: unknown[] = [];
  for await (const { config } of ours.list({})) {
    threads.push(config.configurable?.["thread_id"]);
  }
  assert.deepEqual(threads, ["ours"]);
});

test("a saver closes only a client of its own", options, async (t) => {
  const { server, saver: ours } = await saver(t);
  ours.close();
  await server.client.getStats();
  const own = new ParleySaver({ server: server.address });
  assert.equal(await own.getTuple(thread("t")), undefined);
  own.close();
  await assert.rejects(own.getTuple(thread("t")));
  assert.ok(server.client instanceof Client);
});

test("the snippet of the documentation works", options, async (t) => {
  const { server } = await saver(t);
  const code = await readFile(new URL("../snippets/langgraph.mjs", import.meta.url), "utf8");
  const program = fileURLToPath(new URL("langgraph-snippet.mjs", import.meta.url));
  await writeFile(program, code.replaceAll("127.0.0.1:50051", server.address));
  for (const want of ["2 messages, anna likes tea", "4 messages, anna likes tea"]) {
    const child = spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "inherit"] });
    const lines: string[] = [];
    for await (const line of createInterface(child.stdout)) {
      lines.push(line);
    }
    assert.deepEqual(lines, [want]);
  }
});
