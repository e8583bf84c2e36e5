import assert from "node:assert/strict";
import { test } from "node:test";

import { ChatRequest, ParleyError, ResumeTurnRequest, type TurnEvent } from "@parleyhq/client";

import { AwakeClock, type Clock } from "../src/clock.js";
import { Follower, type Turns } from "../src/follow.js";
import { resumed } from "../src/resumption.js";
import { FakeClock } from "./clock.js";
import { describe, finished, long, merged, numbered, queued, short, started, text } from "./model.js";
import { breaks, hang, reachable, read, refusals, refused, unreachable } from "./streams.js";

/** A call of Chat or ResumeTurn. */
interface Call {
  /** The number of the call, from 0. */
  nth: number;
  chat?: ChatRequest;
  resume?: ResumeTurnRequest;
  signal: AbortSignal;
}

const hello = ChatRequest.fromPartial({ conversationId: "c", content: "hello", requestId: "r" });

/** A fake server with this answer. It records the calls, and has a fake clock. */
class Fake {
  readonly clock = new FakeClock();
  readonly calls: Call[] = [];
  connection = reachable;
  readonly #turns: Turns;

  constructor(answer: (call: Call) => AsyncIterable<TurnEvent>) {
    const stream = async function* (this: Fake, call: Omit<Call, "nth">) {
      this.calls.push({ ...call, nth: this.calls.length });
      for await (const event of answer(this.calls.at(-1)!)) {
        yield { event };
      }
    }.bind(this);
    this.#turns = {
      chat: (chat, { signal }) => stream({ chat, signal }),
      resumeTurn: (resume, { signal }) => stream({ resume, signal }),
    };
  }

  chat(
    signal = new AbortController().signal,
    generatedID = true,
    clock: Clock = this.clock,
  ): AsyncIterable<TurnEvent> {
    return resumed(Follower.chat(this.#turns, hello, generatedID), this.connection, signal, clock);
  }

  resume(request: Partial<ResumeTurnRequest>): AsyncIterable<TurnEvent> {
    const follower = Follower.resume(this.#turns, ResumeTurnRequest.fromPartial(request));
    return resumed(follower, this.connection, new AbortController().signal, this.clock);
  }
}

for (const [name, end] of Object.entries(breaks)) {
  test(`resumes after any event: ${name}`, async () => {
    const events = long();
    for (let k = 0; k < events.length; k++) {
      const fake = new Fake(async function* ({ nth, resume }) {
        yield* nth > 0 ? events.slice(resume?.afterIndex) : events.slice(0, k);
        if (nth === 0 && end) {
          throw end;
        }
      });
      const { items, error } = await fake.clock.run(read(fake.chat()));
      assert.ifError(error);
      assert.deepEqual(items, events);
      const [, second, ...more] = fake.calls;
      assert.equal(more.length, 0);
      if (k === 0) {
        assert.deepEqual(second?.chat, hello);
      } else {
        assert.deepEqual(second?.resume, { conversationId: "c", turnId: "t", afterIndex: k });
      }
      assert.equal(fake.clock.pending, 0);
    }
  });
}

for (const [name, end] of Object.entries(refusals)) {
  test(`other errors are thrown: ${name}`, async () => {
    const fake = new Fake(async function* () {
      yield* short().slice(0, 2);
      throw end;
    });
    const { items, error } = await fake.clock.run(read(fake.chat()));
    assert.equal(error, end);
    assert.deepEqual(items, short().slice(0, 2));
    assert.equal(fake.calls.length, 1);
  });
}

// The server forgets the events after any event k. The replay has the state after any event n, and
// breaks after any of its events j.
test("events that are gone", async () => {
  const events = long();
  for (let k = 1; k < events.length; k++) {
    for (let n = k; n <= events.length; n += 5) {
      for (let j = 0; j <= events.length; j += 2) {
        let time = n;
        const fake = new Fake(async function* ({ nth, resume }) {
          if (nth === 0) {
            yield* events.slice(0, k);
            throw k % 2 === 0 ? breaks["the server restarts"] : refused("OUT_OF_RANGE", "EVENTS_GONE");
          }
          if (resume?.afterIndex) {
            throw refused("OUT_OF_RANGE", "EVENTS_GONE");
          }
          const replay = [...merged(events.slice(0, time)), ...events.slice(time)];
          time = Math.min(time + 1, events.length); // The next replay has a later state.
          yield* nth < 3 ? replay.slice(0, j) : replay;
        });
        const { items, error } = await fake.clock.run(read(fake.chat()));
        const where = `break after ${k}, replay of ${n}, broken after ${j}`;
        assert.ifError(error);
        assert.deepEqual(describe(items), describe(events), where);
        assert.ok(
          items.every(({ index }, i) => i === 0 || index > items[i - 1]!.index),
          where,
        );
      }
    }
  }
});

test("a crash of the server", async () => {
  const events = numbered("t", started("c"), text("Once"), text(" upon"), text(" a ti"));
  const end = { ...numbered("t", finished())[0]!, index: 1 << 20 };
  const fake = new Fake(async function* ({ nth, resume }) {
    if (nth === 0) {
      yield* events;
      throw breaks["a proxy has no server"];
    }
    if (resume!.afterIndex > 3) {
      throw refused("OUT_OF_RANGE", "EVENTS_GONE");
    }
    yield* [...merged(events.slice(0, 3)), end]; // The last piece was not stored.
  });
  const { items, error } = await fake.clock.run(read(fake.chat()));
  assert.ifError(error);
  assert.deepEqual(items, [...events, end]);
});

test("a queued turn may get another turnId", async () => {
  const before = numbered("first", queued(2), queued(1));
  const after = numbered("second", queued(1), started("c"), text("hi"), finished());
  const fake = new Fake(async function* ({ nth }) {
    yield* nth === 0 ? before : after;
  });
  const { items, error } = await fake.clock.run(read(fake.chat()));
  assert.ifError(error);
  assert.deepEqual(items, [...before, ...after]);
  assert.deepEqual(fake.calls[1]?.chat, hello);
});

test("replayed is delivered if the caller set the requestId", async () => {
  for (const generatedID of [true, false]) {
    const fake = new Fake(() =>
      (async function* () {
        yield* numbered("t", started("c", true), finished());
      })(),
    );
    const { items } = await fake.clock.run(read(fake.chat(undefined, generatedID)));
    const first = items[0]?.event;
    assert.equal(first?.$case === "started" && first.value.replayed, !generatedID);
  }
});

test("resuming", async (t) => {
  const events = long();
  await t.test("from the last event", async () => {
    const fake = new Fake(async function* () {});
    const { items, error } = await fake.clock.run(read(fake.resume({ conversationId: "c", afterIndex: 9 })));
    assert.deepEqual({ items, error }, { items: [], error: undefined });
    assert.equal(fake.calls.length, 1);
  });
  await t.test("from another index", async () => {
    const fake = new Fake(async function* ({ nth, resume }) {
      yield* events.slice(resume!.afterIndex, nth === 0 ? 8 : undefined);
    });
    const request = { conversationId: "c", turnId: "", afterIndex: 5 };
    const { items, error } = await fake.clock.run(read(fake.resume(request)));
    assert.ifError(error);
    assert.deepEqual(items, events.slice(5));
    assert.deepEqual(
      fake.calls.map(({ resume }) => resume),
      [request, { conversationId: "c", turnId: "t", afterIndex: 8 }],
    );
  });
  await t.test("from an index whose events are gone", async () => {
    const gone = refused("OUT_OF_RANGE", "EVENTS_GONE");
    const fake = new Fake(() =>
      (async function* () {
        yield* [];
        throw gone;
      })(),
    );
    const { error } = await fake.clock.run(read(fake.resume({ conversationId: "c", afterIndex: 5 })));
    assert.equal(error, gone);
    assert.equal(fake.calls.length, 1);
  });
});

const givingUp: Record<
  string,
  { answer: (call: Call) => AsyncIterable<TurnEvent>; code: string; reason?: string }
> = {
  "a server that keeps stopping": {
    async *answer() {
      yield* [];
      throw breaks["the server restarts"];
    },
    code: "UNAVAILABLE",
    reason: "SHUTTING_DOWN",
  },
  "streams without events": { async *answer() {}, code: "UNKNOWN" },
  "a server that stops, then hangs": {
    async *answer({ nth, signal }) {
      yield* [];
      throw nth > 20 ? await hang(signal) : breaks["the server restarts"];
    },
    code: "UNAVAILABLE",
    reason: "SHUTTING_DOWN",
  },
  "streams that hang": {
    async *answer({ signal }) {
      yield* [];
      await hang(signal);
    },
    code: "UNAVAILABLE",
  },
  "streams of known events": {
    async *answer() {
      yield* short().slice(0, 2);
      throw breaks["a proxy resets the stream"];
    },
    code: "INTERNAL",
  },
};
for (const [name, { answer, code, reason = "" }] of Object.entries(givingUp)) {
  test(`gives up after a minute: ${name}`, async () => {
    const fake = new Fake(async function* (call) {
      if (call.nth > 0) {
        return yield* answer(call);
      }
      yield* short().slice(0, 2);
      throw breaks["a proxy has no server"];
    });
    const { items, error } = await fake.clock.run(read(fake.chat()));
    assert.deepEqual(items, short().slice(0, 2));
    assert.ok(error instanceof ParleyError);
    assert.deepEqual({ code: error.code, reason: error.reason }, { code, reason });
    assert.ok(fake.clock.now() > 57_000 && fake.clock.now() <= 60_000, `after ${fake.clock.now()} ms`);
    assert.ok(fake.calls.length <= 60, `sent ${fake.calls.length} times`);
    assert.equal(fake.clock.pending, 0);
  });
}

test("each event gives the server another minute", async () => {
  const events = long();
  let unreachableUntil = 0;
  const fake: Fake = new Fake(async function* ({ resume }) {
    if (fake.clock.now() < unreachableUntil) {
      throw breaks["the server restarts"];
    }
    yield events[resume?.afterIndex ?? 0]!;
    unreachableUntil = fake.clock.now() + 50_000;
  });
  const { items, error } = await fake.clock.run(read(fake.chat()));
  assert.ifError(error);
  assert.deepEqual(items, events);
});

test("a stream that hangs", async () => {
  const fake = new Fake(async function* ({ nth, resume, signal }) {
    yield* nth > 0 ? long().slice(resume!.afterIndex) : long().slice(0, 5);
    await (nth > 0 ? undefined : hang(signal));
  });
  const { items, error } = await fake.clock.run(read(fake.chat()));
  assert.ifError(error);
  assert.deepEqual(items, long());
  assert.ok(fake.clock.now() >= 45_000 && fake.clock.now() < 46_000, `resumed after ${fake.clock.now()} ms`);
});

test("the caller's own time does not count", async () => {
  const fake: Fake = new Fake(async function* () {
    for (const event of long()) {
      yield event;
      await fake.clock.sleep(15_000);
    }
  });
  const step = (_: TurnEvent, count: number) => (count === 3 ? fake.clock.sleep(120_000) : undefined);
  const { items, error } = await fake.clock.run(read(fake.chat(), step));
  assert.ifError(error);
  assert.deepEqual(items, long());
  assert.equal(fake.calls.length, 1);
});

const suspensions: Record<string, (clock: FakeClock, signal: AbortSignal) => Promise<unknown>> = {
  "while a stream is open, which then breaks": async (clock) => {
    await clock.sleep(14_000);
    clock.suspend(3_600_000);
  },
  "while a stream is open, which then hangs": async (clock, signal) => {
    await clock.sleep(14_000);
    clock.suspend(3_600_000);
    await hang(signal);
  },
  "several times": async (clock) => {
    for (let count = 0; count < 5; count++) {
      clock.suspend(600_000);
      await clock.sleep(1000);
    }
  },
  "while a stream that hangs was about to be opened again": async (clock, signal) => {
    await clock.sleep(44_000);
    clock.suspend(3_600_000);
    await hang(signal);
  },
};
for (const [name, suspend] of Object.entries(suspensions)) {
  test(`the time of a suspension does not count: ${name}`, async () => {
    const fake: Fake = new Fake(async function* ({ nth, resume, signal }) {
      if (nth === 0) {
        yield* long().slice(0, 5);
        await suspend(fake.clock, signal);
        throw breaks["a proxy has no server"];
      }
      if (nth < 5) {
        throw breaks["a proxy has no server"]; // The network needs some seconds.
      }
      yield* long().slice(resume!.afterIndex);
    });
    const { items, error } = await fake.clock.run(
      read(fake.chat(undefined, true, new AwakeClock(fake.clock))),
    );
    assert.ifError(error);
    assert.deepEqual(items, long());
    assert.equal(fake.calls.length, 6);
    assert.equal(fake.clock.pending, 0);
  });
}

test("a clock that counts no suspension gives up after a minute, too", async () => {
  const fake = new Fake(async function* ({ nth }) {
    yield* nth === 0 ? short().slice(0, 2) : [];
    throw breaks["a proxy has no server"];
  });
  const clock = new AwakeClock(fake.clock);
  const { error } = await fake.clock.run(read(fake.chat(undefined, true, clock)));
  assert.ok(error instanceof ParleyError && error.code === "UNAVAILABLE");
  assert.ok(fake.clock.now() > 57_000 && fake.clock.now() <= 60_000, `after ${fake.clock.now()} ms`);
  assert.equal(clock.now(), fake.clock.now());
});

test("no server at first", async () => {
  const unreachableError = new ParleyError("UNAVAILABLE", "connection refused");
  const fake = new Fake(() =>
    (async function* () {
      yield* [];
      throw unreachableError;
    })(),
  );
  let listeners = 0;
  fake.connection = {
    onReady() {
      listeners++;
      return () => listeners--;
    },
  };
  const { error } = await fake.clock.run(read(fake.chat()));
  assert.equal(listeners, 0);
  assert.equal(error, unreachableError);
  assert.equal(fake.calls.length, 1);
  assert.equal(fake.clock.now(), 0);
});

test("waits for a server that answers late", async () => {
  const fake: Fake = new Fake(async function* () {
    await fake.clock.sleep(300_000);
    yield* short();
  });
  fake.connection = unreachable;
  const { items, error } = await fake.clock.run(read(fake.chat()));
  assert.ifError(error);
  assert.deepEqual(items, short());
});

test("the signal ends the wait", async (t) => {
  const ends: Record<string, (signal: AbortSignal) => Promise<unknown> | undefined> = {
    "for an event": hang,
    "for the next attempt": () => undefined,
  };
  for (const [name, end] of Object.entries(ends)) {
    await t.test(name, async () => {
      const fake = new Fake(async function* ({ signal }) {
        yield* short().slice(0, 1);
        await end(signal);
      });
      const controller = new AbortController();
      const reason = new Error("enough");
      fake.clock.after(10_000, () => controller.abort(reason));
      const { error } = await fake.clock.run(read(fake.chat(controller.signal)));
      assert.equal(error, reason);
      assert.equal(fake.clock.now(), 10_000);
      assert.equal(fake.clock.pending, 0);
    });
  }
});
