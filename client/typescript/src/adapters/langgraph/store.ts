import { isDeepStrictEqual } from "node:util";

import {
  BaseStore,
  type GetOperation,
  type Item,
  type ListNamespacesOperation,
  type MatchCondition,
  type Operation,
  type OperationResults,
  type PutOperation,
  type SearchItem,
  type SearchOperation,
  validateNamespace,
} from "@langchain/langgraph-checkpoint";
import {
  type Client,
  type Input,
  jsonValue,
  jsonWrite,
  type Record,
  type RecordWrite,
  RevisionMismatchError,
} from "@parleyhq/client";

import { Connection, type Server } from "../server.js";
import { batches, getAll, listAll } from "./calls.js";
import { keyOf, segment } from "./records.js";

const root = "langgraph-store";
/** Stands for the tenant instead of a conversation. */
const tenant = "";
const maxValueBytes = 3 << 20;

/** The options of a {@link ParleyStore}. */
export interface ParleyStoreOptions {
  readonly server: Server;
}

/** What the record of an item contains, as JSON. Its labels have the times, which lists of keys contain, too. */
type Stored = Pick<Item, "namespace" | "key" | "value">;

/**
 * A store that keeps its items as records of the tenant, which all threads share. The Python adapter has the same
 * items.
 *
 * Searches are by namespace and filter, not by meaning: a query is ignored, as in LangGraph's own store without an
 * index. They return the items that were updated last first.
 *
 * The gets, searches and lists of a batch read the items as they are before its puts. The puts of a batch are one
 * commit, unless they are more than 100 or have more than 3 MiB; then they are committed in the order of the batch.
 *
 * An item has up to 3 MiB of JSON. Its key and namespace together have up to 495 bytes, in which a label or key of
 * more than 99 bytes counts 65. Methods throw an InvalidNamespaceError as LangGraph's own store does, a RangeError for
 * items that break these limits, and a ParleyError for values that are not JSON or if a call fails.
 */
export class ParleyStore extends BaseStore {
  readonly #connection: Connection;
  readonly #client: Client;

  /** Makes no call. */
  constructor({ server }: ParleyStoreOptions) {
    super();
    this.#connection = new Connection(server);
    this.#client = this.#connection.client;
  }

  /** Closes the client, if the store was created with the address of a server. */
  override stop(): void {
    this.#connection.close();
  }

  /** Executes operations, and returns the result of each. Of several puts of an item, the last one counts. */
  async batch<Op extends Operation[]>(operations: Op): Promise<OperationResults<Op>> {
    const puts = new Map<string, PutOperation>();
    const gets: string[] = [];
    for (const operation of operations) {
      if ("namespace" in operation) {
        validateNamespace(operation.namespace, { allowReservedRoot: true });
        const key = keyOfItem(operation);
        if ("value" in operation) {
          puts.set(key, operation);
        } else {
          gets.push(key);
        }
      }
    }
    const found = await getAll(this.#client, tenant, gets);
    const results: unknown[] = [];
    for (const operation of operations) {
      if ("namespacePrefix" in operation) {
        results.push(await this.#search(operation));
      } else if (!("namespace" in operation)) {
        results.push(await this.#listNamespaces(operation));
      } else if ("value" in operation) {
        results.push(undefined);
      } else {
        const record = found.get(keyOfItem(operation));
        results.push(record ? itemOf(record) : null);
      }
    }
    await this.#put(puts);
    return results as OperationResults<Op>;
  }

  async #search({ namespacePrefix, filter, limit = 10, offset = 0 }: SearchOperation): Promise<SearchItem[]> {
    validateNamespace(namespacePrefix, { allowEmpty: true, allowReservedRoot: true });
    const wanted = Object.entries(filter ?? {});
    const keysOnly = wanted.length === 0;
    let records = await listAll(this.#client, tenant, keyPrefix(namespacePrefix), { keysOnly });
    records.sort((a, b) => updateTime(b) - updateTime(a));
    if (keysOnly) {
      const keys = records.slice(offset, offset + limit).map(({ key }) => key);
      const found = await getAll(this.#client, tenant, keys);
      records = keys.flatMap((key) => found.get(key) ?? []);
      return records.map(itemOf);
    }
    const items = records.map(itemOf);
    const matching = items.filter(({ value }) => wanted.every(([key, each]) => matches(value[key], each)));
    return matching.slice(offset, offset + limit);
  }

  async #listNamespaces(operation: ListNamespacesOperation): Promise<string[][]> {
    const { matchConditions = [], maxDepth, limit, offset = 0 } = operation;
    const records = await listAll(this.#client, tenant, keyPrefix([]), { keysOnly: true });
    const keys = new Map(records.map(({ key }) => [key.slice(0, key.lastIndexOf("/")), key]));
    // A digest does not say which label it stands for, but the item does.
    const digested = [...keys.values()].filter((key) => key.includes("/~"));
    const found = await getAll(this.#client, tenant, digested);
    const paths = [...keys].map(([path, key]) => {
      const record = found.get(key);
      return record ? jsonValue<Stored>(record).namespace : path.split("/").slice(1).map(decodeURIComponent);
    });
    const namespaces = new Map<string, string[]>();
    for (const path of paths) {
      if (matchConditions.every((condition) => isMatch(condition, path))) {
        const namespace = path.slice(0, maxDepth);
        namespaces.set(namespace.join(":"), namespace);
      }
    }
    const sorted = [...namespaces].sort(([a], [b]) => a.localeCompare(b)).map(([, namespace]) => namespace);
    return sorted.slice(offset, limit === undefined ? undefined : offset + limit);
  }

  /** Writes and deletes items. An item that exists keeps the time of its creation. */
  async #put(puts: ReadonlyMap<string, PutOperation>): Promise<void> {
    const values = new Map([...puts].map(([key, operation]) => [key, encoded(key, operation)]));
    const remaining = new Map(puts);
    while (remaining.size > 0) {
      const existing = [...remaining].filter(([, { value }]) => value !== null).map(([key]) => key);
      const found = await getAll(this.#client, tenant, existing);
      const now = new Date().toISOString().replace("Z", "+00:00");
      const writes = [...remaining.keys()].map((key): Input<RecordWrite> => {
        const value = values.get(key);
        const record = found.get(key);
        const labels = { created_at: record?.labels["created_at"] ?? now, updated_at: now };
        return value ? { ...value, labels, ifRevision: record?.revision ?? 0 } : { key, delete: true };
      });
      try {
        for (const batch of batches(writes, 0)) {
          await this.#client.writeRecords({ writes: batch });
          for (const { key } of batch) {
            remaining.delete(key!);
          }
        }
      } catch (error) {
        if (!(error instanceof RevisionMismatchError)) {
          throw error;
        }
        // Another program has written one of them: read the times again.
      }
    }
  }
}

/** Returns the write of an item; undefined if the item is to be deleted. */
function encoded(key: string, { namespace, key: name, value }: PutOperation): RecordWrite | undefined {
  if (value === null) {
    return undefined;
  }
  const write = jsonWrite<Stored>(key, { namespace, key: name, value });
  if (write.value.length > maxValueBytes) {
    const item = `item ${JSON.stringify(name)} of namespace ${JSON.stringify(namespace)}`;
    throw new RangeError(`${item} has ${write.value.length} bytes, more than ${maxValueBytes}`);
  }
  return write;
}

function itemOf(record: Record): Item {
  const { namespace, key, value } = jsonValue<Stored>(record);
  const createdAt = new Date(record.labels["created_at"] ?? "");
  return { namespace, key, value, createdAt, updatedAt: new Date(updateTime(record)) };
}

/** Returns milliseconds since 1970. */
function updateTime({ labels }: Record): number {
  return Date.parse(labels["updated_at"] ?? "");
}

/** Returns how the keys of the items in a namespace, and in those under it, begin. */
function keyPrefix(namespace: readonly string[]): string {
  return [root, ...namespace].map((label) => `${segment(label)}/`).join("");
}

/** Returns the key of the record of an item. Throws a RangeError if it is too long. */
function keyOfItem({ namespace, key }: Pick<GetOperation, "namespace" | "key">): string {
  return keyOf(root, ...namespace.map(segment), segment(key));
}

/** Reports whether a namespace begins or ends with a path, in which "*" is any label. */
function isMatch({ matchType, path }: MatchCondition, namespace: readonly string[]): boolean {
  if (matchType !== "prefix" && matchType !== "suffix") {
    throw new Error(`unknown match type ${JSON.stringify(matchType)}`);
  }
  const start = matchType === "prefix" ? 0 : namespace.length - path.length;
  return start >= 0 && path.every((part, i) => part === "*" || part === namespace[start + i]);
}

const comparisons = new Map<string, (value: unknown, operand: unknown) => boolean>([
  ["$eq", isDeepStrictEqual],
  ["$ne", (value, operand) => !isDeepStrictEqual(value, operand)],
  ["$gt", (value, operand) => Number(value) > Number(operand)],
  ["$gte", (value, operand) => Number(value) >= Number(operand)],
  ["$lt", (value, operand) => Number(value) < Number(operand)],
  ["$lte", (value, operand) => Number(value) <= Number(operand)],
  ["$in", (value, operand) => isOneOf(value, operand)],
  ["$nin", (value, operand) => !isOneOf(value, operand)],
]);

/** Reports whether a value is in a list. */
function isOneOf(value: unknown, list: unknown): boolean {
  return Array.isArray(list) && list.some((each) => isDeepStrictEqual(value, each));
}

/** Reports whether a field matches a filter: a value, or an object that has only operators. */
function matches(value: unknown, wanted: unknown): boolean {
  if (typeof wanted !== "object" || wanted === null) {
    return value === wanted;
  }
  const operators = Object.entries(wanted).map(
    ([name, operand]) => [comparisons.get(name), operand] as const,
  );
  return operators.every(([comparison]) => comparison !== undefined)
    ? operators.every(([comparison, operand]) => comparison!(value, operand))
    : isDeepStrictEqual(value, wanted);
}
