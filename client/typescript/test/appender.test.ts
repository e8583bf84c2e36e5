import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import {
  Appender,
  AppendMessagesResponse,
  type AppendStreamRequest,
  Client,
  type Code,
  ParleyError,
} from "@parleyhq/client";
import { ServerError, Status } from "nice-grpc";

import { AppendQueue } from "../src/append-queue.js";
import { Calls } from "../src/calls.js";
import { prepareAppend } from "../src/grpc-transport.js";
import { SignIn } from "../src/sign-in.js";
import { FakeClock } from "./clock.js";
import { FakeServer } from "./fake-server.js";
import { connect, options, startParleyd } from "./parleyd.js";
import { startProxy } from "./proxy.js";
import { breaks, hang, reachable, refused as refusal, refusals, unreachable } from "./streams.js";

/** Returns a request with one message. */
function hello(content: string, conversationId = "c", requestId = "") {
  return { conversationId, requestId, messages: [{ role: "ROLE_USER" as const, content }] };
}

/** Returns the reply to a request. It has the id of the request. */
function answered({ append }: AppendStreamRequest): AppendMessagesResponse {
  return AppendMessagesResponse.fromPartial({ appended: [{ id: append?.requestId ?? "" }] });
}

/** Returns the error of a request. */
function refused(code: Code): ParleyError {
  return new ParleyError(code, "refused");
}

type Reply = AppendMessagesResponse | ParleyError;
type Requests = AsyncIterator<AppendStreamRequest>;
type Handler = (requests: Requests, signal: AbortSignal) => AsyncGenerator<Reply>;

async function next(requests: Requests): Promise<AppendStreamRequest> {
  const { value } = await requests.next();
  assert.ok(value, "the requests have ended");
  return value;
}

/** Answers each request. */
async function* answer(requests: Requests): AsyncGenerator<Reply> {
  for (let request = await requests.next(); !request.done; request = await requests.next()) {
    yield answered(request.value);
  }
}

/** Receives three requests, answers the first, and continues with then. */
function answerOne(then: (signal: AbortSignal) => AsyncGenerator<Reply>): Handler {
  return async function* (requests, signal) {
    const first = await next(requests);
    await next(requests);
    await next(requests);
    yield answered(first);
    yield* then(signal);
  };
}

/** Receives a request and never answers. */
// biome-ignore lint/correctness/useYield: it never answers
async function* silent(requests: Requests, signal: AbortSignal): AsyncGenerator<Reply> {
  await next(requests);
  await hang(signal);
}

/** An appender whose streams have these handlers in order, and then the last one. */
function withStreams(connection = reachable, signal?: AbortSignal, ...handlers: Handler[]) {
  const received: AppendStreamRequest[][] = [];
  const calls = new Calls(new SignIn(undefined, undefined));
  const clock = new FakeClock();
  const appender = new Appender(
    {
      connection,
      begin: () => calls.begin(signal),
      prepare: prepareAppend,
      open(requests, signal) {
        const own: AppendStreamRequest[] = [];
        received.push(own);
        const iterator = requests[Symbol.asyncIterator]();
        const recorded: Requests = {
          async next() {
            const request = await iterator.next();
            if (!request.done) {
              own.push(request.value);
            }
            return request;
          },
        };
        return handlers[Math.min(received.length, handlers.length) - 1]!(recorded, signal);
      },
    },
    clock,
  );
  const contents = () => received.map((own) => own.map(({ append }) => append?.messages[0]?.content));
  return { appender, clock, calls, received, contents };
}

const idOf = ({ appended }: AppendMessagesResponse) => appended[0]?.id;

const replies: Record<string, () => AsyncGenerator<Reply>> = {
  "a reply is UNAVAILABLE": async function* () {
    yield refused("UNAVAILABLE");
    yield refused("NOT_FOUND");
  },
};
const ends = {
  ...breaks,
  "the stream was idle": refusal("RESOURCE_EXHAUSTED", "SLOW_SENDER"),
  "a tenant at its limit of streams": refusal("RESOURCE_EXHAUSTED", "TENANT_STREAMS"),
  "a tenant at its limit of requests": refusal("RESOURCE_EXHAUSTED", "TENANT_REQUESTS"),
};
for (const [name, error] of Object.entries(ends)) {
  // biome-ignore lint/correctness/useYield: it only ends
  replies[name] = async function* () {
    if (error) {
      throw error;
    }
  };
}

for (const [name, then] of Object.entries(replies)) {
  test(`requests without a reply are sent again: ${name}`, async () => {
    const { appender, clock, received, contents } = withStreams(
      reachable,
      undefined,
      answerOne(then),
      answer,
    );
    const results = ["a", "b", "c"].map((text) => appender.append(hello(text, "c", text)));
    await results[0];
    results.push(appender.append(hello("d")));
    await clock.run(appender.close());
    const ids = (await Promise.all(results)).map(idOf);
    assert.deepEqual(ids.slice(0, 3), ["a", "b", "c"]);
    assert.equal(ids[3], received[1]?.at(-1)?.append?.requestId);
    assert.deepEqual(contents()[1], ["b", "c", "d"]);
    assert.equal(clock.pending, 0);
  });
}

for (const [name, error] of Object.entries(refusals)) {
  test(`an appender fails: ${name}`, async () => {
    // biome-ignore lint/correctness/useYield: it only ends
    const then = async function* () {
      throw error;
    };
    const { appender, clock } = withStreams(reachable, undefined, answerOne(then));
    const [first, ...others] = ["a", "b", "c"].map((text) => appender.append(hello(text)));
    await first;
    const code = error.code;
    for (const result of [...others, appender.flush(), appender.append(hello("d")), appender.close()]) {
      await assert.rejects(result, { code });
    }
    await appender.ready();
    assert.equal(clock.pending, 0);
  });
}

test("a refused request does not affect the others", async () => {
  const refuse: Handler = async function* (requests) {
    yield answered(await next(requests));
    await next(requests);
    yield refused("NOT_FOUND");
    await next(requests);
    yield refused("INTERNAL");
    yield* answer(requests);
  };
  const { appender, clock } = withStreams(reachable, undefined, refuse);
  const results = [..."abcd"].map((text) => appender.append(hello(text)));
  const invalid = appender.append({ messages: "no list" as never });
  const large = appender.append(hello("x".repeat(4 << 20)));
  await clock.run(appender.close());
  const codes = (await Promise.allSettled([...results, invalid, large])).map((result) =>
    result.status === "rejected" ? result.reason.code : result.status,
  );
  const wanted = [
    "fulfilled",
    "NOT_FOUND",
    "INTERNAL",
    "fulfilled",
    "INVALID_ARGUMENT",
    "RESOURCE_EXHAUSTED",
  ];
  assert.deepEqual(codes, wanted);
  await assert.rejects(appender.append(hello("e")), { code: "FAILED_PRECONDITION" });
});

test("a silent stream is broken only while a request is without a reply", async () => {
  const answerOnce: Handler = async function* (requests, signal) {
    yield answered(await next(requests));
    yield* silent(requests, signal);
  };
  const { appender, clock, contents } = withStreams(reachable, undefined, answerOnce, answer);
  await clock.run(appender.append(hello("a")));
  await clock.run(clock.sleep(600_000));
  const begin = clock.now();
  await clock.run(appender.append(hello("b")));
  assert.ok(clock.now() - begin > 44_000 && clock.now() - begin < 48_000, `${clock.now() - begin} ms`);
  await clock.run(appender.close());
  assert.deepEqual(contents(), [["a", "b"], ["b"]]);
});

test("an appender gives up after a minute without a reply", async () => {
  const { appender, clock } = withStreams(reachable, undefined, silent);
  await assert.rejects(clock.run(appender.append(hello("a"))), {
    code: "UNAVAILABLE",
    message: /nothing new for 60 s/,
  });
  assert.ok(clock.now() >= 50_000 && clock.now() <= 60_000, `${clock.now()} ms`);
  assert.equal(clock.pending, 0);
});

test("an appender fails at once if no server was reached", async () => {
  // biome-ignore lint/correctness/useYield: it only ends
  const refuse: Handler = async function* () {
    throw breaks["a proxy has no server"];
  };
  const { appender } = withStreams(unreachable, undefined, refuse);
  await assert.rejects(appender.append(hello("a")), { code: "UNAVAILABLE", message: /bad gateway/ });
});

test("the end of a stream without requests is no error", async () => {
  const once: Handler = async function* (requests) {
    yield answered(await next(requests));
    throw refusals["a deadline"];
  };
  const { appender, clock, contents } = withStreams(reachable, undefined, once);
  for (const text of ["a", "b"]) {
    await clock.run(appender.append(hello(text)));
    await clock.run(clock.sleep(1));
  }
  await clock.run(appender.close());
  assert.deepEqual(contents(), [["a"], ["b"]]);
});

test("close says that no request follows, and waits for replies", async () => {
  const answerAtEnd: Handler = async function* (requests) {
    const all: AppendStreamRequest[] = [];
    for (let request = await requests.next(); !request.done; request = await requests.next()) {
      all.push(request.value);
    }
    yield* all.map(answered);
  };
  const { appender, clock } = withStreams(reachable, undefined, answerAtEnd);
  const result = appender.append(hello("a"));
  const flushed = appender.flush();
  await clock.run(appender.close());
  await Promise.all([result, flushed, appender.close()]);
  assert.equal(clock.pending, 0);
});

test("close does not wait for the end of a stream without requests for long", async () => {
  const endless: Handler = async function* (requests, signal) {
    yield answered(await next(requests));
    await hang(signal);
  };
  const { appender, clock } = withStreams(reachable, undefined, endless);
  await clock.run(appender.append(hello("a")));
  await clock.run(appender.close());
  assert.equal(clock.now(), 5000);
  assert.equal(clock.pending, 0);
});

for (const [name, end, want] of [
  ["the signal aborts", (controller: AbortController) => controller.abort("enough"), "enough"],
  ["the client is closed", (_: AbortController, calls: Calls) => calls.close(), "CANCELLED"],
] as const) {
  test(`an appender fails: ${name}`, async () => {
    const controller = new AbortController();
    const { appender, clock, calls } = withStreams(reachable, controller.signal, silent);
    const results = Array.from({ length: 20 }, () => appender.append(hello("a")));
    await clock.run(clock.sleep(1));
    end(controller, calls);
    const settled = await Promise.allSettled([...results, appender.close()]);
    const reasons = settled.map((result) => result.status === "rejected" && result.reason);
    assert.deepEqual(new Set(reasons.map((reason) => reason?.code ?? reason)), new Set([want]));
    assert.equal(clock.pending, 0);
  });
}

test("the requests under way are limited", () => {
  const other = (length: number) => Array.from({ length }, (_, i) => [`${i}`, 1] as const);
  const same = (length: number) => Array.from({ length }, () => ["c", 1] as const);
  const cases: [(readonly [string, number])[], number][] = [
    [[["c", 5 << 20]], 1],
    [same(17), 16],
    [[...same(17), ["d", 1]], 16],
    [[...same(16), ["d", 1]], 17],
    [other(1025), 1024],
    [
      [
        ["c", 3 << 20],
        ["d", 1 << 20],
      ],
      2,
    ],
    [
      [
        ["c", 3 << 20],
        ["d", (1 << 20) + 1],
      ],
      1,
    ],
  ];
  for (const [appends, want] of cases) {
    const queue = new AppendQueue();
    for (const [conversationId, size] of appends) {
      queue.add({ request: {} as AppendStreamRequest, conversationId, size, resolve() {}, reject() {} });
    }
    let sent = 0;
    while (queue.nextUnsent()) {
      sent++;
    }
    assert.equal(sent, want, `${appends.length} requests`);
    assert.equal(queue.hasWaiting(), want < appends.length);
    while (queue.length > 0) {
      queue.nextUnsent();
      queue.removeFirstSent();
    }
    assert.ok(queue.hasSpace());
  }
});

test("ready waits for space", async () => {
  const { appender, clock, contents } = withStreams(reachable, undefined, answer);
  const order: string[] = [];
  for (let i = 0; i < 20; i++) {
    await clock.run(appender.ready());
    void appender.append(hello(`${i}`)).then(() => order.push(`${i}`));
  }
  await clock.run(appender.close());
  const all = Array.from({ length: 20 }, (_, i) => `${i}`);
  assert.deepEqual([order, contents()], [all, [all]]);
});

test("an appender continues with another token", async (t) => {
  const server = new FakeServer();
  server.failures = [new ServerError(Status.UNAUTHENTICATED, "expired")];
  const tokens = ["old", "new"];
  const client = new Client(await server.serve(t), { token: () => tokens.shift()! });
  t.after(() => client.close());
  await using appender = client.appender();
  const ids = await Promise.all(["a", "b"].map((id) => appender.append(hello(id, "c", id))));
  assert.deepEqual(ids.map(idOf), ["a", "b"]);
  const sent = server.calls.map(({ metadata }) => metadata.get("authorization"));
  assert.deepEqual(sent, ["Bearer old", "Bearer new"]);
});

test("the error of a server without the call says what to do", async (t) => {
  const server = new FakeServer();
  server.failures = [new ServerError(Status.UNIMPLEMENTED, "unknown method")];
  const appender = connect(t, await server.serve(t)).appender();
  const message = "UNIMPLEMENTED: the server has no AppendStream: update it, or use appendMessages";
  await assert.rejects(appender.append(hello("a")), { message });
});

/** Creates a conversation that keeps more messages than the default. */
async function create(client: Client, id: string): Promise<void> {
  await client.createConversation({ conversation: { id, retention: { maxMessages: 200 } } });
}

/** Returns the messages of a conversation, the oldest first. */
async function stored(client: Client, conversationId: string): Promise<string[]> {
  const { messages } = await client.listMessages({ conversationId, pageSize: 1000 });
  return messages.map(({ content }) => content).reverse();
}

test("a server refuses one request of a stream", options, async (t) => {
  const client = connect(t, (await startParleyd(t)).address);
  await create(client, "c");
  const appender = client.appender();
  const contents = Array.from({ length: 40 }, (_, i) => `${i}`);
  const first = contents.slice(0, 20).map((content) => appender.append(hello(content)));
  const refusal = appender.append(hello("a", "no blank at the end "));
  const last = contents.slice(20).map((content) => appender.append(hello(content)));
  await appender.close();
  const replies = await Promise.all([...first, ...last]);
  assert.deepEqual(
    replies.map(({ appended }) => appended[0]?.sequence),
    contents.map((content) => Number(content) + 1),
  );
  assert.deepEqual(await stored(client, "c"), contents);
  const errors = [refusal, client.appendMessages(hello("a", "no blank at the end "))].map((result) =>
    result.then(
      () => assert.fail("the request was accepted"),
      ({ code, reason, metadata, fieldViolations, retryDelay, message }: ParleyError) => {
        return { code, reason, metadata, fieldViolations, retryDelay, message };
      },
    ),
  );
  const [ofStream, ofCall] = await Promise.all(errors);
  assert.deepEqual(ofStream, ofCall);
});

/** Returns numbers that look random, the same in each run. */
function dice(seed: number): (sides: number) => number {
  let state = seed;
  return (sides) => {
    state = (state * 48271) % 0x7fffffff;
    return state % sides;
  };
}

test("fifty broken connections lose, double and reorder nothing", options, async (t: TestContext) => {
  const { address } = await startParleyd(t);
  const proxy = await startProxy(t, address);
  const appender = connect(t, proxy.address).appender();
  const roll = dice(7);
  const sent = new Map(Array.from({ length: 16 }, (_, i) => [`c${i}`, [] as string[]]));
  const direct = connect(t, address);
  for (const conversation of sent.keys()) {
    await create(direct, conversation);
  }
  const append = (count: number) =>
    Array.from({ length: count }, () => {
      const conversation = `c${roll(16)}`;
      const contents = sent.get(conversation)!;
      contents.push(`${contents.length}`);
      return appender.append(hello(contents.at(-1)!, conversation));
    });
  const results = [];
  for (let i = 0; i < 50; i++) {
    const connected = append(1 + roll(12));
    await connected.at(-1);
    results.push(...connected, ...append(1 + roll(12)));
    if (roll(10) < 3) {
      proxy.cutAfter(1 + roll(600));
    }
    proxy.cut();
  }
  await appender.close();
  await Promise.all(results);
  assert.ok(proxy.opened > 50, `${proxy.opened} connections`);
  for (const [conversation, contents] of sent) {
    assert.deepEqual(await stored(direct, conversation), contents);
  }
});
