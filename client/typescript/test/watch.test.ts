import assert from "node:assert/strict";
import { test } from "node:test";

import { ConversationChange, ParleyError, WatchConversationsRequest } from "parley";

import { unbroken } from "../src/unbroken.js";
import { Watcher } from "../src/watch.js";
import { FakeClock } from "./clock.js";
import { breaks, hang, reachable, read, refusals, refused, unreachable } from "./streams.js";

/** A call of WatchConversations. */
interface Asked {
  /** Of such calls, from 0. */
  nth: number;
  request: WatchConversationsRequest;
  /** How many changes the client has had. */
  place: number;
  signal: AbortSignal;
}

/** A request that is to arrive whole each time, but for its cursor. */
const session = WatchConversationsRequest.fromPartial({
  conversationIds: ["c"],
  includeTurnEvents: true,
  deleteAfterDisconnect: { seconds: 0 },
});

/** A server that answers so, what it was asked, and streams of it. */
class Fake {
  readonly clock = new FakeClock();
  readonly asked: Asked[] = [];
  line = reachable;
  readonly #answer: (asked: Asked) => AsyncIterable<ConversationChange | undefined>;

  constructor(answer: (asked: Asked) => AsyncIterable<ConversationChange | undefined>) {
    this.#answer = answer;
  }

  async *watchConversations(request: WatchConversationsRequest, { signal }: { signal: AbortSignal }) {
    this.asked.push({ nth: this.asked.length, request, place: Number(request.cursor), signal });
    for await (const change of this.#answer(this.asked.at(-1)!)) {
      yield { change };
    }
  }

  watch(signal = new AbortController().signal): AsyncIterable<ConversationChange> {
    return unbroken(new Watcher(this, session), this.line, signal, this.clock);
  }
}

/** A change whose cursor says how many changes there are up to it. */
const change = (kind: ConversationChange["kind"], place: number): ConversationChange =>
  ConversationChange.fromPartial({ kind, cursor: String(place) });
const heartbeat = (place: number) => change("CHANGE_KIND_HEARTBEAT", place);
const gap = (place: number) => change("CHANGE_KIND_GAP", place);
/** The changes up to a place. */
const committed = (place: number) =>
  Array.from({ length: place }, (_, i) => change("CHANGE_KIND_MESSAGE_APPENDED", i + 1));

/** Reads until the change of that place that is no heartbeat. */
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
  test(`a watch goes on behind its last change: ${name}`, async () => {
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
        fake.asked.map(({ request }) => request),
        [session, { ...session, cursor: k > 0 ? String(place) : "" }],
      );
      assert.equal(fake.clock.pending, 0);
    }
  });
}

for (const [name, end] of Object.entries(refusals)) {
  test(`what is no break is the end of a watch: ${name}`, async () => {
    const sent = end.reason === "TOO_MANY_WATCHERS" ? [] : committed(2);
    const fake = new Fake(async function* () {
      yield* sent;
      throw end;
    });
    const { items, error } = await fake.clock.run(read(fake.watch()));
    assert.equal(error, end);
    assert.deepEqual(items, sent);
    assert.equal(fake.asked.length, 1);
  });
}

test("events of turns are not asked for again", async () => {
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
    fake.asked.map(({ request }) => request.cursor),
    ["", "1"],
  );
});

test("who was let in waits for a server that is full", async () => {
  const fake = new Fake(async function* ({ nth, signal }) {
    if (nth === 0) {
      yield* [heartbeat(0), ...committed(1)];
      throw breaks["something in between is away"];
    }
    if (nth < 5) {
      throw refused("RESOURCE_EXHAUSTED", "TOO_MANY_WATCHERS");
    }
    yield gap(2);
    await hang(signal);
  });
  assert.equal((await fake.clock.run(upTo(2, fake.watch()))).length, 3);
});

const givingUp: Record<
  string,
  { answer: (asked: Asked) => Promise<unknown>; code: string; reason?: string }
> = {
  "a server that stops and stops": {
    answer: async () => breaks["the server restarts"],
    code: "UNAVAILABLE",
    reason: "SHUTTING_DOWN",
  },
  "a server that is full meanwhile": {
    answer: async () => refused("RESOURCE_EXHAUSTED", "TOO_MANY_WATCHERS"),
    code: "RESOURCE_EXHAUSTED",
    reason: "TOO_MANY_WATCHERS",
  },
  "streams without a word": { answer: async () => undefined, code: "UNKNOWN" },
  "streams that hang": { answer: ({ signal }) => hang(signal), code: "UNAVAILABLE" },
};
for (const [name, { answer, code, reason = "" }] of Object.entries(givingUp)) {
  test(`gives up a watch after a minute: ${name}`, async () => {
    const fake = new Fake(async function* (asked) {
      if (asked.nth === 0) {
        yield heartbeat(0);
        throw breaks["something in between is away"];
      }
      const end = await answer(asked);
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

// As long as it answers, a server is asked; but one that breaks every stream is not asked all the
// time.
test("a broken server is asked slowly", async () => {
  const fake: Fake = new Fake(async function* ({ nth }) {
    yield* [gap(nth), heartbeat(nth)];
    throw breaks["something in between resets it"];
  });
  const begin = async () => {
    for await (const _ of fake.watch()) {
      if (fake.clock.now() > 600_000) {
        break;
      }
    }
  };
  await fake.clock.run(begin());
  assert.ok(fake.asked.length > 200 && fake.asked.length < 400, `asked ${fake.asked.length} times`);
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
  assert.ok(silence >= 45_000 && silence < 46_000, `borne for ${silence} ms`);
});

test("a watcher may take its time", async () => {
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
  assert.equal(fake.asked.length, 1);
});

test("no server to watch at first", async () => {
  const away = new ParleyError("UNAVAILABLE", "connection refused");
  const fake = new Fake(() =>
    (async function* () {
      yield* [];
      throw away;
    })(),
  );
  fake.line = unreachable;
  const { error } = await fake.clock.run(read(fake.watch()));
  assert.equal(error, away);
  assert.equal(fake.asked.length, 1);
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
