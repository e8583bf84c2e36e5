import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { EventType, HttpAgent, type Message } from "@ag-ui/client";
import type { ChatRequest, Input, Piece, TurnEvent } from "@parleyhq/client";

import { startProxy } from "../../dist/test/proxy.js";
import { type AnyClient, runStep, type Step } from "../../dist/test/table.js";
import { forbidWarnings, startServer, Thread, texts } from "./ag-ui-threads.js";
import { type Script, Scripts } from "./scripts.js";

const options = { timeout: 60_000 };

function* everything(): Generator<Piece> {
  yield { progress: { text: "thinking" } };
  yield { reasoning: "Two " };
  yield { reasoning: "eggs." };
  yield "Let me ";
  yield { structuredData: { type: "list", value: { items: ["flour", 1.5, null] } } };
  yield "look.";
  yield { toolCallDelta: { id: "1", name: "price", arguments: '{"product":' } };
  yield { toolCall: { id: "1", name: "price", arguments: '{"product":"é"}' } };
  yield { toolCall: { id: "2", name: "stock", arguments: "" } };
  yield { structuredData: { type: "ag-ui.state", value: { step: 1 } } };
  yield { toolResult: { callId: "1", name: "price", content: '{"cents":50}' } };
  yield { toolResult: { callId: "2", name: "stock", content: "sold out", isError: true } };
  yield { reasoning: "Done." };
  yield "50 cents.";
  yield { record: { key: "state", value: Buffer.from("1") } };
  yield { usage: { model: "m", outputTokens: 3 } };
  yield { nextAgent: "waiter" };
  yield "Anything else?";
}

const scripts: { [name: string]: Script } = {
  everything,
  *fail() {
    yield* everything();
    yield { toolCallDelta: { id: "9", name: "lost", arguments: '{"cut' } };
    throw new Error("secret");
  },
  *ask() {
    yield { toolCall: { id: "place", name: "where", arguments: "{}" } };
  },
};

test("verifyEvents accepts every stream of the table of calls", options, async (t) => {
  forbidWarnings(t);
  t.mock.method(console, "error", () => {});
  const { server, address } = await startServer(
    t,
    undefined,
    "--store=memory",
    "--max-conversation-bytes=3145728",
  );
  const file = new URL("../../../testdata/calls.json", import.meta.url);
  const { steps }: { steps: Step[] } = JSON.parse(await readFile(fileURLToPath(file), "utf8"));
  const saved = {};
  let streams = 0;
  const connect = async (threadId: string): Promise<Message[]> => {
    const thread = Thread.parley({ url: `http://${address}/ag-ui/echo`, threadId });
    await thread.agent.connectAgent();
    await thread.verify();
    streams++;
    return thread.agent.messages;
  };
  for (const step of steps) {
    const viaAGUI = async function* (request: Input<ChatRequest>): AsyncGenerator<TurnEvent> {
      const { conversationId: threadId = "", content, requestId, agent = "echo", answerPending } = request;
      const initialMessages: Message[] = answerPending
        ? await connect(threadId)
        : [{ id: `${threadId} ${requestId}`, role: "user", content: content ?? "" }];
      const url = `http://${address}/ag-ui/${encodeURIComponent(agent)}`;
      const config = { url, threadId, initialMessages };
      const thread = Thread.of(new HttpAgent(config));
      const failure = await thread.run(requestId).then(
        () => undefined,
        (error: { payload?: { type: string; code: string } }) => error.payload,
      );
      streams++;
      await connect(threadId);
      if (failure) {
        assert.deepEqual(failure, { ...failure, type: EventType.RUN_ERROR, code: step.error?.reason });
        yield* server.client.chat(request); // It fails in the same way.
        return;
      }
      await thread.verify();
      assert.equal(step.error, undefined);
      // The stored turn is the one that the table describes.
      const { turns } = await server.client.listTurns({ conversationId: threadId });
      yield* server.client.resumeTurn({ conversationId: threadId, turnId: turns[0]!.id });
    };
    // A run of AG-UI always names its agent.
    const isPlain = step.error?.reason === "AGENT_NOT_CONFIGURED";
    const plain = server.client as unknown as AnyClient; // The class of the package and not that of its sources.
    const client: AnyClient = isPlain
      ? plain
      : new Proxy(plain, {
          get: (target, name) => {
            const value = name === "chat" ? viaAGUI : target[name as keyof AnyClient];
            return typeof value === "function" ? value.bind(target as never) : value;
          },
        });
    await t.test(step.name, async () => {
      await runStep(client, step, saved);
      const { conversationId } = step.request as { conversationId?: string };
      if (conversationId && !conversationId.includes("${") && !step.error) {
        await connect(conversationId).catch((error) => assert.match(String(error), /404|INVALID/));
      }
    });
  }
  assert.ok(streams > 20, `${streams} streams`);
});

test("each kind of event, failures and cancels are accepted", options, async (t) => {
  forbidWarnings(t);
  const agent = new Scripts(scripts);
  const { url } = await startServer(t, agent);
  const thread = Thread.parley({ url });
  await thread.send("everything");
  const kinds = new Set(thread.events.map(({ type }) => type));
  for (const kind of [
    "TEXT_MESSAGE_CONTENT",
    "TOOL_CALL_RESULT",
    "REASONING_END",
    "STATE_SNAPSHOT",
    "CUSTOM",
  ]) {
    assert.ok(kinds.has(kind as EventType), kind);
  }
  assert.deepEqual(thread.agent.state, { step: 1 });
  assert.equal(thread.text, "Let me look.|50 cents.|Anything else?");
  assert.deepEqual(thread.last, { ...thread.last, type: "RUN_FINISHED", outcome: { type: "success" } });

  await thread.send("fail");
  assert.deepEqual(thread.last, { ...thread.last, type: "RUN_ERROR", code: "AGENT_FAILED" });
  assert.equal(JSON.stringify(thread.agent.messages).includes("lost"), false);

  await thread.send("ask");
  const { outcome } = thread.last as unknown as { outcome?: { pendingToolCallIds: string[] } };
  const [toolCallId = ""] = outcome!.pendingToolCallIds;
  assert.match(toolCallId, /-place$/);
  thread.agent.addMessage({ id: "result", role: "tool", toolCallId, content: "Rome" });
  await thread.run();
  assert.ok(thread.text.endsWith("re: Rome"));

  const sent = thread.send("slow");
  await thread.shows("Once upon");
  thread.agent.abortRun();
  await sent;
  assert.deepEqual(thread.last, { ...thread.last, type: "RUN_FINISHED", outcome: { type: "cancelled" } });
  await thread.verify();

  const loaded = Thread.parley({ url });
  await loaded.agent.connectAgent();
  await loaded.verify();
  assert.deepEqual(texts(loaded.agent.messages), texts(thread.agent.messages));
  const ids = ({ agent }: Thread) =>
    agent.messages.filter(({ role }) => role !== "reasoning").map(({ id }) => id);
  assert.deepEqual(ids(loaded), ids(thread));
  assert.deepEqual(loaded.agent.state, { step: 1 });
});

test(
  "the client of AG-UI without Parley's: an abort cancels, and a lost history is stored again",
  options,
  async (t) => {
    const agent = new Scripts();
    const { server, url } = await startServer(t, agent);
    const thread = Thread.of(new HttpAgent({ url, threadId: "t" }));
    const sent = thread.send("slow", "r1");
    await thread.shows("Once upon");
    thread.agent.abortRun();
    await sent;
    await thread.send("hi"); // It waits for the end of the turn.
    assert.equal(thread.text, "Once upon|re: hi");
    const { turns } = await server.client.listTurns({ conversationId: "t" });
    assert.deepEqual(
      turns.map(({ state }) => state),
      ["TURN_STATE_COMPLETED", "TURN_STATE_CANCELLED"],
    );
    await server.client.deleteConversation({ conversationId: "t" });
    await thread.send("again");
    const { messages } = await server.client.listMessages({ conversationId: "t", ascending: true });
    assert.deepEqual(
      messages.map(({ content }) => content),
      ["slow", "Once upon", "hi", "re: hi", "again", "re: again"],
    );
    await thread.verify();
  },
);

test("what the server does not support is refused by name, and nothing is stored", options, async (t) => {
  t.mock.method(console, "error", () => {});
  const { server, url } = await startServer(t);
  for (const [parameters, field] of [
    [{ tools: [{ name: "ask", description: "", parameters: {} }] }, "tools"],
    [{ resume: [{ interruptId: "i", status: "resolved" as const }] }, "resume"],
  ] as const) {
    const thread = Thread.parley({ url });
    thread.agent.addMessage({ id: "m", role: "user", content: "hi" });
    const run = thread.agent.runAgent({ ...parameters } as object);
    await assert.rejects(run, new RegExp(`HTTP 501.*RUN_ERROR.*${field}:.*UNSUPPORTED`));
  }
  await assert.rejects(server.client.getConversation({ conversationId: "t" }), {
    reason: "CONVERSATION_NOT_FOUND",
  });
});

test("a run whose connection breaks continues without a gap", options, async (t) => {
  forbidWarnings(t);
  const agent = new Scripts(scripts);
  const { address, server } = await startServer(t, agent);
  const proxy = await startProxy(t, address);
  const thread = Thread.parley({ url: `http://${proxy.address}/ag-ui/own` });
  const sent = thread.send("slow");
  await thread.shows("Once upon");
  proxy.refuse(2);
  proxy.cut();
  agent.release();
  await sent;
  assert.equal(thread.text, "Once upon a time.");
  for (let bytes = 300; bytes < 6000; bytes += 350) {
    proxy.cut();
    proxy.cutAfter(bytes);
    const cut = Thread.parley({ url: `http://${proxy.address}/ag-ui/own`, threadId: `cut ${bytes}` });
    await cut.send("everything");
    assert.equal(cut.text, "Let me look.|50 cents.|Anything else?");
    await cut.verify();
    const { messages } = await server.client.listMessages({ conversationId: `cut ${bytes}` });
    assert.equal(messages.length, 6);
  }
});

test("a page that leaves a run continues it, and sees what another page started", options, async (t) => {
  const agent = new Scripts();
  const { url } = await startServer(t, agent);
  const left = Thread.parley({ url, onAbort: "leave" });
  const sent = left.send("slow");
  await left.shows("Once upon");
  left.agent.abortRun();
  await sent;
  const other = Thread.parley({ url });
  const connected = other.agent.connectAgent();
  await other.shows("Once upon");
  await other.agent.detachActiveRun();
  await connected;
  const again = Thread.parley({ url });
  const shown = again.agent.connectAgent();
  await again.shows("Once upon");
  agent.release();
  await shown;
  assert.equal(again.text, "Once upon a time.");
  await again.verify();
  assert.equal(agent.requests.length, 1);
});

test(
  "a server that is killed in mid-stream: the page ends with the text of the store",
  options,
  async (t) => {
    forbidWarnings(t);
    const agent = new Scripts();
    const { server, url } = await startServer(t, agent);
    const thread = Thread.parley({ url });
    await thread.send("hi");
    const sent = thread.send("slow");
    await thread.shows("Once upon");
    await server.crash();
    await sent;
    assert.deepEqual(thread.last, { ...thread.last, type: "RUN_ERROR", code: "SHUTTING_DOWN" });
    await thread.verify();
    const stored = async () => {
      const { messages } = await server.client.listMessages({ conversationId: "t", ascending: true });
      return messages.flatMap(({ role, content }) => (role === "ROLE_ASSISTANT" ? [content] : []));
    };
    assert.deepEqual(texts(thread.agent.messages), await stored());
    agent.release();
    await thread.run(); // The message that is stored is answered again.
    const loaded = Thread.parley({ url });
    await loaded.agent.connectAgent();
    assert.deepEqual(texts(loaded.agent.messages), await stored());
    assert.deepEqual(texts(thread.agent.messages), await stored());
    assert.ok(thread.text.endsWith("Once upon a time."));
  },
);
