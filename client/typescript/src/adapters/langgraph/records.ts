/**
 * How checkpoints, writes and the values of channels are encoded as records of a conversation. The keys, in which NS
 * is the namespace of a checkpoint, are those of the Python adapter:
 *
 *     langgraph/checkpoints/NS/ID/state             a checkpoint and its metadata
 *     langgraph/checkpoints/NS/ID/pending/TASK/N    writes of a task to that checkpoint
 *     langgraph/values/NS/CHANNEL/VERSION           a value of a channel
 *     langgraph/pieces/DIGEST                       a part of a value or of any other of these
 *     langgraph/generation                          which pieces other records may refer to
 *
 * In descending order, a checkpoint comes before its writes, and both before older checkpoints. A value is written
 * once for each version of its channel. A piece is named by its content: the lists of two versions share the pieces
 * in which they are equal, so that a list that grows costs what is added to it, and some bytes for each piece.
 */
import { createHash } from "node:crypto";

import { JsonPlusSerializer, type SerializerProtocol } from "@langchain/langgraph-checkpoint";
import { type Input, ParleyError, type Record, type RecordWrite } from "@parleyhq/client";

import { encoded } from "../ids.js";

export const root = "langgraph/";
export const checkpoints = `${root}checkpoints/`;
export const values = `${root}values/`;
export const pieces = `${root}pieces/`;
export const generation = `${root}generation`;

const maxKeyBytes = 512;
/** The size up to which a part of a key is stored as it is. */
const maxSegmentBytes = 99;
const maxPieceBytes = 1 << 20;
/** The number of items of a list in a piece. */
const groupSize = 8;
export const mediaType = "application/json";
const stateName = "state";

/** Serialized bytes: as text if they are UTF-8, in base64, or the digests of the pieces that have them. */
type Bytes = { readonly text: string } | { readonly base64: string } | { readonly pieces: readonly string[] };

/** A serialized value. The serializer needs its type again. */
export type Content = Bytes & { readonly type: string };

/** The record of a channel's value: the value, or the groups of items of a list. */
export type ChannelValue = Content | { readonly groups: readonly Content[] };

/** The record of a checkpoint. */
export interface State {
  readonly threadId: string;
  readonly ns: string;
  readonly id: string;
  readonly parentId?: string;
  /** The checkpoint without the values of its channels. */
  readonly checkpoint: Content;
  readonly metadata: Content;
  /** The channels whose values were written with the checkpoint. */
  readonly values: readonly string[];
}

/** The record of writes of a task. */
export interface Pending {
  readonly taskId: string;
  readonly taskPath: string;
  /** Index, channel and value of each write. */
  readonly writes: readonly (readonly [index: number, channel: string, value: Content])[];
}

/** A record to which another one refers does not exist. */
export class Missing extends Error {}

/**
 * Returns a part of a key for any text: encoded, and a digest if that has more than 99 bytes. Different texts have
 * different segments. Only a digest begins with a tilde.
 */
export function segment(text: string): string {
  const part = encoded(text, true);
  if (Buffer.byteLength(part) > maxSegmentBytes) {
    return `~${createHash("sha256").update(part).digest("hex")}`;
  }
  return part.startsWith("~") ? `%7E${part.slice(1)}` : part;
}

/** Joins segments to a key. Throws a RangeError if it has more than 512 bytes, the limit of the API. */
export function keyOf(...segments: readonly string[]): string {
  const key = segments.join("/");
  if (Buffer.byteLength(key) > maxKeyBytes) {
    throw new RangeError(`the key ${JSON.stringify(key)} has more than ${maxKeyBytes} bytes`);
  }
  return key;
}

/** Returns how the keys of the checkpoints of a namespace begin. */
export function namespacePrefix(ns: string): string {
  return `${checkpoints}${segment(ns)}/`;
}

/** Returns how the keys of a checkpoint and its writes begin. */
export function checkpointPrefix(ns: string, id: string): string {
  return `${namespacePrefix(ns)}${segment(id)}/`;
}

export function stateKey(ns: string, id: string): string {
  return keyOf(checkpointPrefix(ns, id) + stateName);
}

/** Reports whether a key under checkpoints is that of a checkpoint, not of a write. */
export function isStateKey(key: string): boolean {
  return key.split("/").length === stateKey("", "").split("/").length;
}

/** Returns the prefix of a checkpoint for the key of its state. */
export function prefixOf(key: string): string {
  return key.slice(0, -stateName.length);
}

/** Returns the key of writes of a task: "writes" for all usual ones, and the index of a special one. */
export function pendingKey(ns: string, id: string, taskId: string, name: string): string {
  return keyOf(`${checkpointPrefix(ns, id)}pending`, segment(taskId), name);
}

export function valueKey(ns: string, channel: string, version: string | number): string {
  return keyOf(values + segment(ns), segment(channel), segment(String(version)));
}

/** Returns the write of a record of this encoding. */
export function written(
  key: string,
  value: State | Pending | ChannelValue,
  fields: Pick<Input<RecordWrite>, "ifRevision"> = {},
): Input<RecordWrite> {
  return { ...fields, key, value: Buffer.from(JSON.stringify(value)), mediaType };
}

/** Returns what a record of this encoding contains. */
export function read<T extends State | Pending | ChannelValue>(record: Record): T {
  if (record.mediaType !== mediaType) {
    const text = `the record ${JSON.stringify(record.key)} was written by the adapter of another language`;
    throw new ParleyError("FAILED_PRECONDITION", text);
  }
  return JSON.parse(Buffer.from(record.value).toString()) as T;
}

/** Returns the keys of the pieces to which values refer. */
export function pieceKeys(...found: readonly ChannelValue[]): string[] {
  return found.flatMap((value) => {
    const contents = "groups" in value ? value.groups : [value];
    return contents.flatMap((content) =>
      ("pieces" in content ? content.pieces : []).map((id) => pieces + id),
    );
  });
}

/** Encodes values for records. */
export class Encoder {
  /** The pieces to which the encoded values refer, by their keys. */
  readonly pieces = new Map<string, Uint8Array>();
  readonly #serde: SerializerProtocol;

  constructor(serde: SerializerProtocol) {
    this.#serde = serde;
  }

  async content(value: unknown): Promise<Content> {
    return this.#content(value, maxPieceBytes);
  }

  /** Encodes the value of a channel. Groups of items of a list are always pieces. */
  async channelValue(value: unknown): Promise<ChannelValue> {
    // With a serializer that encrypts, equal items have different bytes, so that pieces would save nothing.
    if (
      !Array.isArray(value) ||
      value.length <= groupSize ||
      this.#serde.constructor !== JsonPlusSerializer
    ) {
      return this.content(value);
    }
    const groups: Content[] = [];
    for (let start = 0; start < value.length; start += groupSize) {
      groups.push(await this.#content(value.slice(start, start + groupSize), 0));
    }
    return { groups };
  }

  async #content(value: unknown, maxBytes: number): Promise<Content> {
    const [type, bytes] = await this.#serde.dumpsTyped(value);
    const data = Buffer.from(bytes);
    if (data.length <= maxBytes) {
      const text = data.toString();
      return data.equals(Buffer.from(text)) ? { type, text } : { type, base64: data.toString("base64") };
    }
    const ids: string[] = [];
    for (let start = 0; start < data.length; start += maxPieceBytes) {
      const piece = data.subarray(start, start + maxPieceBytes);
      const id = createHash("sha256").update(piece).digest("hex");
      this.pieces.set(pieces + id, piece);
      ids.push(id);
    }
    return { type, pieces: ids };
  }
}

/** Decodes values of records. */
export class Decoder {
  readonly #serde: SerializerProtocol;
  readonly #records: ReadonlyMap<string, Record>;

  /** Uses pieces by their keys. */
  constructor(serde: SerializerProtocol, records: ReadonlyMap<string, Record>) {
    this.#serde = serde;
    this.#records = records;
  }

  /** Returns the value of a content. Throws {@link Missing} if a piece does not exist. */
  async content(content: Content): Promise<unknown> {
    // Not a Buffer, because the serializer may return the bytes as they are.
    return await this.#serde.loadsTyped(content.type, new Uint8Array(this.#bytes(content)));
  }

  /** Returns the value of a channel. Throws {@link Missing} if a piece does not exist. */
  async channelValue(value: ChannelValue): Promise<unknown> {
    if (!("groups" in value)) {
      return await this.content(value);
    }
    return (await Promise.all(value.groups.map((group) => this.content(group)))).flat(1);
  }

  #bytes(content: Bytes): Uint8Array {
    if ("text" in content) {
      return Buffer.from(content.text);
    }
    if ("base64" in content) {
      return Buffer.from(content.base64, "base64");
    }
    return Buffer.concat(content.pieces.map((id) => found(this.#records, pieces + id).value));
  }
}

/** Returns the record of a key. Throws {@link Missing} if it does not exist. */
export function found(records: ReadonlyMap<string, Record>, key: string): Record {
  const record = records.get(key);
  if (!record) {
    throw new Missing(key);
  }
  return record;
}
