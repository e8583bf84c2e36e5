import type { Attachment, Input, Message, RecordWrite, StructuredData, ToolResult } from "@parleyhq/client";
import type { UIMessage } from "ai";

import { conversationId } from "../ids.js";

type Part = UIMessage["parts"][number];

/** The metadata of a user's message: the rule of ids applied to the id of the UI message. */
const idKey = "ai_sdk.message";
/** The metadata of a user's message that is in records: their number and what their keys begin with. */
const recordsKey = "ai_sdk.records";
/** Begins the keys of all records. */
export const recordPrefix = "ai-sdk/message/";

/** The parts that a user's message cannot have itself are named in a value of this type. */
const partsType = "ai-sdk.parts";

/** The limits of the API on attachments, on values, and on the levels of a value. */
const maxURIBytes = 8192;
const maxMediaTypeBytes = 255;
const maxFilenameBytes = 1024;
const maxTypeBytes = 128;
const maxValues = 64;
const maxLevels = 15;
/** All values of a message. A message has at most 256 KiB. */
const maxDataBytes = 64 << 10;
/** A record. The API allows more, but a call has at most 4 MiB. */
const maxRecordBytes = 1 << 20;

/** A user's message in the API: the fields of the message, and records that contain the UI message exactly. */
export interface Packed {
  readonly fields: {
    readonly content: string;
    readonly structuredData: Input<StructuredData>[];
    readonly attachments: Input<Attachment>[];
    readonly metadata: { [key: string]: string };
  };
  readonly records: Input<RecordWrite>[];
}

/**
 * Returns a user's message in the API. Its text, its data and the URLs of its files are what agents get. Records
 * contain the UI message if it is more than a text. Their keys begin with the name.
 */
export function packed(message: UIMessage, name = messageKey(message)): Packed {
  const structuredData: Input<StructuredData>[] = [];
  const attachments: Input<Attachment>[] = [];
  const others: object[] = [];
  let space = maxDataBytes;
  for (const part of message.parts) {
    if (part.type === "file" && isAttachment(part)) {
      attachments.push({ uri: part.url, mediaType: part.mediaType, filename: part.filename });
    } else if (isData(part) && structuredData.length < maxValues - 1) {
      const value: unknown = JSON.parse(JSON.stringify(part.data) ?? "null");
      const type = part.type.slice("data-".length);
      const size = byteLength(type) + byteLength(JSON.stringify(value));
      if (type && byteLength(type) <= maxTypeBytes && size <= space && levels(value) <= maxLevels) {
        space -= size;
        structuredData.push({ type, value });
        continue;
      }
      others.push({ type: part.type });
    } else if (part.type !== "text") {
      const { type, mediaType, filename } = part as { type: string; mediaType?: string; filename?: string };
      others.push({ type, mediaType, filename });
    }
  }
  const key = messageKey(message);
  const metadata: { [key: string]: string } = { [idKey]: key };
  const records: Input<RecordWrite>[] = [];
  if (!isPlain(message, key)) {
    const bytes = new TextEncoder().encode(JSON.stringify(message));
    for (let start = 0; start < bytes.length; start += maxRecordBytes) {
      const value = bytes.subarray(start, start + maxRecordBytes);
      records.push({ key: recordKeyOf(name, records.length), value, mediaType: "application/json" });
    }
    metadata[recordsKey] = `${records.length} ${name}`;
  }
  if (others.length > 0) {
    const value = { records: records.map((record) => record.key), parts: others.slice(0, maxValues) };
    structuredData.push({ type: partsType, value: JSON.parse(JSON.stringify(value)) });
  }
  const content = message.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
  return { fields: { content, structuredData, attachments, metadata }, records };
}

/** Returns the id of a message of the user by which it is found: it is its request_id, too. */
export function messageKey({ id }: UIMessage): string {
  return conversationId(id);
}

/** Reports whether a stored message is this message of the user. */
export function isStoredAs({ id, role, metadata }: Message, message: UIMessage): boolean {
  const key = metadata[idKey];
  return role === "ROLE_USER" && (key === undefined ? id === message.id : key === messageKey(message));
}

/** Returns the keys of the records that a stored message has. */
export function recordKeys({ metadata }: Message): string[] {
  const [count = "", ...name] = (metadata[recordsKey] ?? "").split(" ");
  return Array.from({ length: Number(count) }, (_, i) => recordKeyOf(name.join(" "), i));
}

function recordKeyOf(name: string, index: number): string {
  return `${recordPrefix}${name}/${String(index).padStart(4, "0")}`;
}

/** Reports whether the fields of the API have all of a message: it is one text, and its id needs no encoding. */
function isPlain({ id, role, parts, ...rest }: UIMessage, key: string): boolean {
  const [part] = parts;
  return (
    id === key &&
    parts.length === 1 &&
    part!.type === "text" &&
    Object.values(rest).every((value) => value === undefined) &&
    Object.entries(part!).every(([name, value]) => ["type", "text"].includes(name) || value === undefined)
  );
}

function isAttachment({ url, mediaType, filename = "" }: Extract<Part, { type: "file" }>): boolean {
  return (
    byteLength(url) <= maxURIBytes &&
    url !== "" &&
    byteLength(mediaType) <= maxMediaTypeBytes &&
    byteLength(filename) <= maxFilenameBytes
  );
}

function isData(part: Part): part is Extract<Part, { data: unknown }> {
  return part.type.startsWith("data-");
}

function levels(value: unknown): number {
  return typeof value === "object" && value !== null
    ? 1 + Math.max(0, ...Object.values(value).map(levels))
    : 0;
}

function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}

/**
 * Returns the stored messages that make up each UI message, oldest first. The messages of a turn are one UI message,
 * together with those of the turns before and after that only the results of tools separate from them.
 */
export function groups(messages: readonly Message[]): Message[][] {
  const all: Message[][] = [];
  for (const message of messages) {
    const last = all.at(-1)?.at(-1);
    const continues =
      last !== undefined &&
      isAnswer(last) &&
      isAnswer(message) &&
      (message.role === "ROLE_TOOL" ||
        last.role === "ROLE_TOOL" ||
        (message.turnId !== "" && message.turnId === last.turnId));
    if (continues) {
      all.at(-1)!.push(message);
    } else {
      all.push([message]);
    }
  }
  return all;
}

function isAnswer({ role }: Message): boolean {
  return role === "ROLE_ASSISTANT" || role === "ROLE_TOOL";
}

/** Returns the UI message that a group of stored messages makes up. values has the records by their keys. */
export function unpacked(group: readonly Message[], values: ReadonlyMap<string, Uint8Array>): UIMessage {
  const first = group[0]!;
  if (isAnswer(first)) {
    return { id: first.turnId || first.id, role: "assistant", parts: answerParts(group) };
  }
  const keys = recordKeys(first);
  // If the message was removed after it was read, its records may be missing.
  if (keys.length > 0 && keys.every((key) => values.has(key))) {
    const decoder = new TextDecoder();
    const json = keys.map((key) => decoder.decode(values.get(key), { stream: true })).join("");
    return JSON.parse(json);
  }
  const role = first.role === "ROLE_SYSTEM" ? "system" : "user";
  return { id: first.metadata[idKey] ?? first.id, role, parts: contentParts(first) };
}

/** Returns the parts of an answer: each message begins a step, results of tools complete their calls. */
export function answerParts(group: readonly Message[]): Part[] {
  const parts: Part[] = [];
  for (const message of group) {
    if (message.toolResult) {
      complete(parts, message.toolResult);
      continue;
    }
    parts.push({ type: "step-start" });
    if (message.reasoning) {
      parts.push({ type: "reasoning", text: message.reasoning, state: "done" });
    }
    parts.push(...contentParts(message));
    for (const { id, name, arguments: text } of message.toolCalls) {
      const { input, errorText } = decodeInput(text);
      const call = { type: `tool-${name}`, toolCallId: id, input } as const;
      parts.push(
        errorText === undefined
          ? { ...call, state: "input-available" }
          : { ...call, state: "output-error", errorText },
      );
    }
  }
  return parts;
}

/** Adds the result of a tool to the newest call with its id. The call may be no longer kept. */
function complete(parts: Part[], { callId, name, content, isError }: ToolResult): void {
  const index = parts.findLastIndex((part) => "toolCallId" in part && part.toolCallId === callId);
  const { type, input } = (parts[index] ?? { type: `tool-${name}` }) as {
    type: `tool-${string}`;
    input?: unknown;
  };
  const call = { type, toolCallId: callId, input };
  const result: Part = isError
    ? { ...call, state: "output-error", errorText: content }
    : { ...call, state: "output-available", output: decodeOutput(content) };
  parts.splice(index < 0 ? parts.length : index, 1, result);
}

function contentParts({ content, attachments, structuredData }: Message): Part[] {
  return [
    ...attachments.map(({ uri, mediaType, filename }) => ({
      type: "file" as const,
      url: uri,
      mediaType,
      ...(filename ? { filename } : {}),
    })),
    ...(content ? [{ type: "text" as const, text: content, state: "done" as const }] : []),
    ...structuredData.map(({ type, value }) => ({ type: `data-${type}` as const, data: value })),
  ];
}

/** Returns the input of a call, and why it is not JSON if it is not. */
export function decodeInput(text: string): { input: unknown; errorText?: string } {
  try {
    return { input: JSON.parse(text || "{}") };
  } catch (error) {
    return { input: text, errorText: `the arguments are not JSON: ${(error as Error).message}` };
  }
}

/** Returns the output that the content of a result of a tool stands for: JSON if it is JSON, else the text. */
export function decodeOutput(content: string): unknown {
  try {
    const value: unknown = JSON.parse(content);
    // A number that JavaScript would change stays a text.
    return typeof value === "number" && String(value) !== content ? content : value;
  } catch {
    return content;
  }
}

/** Returns the content of which {@link decodeOutput} makes this output. */
function encodeOutput(output: unknown): string {
  const isText = typeof output === "string" && decodeOutput(output) === output;
  return isText ? output : (JSON.stringify(output) ?? "null");
}

/** Returns the results that a UI message has for the calls that are open after these stored messages. */
export function openResults(
  messages: readonly Message[],
  { parts }: UIMessage,
): { results: Input<ToolResult>[]; sequence: number } {
  const open = new Map<string, { name: string; sequence: number }>();
  for (const { sequence, toolCalls, toolResult } of messages) {
    for (const { id, name } of toolCalls) {
      open.set(id, { name, sequence });
    }
    if (toolResult) {
      open.delete(toolResult.callId);
    }
  }
  const results = [...open].flatMap(([callId, { name }]): Input<ToolResult>[] => {
    const part = parts.findLast((each) => "toolCallId" in each && each.toolCallId === callId);
    const { state, output, errorText } = (part ?? {}) as { [key: string]: unknown };
    switch (state) {
      case "output-available":
        return [{ callId, name, content: encodeOutput(output) }];
      case "output-error":
        return [{ callId, name, content: String(errorText), isError: true }];
      default:
        return [];
    }
  });
  return { results, sequence: Math.max(0, ...[...open.values()].map(({ sequence }) => sequence)) };
}
