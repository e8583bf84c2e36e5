import { ParleyError } from "./errors.js";
import type {
  GetRecordsRequest,
  GetRecordsResponse,
  ListRecordsRequest,
  ListRecordsResponse,
  Record as ParleyRecord,
  RecordWrite,
  WriteRecordsRequest,
  WriteRecordsResponse,
} from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";
import { invalidRequest } from "./request.js";
import type { BaseCallOptions } from "./transport.js";

/** The maximum number of keys in one call. */
const maxKeys = 100;

/** The value of a record that is JSON, and its revision. */
export interface JSONRecord<T> {
  /** What `JSON.parse` returns; undefined if there is no record. */
  readonly value: T | undefined;
  /**
   * The revision of the record; 0 if there is none. As ifRevision of the next write it makes sure that the
   * record has not changed, or that it still does not exist.
   */
  readonly revision: number;
}

/** The fields of {@link Records.put} besides key and value. */
export type PutFields = Pick<Input<RecordWrite>, "mediaType" | "labels" | "ttl" | "ifRevision"> &
  Pick<Input<WriteRecordsRequest>, "requestId">;

/** The fields of {@link Records.write} besides the writes. */
export type WriteFields = Pick<Input<WriteRecordsRequest>, "ifVersion" | "requestId">;

/** The fields of {@link Records.list}. */
export type ListFields = Omit<Input<ListRecordsRequest>, "conversationId" | "pageToken">;

/** The calls of {@link Records}. */
export interface RecordCalls<Options extends BaseCallOptions = BaseCallOptions> {
  writeRecords(request: Input<WriteRecordsRequest>, options?: Options): Promise<WriteRecordsResponse>;
  getRecords(request: Input<GetRecordsRequest>, options?: Options): Promise<GetRecordsResponse>;
  listRecords(request: Input<ListRecordsRequest>, options?: Options): Promise<ListRecordsResponse>;
}

/**
 * Returns the write of a record with a value as JSON and the media type application/json. It can be one of
 * several in {@link Records.write}, in the records of an append or a chat, or the record that an agent
 * yields.
 *
 * The JSON is that of `JSON.stringify`, which leaves out properties that are undefined and converts a Date to a
 * string. Throws INVALID_ARGUMENT for other values that would change: a number that is NaN or infinite, a
 * bigint, a function, a symbol, undefined in an array, an invalid Date, a Map, a Set, a typed array or another
 * kind of buffer.
 */
export function jsonWrite<T>(
  key: string,
  value: T,
  fields: Omit<Input<RecordWrite>, "key" | "value" | "mediaType" | "delete"> = {},
): RecordWrite {
  let text: string | undefined;
  try {
    text = JSON.stringify(value, checked);
  } catch (error) {
    throw invalidRequest(`the value of record ${JSON.stringify(key)} is not JSON: ${error}`, error);
  }
  if (text === undefined) {
    throw invalidRequest(`the value of record ${JSON.stringify(key)} is ${typeof value}, want JSON`);
  }
  const { ifRevision, tenantScope = false, ttl, labels } = fields;
  return {
    key,
    value: new TextEncoder().encode(text),
    mediaType: "application/json",
    ifRevision,
    delete: false,
    tenantScope,
    ttl: ttl && { seconds: ttl.seconds ?? 0, nanos: ttl.nanos ?? 0 },
    labels: { ...labels } as RecordWrite["labels"],
  };
}

/**
 * Returns the value of a property of holder for `JSON.stringify`. Throws a TypeError if `JSON.stringify` would
 * change the value without an error.
 */
function checked(this: unknown, key: string, value: unknown): unknown {
  const original = (this as { [key: string]: unknown })[key]; // The value before its toJSON, if it has one.
  let fault: string | undefined;
  if (typeof value === "number" && !Number.isFinite(value)) {
    fault = String(value);
  } else if (typeof value === "function" || typeof value === "symbol") {
    fault = `a ${typeof value}`;
  } else if (value === undefined && Array.isArray(this)) {
    fault = "undefined in an array";
  } else if (value === null && kindOf(original) === "Date") {
    fault = "an invalid Date";
  } else if (["Map", "Set"].includes(kindOf(value))) {
    fault = "a Map or Set; convert it to an array or object";
  } else if (ArrayBuffer.isView(original) || ["ArrayBuffer", "SharedArrayBuffer"].includes(kindOf(value))) {
    fault = "a typed array or buffer; convert it to an array or base64";
  }
  if (fault !== undefined) {
    throw new TypeError(`it contains ${fault}`);
  }
  return value;
}

/** Returns the name of the class of a value of JavaScript, also if it is from another frame of a page. */
function kindOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice("[object ".length, -1);
}

/**
 * Returns the value of a record that is JSON. The media type does not matter. T is not checked. An integer above
 * 2^53 may become another one; writers must keep it as a string. Throws a SyntaxError if the value is not JSON
 * in UTF-8.
 */
export function jsonValue<T = unknown>({ key, value }: Pick<ParleyRecord, "key" | "value">): T {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(value)) as T;
  } catch (cause) {
    throw new SyntaxError(`the value of record ${JSON.stringify(key)} is not JSON`, { cause });
  }
}

/**
 * The records of one conversation, or of the tenant: bytes under keys, with revisions. `Client.records` and
 * `Client.tenantRecords` return it. Each method is one call, or one call for each page. The conversation must
 * exist; an append creates it and may write records in the same commit.
 */
export class Records<Options extends BaseCallOptions = BaseCallOptions> {
  readonly #calls: RecordCalls<Options>;
  /** Empty for the records of the tenant. */
  readonly #conversationId: string;

  /** Only the methods of a client make records. An empty id means the tenant. */
  constructor(calls: RecordCalls<Options>, conversationId: string) {
    this.#calls = calls;
    this.#conversationId = conversationId;
  }

  /** Returns the record of a key, or undefined if there is none. */
  async get(key: string, options?: Options): Promise<ParleyRecord | undefined> {
    const { records } = await this.#calls.getRecords(this.#getRequest([key]), options);
    return records[0];
  }

  /**
   * Returns the JSON value of a record and its revision: undefined and 0 if there is no record. T is not
   * checked. Throws a SyntaxError if the value is not JSON.
   */
  async getJSON<T = unknown>(key: string, options?: Options): Promise<JSONRecord<T>> {
    const record = await this.get(key, options);
    return record
      ? { value: jsonValue<T>(record), revision: record.revision }
      : { value: undefined, revision: 0 };
  }

  /**
   * Returns the records of any number of keys. A key without a record is left out. A call gets up to 100
   * records with up to 3 MiB, all as they are at one instant. The loop makes as many calls as it needs. A
   * record for which a reply had no space follows later. A key that occurs several times counts once. The
   * options apply to each call. Throws INVALID_ARGUMENT if keys is a string.
   */
  getAll(keys: readonly string[], options?: Options): AsyncIterable<ParleyRecord> {
    if (typeof keys === "string") {
      throw invalidRequest(
        `keys is the string ${JSON.stringify(keys)}, want an array; get returns one record`,
      );
    }
    const all = [...new Set(keys)];
    return { [Symbol.asyncIterator]: () => this.#getAll(all, options) };
  }

  /**
   * Writes a record and returns its revision. It replaces a record with the same key. key has 1 to 512 bytes,
   * value up to 3 MiB. If fields.ifRevision is set and the record has another revision, it throws a
   * `RevisionMismatchError` and writes nothing; 0 means that the record must not exist. Only records of the
   * tenant may have a ttl, 100 ms to 366 days; without it the record does not expire.
   */
  put(key: string, value: Uint8Array, fields: PutFields = {}, options?: Options): Promise<number> {
    const { requestId, ...rest } = fields;
    return this.#put({ ...rest, key, value }, requestId, options);
  }

  /** Writes a record with a value as JSON, and returns its revision. See {@link put} and {@link jsonWrite}. */
  async putJSON<T>(
    key: string,
    value: T,
    fields: Omit<PutFields, "mediaType"> = {},
    options?: Options,
  ): Promise<number> {
    const { requestId, ...rest } = fields;
    return await this.#put(jsonWrite(key, value, rest), requestId, options);
  }

  /**
   * Deletes a record. If there is none, the call succeeds. The version of the conversation rises in both cases,
   * because the call has a requestId. See {@link put} for ifRevision.
   */
  async delete(
    key: string,
    fields: Pick<PutFields, "ifRevision" | "requestId"> = {},
    options?: Options,
  ): Promise<void> {
    const { ifRevision, requestId } = fields;
    await this.write([{ key, delete: true, ifRevision }], { requestId }, options);
  }

  /**
   * Writes and deletes up to 100 records in one commit: all or none. Together they may have up to 4 MiB. With
   * tenantScope, a write is of the tenant's records, in the same commit. The version of the conversation rises
   * even if all writes are deletions of records that do not exist, because the call has a requestId. The
   * revision in the reply is then 0.
   */
  write(
    writes: readonly Input<RecordWrite>[],
    { ifVersion, requestId }: WriteFields = {},
    options?: Options,
  ): Promise<WriteRecordsResponse> {
    const request = { conversationId: this.#conversationId, writes, ifVersion, requestId };
    return this.#calls.writeRecords(request, options);
  }

  /**
   * Returns the records whose keys begin with fields.prefix, in the order of their keys. A record that exists
   * during the whole loop is returned once. Each page is a call, made when the loop needs it. Another loop over
   * the result begins again. The options apply to each call.
   */
  list(fields: ListFields = {}, options?: Options): AsyncIterable<ParleyRecord> {
    const copy = { ...fields, conversationId: this.#conversationId };
    return { [Symbol.asyncIterator]: () => this.#list(copy, options) };
  }

  #getRequest(keys: readonly string[]): Input<GetRecordsRequest> {
    return { conversationId: this.#conversationId, keys };
  }

  async #put(
    write: Input<RecordWrite>,
    requestId: string | undefined,
    options: Options | undefined,
  ): Promise<number> {
    const { revision, tenantRevision } = await this.write([write], { requestId }, options);
    return this.#conversationId ? revision : tenantRevision;
  }

  async *#getAll(keys: readonly string[], options?: Options): AsyncGenerator<ParleyRecord> {
    for (let remaining = keys; remaining.length > 0; ) {
      const asked = remaining.slice(0, maxKeys);
      const { records, omittedKeys } = await this.#calls.getRecords(this.#getRequest(asked), options);
      if (omittedKeys.length >= asked.length) {
        throw new ParleyError("INTERNAL", "the server returned none of the records");
      }
      remaining = [...omittedKeys, ...remaining.slice(maxKeys)];
      yield* records;
    }
  }

  async *#list(request: Input<ListRecordsRequest>, options?: Options): AsyncGenerator<ParleyRecord> {
    let pageToken = "";
    do {
      const { records, nextPageToken } = await this.#calls.listRecords({ ...request, pageToken }, options);
      yield* records;
      pageToken = nextPageToken;
    } while (pageToken);
  }
}
