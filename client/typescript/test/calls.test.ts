import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import type { AppendStreamRequest, Client, ConversationChange, ParleyError, TurnEvent } from "parley";

import { difference, fromJSON, toJSON } from "./json.js";
import { textOf } from "./model.js";
import { connect, options, startParleyd } from "./parleyd.js";

/** A step of the table. The table explains it in "about". */
interface Step {
  name: string;
  call: string;
  request: object;
  want?: object;
  error?: { code: string; reason: string; fields?: string[] };
  answers?: Pick<Step, "want" | "error">[];
  turn?: { text?: string; state?: string; messages?: object[] };
  changes?: object[];
  save?: Record<string, string>;
}

const table = new URL("../../../testdata/calls.json", import.meta.url);

test("the calls of the table", options, async (t) => {
  const client = connect(t, (await startParleyd(t)).address);
  const { steps } = JSON.parse(await readFile(table, "utf8")) as { steps: Step[] };
  const saved: Record<string, string> = {};
  for (const step of steps) {
    await t.test(step.name, async () => {
      const { call, save = {} } = step;
      const filled = JSON.stringify(step.request).replace(/\$\{(\w+)\}/g, (_, name) => {
        assert.ok(name in saved, `${name} was not saved`);
        return JSON.stringify(saved[name]).slice(1, -1);
      });
      const request = fromJSON(JSON.parse(filled));
      if (step.answers) {
        await append(client, request as AppendStreamRequest[], step.answers);
        return;
      }
      const method = `${call[0]!.toLowerCase()}${call.slice(1)}` as keyof Client;
      assert.ok(method in client, `Client has no method for ${call}`);
      const send = () => (client[method] as (request: unknown) => unknown)(request);
      const reply = await outcome(step, send);
      for (const [name, path] of Object.entries(save)) {
        const value = path.split(".").reduce((at, key) => (at as Record<string, unknown>)?.[key], reply);
        assert.equal(typeof value, "string", `${path} = ${value}, want a string`);
        saved[name] = value as string;
      }
    });
  }
});

/** Sends all requests with an appender, then checks their answers. */
async function append(
  client: Client,
  requests: AppendStreamRequest[],
  answers: Pick<Step, "want" | "error">[],
) {
  assert.equal(requests.length, answers.length);
  await using appender = client.appender();
  const replies = requests.map(({ append }) => appender.append(append!));
  for (const [index, answer] of answers.entries()) {
    await outcome(answer, () => replies[index]);
  }
}

/** Makes a call and checks its result. Returns the reply, if there is one. */
async function outcome({ want, error, turn, changes }: Partial<Step>, send: () => unknown): Promise<unknown> {
  if (error) {
    await assert.rejects(
      async () => drain((await send()) as AsyncIterable<unknown>),
      ({ code, reason, fieldViolations }: ParleyError) => {
        assert.deepEqual({ code, reason }, { code: error.code, reason: error.reason });
        const fields = fieldViolations.map(({ field }) => field).sort();
        assert.deepEqual(fields, [...(error.fields ?? [])].sort());
        return true;
      },
    );
    return undefined;
  }
  if (turn) {
    const events = await drain(send() as AsyncIterable<TurnEvent>);
    const last = events.at(-1)?.event;
    assert.ok(last?.$case === "finished");
    const got = { text: textOf(events), state: last.value.turn?.state, messages: last.value.messages };
    assert.equal(difference(turn, toJSON(got)), "");
    return undefined;
  }
  if (changes) {
    const seen: unknown[] = [];
    for await (const change of send() as AsyncIterable<ConversationChange>) {
      seen.push(toJSON(change));
      if (seen.length === changes.length) {
        break;
      }
    }
    assert.equal(difference(changes, seen), "");
    return undefined;
  }
  const reply = toJSON(await send());
  assert.equal(difference(want ?? {}, reply), "");
  return reply;
}

/** Reads all items of a stream. Returns an empty list for any other value. */
async function drain<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  if (stream && Symbol.asyncIterator in stream) {
    for await (const item of stream) {
      items.push(item);
    }
  }
  return items;
}
