import assert from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import {
  Agent,
  AgentServiceDefinition,
  type Answering,
  jsonWrite,
  type Piece,
  RecordWrite,
  type RespondRequest,
  serve,
} from "@parleyhq/client";
import { ClientError, createChannel, createClient, Metadata, Status } from "nice-grpc";
import { HealthDefinition } from "nice-grpc-server-health";

import { tempFolder } from "./parleyd.js";

const options = { timeout: 60_000 };

/** An agent whose respond is a function of the test. */
class FunctionAgent extends Agent {
  readonly #answer: (request: RespondRequest, answering: Answering) => AsyncGenerator<Piece>;

  constructor(answer: (request: RespondRequest, answering: Answering) => AsyncGenerator<Piece>) {
    super();
    this.#answer = answer;
  }

  override respond(request: RespondRequest, answering: Answering): AsyncGenerator<Piece> {
    return this.#answer(request, answering);
  }
}

/** Serves an agent until the end of the test. Returns the server, its clients and the log. */
async function serving(t: TestContext, answer: ConstructorParameters<typeof FunctionAgent>[0], grace = 0) {
  const logged: unknown[][] = [];
  const server = await serve(new FunctionAgent(answer), "127.0.0.1:0", {
    grace,
    log: (...line) => logged.push(line),
  });
  t.after(() => server.stop());
  const channel = createChannel(server.address);
  t.after(() => channel.close());
  const client = createClient(AgentServiceDefinition, channel);
  return { server, logged, client, health: createClient(HealthDefinition, channel) };
}

async function collect(answer: AsyncIterable<{ piece?: unknown }>): Promise<unknown[]> {
  const pieces: unknown[] = [];
  for await (const { piece } of answer) {
    pieces.push(piece);
  }
  return pieces;
}

test("pieces are sent as they are", options, async (t) => {
  const { client, logged } = await serving(t, async function* ({ messages }, { metadata }) {
    yield `${messages[0]?.content} to ${metadata.get("x-who")}`;
    yield { text: "ü😀" };
    yield { structuredData: { type: "t", value: null } };
    yield { reasoning: "hm" };
    yield { toolCallDelta: { id: "1", name: "look", arguments: "{" } };
    yield { usage: { inputTokens: 3 } };
    yield { native: { type: "form", value: Buffer.of(255, 0) } };
    yield { record: { key: "state", ifRevision: 0 } };
    yield { record: jsonWrite("state", [1], { labels: { kind: "list" } }) };
    yield { summary: "" };
  });
  const answer = client.respond(
    { messages: [{ content: "hello" }] },
    { metadata: Metadata({ "x-who": "you" }) },
  );
  assert.deepEqual(await collect(answer), [
    { $case: "text", value: "hello to you" },
    { $case: "text", value: "ü😀" },
    { $case: "structuredData", value: { type: "t", value: null } },
    { $case: "reasoning", value: "hm" },
    { $case: "toolCallDelta", value: { index: 0, id: "1", name: "look", arguments: "{", offset: 0 } },
    {
      $case: "usage",
      value: { model: "", inputTokens: 3, outputTokens: 0, cachedInputTokens: 0, reasoningTokens: 0 },
    },
    { $case: "native", value: { type: "form", value: Buffer.of(255, 0) } },
    { $case: "record", value: RecordWrite.fromPartial({ key: "state", ifRevision: 0 }) },
    {
      $case: "record",
      value: RecordWrite.fromPartial({
        key: "state",
        value: Buffer.from("[1]"),
        mediaType: "application/json",
        labels: { kind: "list" },
      }),
    },
    { $case: "summary", value: "" },
  ]);
  assert.deepEqual(logged, []);
});

const failures: Record<string, { answer: () => AsyncGenerator<Piece>; details: RegExp; logged: RegExp }> = {
  "an error": {
    async *answer() {
      yield "a";
      throw new RangeError("secret");
    },
    details: /^the agent failed with RangeError; see its log$/,
    logged: /secret/,
  },
  "an error in the call of respond": {
    answer() {
      throw new Error("secret");
    },
    details: /failed with Error/,
    logged: /secret/,
  },
  "a thrown string": {
    async *answer() {
      yield "a";
      throw "secret";
    },
    details: /failed with string/,
    logged: /secret/,
  },
  "an unknown piece": {
    async *answer() {
      yield { other: "a" } as unknown as Piece;
    },
    details: /failed with TypeError/,
    logged: /yielded {"other":"a"}, want a string or/,
  },
  "two pieces in one object": {
    async *answer() {
      yield { text: "a", summary: "b" } as unknown as Piece;
    },
    details: /failed with TypeError/,
    logged: /yielded {"text":"a","summary":"b"}/,
  },
  "a piece with a wrong type": {
    async *answer() {
      yield { usage: { inputTokens: 1.5 } };
    },
    details: /failed with/,
    logged: /1\.5/,
  },
  "an undefined piece": {
    async *answer() {
      yield undefined as unknown as Piece;
    },
    details: /failed with TypeError/,
    logged: /yielded undefined/,
  },
};
for (const [name, { answer, details, logged: want }] of Object.entries(failures)) {
  test(`a failure is reported and logged: ${name}`, options, async (t) => {
    const { client, logged } = await serving(t, answer);
    await assert.rejects(collect(client.respond({})), {
      name: "ClientError",
      code: Status.INTERNAL,
      details,
    });
    assert.equal(logged.length, 1);
    assert.match(String(logged[0]?.[1]), want);
  });
}

test("a cancelled answer ends, even if it ignores the signal", options, async (t) => {
  for (const obeys of [true, false]) {
    await t.test(`obeys the signal: ${obeys}`, async (t) => {
      const ended = new EventTarget();
      const never = new AbortController();
      const { client, logged } = await serving(t, async function* (_, { signal }) {
        try {
          yield "a";
          await once(obeys ? signal : never.signal, "abort");
          yield "b";
        } finally {
          ended.dispatchEvent(new Event("end"));
        }
      });
      const end = once(ended, "end");
      for await (const _ of client.respond({})) {
        break; // which cancels the call
      }
      never.abort();
      await end;
      assert.deepEqual(logged, []);
    });
  }
});

test("a stop waits for running answers and rejects new ones", options, async (t) => {
  const { server, client, logged } = await serving(
    t,
    async function* () {
      yield "a";
      await once(go, "go");
      yield "b";
    },
    60_000,
  );
  const go = new EventTarget();
  const seen: unknown[] = [];
  let stopped: Promise<void> | undefined;
  for await (const { piece } of client.respond({})) {
    seen.push(piece?.value);
    if (!stopped) {
      stopped = server.stop();
      assert.equal(stopped, server.stop());
      await assert.rejects(collect(client.respond({})), {
        code: Status.UNAVAILABLE,
        details: /is stopping/,
      });
      go.dispatchEvent(new Event("go"));
    }
  }
  await stopped;
  assert.deepEqual(seen, ["a", "b"]);
  assert.deepEqual(logged, []);
  assert.equal(process.listenerCount("SIGTERM"), 0);
});

test("a stop cancels answers after the grace", options, async (t) => {
  const { server, client, logged } = await serving(t, async function* () {
    yield "a";
    await new Promise(() => {}); // It never resolves.
  });
  await assert.rejects(
    async () => {
      for await (const _ of client.respond({})) {
        void server.stop();
      }
    },
    { name: "ClientError", code: Status.UNAVAILABLE, details: /stopped before its answer was complete/ },
  );
  await server.stop();
  assert.match(String(logged), /^cancelled the answers/);
});

test("health", options, async (t) => {
  const { server, health } = await serving(t, async function* () {});
  for (const service of ["", "parley.v1.AgentService"]) {
    assert.deepEqual(await health.check({ service }), { status: 1 });
  }
  await assert.rejects(health.check({ service: "other" }), (error) => {
    assert.ok(error instanceof ClientError);
    assert.equal(error.code, Status.NOT_FOUND);
    return true;
  });
  // The stop reports the new status and ends the calls.
  const watch = async (service: string): Promise<number[]> => {
    const seen: number[] = [];
    const all = async () => {
      for await (const { status } of health.watch({ service })) {
        seen.push(status);
        if (seen.length === 1) {
          begun.dispatchEvent(new Event("begun"));
        }
      }
    };
    await assert.rejects(all, { name: "ClientError", code: Status.CANCELLED });
    return seen;
  };
  const begun = new EventTarget();
  const watches: Promise<number[]>[] = [];
  const warnings: Error[] = [];
  const warn = (warning: Error) => warnings.push(warning);
  process.on("warning", warn);
  t.after(() => process.off("warning", warn));
  for (const service of ["", "parley.v1.AgentService", "other", ...Array<string>(20).fill("")]) {
    watches.push(watch(service));
    await once(begun, "begun");
  }
  await server.stop();
  assert.deepEqual(await Promise.all(watches), [[1, 2], [1, 2], [3], ...Array(20).fill([1, 2])]);
  assert.deepEqual(warnings, []);
});

test("addresses", options, async (t) => {
  const agent = new FunctionAgent(async function* () {
    yield "a";
  });
  for (const address of ["127.0.0.1", "127.0.0.1:65536", ":", "unix:", ""]) {
    await assert.rejects(serve(agent, address), /want HOST:PORT or unix:PATH/);
  }
  const socket = `unix:${join(await tempFolder(t), "agent.sock")}`;
  await using server = await serve(agent, socket);
  assert.equal(server.address, socket);
  await assert.rejects(serve(agent, socket), /EADDRINUSE/);
  assert.equal(process.listenerCount("SIGTERM"), 1);
});
