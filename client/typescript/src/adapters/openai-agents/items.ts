import { randomUUID } from "node:crypto";

import { type AgentInputItem, UserError } from "@openai/agents-core";
import type { Input, Message, RecordWrite } from "@parleyhq/client";

// Items as messages of Parley, and back.

/** The native form is the JSON of one item. */
const itemType = "openai.agents-js.item";
/** The native form is a JSON array of several items, of a batch that has more items than messages are allowed. */
const itemsType = "openai.agents-js.items";
/** The native form is a {@link Reference} as JSON. */
const referenceType = "openai.agents-js.reference";

/** Where the items of a message are that is too large: in records, whose values together are a JSON array. */
export interface Reference {
  readonly keys: string[];
  /** The number of the items. */
  readonly items: number;
}

/**
 * The largest native form; larger items are in records. A conversation has less space for messages than for records:
 * 3 MiB and 256 MiB if the operator has changed nothing.
 */
const maxNativeBytes = 16 << 10;
const maxContentBytes = 16 << 10;
/** The content of a message for which a batch has no space left. */
const minContentBytes = 1 << 10;
const maxValueBytes = 1 << 20;
/** All messages of a batch, all records of a batch, and all records of one call. A request has at most 4 MiB. */
export const maxBatchBytes = 3 << 19;
/** The limit of the API on messages in a batch. */
const maxMessages = 100;

/** A message of the session. */
export interface Entry {
  readonly sequence: number;
  /** The items, or where they are. */
  readonly content: readonly AgentInputItem[] | Reference;
}

/** Returns the messages and records that store items. */
export function packed(items: readonly AgentInputItem[]): {
  messages: Input<Message>[];
  records: Input<RecordWrite>[];
} {
  const messages: Input<Message>[] = [];
  const records: Input<RecordWrite>[] = [];
  const groupSize = Math.ceil(items.length / maxMessages);
  let space = maxBatchBytes;
  for (let i = 0; i < items.length; i += groupSize) {
    const group = items.slice(i, i + groupSize);
    let native =
      group.length === 1
        ? { type: itemType, value: json(group[0]) }
        : { type: itemsType, value: json(group) };
    const text = readable(group);
    const size = native.value.length + Math.min(Buffer.byteLength(text.content), maxContentBytes);
    let content = shortened(text.content, maxContentBytes);
    if (native.value.length > maxNativeBytes || size > space) {
      const value = native.type === itemType ? json(group) : native.value;
      const id = randomUUID();
      const keys: string[] = [];
      for (let start = 0; start < value.length; start += maxValueBytes) {
        const key = `item/${id}/${String(keys.length).padStart(4, "0")}`;
        keys.push(key);
        records.push({
          key,
          value: value.subarray(start, start + maxValueBytes),
          mediaType: "application/json",
        });
      }
      native = { type: referenceType, value: json({ keys, items: group.length } satisfies Reference) };
      content = shortened(text.content, space < maxContentBytes ? minContentBytes : maxContentBytes);
    }
    space -= native.value.length + Buffer.byteLength(content);
    messages.push({ ...text, content, native });
  }
  return { messages, records };
}

/** Returns the message of the API as an entry. Messages of other writers become items of their text and calls. */
export function entryOf({ sequence, native, ...message }: Message): Entry {
  switch (native?.type) {
    case itemType:
      return { sequence, content: [decode(native.value) as AgentInputItem] };
    case itemsType:
      return { sequence, content: decode(native.value) as AgentInputItem[] };
    case referenceType:
      return { sequence, content: decode(native.value) as Reference };
    default:
      return { sequence, content: foreign(message) };
  }
}

/** Returns the items of a message that another client or an agent of Parley wrote. There is at least one. */
function foreign(message: Omit<Message, "sequence" | "native">): AgentInputItem[] {
  const { role, content, toolCalls, toolResult } = message;
  if (toolResult) {
    const { callId, name } = toolResult;
    const output = { type: "text" as const, text: toolResult.content };
    return [{ type: "function_call_result", callId, name, status: "completed", output }];
  }
  if (role !== "ROLE_ASSISTANT") {
    return [{ type: "message", role: role === "ROLE_SYSTEM" ? "system" : "user", content }];
  }
  const items: AgentInputItem[] = toolCalls.map((call) => ({
    type: "function_call",
    callId: call.id,
    name: call.name,
    arguments: call.arguments,
    status: "completed",
  }));
  if (content || items.length === 0) {
    const status = message.status === "MESSAGE_STATUS_INCOMPLETE" ? "incomplete" : "completed";
    items.unshift({
      type: "message",
      role: "assistant",
      status,
      content: [{ type: "output_text", text: content }],
    });
  }
  return items;
}

/** Returns the role and the text of items for people and for other agents. */
function readable(items: readonly AgentInputItem[]): Pick<Message, "role" | "content" | "reasoning"> {
  const [first] = items;
  const role = first && "role" in first ? roles[first.role] : "ROLE_ASSISTANT";
  const reasoning = items.flatMap((item) =>
    item.type === "reasoning" ? texts(item.rawContent ?? item.content) : [],
  );
  const content = items.flatMap((item) => {
    switch (item.type) {
      case "function_call":
        return [`${item.name}(${item.arguments})`];
      case "function_call_result":
        return texts(item.output);
      case "reasoning":
        return [];
      default:
        return "role" in item ? texts(item.content) : [`[${item.type}]`];
    }
  });
  return { role, content: content.join("\n"), reasoning: shortened(reasoning.join("\n"), minContentBytes) };
}

const roles = { user: "ROLE_USER", assistant: "ROLE_ASSISTANT", system: "ROLE_SYSTEM" } as const;

/** Returns the texts of the parts of a message; for a part without a text, its type. */
function texts(content: unknown): string[] {
  if (typeof content === "string") {
    return [content];
  }
  if (Array.isArray(content)) {
    return content.flatMap(texts);
  }
  const { text, refusal, transcript, type } = (content ?? {}) as { [key: string]: unknown };
  const found = text ?? refusal ?? transcript;
  return typeof found === "string" ? [found] : [`[${type}]`];
}

/** Returns a text, or its beginning and an ellipsis if it has more bytes. */
function shortened(text: string, maxBytes: number): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= maxBytes) {
    return text;
  }
  let end = maxBytes - 3;
  while ((bytes[end]! & 0xc0) === 0x80) {
    end--; // The byte after the cut continues a character.
  }
  return `${bytes.toString("utf8", 0, end)}…`;
}

export function isReference(content: Entry["content"]): content is Reference {
  return !Array.isArray(content);
}

/** Returns the keys of the records that have the items of messages. */
export function keysOf(entries: readonly Entry[]): string[] {
  return entries.flatMap(({ content }) => (isReference(content) ? content.keys : []));
}

export function bytesOf(writes: readonly Input<RecordWrite>[]): number {
  return writes.reduce((sum, { value }) => sum + (value?.length ?? 0), 0);
}

/** Returns a value of an item as JSON, from which {@link decode} returns the same value. */
function json(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(plain(value)));
}

/** Returns a text that is the same for equal values: one without undefined properties, with sorted keys. */
export function canonical(value: unknown): string {
  return JSON.stringify(plain(value), (_, part) =>
    typeof part === "object" && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1)))
      : part,
  );
}

/**
 * Returns a copy of a value that JSON does not change. Bytes become `{ "$bytes": base64 }`, and the key of such an
 * object gets another "$". Throws a UserError for other values that are not JSON.
 */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) {
    return { $bytes: Buffer.from(value).toString("base64") };
  }
  if (Array.isArray(value)) {
    return value.map(plain);
  }
  if (typeof value === "object" && value !== null) {
    const prototype = Object.getPrototypeOf(value);
    if (prototype === Object.prototype || prototype === null) {
      const entries = Object.entries(value).filter(([, part]) => part !== undefined);
      return Object.fromEntries(
        entries.map(([key, part]) => [/^\$+bytes$/.test(key) ? `$${key}` : key, plain(part)]),
      );
    }
  } else if (value === null || typeof value === "string" || typeof value === "boolean") {
    return value;
  } else if (typeof value === "number" && Number.isFinite(value)) {
    return value;
  }
  throw new UserError(
    `The session cannot store ${typeof value === "object" ? "an object of a class" : String(value)}.`,
  );
}

/** Returns the value of which {@link json} has made these bytes. */
export function decode(bytes: Uint8Array): unknown {
  return JSON.parse(Buffer.from(bytes).toString(), (_, value) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      return value;
    }
    if (typeof value.$bytes === "string") {
      return new Uint8Array(Buffer.from(value.$bytes, "base64"));
    }
    const keys = Object.keys(value);
    return keys.some((key) => /^\$+bytes$/.test(key))
      ? Object.fromEntries(keys.map((key) => [key.replace(/^\$(?=\$+bytes$)/, ""), value[key]]))
      : value;
  });
}
