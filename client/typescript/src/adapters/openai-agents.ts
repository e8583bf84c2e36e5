/**
 * Sessions of the OpenAI Agents SDK for JavaScript that Parley stores. Start at {@link ParleySession}.
 *
 * Each item is a message of a conversation. Its native form is the item as JSON; its content is text for people,
 * for routing and for other agents.
 */
import { createHash, randomUUID } from "node:crypto";

import {
  type AgentInputItem,
  protocol,
  type RunContext,
  type RunContextAwareSession,
  type SessionHistoryTransactionArgs,
  type SessionHistoryTransactionAwareSession,
  UserError,
} from "@openai/agents-core";
import {
  type Client,
  type Conversation,
  type Input,
  ParleyError,
  type RecordWrite,
  type Retention,
} from "@parleyhq/client";

import { conversationId } from "./ids.js";
import {
  bytesOf,
  canonical,
  decode,
  type Entry,
  entryOf,
  isReference,
  keysOf,
  maxBatchBytes,
  packed,
} from "./openai-agents/items.js";
import { Connection, kept, type Server } from "./server.js";

export type { Server } from "./server.js";

/** The limits of the API on records in a call, and messages on a page. */
const maxWrites = 100;
const maxPage = 1000;
/** A sequence after which there is never a message. */
const maxSequence = 2 ** 31 - 1;

/** Begins the keys of the records of applied operations, whose values are digests of the transactions. */
const operations = "operation/";

/** The options of a {@link ParleySession}. */
export interface ParleySessionOptions {
  readonly server: Server;
  /** The id of the session: any text. Without one, it is a random UUID. */
  readonly sessionId?: string | undefined;
  /** The retention of the conversation if the session creates it. Without one, nothing is lost until deletion. */
  readonly retention?: Input<Retention> | undefined;
}

/** The newest messages of the session, oldest first, as they are at one version. */
interface History {
  /** The version of the conversation; 0 if it does not exist. */
  readonly version: number;
  readonly entries: Entry[];
}

/** A request of {@link ParleySession.#append} besides the items. */
interface Change {
  readonly replaceAfterSequence?: number;
  readonly ifVersion?: number;
  readonly runContext?: RunContext<unknown> | undefined;
  readonly record?: Input<RecordWrite>;
  /** The records to delete. */
  readonly deleted?: readonly string[];
}

/**
 * A session whose items are the messages of a conversation, which the first item creates. Its id is
 * `conversationId(sessionId)`.
 *
 * Each method is atomic, also with several processes and across a crash of the server. A call is sent again
 * while the server is unavailable, as in {@link Client}, and takes effect once. Methods throw a UserError for what
 * the SDK's own sessions refuse, and if another writer changed what they would replace. Other failures are a
 * {@link ParleyError}; with reason CONVERSATION_FULL the session has reached the size that the server allows.
 */
export class ParleySession implements RunContextAwareSession, SessionHistoryTransactionAwareSession {
  /** The runner passes its context to each method, so that a run replaces only what it has read. */
  readonly acceptsRunContext = true;
  readonly #connection: Connection;
  readonly #client: Client;
  readonly #sessionId: string;
  readonly #conversationId: string;
  readonly #retention: Input<Retention>;
  /**
   * The version up to which each run knows the session, from its last complete read. Reads outside of runs have the
   * session as their key.
   */
  readonly #versions = new WeakMap<object, number>();

  constructor({ server, sessionId = randomUUID(), retention = kept }: ParleySessionOptions) {
    this.#conversationId = conversationId(sessionId);
    this.#sessionId = sessionId;
    this.#retention = retention;
    this.#connection = new Connection(server);
    this.#client = this.#connection.client;
  }

  /** Closes the client, if the session was created with the address of a server. */
  close(): void {
    this.#connection.close();
  }

  /** Returns the id with which the session was created. */
  async getSessionId(): Promise<string> {
    return this.#sessionId;
  }

  /** Returns the newest items, oldest first: all of them without a limit, none if it is 0 or less. */
  async getItems(limit?: number, runContext?: RunContext<unknown>): Promise<AgentInputItem[]> {
    if (limit !== undefined && limit <= 0) {
      return [];
    }
    const { version, items } = await retried(() => this.#read(limit));
    if (limit === undefined) {
      this.#versions.set(runContext ?? this, version);
      return items;
    }
    return items.slice(-limit);
  }

  /** Appends items. Either all are stored or none. */
  async addItems(items: AgentInputItem[], runContext?: RunContext<unknown>): Promise<void> {
    if (items.length > 0) {
      await this.#append(items, { runContext });
    }
  }

  /** Removes and returns the newest item; undefined if there is none. */
  async popItem(runContext?: RunContext<unknown>): Promise<AgentInputItem | undefined> {
    return await retried(async () => {
      const { version, entries, items } = await this.#read(1);
      const [last] = entries;
      const replaceAfterSequence = last ? last.sequence - 1 : 0;
      const deleted = keysOf(entries);
      if (items.length === 1 && deleted.length === 0) {
        // A replacement would refuse to remove a result of another writer whose call stays.
        const reply = await this.#client.clearConversation({
          conversationId: this.#conversationId,
          afterSequence: replaceAfterSequence,
          ifVersion: version,
        });
        this.#written(reply, runContext);
      } else if (last) {
        const change = { replaceAfterSequence, ifVersion: version, deleted, runContext };
        await this.#append(items.slice(0, -1), change);
      }
      return items.at(-1);
    });
  }

  /** Removes all items, and forgets the operations of {@link applyHistoryTransaction}. */
  async clearSession(runContext?: RunContext<unknown>): Promise<void> {
    await retried(async () => {
      const { version, entries } = await this.#history();
      if (version > 0) {
        const deleted = [...keysOf(entries), ...(await this.#operations())];
        await this.#append([], { replaceAfterSequence: 0, ifVersion: version, deleted, runContext });
      }
    });
  }

  /**
   * Replaces all items by a compaction and the items after it, in one commit. Throws a UserError if the session
   * has changed since the run read all items; then nothing is replaced.
   */
  async replaceHistoryWithCompaction(
    items: AgentInputItem[],
    runContext?: RunContext<unknown>,
  ): Promise<void> {
    await retried(async () => {
      const { version, entries } = await this.#history();
      if (version !== (this.#versions.get(runContext ?? this) ?? version)) {
        throw new UserError(
          "Another writer changed the session after the run read it; run the compaction again.",
        );
      }
      const deleted = keysOf(entries);
      await this.#append(items, { replaceAfterSequence: 0, ifVersion: version, deleted });
      this.#versions.delete(runContext ?? this);
    });
  }

  /**
   * Changes the history atomically and once for each operationId, which the session remembers until
   * {@link clearSession}. Throws a UserError, and changes nothing, if the arguments are invalid, the operationId was
   * used for another transaction, or the newest items are not those of expectedSuffix.
   */
  async applyHistoryTransaction(
    args: SessionHistoryTransactionArgs,
    runContext?: RunContext<unknown>,
  ): Promise<void> {
    const { operationId, transaction } = validated(args);
    const key = `${operations}${sha256(operationId)}`;
    const digest = sha256(canonical(transaction));
    const record = { key, value: Buffer.from(digest), mediaType: "text/plain", ifRevision: 0 };
    // The record, and no request id, makes it once: the server forgets request ids in time, and not in clearSession.
    const change = { record, runContext };
    await retried(async () => {
      if (await this.#isApplied(key, digest)) {
        return;
      }
      if (transaction.type === "append_items") {
        return await this.#append(transaction.items, change);
      }
      const { expectedSuffix, replacement } = transaction;
      const { version, entries, items } = await this.#read(expectedSuffix.length);
      const start = Math.max(0, items.length - expectedSuffix.length);
      if (canonical(items.slice(start)) !== canonical(expectedSuffix)) {
        if (await this.#isApplied(key, digest)) {
          return; // Another process has applied the operation between the two reads.
        }
        throw new UserError("The newest items of the session are not those that the transaction expects.");
      }
      const replaceAfterSequence = entries[0] ? entries[0].sequence - 1 : maxSequence;
      const replaced = { replaceAfterSequence, ifVersion: version, deleted: keysOf(entries) };
      await this.#append([...items.slice(0, start), ...replacement], { ...change, ...replaced });
    });
  }

  /** Reports whether an operation was applied. Throws a UserError if it was another transaction. */
  async #isApplied(key: string, digest: string): Promise<boolean> {
    const records = await orMissing(this.#client.records(this.#conversationId).get(key));
    if (records && Buffer.from(records.value).toString() !== digest) {
      throw new UserError("The operationId was already used for a different transaction.");
    }
    return records !== undefined;
  }

  /** Returns the keys of the records of all operations. */
  async #operations(): Promise<string[]> {
    const keys: string[] = [];
    const fields = { prefix: operations, keysOnly: true, pageSize: maxPage };
    for await (const { key } of this.#client.records(this.#conversationId).list(fields)) {
      keys.push(key);
    }
    return keys;
  }

  /** Returns the messages that have the newest `count` items, all by default, and the items of these messages. */
  async #read(count?: number): Promise<History & { items: AgentInputItem[] }> {
    const history = await this.#history(count);
    return { ...history, items: await this.#items(history) };
  }

  /** Returns the messages that have the newest `count` items, all by default. Throws {@link Changed}. */
  async #history(count = Infinity): Promise<History> {
    if (count === 0) {
      const reply = await orMissing(this.#client.getConversation({ conversationId: this.#conversationId }));
      return { version: reply?.conversation?.version ?? 0, entries: [] };
    }
    const entries: Entry[] = []; // Newest first, as the pages.
    let items = 0;
    let first: Conversation | undefined;
    let pageToken = "";
    do {
      const pageSize = first ? maxPage : Math.min(maxPage, count);
      const request = { conversationId: this.#conversationId, pageSize, pageToken };
      const reply = await orMissing(this.#client.listMessages(request));
      if (!reply && !first) {
        return { version: 0, entries };
      }
      first ??= reply!.conversation!;
      // Pages go back in time, so messages that were appended during the reads are on none of them.
      if (removed(reply?.conversation) !== removed(first)) {
        throw new Changed();
      }
      for (const message of reply!.messages) {
        const entry = entryOf(message);
        entries.push(entry);
        items += isReference(entry.content) ? entry.content.items : entry.content.length;
      }
      pageToken = reply!.nextPageToken;
    } while (pageToken && items < count);
    return { version: first.version, entries: entries.reverse() };
  }

  /** Returns the items of messages. Throws {@link Changed} if they were removed. */
  async #items({ version, entries }: History): Promise<AgentInputItem[]> {
    const keys = keysOf(entries);
    const values = new Map<string, Uint8Array>();
    if (keys.length > 0) {
      const all = this.#client.records(this.#conversationId).getAll(keys);
      for await (const { key, value } of all) {
        values.set(key, value);
      }
    }
    const lost = keys.find((key) => !values.has(key));
    if (lost !== undefined) {
      if ((await this.#history(0)).version !== version) {
        throw new Changed();
      }
      throw new ParleyError("DATA_LOSS", `the record ${JSON.stringify(lost)} of the session does not exist`);
    }
    return entries.flatMap(({ content }) =>
      isReference(content)
        ? (decode(Buffer.concat(content.keys.map((key) => values.get(key)!))) as AgentInputItem[])
        : content,
    );
  }

  /** Appends items, and makes the change, in one commit. */
  async #append(items: readonly AgentInputItem[], change: Change): Promise<void> {
    const { deleted = [], record, ifVersion, runContext } = change;
    const { messages, records } = packed(items);
    const request = {
      conversationId: this.#conversationId,
      messages,
      // A batch without messages must replace, and with this it removes none.
      replaceAfterSequence: change.replaceAfterSequence ?? (messages.length > 0 ? undefined : maxSequence),
      createWith: { retention: this.#retention },
    };
    const isStaged = records.length >= maxWrites || bytesOf(records) > maxBatchBytes;
    const version = isStaged ? await this.#stage(records, ifVersion) : ifVersion;
    const writes: Input<RecordWrite>[] = [...(isStaged ? [] : records), ...(record ? [record] : [])];
    const deletions = deleted.map((key) => ({ key, delete: true }));
    writes.push(...deletions.splice(0, maxWrites - writes.length));
    const reply = await this.#client.appendMessages({ ...request, ifVersion: version, records: writes });
    this.#written(reply, runContext);
    await this.#write(deletions);
  }

  /** Notes that a run has also read what it wrote itself, unless another writer came between. */
  #written(
    reply: { conversation?: Conversation | undefined; replayed: boolean },
    runContext: object = this,
  ): void {
    const after = reply.conversation!.version;
    if (!reply.replayed && this.#versions.get(runContext) === after - 1) {
      this.#versions.set(runContext, after);
    }
  }

  /**
   * Writes records that are too large for the commit of the messages that name them. No reader sees them before
   * that commit. Returns the version after it if there is one before it.
   */
  async #stage(records: readonly Input<RecordWrite>[], ifVersion?: number): Promise<number | undefined> {
    const createWith = { retention: this.#retention };
    const request = { conversationId: this.#conversationId, messageLimit: 0, createWith };
    const { conversation, created } = await this.#client.loadConversation(request);
    const version = ifVersion === 0 && created ? conversation?.version : ifVersion;
    return await this.#write(records, version);
  }

  /** Writes records in as many calls as they need, each at the version after the one before, if there is one. */
  async #write(writes: readonly Input<RecordWrite>[], ifVersion?: number): Promise<number | undefined> {
    let version = ifVersion;
    for (let rest = writes; rest.length > 0; ) {
      let count = 1;
      while (count < Math.min(rest.length, maxWrites) && bytesOf(rest.slice(0, count + 1)) <= maxBatchBytes) {
        count++;
      }
      const records = this.#client.records(this.#conversationId);
      const { conversation } = await records.write(rest.slice(0, count), { ifVersion: version });
      version = version === undefined ? undefined : conversation?.version;
      rest = rest.slice(count);
    }
    return version;
  }
}

/** The conversation has changed between the calls of one method. */
class Changed extends Error {}

/** The reasons of errors if another writer has changed or deleted the conversation. */
const changeReasons = ["VERSION_MISMATCH", "REVISION_MISMATCH", "CONVERSATION_NOT_FOUND"];

/** Returns what differs between two reads of a conversation if messages were removed in between. */
function removed(conversation?: Conversation): string {
  const { uid, lastSequence, messageCount } = conversation ?? { uid: "", lastSequence: 0, messageCount: 0 };
  return `${uid} ${lastSequence - messageCount}`;
}

/** Calls a function again while other writers change the conversation between its calls. */
async function retried<T>(change: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await change();
    } catch (error) {
      // Each round means that another writer has succeeded, so the loop ends.
      const isChanged =
        error instanceof Changed || (error instanceof ParleyError && changeReasons.includes(error.reason));
      if (!isChanged) {
        throw error;
      }
    }
  }
}

/** Returns undefined instead if the conversation does not exist. */
async function orMissing<T>(call: Promise<T>): Promise<T | undefined> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof ParleyError && error.reason === "CONVERSATION_NOT_FOUND") {
      return undefined;
    }
    throw error;
  }
}

/** Returns the arguments of a transaction if the SDK's own session accepts them. */
function validated(args: SessionHistoryTransactionArgs): SessionHistoryTransactionArgs {
  const { operationId, transaction } = args ?? {};
  if (typeof operationId !== "string" || !operationId.trim()) {
    throw new UserError("The operationId of a transaction must be a text that is not empty.");
  }
  const { type } = transaction ?? {};
  if (type !== "append_items" && type !== "replace_suffix") {
    throw new UserError(`The type of a transaction must not be ${JSON.stringify(type)}.`);
  }
  const lists =
    transaction.type === "append_items"
      ? [transaction.items]
      : [transaction.expectedSuffix, transaction.replacement];
  for (const list of lists) {
    if (!Array.isArray(list) || !list.every((item) => protocol.ModelItem.safeParse(item).success)) {
      throw new UserError("The items of a transaction must be valid items.");
    }
  }
  return args;
}

function sha256(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}
