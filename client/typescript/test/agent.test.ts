import assert from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import { type TestContext, test } from "node:test";

import { ClientError, createChannel, createClient, Metadata, Status } from "nice-grpc";
import { HealthDefinition } from "nice-grpc-server-health";
import {
  Agent,
  AgentServiceDefinition,
  type Answering,
  type Piece,
  type RespondRequest,
  serve,
} from "parley";

import { folderOf } from "./parleyd.js";

const options = { timeout: 60_000 };

/** An agent made of a function. */
class Made extends Agent {
  readonly #answer: (request: RespondRequest, answering: Answering) => AsyncGenerator<Piece>;

  constructor(answer: (request: RespondRequest, answering: Answering) => AsyncGenerator<Piece>) {
    super();
    this.#answer = answer;
  }

  override respond(request: RespondRequest, answering: Answering): AsyncGenerator<Piece> {
    return this.#answer(request, answering);
  }
}

/** Serves it until the end of the test, and returns clients of it and what it logs. */
async function serving(t: TestContext, answer: ConstructorParameters<typeof Made>[0], grace = 0) {
  const logged: unknown[][] = [];
  const server = await serve(new Made(answer), "127.0.0.1:0", { grace, log: (...line) => logged.push(line) });
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
    yield { usage: { inputTokens: 3 } };
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
    {
      $case: "usage",
      value: { model: "", inputTokens: 3, outputTokens: 0, cachedInputTokens: 0, reasoningTokens: 0 },
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
    details: /^the agent failed with RangeError; its log says why$/,
    logged: /secret/,
  },
  "at once": {
    answer() {
      throw new Error("secret");
    },
    details: /failed with Error/,
    logged: /secret/,
  },
  "no error": {
    async *answer() {
      yield "a";
      throw "secret";
    },
    details: /failed with string/,
    logged: /secret/,
  },
  "no piece": {
    async *answer() {
      yield { words: "a" } as unknown as Piece;
    },
    details: /failed with TypeError/,
    logged: /yielded {"words":"a"}, want a string or/,
  },
  "two pieces in one": {
    async *answer() {
      yield { text: "a", summary: "b" } as unknown as Piece;
    },
    details: /failed with TypeError/,
    logged: /yielded {"text":"a","summary":"b"}/,
  },
  "a piece of another type": {
    async *answer() {
      yield { usage: { inputTokens: 1.5 } };
    },
    details: /failed with/,
    logged: /1\.5/,
  },
  "no piece at all": {
    async *answer() {
      yield undefined as unknown as Piece;
    },
    details: /failed with TypeError/,
    logged: /yielded undefined/,
  },
};
for (const [name, { answer, details, logged: want }] of Object.entries(failures)) {
  test(`a failure is told and logged: ${name}`, options, async (t) => {
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

test("an answer that nobody wants ends, whether it heeds the signal or not", options, async (t) => {
  for (const heeds of [true, false]) {
    await t.test(String(heeds), async (t) => {
      const ended = new EventTarget();
      const never = new AbortController();
      const { client, logged } = await serving(t, async function* (_, { signal }) {
        try {
          yield "a";
          await once(heeds ? signal : never.signal, "abort");
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

test("a stop lets running answers end, and no more begin", options, async (t) => {
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

test("an answer that goes on after the grace is cut off", options, async (t) => {
  const { server, client, logged } = await serving(t, async function* () {
    yield "a";
    await new Promise(() => {}); // For ever.
  });
  await assert.rejects(
    async () => {
      for await (const _ of client.respond({})) {
        void server.stop();
      }
    },
    { name: "ClientError", code: Status.UNAVAILABLE, details: /stopped before its answer was whole/ },
  );
  await server.stop();
  assert.match(String(logged), /^cut off the answers/);
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
  const agent = new Made(async function* () {
    yield "a";
  });
  for (const address of ["127.0.0.1", "127.0.0.1:65536", ":", "unix:", ""]) {
    await assert.rejects(serve(agent, address), /want HOST:PORT or unix:PATH/);
  }
  const socket = `unix:${join(await folderOf(t), "agent.sock")}`;
  await using server = await serve(agent, socket);
  assert.equal(server.address, socket);
  await assert.rejects(serve(agent, socket), /EADDRINUSE/);
  assert.equal(process.listenerCount("SIGTERM"), 1);
});
