// The calls of client/testdata/calls.json. This module runs in Node and in a browser: it imports nothing of Node.

import type {
  AppendStreamRequest,
  Client,
  ConversationChange,
  ParleyError,
  TurnEvent,
} from "@parleyhq/client";
import type { Client as WebClient } from "@parleyhq/client/web";

import { difference, fromJSON, toJSON } from "./json.js";

/** A step of the table. The table explains it in "about". */
export interface Step {
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

/** A client, over any transport. */
export type AnyClient = Client | WebClient;

/** Makes the call of a step, and checks its result. saved has the values of the steps before. Throws an error. */
export async function runStep(client: AnyClient, step: Step, saved: Record<string, string>): Promise<void> {
  const { call, save = {} } = step;
  const filled = JSON.stringify(step.request).replace(/\$\{(\w+)\}/g, (_, name) => {
    check(name in saved, `${name} was not saved`);
    return JSON.stringify(saved[name]).slice(1, -1);
  });
  const request = fromJSON(JSON.parse(filled));
  if (step.answers) {
    await append(client, request as AppendStreamRequest[], step.answers);
    return;
  }
  const method = `${call[0]!.toLowerCase()}${call.slice(1)}` as keyof AnyClient;
  check(method in client, `Client has no method for ${call}`);
  const send = () => (client[method] as (request: unknown) => unknown)(request);
  const reply = await outcome(step, send);
  for (const [name, path] of Object.entries(save)) {
    const value = path.split(".").reduce((at, key) => (at as Record<string, unknown>)?.[key], reply);
    check(typeof value === "string", `${path} = ${value}, want a string`);
    saved[name] = value as string;
  }
}

/** Sends all requests with an appender, then checks their answers. */
async function append(
  client: AnyClient,
  requests: AppendStreamRequest[],
  answers: Pick<Step, "want" | "error">[],
) {
  same(requests.length, answers.length);
  const appender = client.appender();
  const replies = requests.map(({ append }) => appender.append(append!));
  for (const [index, answer] of answers.entries()) {
    await outcome(answer, () => replies[index]);
  }
  await appender.close();
}

/** Makes a call and checks its result. Returns the reply, if there is one. */
async function outcome({ want, error, turn, changes }: Partial<Step>, send: () => unknown): Promise<unknown> {
  if (error) {
    let thrown: Partial<ParleyError> | undefined;
    try {
      await drain((await send()) as AsyncIterable<unknown>);
    } catch (reason) {
      thrown = reason as ParleyError;
    }
    check(thrown !== undefined, "the call has not failed");
    const { code, reason, fieldViolations } = thrown!;
    same({ code, reason }, { code: error.code, reason: error.reason }, thrown);
    same(fieldViolations?.map(({ field }) => field).sort(), [...(error.fields ?? [])].sort());
    return undefined;
  }
  if (turn) {
    const events = await drain(send() as AsyncIterable<TurnEvent>);
    const last = events.at(-1)?.event;
    check(last?.$case === "finished", "the last event is not finished");
    const text = events.map(({ event }) => (event?.$case === "textDelta" ? event.value.text : "")).join("");
    const { turn: ended, messages } = (last as Extract<typeof last, { $case: "finished" }>).value;
    same(difference(turn, toJSON({ text, state: ended?.state, messages })), "");
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
    same(difference(changes, seen), "");
    return undefined;
  }
  const reply = toJSON(await send());
  same(difference(want ?? {}, reply), "");
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

function same(got: unknown, want: unknown, cause?: unknown): void {
  check(
    JSON.stringify(got) === JSON.stringify(want),
    `got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`,
    cause,
  );
}

function check(condition: boolean, message: string, cause?: unknown): void {
  if (!condition) {
    throw new Error(message, { cause });
  }
}
