import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { type TestContext, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Chat } from "@ai-sdk/react";
import { type Answering, ParleyError, type RespondRequest } from "@parleyhq/client";
import {
  ParleyChatTransport,
  type ParleyChatTransportOptions,
  type TransportClient,
} from "@parleyhq/client/ai-sdk";
import { Client as WebClient } from "@parleyhq/client/web";
import {
  type ChatInit,
  createUIMessageStreamResponse,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithToolCalls,
  readUIMessageStream,
  safeValidateUIMessages,
  type UIMessage,
  type UIMessageChunk,
} from "ai";

import { type Script, Scripts } from "./scripts.js";
import { oddIds, Parleyd } from "./server.js";

const options = { timeout: 60_000 };

async function start(
  t: TestContext,
  agent = new Scripts(),
  fields: Partial<ParleyChatTransportOptions> = {},
): Promise<{ server: Parleyd; transport: ParleyChatTransport; agent: Scripts }> {
  const server = await Parleyd.start(t, agent);
  return { server, agent, transport: new ParleyChatTransport({ client: server.client, ...fields }) };
}

/** A chat with the messages that are stored, as a page makes it. */
async function open(
  transport: ParleyChatTransport,
  id = "c",
  init: Partial<ChatInit<UIMessage>> = {},
): Promise<Chat<UIMessage>> {
  return new Chat({ id, transport, messages: await transport.loadMessages(id), ...init });
}

/** Waits for an answer whose texts match, while it is streamed. */
async function until(chat: Chat<UIMessage>, pattern: RegExp): Promise<void> {
  await new Promise<void>((resolve) => {
    const check = () => {
      if (chat.status === "streaming" && pattern.test(texts(chat.messages).at(-1)!)) {
        unsubscribe();
        resolve();
      }
    };
    const unsubscribe = chat["~registerMessagesCallback"](check);
    check();
  });
}

async function hasStatus(chat: Chat<UIMessage>, status: string): Promise<void> {
  await new Promise<void>((resolve) => {
    const check = () => {
      if (chat.status === status) {
        unsubscribe();
        resolve();
      }
    };
    const unsubscribe = chat["~registerStatusCallback"](check);
    check();
  });
}

function texts(messages: UIMessage[]): string[] {
  return messages.map(({ parts }) => parts.map((part) => ("text" in part ? part.text : "")).join(""));
}

/** Returns messages without the properties that are undefined, and without the ids that only a stream has. */
function plain(messages: unknown): unknown {
  const unchanging = { providerMetadata: undefined, preliminary: undefined };
  return JSON.parse(
    JSON.stringify(messages, (_, value) => {
      return value?.type === "reasoning" ? { ...value, ...unchanging, id: undefined } : value;
    }),
  );
}

function user(id: string, ...parts: UIMessage["parts"]): UIMessage {
  return { id, role: "user", parts };
}

function text(content: string): UIMessage["parts"][number] {
  return { type: "text", text: content };
}

function send(transport: ParleyChatTransport, message: UIMessage, chatId = "c", abortSignal?: AbortSignal) {
  const request = { trigger: "submit-message", messageId: undefined, chatId, abortSignal } as const;
  return transport.sendMessages({ ...request, messages: [message] });
}

async function chunksOf(stream: ReadableStream<UIMessageChunk> | null): Promise<UIMessageChunk[]> {
  const chunks: UIMessageChunk[] = [];
  for await (const chunk of stream!) {
    chunks.push(chunk);
  }
  return chunks;
}

/** Reads a stream as the SDK does. Returns the message and its errors. */
async function read(stream: ReadableStream<UIMessageChunk> | null) {
  const errors: unknown[] = [];
  let message: UIMessage | undefined;
  for await (message of readUIMessageStream({ stream: stream!, onError: (error) => errors.push(error) }));
  return { message: message!, errors };
}

const everything: Script = function* () {
  yield { progress: { text: "thinking" } };
  yield { reasoning: "Two " };
  yield { reasoning: "eggs." };
  yield "Let me ";
  yield { structuredData: { type: "list", value: { items: ["flour", 1.5, null] } } };
  yield "look.";
  yield { toolCallDelta: { id: "1", name: "price", arguments: "" } };
  yield { toolCallDelta: { id: "1", name: "price", arguments: '{"product":' } };
  yield { toolCallDelta: { id: "1", name: "price", arguments: '"é"}' } };
  yield { toolCall: { id: "1", name: "price", arguments: '{"product":"é"}' } };
  yield { toolCall: { id: "2", name: "stock", arguments: "" } };
  yield { toolCall: { id: "3", name: "bad", arguments: "{" } };
  yield { toolResult: { callId: "1", name: "price", content: '{"cents":50}' } };
  yield { toolResult: { callId: "2", name: "stock", content: "sold out", isError: true } };
  yield { toolResult: { callId: "3", name: "bad", content: "not JSON", isError: true } };
  yield { reasoning: "Done." };
  yield "50 cents.";
  yield { record: { key: "state", value: Buffer.from("1") } };
  yield { summary: "looked" };
  yield { usage: { model: "m", outputTokens: 3 } };
  yield { nextAgent: "waiter" };
  yield "Anything else?";
  yield { finishReason: "max_tokens" };
};

test("each kind of event becomes its part, and the stored message is the same", options, async (t) => {
  const { transport } = await start(t, new Scripts({ everything }), {
    messageMetadata: (messages) => ({ agents: [...new Set(messages.map(({ agent }) => agent))] }),
  });
  const stream = await send(transport, user("u", text("everything")));
  const [first, second] = stream.tee();
  const { message, errors } = await read(first);
  assert.deepEqual(errors, []);
  const parts = [
    { type: "step-start" },
    { type: "reasoning", text: "Two eggs.", state: "done" },
    { type: "text", text: "Let me look.", state: "done" },
    { type: "data-list", data: { items: ["flour", 1.5, null] } },
    {
      type: "tool-price",
      toolCallId: "1",
      state: "output-available",
      input: { product: "é" },
      output: { cents: 50 },
    },
    { type: "tool-stock", toolCallId: "2", state: "output-error", input: {}, errorText: "sold out" },
    { type: "tool-bad", toolCallId: "3", state: "output-error", input: "{", errorText: "not JSON" },
    { type: "step-start" },
    { type: "reasoning", text: "Done.", state: "done" },
    { type: "text", text: "50 cents.", state: "done" },
    { type: "step-start" },
    { type: "text", text: "Anything else?", state: "done" },
  ];
  const metadata = { agents: ["own", "waiter"] };
  assert.deepEqual(plain(message), { id: message.id, metadata, role: "assistant", parts });

  const chunks = await chunksOf(second);
  const transient = chunks.filter((chunk) => "transient" in chunk && chunk.transient);
  assert.deepEqual(transient, [
    { type: "data-parley-progress", data: { text: "thinking" }, transient: true },
  ]);
  const inputs = chunks.filter(({ type }) => type.startsWith("tool-input-"));
  assert.deepEqual(inputs[0], { type: "tool-input-start", toolCallId: "1", toolName: "price" });
  // The server merges deltas that wait for their reader.
  const deltas = inputs.flatMap((chunk) => (chunk.type === "tool-input-delta" ? [chunk.inputTextDelta] : []));
  assert.equal(deltas.join(""), '{"product":"é"}');
  assert.deepEqual(
    inputs.slice(1 + deltas.length).map(({ type }) => type),
    ["tool-input-available", "tool-input-available", "tool-input-error"],
  );
  assert.deepEqual(chunks.at(-1), { type: "finish", finishReason: "length" });

  const loaded = await transport.loadMessages("c");
  assert.deepEqual(plain(loaded[1]), { id: message.id, metadata, role: "assistant", parts });
  assert.equal((await safeValidateUIMessages({ messages: loaded })).success, true);
});

test("a turn that fails or is interrupted ends as the SDK expects", options, async (t) => {
  const scripts = {
    *fail() {
      yield "part";
      throw new Error("secret");
    },
  };
  const { server, transport } = await start(t, new Scripts(scripts));
  const failed = await open(transport);
  let finished: { isError: boolean } | undefined;
  await failed.sendMessage({ text: "fail" });
  assert.equal(failed.status, "error");
  assert.match(failed.error!.message, /Error/);
  assert.deepEqual(texts(failed.messages), ["fail", "part"]);
  assert.deepEqual(texts(await transport.loadMessages("c")), ["fail", "part"]);

  const interrupted = await open(transport, "i", { onFinish: (end) => (finished = end) });
  const sent = interrupted.sendMessage({ text: "slow" });
  await until(interrupted, /Once/);
  for await (const _ of server.client.chat({
    conversationId: "i",
    content: "hi",
    onBusy: "ON_BUSY_INTERRUPT",
  }));
  await sent;
  assert.equal(interrupted.status, "ready");
  assert.equal((finished as { finishReason?: string }).finishReason, "interrupted");
});

test("300 turns of a chat, with crashes of the server, lose nothing", options, async (t) => {
  const { server, transport } = await start(t);
  const chat = await open(transport, "app/1");
  for (let turn = 0; turn < 300; turn++) {
    const crash = turn % 60 === 30 ? server.crash() : undefined;
    await chat.sendMessage({ text: `question ${turn}` });
    await crash;
    if (chat.status === "error") {
      await chat.regenerate(); // The crash has interrupted the turn.
    }
    assert.equal(chat.status, "ready", chat.error?.message);
  }
  const expected = Array.from({ length: 300 }, (_, i) => [`question ${i}`, `re: question ${i}`]).flat();
  assert.deepEqual(texts(chat.messages), expected);
  assert.deepEqual(plain(await transport.loadMessages("app/1")), plain(withStates(chat.messages)));
  const { messages } = await server.client.listMessages({ conversationId: "app/1", pageSize: 1 });
  assert.equal(messages[0]?.content, "re: question 299");
});

/** The texts of users have no state until they are loaded. */
function withStates(messages: UIMessage[]): UIMessage[] {
  return messages.map((message) => ({
    ...message,
    parts: message.parts.map((part) => (part.type === "text" ? { ...part, state: "done" } : part)),
  }));
}

test(
  "a kill of the server in mid-answer keeps what has arrived, and it can be answered again",
  options,
  async (t) => {
    const { server, transport, agent } = await start(t);
    const chat = await open(transport);
    const sent = chat.sendMessage({ text: "slow" });
    await until(chat, /Once/);
    await setTimeout(1500); // A crash loses at most one second of text.
    await server.crash();
    await sent;
    assert.equal(chat.status, "error");
    assert.match(chat.error!.message, /server/);
    assert.deepEqual(texts(chat.messages), ["slow", "Once upon"]);
    assert.deepEqual(texts(await transport.loadMessages("c")), ["slow", "Once upon"]);

    agent.release();
    await chat.regenerate();
    assert.equal(chat.status, "ready");
    assert.deepEqual(texts(chat.messages), ["slow", "Once upon a time."]);
    assert.deepEqual(texts(await transport.loadMessages("c")), ["slow", "Once upon a time."]);
  },
);

test("a kill of the client in mid-answer does not end the answer", options, async (t) => {
  const { server, transport, agent } = await start(t);
  const program = fileURLToPath(new URL("chatter.js", import.meta.url));
  const child = spawn(process.execPath, [program, server.address], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  for await (const line of createInterface(child.stdout)) {
    if (line.includes("Once upon")) {
      break;
    }
  }
  child.kill("SIGKILL");
  await once(child, "close");

  const chat = await open(transport);
  assert.deepEqual(texts(chat.messages), ["slow"]);
  const resumed = chat.resumeStream();
  await until(chat, /Once/);
  assert.equal(chat.status, "streaming");
  agent.release();
  await resumed;
  assert.equal(chat.status, "ready");
  assert.deepEqual(texts(chat.messages), ["slow", "Once upon a time."]);
  assert.deepEqual(plain(await transport.loadMessages("c")), plain(withStates(chat.messages)));
  assert.equal(agent.requests.length, 1);
});

test("a chat without a turn has nothing to resume", options, async (t) => {
  const { transport } = await start(t);
  assert.equal(await transport.reconnectToStream({ chatId: "c" }), null);
  const chat = await open(transport);
  await chat.sendMessage({ text: "hi" });
  await (await open(transport)).resumeStream();
  assert.equal(await transport.reconnectToStream({ chatId: "c" }), null);
});

test("an answer that ends between load and resume is not lost", options, async (t) => {
  const { transport, agent } = await start(t);
  const first = await open(transport);
  const sent = first.sendMessage({ text: "slow" });
  await until(first, /Once/);
  const chat = await open(transport);
  agent.release();
  await sent;
  assert.deepEqual(texts(chat.messages), ["slow"]);
  await chat.resumeStream();
  assert.deepEqual(texts(chat.messages), ["slow", "Once upon a time."]);
  assert.equal(await transport.reconnectToStream({ chatId: "c" }), null);
});

for (const name of ["getTurn", "resumeTurn"] as const) {
  test(
    `an answer that has ended is not lost if a call fails when it is resumed: ${name}`,
    options,
    async (t) => {
      const { server, agent } = await start(t);
      let fails = false;
      const client: TransportClient = new Proxy<TransportClient>(server.client, {
        get: (target, key) => {
          if (key === name && fails) {
            fails = false;
            return () => {
              throw new ParleyError("UNAVAILABLE", "no connection");
            };
          }
          const method = target[key as keyof TransportClient];
          return method.bind(target);
        },
      });
      const transport = new ParleyChatTransport({ client });
      const first = await open(transport);
      const sent = first.sendMessage({ text: "slow" });
      await until(first, /Once/);
      const chat = await open(transport);
      agent.release();
      await sent;
      await transport.loadMessages("other");
      const loaded = await open(new ParleyChatTransport({ client: server.client }));
      assert.deepEqual(texts(loaded.messages), ["slow", "Once upon a time."]);
      fails = true;
      await assert.rejects(transport.reconnectToStream({ chatId: "c" }), /no connection/);
      await chat.resumeStream();
      assert.deepEqual(texts(chat.messages), ["slow", "Once upon a time."]);
      assert.equal(await transport.reconnectToStream({ chatId: "c" }), null);
    },
  );
}

test("an answer that has ended is resumed by the second of two calls", options, async (t) => {
  const { transport, agent } = await start(t);
  const first = await open(transport);
  const sent = first.sendMessage({ text: "slow" });
  await until(first, /Once/);
  await transport.loadMessages("c");
  agent.release();
  const stopped = new AbortController();
  const stream = await transport.reconnectToStream({ chatId: "c", abortSignal: stopped.signal });
  await sent;
  const next = transport.reconnectToStream({ chatId: "c" });
  stopped.abort();
  await stream!.cancel();
  assert.deepEqual(texts([(await read(await next)).message]), ["Once upon a time."]);
  assert.equal(await transport.reconnectToStream({ chatId: "c" }), null);
});

test("a chat that was deleted while its answer was written has nothing to resume", options, async (t) => {
  const { server, transport, agent } = await start(t);
  const first = await open(transport);
  const sent = first.sendMessage({ text: "slow" });
  await until(first, /Once/);
  await transport.loadMessages("c");
  await server.client.deleteConversation({ conversationId: "c" });
  agent.release();
  await sent;
  assert.equal(await transport.reconnectToStream({ chatId: "c" }), null);
  assert.deepEqual(await transport.loadMessages("c"), []);
});

test("a message that is sent again is stored once", options, async (t) => {
  const { transport, agent } = await start(t);
  const message = user("u", text("hi"));
  const [first, second] = await Promise.all([send(transport, message), send(transport, message)]);
  const answers = [await read(first), await read(second), await read(await send(transport, message))];
  assert.deepEqual(texts(answers.map((answer) => answer.message)), ["re: hi", "re: hi", "re: hi"]);
  assert.deepEqual(new Set(answers.map((answer) => answer.message.id)).size, 1);
  assert.equal(agent.requests.length, 1);
  assert.deepEqual(texts(await transport.loadMessages("c")), ["hi", "re: hi"]);
});

test("a regeneration replaces the answer and what follows it", options, async (t) => {
  let count = 0;
  const scripts = {
    *count() {
      yield `${++count}`;
    },
  };
  const { transport, agent } = await start(t, new Scripts(scripts));
  const chat = await open(transport);
  await chat.sendMessage({ text: "count" });
  await chat.regenerate();
  assert.deepEqual(texts(chat.messages), ["count", "2"]);
  await chat.sendMessage({ text: "b" });
  await chat.sendMessage({ text: "c" });
  await chat.regenerate({ messageId: chat.messages[1]!.id });
  assert.deepEqual(texts(chat.messages), ["count", "3"]);
  await chat.regenerate({ messageId: chat.messages[0]!.id });
  assert.deepEqual(texts(chat.messages), ["count", "4"]);
  assert.equal(agent.requests.at(-1)!.messages.length, 1);
  assert.deepEqual(plain(await transport.loadMessages("c")), plain(withStates(chat.messages)));

  // A page that is loaded again knows the same messages.
  const loaded = await open(transport);
  await loaded.regenerate();
  assert.deepEqual(texts(await transport.loadMessages("c")), ["count", "5"]);

  // Another tab regenerates while the answer is written.
  const sent = loaded.sendMessage({ text: "slow" });
  await until(loaded, /Once/);
  const other = await open(transport);
  const regenerated = other.regenerate({ messageId: other.messages[1]!.id });
  await Promise.all([sent, regenerated]);
  assert.deepEqual(texts(await transport.loadMessages("c")), ["count", "6"]);
  await assert.rejects(
    transport.sendMessages({
      trigger: "regenerate-message",
      chatId: "c",
      messageId: undefined,
      messages: [],
      abortSignal: undefined,
    }),
    /no message of the user/,
  );
});

test("a message that replaces another one removes what follows", options, async (t) => {
  const { transport, agent } = await start(t);
  const chat = await open(transport);
  for (const each of ["a", "b", "c"]) {
    await chat.sendMessage({ text: each });
  }
  const { id } = chat.messages[2]!;
  await chat.sendMessage({ text: "B", messageId: id });
  assert.deepEqual(texts(chat.messages), ["a", "re: a", "B", "re: B"]);
  await chat.sendMessage({ parts: [text("B2"), { type: "data-x", data: { y: 1 } }], messageId: id });
  const loaded = await transport.loadMessages("c");
  assert.deepEqual(plain(loaded.slice(2, 3)), plain(chat.messages.slice(2, 3)));
  assert.deepEqual(texts(loaded), ["a", "re: a", "B2", "re: B2"]);
  assert.deepEqual(
    agent.requests.at(-1)!.messages.map(({ content }) => content),
    ["a", "re: a", "B2"],
  );
  await chat.sendMessage({ parts: [text("B3"), { type: "data-x", data: { y: 2 } }], messageId: id });
  assert.deepEqual(plain((await transport.loadMessages("c")).slice(2, 3)), plain(chat.messages.slice(2, 3)));
});

test("a message that could not be sent is sent by a regeneration", options, async (t) => {
  const { server, transport } = await start(t);
  const chat = await open(transport);
  await server.stop();
  await chat.sendMessage({ text: "hi" });
  assert.equal(chat.status, "error");
  await server.restart();
  await chat.regenerate();
  assert.deepEqual(texts(chat.messages), ["hi", "re: hi"]);
  assert.deepEqual(plain(await transport.loadMessages("c")), plain(withStates(chat.messages)));
});

test("a stop cancels the turn and keeps what has arrived", options, async (t) => {
  const { server, transport } = await start(t);
  const chat = await open(transport);
  const other = await open(transport);
  let finished: { isAbort: boolean } | undefined;
  const sent = chat.sendMessage({ text: "slow" });
  await until(chat, /Once/);
  const chunks = transport.reconnectToStream({ chatId: "c" }).then(chunksOf);
  await chat.stop();
  await sent;
  assert.equal(chat.status, "ready");
  assert.equal((await chunks).at(-1)?.type, "abort");
  const { turns } = await server.client.listTurns({ conversationId: "c" });
  assert.equal(turns[0]?.state, "TURN_STATE_CANCELLED");
  assert.deepEqual(texts(await transport.loadMessages("c")), ["slow", "Once upon"]);

  // A stop before the first event, and of an answer that another page has resumed.
  const early = chat.sendMessage({ text: "slow" });
  await hasStatus(chat, "submitted");
  await new Promise((resolve) => setImmediate(resolve)); // The request is sent by then, and has no reply.
  await chat.stop();
  await early;
  await ended(server, 2);
  const again = other.sendMessage({ text: "slow" });
  await until(other, /Once/);
  const second = await open(transport, "c", { onFinish: (end) => (finished = end) });
  void second.resumeStream();
  await until(second, /Once/);
  await second.stop();
  await again;
  assert.equal(finished?.isAbort, true);
  assert.deepEqual(await ended(server, 3), Array(3).fill("TURN_STATE_CANCELLED"));

  // A stop while the page reads where to resume.
  const third = other.sendMessage({ text: "slow" });
  await until(other, /Once/);
  void second.resumeStream();
  await second.stop();
  await third;
  assert.deepEqual(await ended(server, 4), Array(4).fill("TURN_STATE_CANCELLED"));
});

/** Returns the states of the turns of "c" when there is a number of them and all have ended. */
async function ended(server: Parleyd, count: number): Promise<string[]> {
  for (;;) {
    const { turns } = await server.client.listTurns({ conversationId: "c" });
    if (turns.length === count && turns.every(({ finishTime }) => finishTime)) {
      return turns.map(({ state }) => state);
    }
    await new Promise((resolve) => setImmediate(resolve));
  }
}

test("a stop leaves the turn if the transport says so, and cancel ends it", options, async (t) => {
  const { server, transport, agent } = await start(t, new Scripts(), { onStop: "leave" });
  const cancelled = await open(transport);
  const sent = cancelled.sendMessage({ text: "slow" });
  await until(cancelled, /Once/);
  await transport.cancel("c");
  await sent;
  assert.deepEqual(await ended(server, 1), ["TURN_STATE_CANCELLED"]);
  await transport.cancel("c");
  await transport.cancel("none");

  const chat = await open(transport);
  const left = chat.sendMessage({ text: "slow" });
  await until(chat, /Once/);
  await chat.stop();
  await left;
  const stream = await transport.reconnectToStream({ chatId: "c" });
  agent.release();
  assert.equal((await chunksOf(stream)).at(-1)?.type, "finish");
  assert.deepEqual(await ended(server, 2), ["TURN_STATE_COMPLETED", "TURN_STATE_CANCELLED"]);
});

test(
  "a chat that resumes twice, as in the strict mode of React, does not stop the turn",
  options,
  async (t) => {
    const { server, transport, agent } = await start(t);
    const chat = await open(transport);
    const sent = chat.sendMessage({ text: "slow" });
    await until(chat, /Once/);
    const page = await open(transport);
    const first = page.resumeStream();
    void page.stop();
    const second = page.resumeStream();
    await first;
    await until(page, /Once/);
    const third = page.resumeStream();
    agent.release();
    await Promise.all([sent, second, third]);
    assert.deepEqual(texts(page.messages), ["slow", "Once upon a time."]);
    assert.deepEqual(await ended(server, 1), ["TURN_STATE_COMPLETED"]);
  },
);

test("a consumer that leaves the stream does not stop the turn", options, async (t) => {
  const { transport, agent } = await start(t);
  const stream = await send(transport, user("u", text("slow")));
  await stream.cancel();
  agent.release();
  const resumed = await transport.reconnectToStream({ chatId: "c" });
  const loaded = resumed ? [(await read(resumed)).message] : await transport.loadMessages("c");
  assert.deepEqual(texts(loaded).at(-1), "Once upon a time.");
});

test("the outputs that a page adds continue the message, also after a reload", options, async (t) => {
  const scripts = {
    *ask() {
      yield "Where?";
      yield { toolCall: { id: "1", name: "place", arguments: "{}" } };
      yield { toolCall: { id: "2", name: "time", arguments: "{}" } };
    },
    async *result(request: RespondRequest, answering: Answering) {
      yield `${request.messages.flatMap(({ toolResult }) => toolResult?.content ?? []).join()} `;
      yield* agent.slow(request, answering);
    },
  };
  const agent = new Scripts(scripts);
  const { server, transport } = await start(t, agent);
  const chat = await open(transport, "c", {
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
  });
  await chat.sendMessage({ text: "ask" });
  await chat.addToolOutput({ tool: "place", toolCallId: "1", output: '{"a":1}' });
  await chat.addToolOutput({ tool: "time", toolCallId: "2", state: "output-error", errorText: "no clock" });
  await until(chat, /Once/);
  assert.equal(chat.messages.length, 2);
  const page = await open(transport);
  void page.resumeStream();
  await until(page, /Once/);
  agent.release();
  await ended(server, 2);
  await Promise.all([chat, page].map((each) => hasStatus(each, "ready")));
  assert.deepEqual(texts(chat.messages), ["ask", 'Where?"{\\"a\\":1}",no clock Once upon a time.']);
  assert.deepEqual(plain(page.messages), plain(withStates(chat.messages)));
  assert.deepEqual(plain(await transport.loadMessages("c")), plain(withStates(chat.messages)));
  const outputs = chat.messages[1]!.parts.flatMap((part) => ("output" in part ? [part.output] : []));
  assert.deepEqual(outputs, ['{"a":1}', undefined]);

  // Without sendAutomaticallyWhen, the outputs go with the next message.
  const manual = await open(transport, "m");
  await manual.sendMessage({ text: "ask" });
  await manual.addToolOutput({ tool: "place", toolCallId: "1", output: 42 });
  await manual.addToolOutput({ tool: "time", toolCallId: "2", output: { b: [true, null] } });
  await manual.sendMessage({ text: "go" });
  assert.deepEqual(texts(manual.messages), ["ask", "Where?", "go", "re: go"]);
  assert.deepEqual(plain(await transport.loadMessages("m")), plain(withStates(manual.messages)));
});

test("each odd id of a chat or a message stays as it is", options, async (t) => {
  const { transport } = await start(t);
  for (const [i, id] of oddIds.entries()) {
    const chat = await open(transport, id);
    await chat.sendMessage({ parts: [text(`of ${i}`)], id });
    await chat.sendMessage({ parts: [text("again")], id: `${id}2` });
    await chat.regenerate({ messageId: id });
    assert.deepEqual(texts(chat.messages), [`of ${i}`, `re: of ${i}`]);
    assert.equal(chat.messages[0]!.id, id);
    const loaded = await transport.loadMessages(id);
    assert.deepEqual(plain(withStates(loaded)), plain(withStates(chat.messages)));
  }
  await assert.rejects(transport.loadMessages(""), RangeError);
});

test("two tabs that send at the same time lose nothing", options, async (t) => {
  const { server, transport } = await start(t);
  const other = new ParleyChatTransport({ client: server.client });
  const tabs = [await open(transport), await open(other)];
  await Promise.all(tabs.map((tab, i) => tab.sendMessage({ text: `of ${i}` })));
  await Promise.all(tabs.map((tab, i) => tab.sendMessage({ text: `more of ${i}` })));
  const all: string[] = [];
  for (const [i, tab] of tabs.entries()) {
    assert.equal(tab.status, "ready", tab.error?.message);
    const own = [`of ${i}`, `re: of ${i}`, `more of ${i}`, `re: more of ${i}`];
    assert.deepEqual(texts(tab.messages), own);
    all.push(...own);
  }
  const loaded = await transport.loadMessages("c");
  assert.deepEqual(texts(loaded).sort(), all.sort());
  assert.ok(loaded.every(({ role }, i) => role === (i % 2 ? "assistant" : "user")));
  assert.equal(new Set(loaded.map(({ id }) => id)).size, 8);
});

test("1500 messages are loaded in their order, with the same ids each time", options, async (t) => {
  const { server, transport } = await start(t);
  for (let from = 0; from < 1500; from += 100) {
    await server.client.appendMessages({
      conversationId: "c",
      messages: Array.from({ length: 100 }, (_, i) => ({
        role: i % 2 ? ("ROLE_ASSISTANT" as const) : ("ROLE_USER" as const),
        content: `message ${from + i} ${"x".repeat(2000)}`,
      })),
      createWith: { retention: { keepAll: true } },
    });
  }
  const loaded = await transport.loadMessages("c");
  assert.deepEqual(
    texts(loaded).map((each) => each.split(" x")[0]),
    Array.from({ length: 1500 }, (_, i) => `message ${i}`),
  );
  assert.deepEqual(await transport.loadMessages("c"), loaded);
  const chat = new Chat({ id: "c", transport, messages: loaded });
  await chat.regenerate({ messageId: loaded[1]!.id });
  assert.equal((await transport.loadMessages("c")).length, 2);
});

for (const kind of ["Node", "browsers"]) {
  test(
    `images, files, data and metadata come back exactly, with the client for ${kind}`,
    options,
    async (t) => {
      const agent = new Scripts();
      const server = await Parleyd.start(t, agent, "--http-address=127.0.0.1:0");
      const client = kind === "Node" ? server.client : new WebClient(await server.httpURL());
      const transport = new ParleyChatTransport({ client });
      const image = (size: number): UIMessage["parts"][number] => ({
        type: "file",
        mediaType: "image/png",
        filename: "a.png",
        url: `data:image/png;base64,${Buffer.alloc(size, size).toString("base64")}`,
      });
      const chat = await open(transport);
      const sent: UIMessage["parts"][] = [
        [{ type: "file", mediaType: "image/png", url: "https://example.com/a.png" }, text("small")],
        [image(100), image(300 << 10)],
        [text("large"), image(5 << 20)],
        [text("a"), { ...text("b"), providerMetadata: { p: { cached: true } } } as never],
        [
          { type: "data-place", id: "d", data: { x: 1.5, y: [null, "é"] } },
          { type: "data-deep", data: JSON.parse("[".repeat(20) + "]".repeat(20)) },
          { type: "data-large", data: "x".repeat(100_000) },
        ],
      ];
      for (const parts of sent) {
        await chat.sendMessage({ parts, metadata: { from: "test", when: 1 } });
        assert.equal(chat.status, "ready", chat.error?.message);
      }
      const loaded = await transport.loadMessages("c");
      assert.deepEqual(
        loaded.filter(({ role }) => role === "user"),
        plain(chat.messages.filter(({ role }) => role === "user")),
      );
      assert.deepEqual(texts(loaded), texts(chat.messages));

      // What agents get.
      const [small, files, large, , data] = agent.requests.map(({ messages }) => messages.at(-1)!);
      assert.deepEqual(
        small!.attachments.map(({ uri, mediaType }) => [uri, mediaType]),
        [["https://example.com/a.png", "image/png"]],
      );
      assert.equal(small!.content, "small");
      assert.equal(files!.attachments.length, 1);
      assert.equal(files!.structuredData[0]?.type, "ai-sdk.parts");
      const { records: keys } = large!.structuredData[0]!.value as { records: string[] };
      const values = new Map<string, Uint8Array>();
      for await (const { key, value } of server.client.records("c").getAll(keys)) {
        values.set(key, value);
      }
      const json = Buffer.concat(keys.map((key) => values.get(key)!)).toString();
      assert.deepEqual(JSON.parse(json).parts, sent[2]);
      assert.deepEqual(
        data!.structuredData.map(({ type }) => type),
        ["place", "ai-sdk.parts"],
      );

      // The records end with their messages.
      await chat.regenerate({ messageId: chat.messages[0]!.id });
      const { conversation } = await server.client.getConversation({ conversationId: "c" });
      assert.equal(conversation?.recordCount, 1);
    },
  );
}

test("messages of other clients are messages of the chat, too", options, async (t) => {
  const { server, transport } = await start(t);
  await server.client.appendMessages({
    conversationId: "c",
    messages: [
      { id: "s", role: "ROLE_SYSTEM", content: "be short" },
      { id: "u", role: "ROLE_USER", content: "price?", structuredData: [{ type: "t", value: 1 }] },
      {
        id: "a",
        role: "ROLE_ASSISTANT",
        content: "wait",
        toolCalls: [{ id: "1", name: "f", arguments: "{}" }],
      },
      { role: "ROLE_TOOL", toolResult: { callId: "1", name: "f", content: "7" } },
      { role: "ROLE_ASSISTANT", content: "one", attachments: [{ uri: "https://e.com/a", filename: "a" }] },
      { id: "p", role: "ROLE_ASSISTANT", content: "by the way" },
    ],
  });
  const loaded = await transport.loadMessages("c");
  assert.deepEqual(
    loaded.map(({ id, role }) => [id, role]),
    [
      ["s", "system"],
      ["u", "user"],
      ["a", "assistant"],
      ["p", "assistant"],
    ],
  );
  assert.deepEqual(
    loaded[2]!.parts.map(({ type }) => type),
    ["step-start", "text", "tool-f", "step-start", "file", "text"],
  );
  assert.deepEqual(loaded[1]!.parts[1], { type: "data-t", data: 1 });
});

test("a request has the fields that the program sets, and its metadata", options, async (t) => {
  const { server, transport } = await start(t, new Scripts(), {
    prepareChatRequest: ({ body, headers }) => ({
      ...body,
      metadata: { locale: (headers as { [name: string]: string })["x-locale"] ?? "" },
    }),
  });
  const chat = await open(transport);
  await chat.sendMessage({ text: "hi" }, { body: { agent: "echo" }, headers: { "x-locale": "pt" } });
  assert.doesNotMatch(texts(chat.messages)[1]!, /^re:/);
  const { messages } = await server.client.listMessages({ conversationId: "c", ascending: true });
  assert.equal(messages[0]?.metadata["locale"], "pt");
  const large = await open(transport, "large");
  const file = {
    type: "file",
    mediaType: "image/png",
    url: `data:image/png;base64,${"A".repeat(3 << 20)}`,
  } as const;
  await large.sendMessage({ parts: [file] }, { body: { createWith: { title: "Large" } }, headers: {} });
  const { conversation } = await server.client.getConversation({ conversationId: "large" });
  assert.equal(conversation?.title, "Large");

  const again = { body: { agent: "echo" }, headers: { "x-locale": "es" } };
  await chat.regenerate(again);
  await chat.sendMessage({ text: "hello", messageId: chat.messages[0]!.id }, again);
  const edited = await server.client.listMessages({ conversationId: "c", ascending: true });
  assert.deepEqual(
    edited.messages.map(({ content, metadata }) => [content, metadata["locale"]]),
    [
      ["hello", "es"],
      [texts(chat.messages)[1], undefined],
    ],
  );
  await chat.sendMessage({ text: "hi" }, { body: { agent: "nobody" }, headers: { "x-locale": "pt" } });
  assert.equal((chat.error as { reason?: string }).reason, "UNKNOWN_AGENT");
});

test("a text that is too large for a message is refused, and nothing is stored", options, async (t) => {
  const { transport } = await start(t);
  const chat = await open(transport);
  await chat.sendMessage({ text: "x".repeat(300 << 10) });
  assert.equal((chat.error as { reason?: string }).reason, "MESSAGE_TOO_LARGE");
  assert.deepEqual(await transport.loadMessages("c"), []);
});

/** What the SDK's own transport sends. */
interface Sent {
  id: string;
  messages: UIMessage[];
  trigger: "submit-message" | "regenerate-message";
  messageId: string | undefined;
}

test("route handlers serve pages that have the SDK's own transport", options, async (t) => {
  const { transport, agent } = await start(t);
  // The handlers of a page in Next.js: the signal of a request is not a stop.
  const POST = async (request: Request) => {
    const { id: chatId, messages, trigger, messageId } = (await request.json()) as Sent;
    const options = { chatId, messages, trigger, messageId, abortSignal: undefined };
    return createUIMessageStreamResponse({ stream: await transport.sendMessages(options) });
  };
  const GET = async (id: string) => {
    const stream = await transport.reconnectToStream({ chatId: id });
    return stream ? createUIMessageStreamResponse({ stream }) : new Response(null, { status: 204 });
  };
  const page = new DefaultChatTransport({
    api: "http://127.0.0.1/api/chat",
    fetch: async (url, init) =>
      init?.method === "POST" ? POST(new Request(url as string, init)) : GET(String(url).split("/").at(-2)!),
  });
  const chat = new Chat({ id: "c", transport: page });
  const sent = chat.sendMessage({ text: "slow" });
  await until(chat, /Once/);
  await chat.stop();
  await sent;
  const loaded = new Chat({ id: "c", transport: page, messages: await transport.loadMessages("c") });
  const answer = loaded.resumeStream();
  await until(loaded, /Once/);
  agent.release();
  await answer;
  assert.deepEqual(texts(loaded.messages), ["slow", "Once upon a time."]);
  await loaded.resumeStream();
  assert.equal(loaded.status, "ready");
});
