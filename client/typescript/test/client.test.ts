import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { type AppendMessagesRequest, Client, type Input, ParleyError } from "@parleyhq/client";
import { Metadata, ServerError, Status } from "nice-grpc";
import { BadRequest, ErrorInfo, RetryInfo, RichServerError } from "nice-grpc-error-details";

import { serviceConfig } from "../src/service-config.js";
import { isLocal } from "../src/target.js";
import { aborted, FakeServer } from "./fake-server.js";
import { finished, numbered, short, started, textOf } from "./model.js";
import { start } from "./process.js";
import { startProxy } from "./proxy.js";
import { read } from "./streams.js";

const options = { timeout: 60_000 };
const unavailable = () => new ServerError(Status.UNAVAILABLE, "temporarily unavailable");

const batch: Input<AppendMessagesRequest> = {
  conversationId: "a",
  messages: Array.from({ length: 14 }, () => ({ role: "ROLE_USER", content: "x".repeat(250 << 10) })),
};

const writes: Record<string, (client: Client) => Promise<unknown>> = {
  createConversation: (client) => client.createConversation({}),
  loadConversation: (client) => client.loadConversation({ conversationId: "a" }),
  forkConversation: (client) => client.forkConversation({ conversationId: "a" }),
  appendMessages: (client) => client.appendMessages(batch), // 3.4 MiB
  chat: async (client) => {
    const { items, error } = await read(client.chat({ content: "hello" }));
    assert.ifError(error);
    assert.deepEqual(items, short());
  },
};
for (const [name, send] of Object.entries(writes)) {
  test(`retries carry one requestId: ${name}`, options, async (t) => {
    const server = new FakeServer();
    const client = new Client(await server.serve(t));
    t.after(() => client.close());
    server.failures = [unavailable(), unavailable()];
    await send(client);
    const ids = server.calls.map(({ requestId }) => requestId);
    assert.equal(ids.length, 3);
    assert.match(ids[0]!, /^[0-9a-f-]{36}$/);
    assert.equal(new Set(ids).size, 1);
    assert.equal("requestId" in batch, false, "the caller's request was changed");
  });
}

test("requestIds are not replaced and not reused", options, async (t) => {
  const server = new FakeServer();
  const client = new Client(await server.serve(t));
  t.after(() => client.close());
  for (const requestId of ["mine", "mine", "", ""]) {
    await client.createConversation({ requestId });
  }
  server.turn = async function* () {
    yield* numbered("t", started("c", true), finished());
  };
  const turn = client.chat({ content: "again" });
  for (const replayed of [false, true]) {
    const { items } = await read(turn);
    const event = items[0]?.event;
    assert.equal(event?.$case === "started" && event.value.replayed, replayed);
  }
  const [first, second, third, fourth, ...chats] = server.calls.map(({ requestId }) => requestId);
  assert.deepEqual([first, second], ["mine", "mine"]);
  assert.notEqual(third, fourth);
  assert.equal(chats.length, 2);
  assert.equal(chats[0], chats[1]);
});

test("unavailable servers are retried, then the call fails", options, async (t) => {
  const server = new FakeServer();
  const client = new Client(await server.serve(t));
  t.after(() => client.close());
  const calls: Record<string, { attempts: number; call: () => Promise<unknown> }> = {
    "a read, after the last attempt": {
      attempts: 5,
      call: () => client.getConversation({ conversationId: "a" }),
    },
    "a write without requestId, at once": {
      attempts: 1,
      call: () => client.deleteConversation({ conversationId: "a" }),
    },
  };
  for (const [name, { attempts, call }] of Object.entries(calls)) {
    await t.test(name, async () => {
      server.calls.length = 0;
      server.failures = Array.from({ length: attempts }, unavailable);
      await assert.rejects(call, { name: "ParleyError", code: "UNAVAILABLE", reason: "" });
      assert.equal(server.calls.length, attempts);
    });
  }
});

test("calls wait for a server that starts", options, async (t) => {
  const proxy = await startProxy(t, await new FakeServer().serve(t));
  proxy.refuse(3);
  const client = new Client(proxy.address);
  t.after(() => client.close());
  await client.getConversation({ conversationId: "a" });
  proxy.refuse(2);
  proxy.cut();
  await client.getConversation({ conversationId: "a" });
  assert.equal(proxy.opened, 7);
});

test("all clients retry the same methods", async () => {
  const file = await readFile(new URL("../../../service_config.json", import.meta.url), "utf8");
  const sorted = ({ methodConfig }: ReturnType<typeof serviceConfig>) =>
    methodConfig.map(({ name, ...rest }) => ({
      ...rest,
      name: name.map((n) => `${n.service}/${n.method}`).sort(),
    }));
  assert.deepEqual(sorted(serviceConfig()), sorted(JSON.parse(file)));
});

test("errors have the details of the status", options, async (t) => {
  const server = new FakeServer();
  const client = new Client(await server.serve(t));
  t.after(() => client.close());
  const info = (domain: string) =>
    ErrorInfo.fromPartial({ reason: "VERSION_MISMATCH", domain, metadata: { current_version: "3" } });
  const ours = [
    info("parley"),
    RetryInfo.fromPartial({ retryDelay: { seconds: 1, nanos: 500e6 } }),
    BadRequest.fromPartial({ fieldViolations: [{ field: "if_version", description: "is old" }] }),
  ];
  const code = "ABORTED";
  const message = "ABORTED: the version is 3";
  const table = [
    {
      details: ours,
      want: {
        ...{
          name: "ParleyError",
          code,
          message: "ABORTED VERSION_MISMATCH: the version is 3",
          reason: "VERSION_MISMATCH",
          metadata: { current_version: "3" },
        },
        ...{ fieldViolations: [{ field: "if_version", description: "is old" }], retryDelay: 1500 },
      },
    },
    { details: [info("elsewhere")], want: { code, message, reason: "", metadata: {}, fieldViolations: [] } },
    { details: [], want: { code, message, reason: "", retryDelay: undefined } },
  ];
  for (const { details, want } of table) {
    const failure = () => new RichServerError(Status.ABORTED, "the version is 3", details);
    server.failures = [failure(), failure(), failure()];
    await assert.rejects(client.getConversation({}), want);
    await assert.rejects(async () => {
      for await (const _ of client.exportConversations({})) {
      }
    }, want);
    const { error } = await read(client.chat({ content: "hello" }));
    assert.ok(error instanceof ParleyError && error instanceof Error);
    assert.throws(() => {
      throw error;
    }, want);
    assert.match((error.cause as Error).name, /ClientError$/);
  }
});

const unsendable: Record<string, { call: (client: Client) => unknown; why: RegExp }> = {
  "a call": { call: (client) => client.listMessages({ pageSize: 1.5 }), why: /1\.5/ },
  "a call with a requestId": {
    call: (client) => client.appendMessages({ messages: [{ sequence: 1.5 }] }),
    why: /1\.5/,
  },
  "a call with null": { call: (client) => client.appendMessages(null!), why: /it is null, want an object/ },
  "a call with undefined": {
    call: (client) => client.getConversation(undefined!),
    why: /it is undefined, want an object/,
  },
  "a call with a text": { call: (client) => client.getStats("all" as never), why: /it is string/ },
  "a call with null in a list": {
    call: (client) => client.appendMessages({ messages: [null!] }),
    why: /null/,
  },
  "a call with metadata of another kind": {
    call: (client) => client.getConversation({}, { metadata: { name: "x" } as never }),
    why: /not iterable/,
  },
  "a stream": { call: (client) => client.exportConversations(null!), why: /null/ },
  "a turn": { call: (client) => client.chat({ content: "hello", ifVersion: 1.5 }), why: /1\.5/ },
  "a turn with null": { call: (client) => client.chat(null!), why: /it is null/ },
  "a resumed turn": { call: (client) => client.resumeTurn({ afterIndex: 1.5 }), why: /1\.5/ },
  "a resumed turn with null": { call: (client) => client.resumeTurn(null!), why: /it is null/ },
  "a watch with null": { call: (client) => client.watchConversations(null!), why: /it is null/ },
  "an import": {
    call: (client) => client.importConversations([{}, { conversation: { version: 1.5 } }]),
    why: /1\.5/,
  },
  "an import of null": { call: (client) => client.importConversations(null!), why: /want an iterable/ },
  "an import of one": {
    call: (client) => client.importConversations({} as never),
    why: /want an iterable/,
  },
  "an import with null": { call: (client) => client.importConversations([null!]), why: /it is null/ },
};
for (const [name, { call, why }] of Object.entries(unsendable)) {
  test(`an invalid request fails before it is sent: ${name}`, options, async (t) => {
    const server = new FakeServer();
    const client = new Client(await server.serve(t));
    t.after(() => client.close());
    const called = call(client);
    const result = async () => {
      if (called instanceof Promise) {
        return await called;
      }
      return (await read(called as AsyncIterable<unknown>)).error;
    };
    const error = await result().catch((error) => error);
    assert.ok(error instanceof ParleyError, `${error}`);
    assert.equal(error.code, "INVALID_ARGUMENT");
    assert.match(error.message, why);
    assert.deepEqual(server.calls, []);
  });
}

test("optional requests", options, async (t) => {
  const client = new Client(await new FakeServer().serve(t));
  t.after(() => client.close());
  await client.listAgents();
  // The fake server has no AdminService.
  await assert.rejects(client.getStats(), { code: "UNIMPLEMENTED" });
  const { error } = await read(client.backupStore());
  assert.equal((error as ParleyError).code, "UNIMPLEMENTED");
});

test("an import accepts all iterables", options, async (t) => {
  const server = new FakeServer();
  const client = new Client(await server.serve(t));
  t.after(() => client.close());
  const requests = ["a", "b"].map((id) => ({ conversation: { id } }));
  const sources: Record<string, Parameters<Client["importConversations"]>[0]> = {
    "an array": requests,
    "a readonly array": Object.freeze([...requests]),
    "a set": new Set(requests),
    "a generator": requests.values(),
    "an async generator": (async function* () {
      yield* requests;
    })(),
  };
  for (const [name, source] of Object.entries(sources)) {
    server.imported.length = 0;
    await client.importConversations(source);
    const ids = server.imported.map(({ conversation }) => conversation?.id);
    assert.deepEqual(ids, ["a", "b"], name);
  }
});

test("an error of the iterable of an import is thrown unchanged", options, async (t) => {
  const client = new Client(await new FakeServer().serve(t));
  t.after(() => client.close());
  const failures = [new Error("error of the caller"), new DOMException("error of the caller", "AbortError")];
  for (const failure of failures) {
    const source = async function* () {
      yield {};
      throw failure;
    };
    await assert.rejects(client.importConversations(source()), (error) => error === failure);
  }
});

test("every attempt has the metadata", options, async (t) => {
  const server = new FakeServer();
  const client = new Client(await server.serve(t));
  t.after(() => client.close());
  const metadata = Metadata({ authorization: "Bearer token" });
  server.failures = [unavailable(), unavailable()];
  await client.getConversation({}, { metadata });
  await read(client.chat({ content: "hello" }, { metadata }));
  const sent = server.calls.map(({ metadata }) => metadata.get("authorization"));
  assert.deepEqual(sent, Array(4).fill("Bearer token"));
});

/** Starts a server whose turns begin and do not end. */
async function endless(t: Parameters<typeof startProxy>[0]) {
  const server = new FakeServer();
  server.turn = async function* (_, { signal }) {
    yield* short().slice(0, 2);
    await aborted(signal);
  };
  const client = new Client(await server.serve(t));
  t.after(() => client.close());
  return { server, client };
}

test("leaving the loop ends the stream", options, async (t) => {
  const { server, client } = await endless(t);
  const leave: Record<string, (events: AsyncIterable<unknown>) => Promise<void>> = {
    async break(events) {
      for await (const _ of events) {
        break;
      }
    },
    async throw(events) {
      const failure = new Error("error of the caller");
      await assert.rejects(async () => {
        for await (const _ of events) {
          throw failure;
        }
      }, failure);
    },
    async "return during the wait for an event"(events) {
      const iterator = events[Symbol.asyncIterator]();
      await iterator.next();
      await iterator.next();
      const waiting = iterator.next();
      assert.deepEqual(await iterator.return!(), { done: true, value: undefined });
      assert.deepEqual(await waiting, { done: true, value: undefined });
    },
    async "return before the first event"(events) {
      assert.deepEqual(await events[Symbol.asyncIterator]().return!(), { done: true, value: undefined });
    },
  };
  for (const [name, leaveLoop] of Object.entries(leave)) {
    await t.test(name, async () => {
      const before = server.calls.length;
      const { signal } = new AbortController();
      await leaveLoop(client.chat({ content: "hello" }, { signal }));
      assert.deepEqual(getEventListeners(signal, "abort"), []);
      await Promise.all(server.calls.slice(before).map(({ signal }) => aborted(signal)));
    });
  }
});

test("the signal ends calls and streams with its reason", options, async (t) => {
  const { server, client } = await endless(t);
  const controller = new AbortController();
  const seen = read(client.chat({ content: "hello" }, { signal: controller.signal }), (_, count) => {
    if (count === 2) {
      controller.abort();
    }
  });
  const { items, error } = await seen;
  assert.equal(textOf(items), "hi");
  assert.equal((error as Error).name, "AbortError");
  await aborted(server.calls[0]!.signal);
  const abortedOptions = { signal: controller.signal };
  await assert.rejects(client.getConversation({}, abortedOptions), { name: "AbortError" });
  assert.equal(
    ((await read(client.chat({ content: "hello" }, abortedOptions))).error as Error).name,
    "AbortError",
  );
  assert.equal(server.calls.length, 1);
  const late = await read(client.watchConversations({}, { signal: AbortSignal.timeout(1) }));
  assert.equal((late.error as Error).name, "TimeoutError");
});

test("close ends calls and streams", options, async (t) => {
  const { server, client } = await endless(t);
  const { items, error } = await read(client.chat({ content: "hello" }), (_, count) => {
    if (count === 2) {
      client.close();
    }
  });
  const closed = { name: "ParleyError", code: "CANCELLED", message: "CANCELLED: the client is closed" };
  assert.equal(textOf(items), "hi");
  assert.throws(() => {
    throw error;
  }, closed);
  await aborted(server.calls[0]!.signal);
  await assert.rejects(client.getConversation({}), closed);
  assert.equal(((await read(client.watchConversations())).error as ParleyError).code, "CANCELLED");
  await client[Symbol.asyncDispose]();
});

test("a program ends although its client is open", options, async (t) => {
  const server = new FakeServer();
  server.turn = async function* (_, { signal }) {
    yield* short().slice(0, 2);
    await aborted(signal);
  };
  const address = await server.serve(t);
  const program = `
    import { Client } from "@parleyhq/client";
    const client = new Client("${address}");
    await client.getConversation({});
    for await (const event of client.chat({ content: "hello" })) break;
    console.log("left");`;
  const running = start(t, process.execPath, "--input-type=module", "--eval", program);
  assert.equal(await running.ended, 0);
  assert.deepEqual(running.lines, ["left"]);
});

test("no server", options, async (t) => {
  const proxy = await startProxy(t, "127.0.0.1:1");
  proxy.refuse(Infinity);
  const client = new Client(proxy.address);
  t.after(() => client.close());
  await assert.rejects(client.getConversation({}), { code: "UNAVAILABLE" });
  assert.equal(((await read(client.chat({ content: "hello" }))).error as ParleyError).code, "UNAVAILABLE");
});

test("plaintext stays on this machine", () => {
  const table: Record<string, boolean> = {
    "127.0.0.1:50051": true,
    "127.8.9.10:1": true,
    "localhost:50051": true,
    LocalHost: true,
    "[::1]:50051": true,
    "[0:0::1]:50051": true,
    "[::ffff:127.0.0.1]:1": true,
    "unix:/run/parley.sock": true,
    "dns:localhost:1": true,
    "dns:///127.0.0.1:1": true,
    "dns://8.8.8.8/localhost:1": true,
    "parley.example:443": false,
    "localhost.example:1": false,
    "10.0.0.1:50051": false,
    "[::2]:1": false,
    "[::ffff:10.0.0.1]:1": false,
    "127.0.0.1.example:1": false,
    "dns://127.0.0.1/parley.example:1": false,
    "": false,
  };
  for (const [target, want] of Object.entries(table)) {
    assert.equal(isLocal(target), want, target);
  }
});

test("an error says how its conversation ended", options, () => {
  const at = "2026-11-20T08:30:00Z";
  for (const [metadata, ended, endedAt] of [
    [{}, "", undefined],
    [{ at }, "", undefined],
    [{ ended: "EVICTED" }, "EVICTED", undefined],
    [{ ended: "EVICTED", at }, "EVICTED", new Date(at)],
  ] as const) {
    const error = new ParleyError("NOT_FOUND", "gone", { metadata });
    assert.deepEqual([error.ended, error.endedAt], [ended, endedAt]);
  }
});
