import assert from "node:assert/strict";
import { test } from "node:test";

import { ConversationChange, ParleyError, WatchConversationsRequest } from "@parleyhq/client";

import { resumed } from "../src/resumption.js";
import { Watcher } from "../src/watch.js";
import { FakeClock } from "./clock.js";
import { breaks, hang, reachable, read, refusals, refused, unreachable } from "./streams.js";

/** A call of WatchConversations. */
interface Call {
  /** The number of the call, from 0. */
  nth: number;
  request: WatchConversationsRequest;
  /** The number of changes before the cursor of the request. */
  place: number;
  signal: AbortSignal;
}

/** The request of all watches. Only its cursor changes. */
const watchRequest = WatchConversationsRequest.fromPartial({
  conversationIds: ["c"],
  includeTurnEvents: true,
  deleteAfterDisconnect: { seconds: 0 },
});

/** A fake server with this answer. It records the calls, and has a fake clock. */
class Fake {
  readonly clock = new FakeClock();
  readonly calls: Call[] = [];
  connection = reachable;
  readonly #answer: (call: Call) => AsyncIterable<ConversationChange | undefined>;

  constructor(answer: (call: Call) => AsyncIterable<ConversationChange | undefined>) {
    this.#answer = answer;
  }

  async *watchConversations(request: WatchConversationsRequest, { signal }: { signal: AbortSignal }) {
    this.calls.push({ nth: this.calls.length, request, place: Number(request.cursor), signal });
    for await (const change of this.#answer(this.calls.at(-1)!)) {
      yield { change };
    }
  }

  watch(signal = new AbortController().signal): AsyncIterable<ConversationChange> {
    return resumed(new Watcher(this, watchRequest), this.connection, signal, this.clock);
  }
}

/** Returns a change. Its cursor is the number of changes up to it. */
const change = (kind: ConversationChange["kind"], place: number): ConversationChange =>
  ConversationChange.fromPartial({ kind, cursor: String(place) });
const heartbeat = (place: number) => change("CHANGE_KIND_HEARTBEAT", place);
const gap = (place: number) => change("CHANGE_KIND_GAP", place);
/** Returns the first changes. */
const committed = (place: number) =>
  Array.from({ length: place }, (_, i) => change("CHANGE_KIND_MESSAGE_APPENDED", i + 1));

/** Reads up to the change with this place that is not a heartbeat. */
async function upTo(place: number, changes: AsyncIterable<ConversationChange>) {
  const items: ConversationChange[] = [];
  for await (const item of changes) {
    items.push(item);
    if (item.kind !== "CHANGE_KIND_HEARTBEAT" && item.cursor === String(place)) {
      break;
    }
  }
  return items;
}

for (const [name, end] of Object.entries(breaks)) {
  test(`a watch resumes after its last change: ${name}`, async () => {
    const changes = committed(5);
    for (let k = 0; k <= changes.length + 1; k++) {
      const fake = new Fake(async function* ({ nth, place, signal }) {
        const all = [heartbeat(place), ...changes.slice(place)];
        if (nth > 0) {
          yield* [...all, gap(6)];
          await hang(signal);
        }
        yield* all.slice(0, k);
        if (end) {
          throw end;
        }
      });
      const items = await fake.clock.run(upTo(6, fake.watch()));
      const place = Math.max(k - 1, 0);
      const first = [heartbeat(0), ...changes].slice(0, k);
      assert.deepEqual(items, [...first, heartbeat(place), ...changes.slice(place), gap(6)]);
      assert.deepEqual(
        fake.calls.map(({ request }) => request),
        [watchRequest, { ...watchRequest, cursor: k > 0 ? String(place) : "" }],
      );
      assert.equal(fake.clock.pending, 0);
    }
  });
}

for (const [name, end] of Object.entries(refusals)) {
  test(`other errors of a watch are thrown: ${name}`, async () => {
    const sent = end.reason === "TOO_MANY_WATCHERS" ? [] : committed(2);
    const fake = new Fake(async function* () {
      yield* sent;
      throw end;
    });
    const { items, error } = await fake.clock.run(read(fake.watch()));
    assert.equal(error, end);
    assert.deepEqual(items, sent);
    assert.equal(fake.calls.length, 1);
  });
}

test("events of turns do not change the cursor", async () => {
  const event = change("CHANGE_KIND_TURN", 1);
  const fake = new Fake(async function* ({ nth, signal }) {
    if (nth > 0) {
      yield gap(2);
      await hang(signal);
    }
    yield* [heartbeat(0), ...committed(1), event, { ...event, cursor: "" }, undefined];
  });
  assert.equal((await fake.clock.run(upTo(2, fake.watch()))).length, 5);
  assert.deepEqual(
    fake.calls.map(({ request }) => request.cursor),
    ["", "1"],
  );
});

test("an accepted watch retries at the limit of watchers", async () => {
  const fake = new Fake(async function* ({ nth, signal }) {
    if (nth === 0) {
      yield* [heartbeat(0), ...committed(1)];
      throw breaks["a proxy has no server"];
    }
    if (nth < 5) {
      throw refused("RESOURCE_EXHAUSTED", "TOO_MANY_WATCHERS");
    }
    yield gap(2);
    await hang(signal);
  });
  assert.equal((await fake.clock.run(upTo(2, fake.watch()))).length, 3);
});

const givingUp: Record<string, { answer: (call: Call) => Promise<unknown>; code: string; reason?: string }> =
  {
    "a server that keeps stopping": {
      answer: async () => breaks["the server restarts"],
      code: "UNAVAILABLE",
      reason: "SHUTTING_DOWN",
    },
    "a server at its limit of watchers": {
      answer: async () => refused("RESOURCE_EXHAUSTED", "TOO_MANY_WATCHERS"),
      code: "RESOURCE_EXHAUSTED",
      reason: "TOO_MANY_WATCHERS",
    },
    "streams without a message": { answer: async () => undefined, code: "UNKNOWN" },
    "streams that hang": { answer: ({ signal }) => hang(signal), code: "UNAVAILABLE" },
  };
for (const [name, { answer, code, reason = "" }] of Object.entries(givingUp)) {
  test(`gives up a watch after a minute: ${name}`, async () => {
    const fake = new Fake(async function* (call) {
      if (call.nth === 0) {
        yield heartbeat(0);
        throw breaks["a proxy has no server"];
      }
      const end = await answer(call);
      if (end) {
        throw end;
      }
    });
    const { items, error } = await fake.clock.run(read(fake.watch()));
    assert.deepEqual(items, [heartbeat(0)]);
    assert.ok(error instanceof ParleyError);
    assert.deepEqual({ code: error.code, reason: error.reason }, { code, reason });
    assert.ok(fake.clock.now() > 57_000 && fake.clock.now() <= 60_000, `after ${fake.clock.now()} ms`);
    assert.equal(fake.clock.pending, 0);
  });
}

// The client retries as long as the server answers, but slowly if each stream breaks.
test("the delay grows if each stream breaks", async () => {
  const fake: Fake = new Fake(async function* ({ nth }) {
    yield* [gap(nth), heartbeat(nth)];
    throw breaks["a proxy resets the stream"];
  });
  const run = async () => {
    for await (const _ of fake.watch()) {
      if (fake.clock.now() > 600_000) {
        break;
      }
    }
  };
  await fake.clock.run(run());
  assert.ok(fake.calls.length > 200 && fake.calls.length < 400, `sent ${fake.calls.length} times`);
});

test("a watch that hangs", async () => {
  const fake: Fake = new Fake(async function* ({ nth, signal }) {
    for (let i = 0; nth === 0 && i < 5; i++) {
      yield heartbeat(0);
      await (i < 4 ? fake.clock.sleep(44_000) : hang(signal));
    }
    yield gap(1);
    await hang(signal);
  });
  assert.equal((await fake.clock.run(upTo(1, fake.watch()))).length, 6);
  const silence = fake.clock.now() - 4 * 44_000;
  assert.ok(silence >= 45_000 && silence < 46_000, `resumed after ${silence} ms`);
});

test("the caller's own time does not count for a watch", async () => {
  const fake: Fake = new Fake(async function* ({ signal }) {
    yield* committed(2);
    await fake.clock.sleep(610_000);
    yield gap(3);
    await hang(signal);
  });
  const slowly = async () => {
    for await (const { cursor } of fake.watch()) {
      await fake.clock.sleep(300_000);
      if (cursor === "3") {
        break;
      }
    }
  };
  await fake.clock.run(slowly());
  assert.equal(fake.calls.length, 1);
});

test("no server to watch at first", async () => {
  const unreachableError = new ParleyError("UNAVAILABLE", "connection refused");
  const fake = new Fake(() =>
    (async function* () {
      yield* [];
      throw unreachableError;
    })(),
  );
  fake.connection = unreachable;
  const { error } = await fake.clock.run(read(fake.watch()));
  assert.equal(error, unreachableError);
  assert.equal(fake.calls.length, 1);
});

test("a watch ends with its signal", async () => {
  const fake = new Fake(async function* ({ signal }) {
    yield heartbeat(0);
    await hang(signal);
  });
  const controller = new AbortController();
  fake.clock.after(10_000, () => controller.abort(new Error("enough")));
  const { error } = await fake.clock.run(read(fake.watch(controller.signal)));
  assert.equal(error, controller.signal.reason);
  assert.equal(fake.clock.now(), 10_000);
  assert.equal(fake.clock.pending, 0);
});
