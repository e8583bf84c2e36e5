import { randomInt, randomUUID } from "node:crypto";
import { isDeepStrictEqual } from "node:util";

import type { RunnableConfig } from "@langchain/core/runnables";
import {
  BaseCheckpointSaver,
  type ChannelVersions,
  type Checkpoint,
  type CheckpointListOptions,
  type CheckpointMetadata,
  type CheckpointPendingWrite,
  type CheckpointTuple,
  compareWritesSortKeys,
  getCheckpointId,
  maxChannelVersion,
  type PendingWrite,
  type SerializerProtocol,
  TASKS,
  WRITES_IDX_MAP,
  writesSortKey,
} from "@langchain/langgraph-checkpoint";
import {
  type Client,
  type Input,
  ParleyError,
  type Record,
  type RecordWrite,
  type Retention,
  RevisionMismatchError,
} from "@parleyhq/client";

import { conversationId } from "../ids.js";
import { Connection, kept, type Server } from "../server.js";
import { batches, getAll, hasReason, listAll, listKeys } from "./calls.js";
import {
  type ChannelValue,
  type Content,
  checkpointPrefix,
  checkpoints,
  Decoder,
  Encoder,
  found,
  generation,
  isStateKey,
  Missing,
  mediaType,
  namespacePrefix,
  type Pending,
  pendingKey,
  pieceKeys,
  prefixOf,
  read,
  root,
  type State,
  segment,
  stateKey,
  valueKey,
  written,
} from "./records.js";

/** A sequence after which there is never a message. */
const maxSequence = 2 ** 31 - 1;
const maxPage = 1000;
/** Usually the newest checkpoint with all its writes, and one record of the next. */
const newestPage = 4;
/** The number of threads of which a saver remembers the pieces, and of pieces of one thread. */
const maxThreads = 256;
const maxPieces = 10_000;
/** The number of fractions of a version: a power of 2, so that they are exact up to version 4,194,304. */
const versionFractions = 2 ** 31;
const notFound = "CONVERSATION_NOT_FOUND";

/** The options of a {@link ParleySaver}. */
export interface ParleySaverOptions {
  readonly server: Server;
  /** The serializer of checkpoints, values and writes; by default that of LangGraph. */
  readonly serde?: SerializerProtocol | undefined;
  /** The retention of conversations that the saver creates. Without one, nothing is lost until deletion. */
  readonly retention?: Input<Retention> | undefined;
}

/**
 * What the server has of a thread. Each commit that refers to pieces also writes the record of the generation, with
 * its revision as the condition. A deletion of the thread removes that record. So a commit never refers to a piece
 * that was deleted after it was known.
 */
interface Known {
  readonly generation: Uint8Array;
  revision: number;
  /** The keys of pieces that a new record may refer to. */
  readonly pieces: Set<string>;
}

/** A checkpoint and the records of its writes. */
interface Row {
  readonly record: Record;
  readonly state: State;
  readonly pending: Pending[];
}

/** The thread, the namespace and the id of a checkpoint. */
interface Place {
  readonly threadId: string;
  readonly ns: string;
  readonly id: string;
}

/**
 * A checkpointer that keeps the checkpoints of a graph in Parley.
 *
 * The checkpoints of a thread are records of the conversation whose id is `conversationId(thread_id)`. It is created
 * with the first of them. A checkpoint and the new values of its channels are one commit, and so are the writes of a
 * task: after a crash, both are there completely or not at all. Only if they have more than 3 MiB, or 99 values, they
 * take several commits, the checkpoint in the last one. A list that grows, such as the messages of a graph, costs
 * what is added to it.
 *
 * Any number of processes may use a thread. Methods throw a {@link ParleyError} if a call fails; a call is sent again
 * while the server is unavailable, as in {@link Client}, and takes effect once. They throw an Error for a config that
 * lacks an id, and a RangeError for a thread id that is not Unicode or a checkpoint id that makes a key of more than
 * 512 bytes.
 */
export class ParleySaver extends BaseCheckpointSaver {
  readonly #connection: Connection;
  readonly #client: Client;
  readonly #retention: Input<Retention>;
  readonly #known = new Map<string, Known>();
  /** The last commit of each conversation that refers to pieces. */
  readonly #commits = new Map<string, Promise<void>>();

  /** Makes no call. */
  constructor({ server, serde, retention = kept }: ParleySaverOptions) {
    super(serde);
    this.#connection = new Connection(server);
    this.#client = this.#connection.client;
    this.#retention = retention;
  }

  /** Closes the client, if the saver was created with the address of a server. */
  close(): void {
    this.#connection.close();
  }

  /** Returns a checkpoint, without an id the newest one of the namespace; undefined if there is none. */
  async getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
    const threadId = threadOf(config);
    if (threadId === undefined) {
      return undefined;
    }
    const conversation = conversationId(threadId);
    const ns = namespaceOf(config) ?? "";
    const id = getCheckpointId(config);
    const prefix = id ? checkpointPrefix(ns, id) : namespacePrefix(ns);
    for (let before: Row | undefined; ; ) {
      const { value: row } = await this.#rows(conversation, prefix, { pageSize: id ? 0 : newestPage }).next();
      if (!row) {
        return undefined;
      }
      try {
        return (await this.#load(conversation, [row]))[0];
      } catch (error) {
        // Another program may have deleted the thread after the row was read.
        if (!(error instanceof Missing) || before?.record.revision === row.record.revision) {
          throw lost(error, row);
        }
        before = row;
      }
    }
  }

  /**
   * Iterates over checkpoints, newest first: those of the thread, the namespace and the id that config has, with ids
   * below that of before, whose metadata has the values of filter; at most limit of them.
   */
  async *list(config: RunnableConfig, options: CheckpointListOptions = {}): AsyncGenerator<CheckpointTuple> {
    let limit = options.limit ?? Infinity;
    if (limit <= 0) {
      return;
    }
    for await (const tuple of this.#listed(config, options.before?.configurable?.["checkpoint_id"])) {
      const metadata = tuple.metadata as { [key: string]: unknown };
      const wanted = Object.entries(options.filter ?? {});
      if (wanted.every(([key, value]) => isDeepStrictEqual(metadata[key], value))) {
        yield tuple;
        if (--limit <= 0) {
          return;
        }
      }
    }
  }

  /** Stores a checkpoint, and the values of the channels in newVersions. */
  async put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: ChannelVersions,
  ): Promise<RunnableConfig> {
    const threadId = requiredThread(config, "checkpoint");
    const ns = namespaceOf(config) ?? "";
    const parentId = getCheckpointId(config);
    const { channel_values: channels, channel_versions: versions, ...rest } = checkpoint;
    const encoder = new Encoder(this.serde);
    const writes: Input<RecordWrite>[] = [];
    const stored: string[] = [];
    for (const [channel, version] of Object.entries(newVersions)) {
      if (Object.hasOwn(channels, channel)) {
        writes.push(written(valueKey(ns, channel, version), await encoder.channelValue(channels[channel])));
        if (versions[channel] === version) {
          stored.push(channel);
        }
      }
    }
    const state: State = {
      threadId,
      ns,
      id: checkpoint.id,
      ...(parentId && { parentId }),
      checkpoint: await encoder.content({ ...rest, channel_versions: versions }),
      metadata: await encoder.content(metadata),
      values: stored,
    };
    writes.push(written(stateKey(ns, checkpoint.id), state));
    await this.#commit(conversationId(threadId), encoder.pieces, writes);
    return configOf(state);
  }

  /**
   * Stores writes of a task to a checkpoint. Writes that the task has already stored are kept, except special ones
   * such as errors and interrupts, which are replaced.
   */
  async putWrites(
    config: RunnableConfig,
    writes: PendingWrite[],
    taskId: string,
    taskPath = "",
  ): Promise<void> {
    const threadId = requiredThread(config, "writes");
    const ns = namespaceOf(config) ?? "";
    const id = getCheckpointId(config);
    if (!id) {
      throw new Error('the config of writes has no "checkpoint_id" in "configurable"; set it');
    }
    const conversation = conversationId(threadId);
    const encoder = new Encoder(this.serde);
    const special: Input<RecordWrite>[] = [];
    let usual = new Map<number, readonly [number, string, Content]>();
    for (const [i, [channel, value]] of writes.entries()) {
      const index = WRITES_IDX_MAP[channel] ?? i;
      const write = [index, channel, await encoder.content(value)] as const;
      if (index >= 0) {
        usual.set(index, write);
      } else {
        const key = pendingKey(ns, id, taskId, String(index));
        special.push(written(key, { taskId, taskPath, writes: [write] }));
      }
    }
    // All usual writes of a task are one record, so that a reader has all of them or none. It must not exist. If it
    // does, only writes that it does not contain are added.
    const key = pendingKey(ns, id, taskId, "writes");
    for (let ifRevision = 0; usual.size > 0 || special.length > 0; ) {
      const pending = { taskId, taskPath, writes: [...usual.values()] };
      const records = usual.size > 0 ? [...special, written(key, pending, { ifRevision })] : special;
      try {
        return await this.#commit(conversation, encoder.pieces, records);
      } catch (error) {
        if (!(error instanceof RevisionMismatchError) || error.key !== key) {
          throw error;
        }
      }
      const record = (await getAll(this.#client, conversation, [key])).get(key);
      const before = record ? read<Pending>(record).writes : [];
      ifRevision = record?.revision ?? 0;
      const complete = new Map([...usual, ...before.map((write) => [write[0], write] as const)]);
      usual = complete.size > before.length ? complete : new Map();
    }
  }

  /** Deletes all checkpoints and writes of a thread. Messages and other records of its conversation are kept. */
  async deleteThread(threadId: string): Promise<void> {
    const conversation = conversationId(threadId);
    for (;;) {
      try {
        const { conversation: header } = await this.#client.getConversation({ conversationId: conversation });
        const keys = await listKeys(this.#client, conversation, root);
        if (!header || header.messageCount > 0 || header.recordCount !== keys.length) {
          return await this.#deleteRecords(conversation);
        }
        return void (await this.#client.deleteConversation({
          conversationId: conversation,
          ifVersion: header.version,
          allowMissing: true,
        }));
      } catch (error) {
        if (hasReason(error, notFound)) {
          return;
        }
        if (!hasReason(error, "VERSION_MISMATCH")) {
          throw error;
        }
      }
    }
  }

  /**
   * Returns a version that is higher than another one. The random fraction distinguishes the versions of branches
   * that begin at the same checkpoint: each has its own values.
   */
  override getNextVersion(current: number | undefined): number {
    return Math.floor(current ?? 0) + 1 + randomInt(versionFractions) / versionFractions;
  }

  async *#listed(config: RunnableConfig, before: string | undefined): AsyncGenerator<CheckpointTuple> {
    const threadId = threadOf(config);
    const ns = namespaceOf(config);
    const id = getCheckpointId(config);
    if (threadId !== undefined && ns !== undefined && !id) {
      const conversation = conversationId(threadId);
      const afterKey = before === undefined ? "" : checkpointPrefix(ns, before);
      for await (const row of this.#rows(conversation, namespacePrefix(ns), { afterKey, pageSize: 0 })) {
        try {
          yield* await this.#load(conversation, [row]);
        } catch (error) {
          if (!(error instanceof Missing)) {
            throw error;
          }
          const tuple = await this.getTuple(configOf(row.state));
          if (tuple) {
            yield tuple;
          }
        }
      }
      return;
    }
    for (const [conversation, key] of await this.#keys(threadId, ns)) {
      const idSegment = key.split("/")[3]!;
      if ((!id || idSegment === segment(id)) && (before === undefined || idSegment < segment(before))) {
        const { value: row } = await this.#rows(conversation, prefixOf(key), { pageSize: 0 }).next();
        const tuple = row && (await this.getTuple(configOf(row.state)));
        if (tuple) {
          yield tuple;
        }
      }
    }
  }

  /**
   * Returns conversation and key of the checkpoints of a thread, or of all threads of the adapter of this language,
   * newest first.
   */
  async #keys(threadId: string | undefined, ns: string | undefined): Promise<[string, string][]> {
    const conversations = threadId === undefined ? await this.#conversations() : [conversationId(threadId)];
    const keys: [string, string][] = [];
    for (const conversation of conversations) {
      const prefix = ns === undefined ? checkpoints : namespacePrefix(ns);
      const records = await listAll(this.#client, conversation, prefix, { keysOnly: true });
      for (const record of records) {
        if (isStateKey(record.key) && (threadId !== undefined || record.mediaType === mediaType)) {
          keys.push([conversation, record.key]);
        }
      }
    }
    const order = ([, key]: [string, string]) => key.split("/")[3]!;
    return keys.sort((a, b) => (order(a) < order(b) ? 1 : order(a) > order(b) ? -1 : 0));
  }

  /** Returns the ids of all conversations that have records. */
  async #conversations(): Promise<string[]> {
    const ids: string[] = [];
    let pageToken = "";
    do {
      const page = await this.#client.listConversations({ pageSize: maxPage, pageToken });
      for (const { conversation } of page.conversations) {
        if (conversation && conversation.recordCount > 0) {
          ids.push(conversation.id);
        }
      }
      pageToken = page.nextPageToken;
    } while (pageToken);
    return ids;
  }

  /** Iterates over the checkpoints whose keys begin with a prefix, newest first. */
  async *#rows(
    conversation: string,
    prefix: string,
    fields: { afterKey?: string; pageSize: number },
  ): AsyncGenerator<Row, undefined> {
    let open: Row | undefined; // More of its writes may follow.
    const records = this.#client.records(conversation).list({ ...fields, prefix, descending: true });
    try {
      for await (const record of records) {
        if (isStateKey(record.key)) {
          if (open) {
            yield open;
          }
          open = { record, state: read<State>(record), pending: [] };
        } else if (open && record.key.startsWith(prefixOf(open.record.key))) {
          // Writes may be stored before their checkpoint. Then they belong to no row yet.
          open.pending.push(read<Pending>(record));
        }
      }
    } catch (error) {
      if (!hasReason(error, notFound)) {
        throw error;
      }
    }
    if (open) {
      yield open;
    }
    return undefined;
  }

  /** Returns the checkpoints of rows, with the values of their channels and their writes. */
  async #load(conversation: string, rows: readonly Row[]): Promise<CheckpointTuple[]> {
    const contents = rows.flatMap(({ state, pending }) => [
      state.checkpoint,
      state.metadata,
      ...pending.flatMap(({ writes }) => writes.map(([, , content]) => content)),
    ]);
    const pieces = await getAll(this.#client, conversation, pieceKeys(...contents));
    const decoder = new Decoder(this.serde, pieces);
    const loaded = await Promise.all(
      rows.map(async ({ state }) => (await decoder.content(state.checkpoint)) as Checkpoint),
    );
    const keys = rows.map(({ state }, i) => {
      const versions = Object.entries(loaded[i]!.channel_versions);
      return versions.map(([channel, version]) => [channel, valueKey(state.ns, channel, version)] as const);
    });
    const wanted = keys.flat().map(([, key]) => key);
    const records = await getAll(this.#client, conversation, wanted.length ? [generation, ...wanted] : []);
    const isValue = ({ key }: Record) => key !== generation;
    const channelValues = new Map(
      [...records.values()].filter(isValue).map((record) => [record.key, read<ChannelValue>(record)]),
    );
    const used = pieceKeys(...channelValues.values());
    const all = new Map([...pieces, ...(await getAll(this.#client, conversation, used))]);
    const complete = new Decoder(this.serde, all);
    const tuples: CheckpointTuple[] = [];
    for (const [i, row] of rows.entries()) {
      const channels: { [channel: string]: unknown } = {};
      for (const [channel, key] of keys[i]!) {
        const value = channelValues.get(key);
        if (value) {
          channels[channel] = await complete.channelValue(value);
        } else if (row.state.values.includes(channel)) {
          found(records, key);
        }
      }
      const checkpoint = { ...loaded[i]!, channel_values: channels };
      tuples.push(await this.#tuple(conversation, row, checkpoint, complete));
    }
    const current = records.get(generation);
    if (current) {
      this.#learn(conversation, current, used);
    }
    return tuples;
  }

  async #tuple(
    conversation: string,
    { state, pending }: Row,
    checkpoint: Checkpoint,
    decoder: Decoder,
  ): Promise<CheckpointTuple> {
    const { parentId } = state;
    if (checkpoint.v < 4 && parentId !== undefined) {
      const { value: parent } = await this.#rows(conversation, checkpointPrefix(state.ns, parentId), {
        pageSize: 0,
      }).next();
      const contents = parent?.pending.flatMap(({ writes }) => writes.map(([, , content]) => content)) ?? [];
      const pieces = await getAll(this.#client, conversation, pieceKeys(...contents));
      const writes = await pendingWrites(parent?.pending ?? [], new Decoder(this.serde, pieces));
      checkpoint.channel_values[TASKS] = writes
        .filter(([, channel]) => channel === TASKS)
        .map(([, , value]) => value);
      const versions = Object.values(checkpoint.channel_versions);
      checkpoint.channel_versions[TASKS] =
        versions.length > 0 ? maxChannelVersion(...versions) : this.getNextVersion(undefined);
    }
    return {
      config: configOf(state),
      checkpoint,
      metadata: (await decoder.content(state.metadata)) as CheckpointMetadata,
      pendingWrites: await pendingWrites(pending, decoder),
      ...(parentId !== undefined && { parentConfig: configOf({ ...state, id: parentId }) }),
    };
  }

  /**
   * Writes records and those of the pieces they refer to that the server does not have. It is one commit, unless the
   * records are too many or too large for a call. Then the last ones are written last.
   */
  async #commit(
    conversation: string,
    pieces: ReadonlyMap<string, Uint8Array>,
    writes: readonly Input<RecordWrite>[],
  ): Promise<void> {
    if (pieces.size === 0 && batches(writes, 0).length === 1) {
      await this.#write(conversation, writes);
      return;
    }
    // One after the other, because each needs the revision of the one before.
    const before = this.#commits.get(conversation) ?? Promise.resolve();
    const commit = before.then(() => this.#commitGuarded(conversation, pieces, writes));
    const settled = commit.catch(() => {});
    this.#commits.set(conversation, settled);
    try {
      await commit;
    } finally {
      if (this.#commits.get(conversation) === settled) {
        this.#commits.delete(conversation);
      }
    }
  }

  async #commitGuarded(
    conversation: string,
    pieces: ReadonlyMap<string, Uint8Array>,
    writes: readonly Input<RecordWrite>[],
  ): Promise<void> {
    for (let known = this.#known.get(conversation); ; known = undefined) {
      known ??= await this.#readGeneration(conversation);
      const { pieces: stored, generation: value } = known;
      const missing = [...pieces].filter(([key]) => !stored.has(key));
      let { revision } = known;
      try {
        for (const batch of batches([...missing.map(([key, value]) => ({ key, value })), ...writes], 1)) {
          const guard = { key: generation, value, ifRevision: revision };
          revision = await this.#write(conversation, [...batch, guard]);
        }
      } catch (error) {
        this.#known.delete(conversation);
        if (error instanceof RevisionMismatchError && error.key === generation) {
          continue; // Another program has written to the thread or deleted it.
        }
        throw error;
      }
      known.revision = Math.max(known.revision, revision);
      if (stored.size > maxPieces) {
        stored.clear();
      }
      for (const key of pieces.keys()) {
        stored.add(key);
      }
      return;
    }
  }

  async #readGeneration(conversation: string): Promise<Known> {
    const record = (await getAll(this.#client, conversation, [generation])).get(generation);
    return this.#learn(conversation, record ?? { value: Buffer.from(randomUUID()), revision: 0 }, []);
  }

  /** Remembers pieces that were read after the record of their generation. */
  #learn(
    conversation: string,
    { value, revision }: Pick<Record, "value" | "revision">,
    read: string[],
  ): Known {
    let known = this.#known.get(conversation);
    if (!known || !Buffer.from(known.generation).equals(value)) {
      known = { generation: value, revision, pieces: new Set() };
    }
    known.revision = Math.max(known.revision, revision);
    for (const key of read) {
      known.pieces.add(key);
    }
    this.#known.delete(conversation);
    this.#known.set(conversation, known);
    const [oldest] = this.#known.keys();
    if (this.#known.size > maxThreads && oldest !== undefined) {
      this.#known.delete(oldest);
    }
    return known;
  }

  /** Writes records in one commit, and returns their revision. The commit creates the conversation if needed. */
  async #write(conversation: string, writes: readonly Input<RecordWrite>[]): Promise<number> {
    for (;;) {
      try {
        return (await this.#client.writeRecords({ conversationId: conversation, writes })).revision;
      } catch (error) {
        if (!hasReason(error, notFound)) {
          throw error;
        }
      }
      try {
        // A replacement may be without messages. It removes none after the last sequence.
        const reply = await this.#client.appendMessages({
          conversationId: conversation,
          replaceAfterSequence: maxSequence,
          createWith: { retention: this.#retention },
          records: writes,
        });
        return reply.conversation!.version;
      } catch (error) {
        // Another program has created it in the meantime, and a turn runs.
        if (!hasReason(error, "CONVERSATION_BUSY")) {
          throw error;
        }
      }
    }
  }

  /** Deletes the records of a thread, the checkpoints before what they refer to. */
  async #deleteRecords(conversationId: string): Promise<void> {
    for (;;) {
      const record = (await getAll(this.#client, conversationId, [generation])).get(generation);
      let revision = record?.revision ?? 0;
      const keys = await listKeys(this.#client, conversationId, root);
      const states = keys.filter((key) => key.startsWith(checkpoints));
      const others = keys.filter((key) => !key.startsWith(checkpoints) && key !== generation);
      if (keys.length === 0) {
        return;
      }
      const deletions = [...states, ...others].map((key) => ({ key, delete: true }));
      try {
        // Without the guard, a checkpoint that another program puts now would refer to pieces that are deleted.
        for (const batch of batches(deletions, 1)) {
          const guard = { key: generation, value: Buffer.from(randomUUID()), ifRevision: revision };
          const reply = await this.#client.writeRecords({ conversationId, writes: [...batch, guard] });
          revision = reply.revision;
        }
        const last = { key: generation, delete: true, ifRevision: revision };
        return void (await this.#client.writeRecords({ conversationId, writes: [last] }));
      } catch (error) {
        if (!(error instanceof RevisionMismatchError)) {
          throw error;
        }
      }
    }
  }
}

/** Returns the writes of a checkpoint in the order in which LangGraph applies them. */
async function pendingWrites(
  pending: readonly Pending[],
  decoder: Decoder,
): Promise<CheckpointPendingWrite[]> {
  const writes = pending.flatMap(({ taskId, taskPath, writes }) =>
    writes.map(([index, channel, content]) => ({
      key: writesSortKey(taskPath, taskId, index),
      taskId,
      channel,
      content,
    })),
  );
  writes.sort((a, b) => compareWritesSortKeys(a.key, b.key));
  return await Promise.all(
    writes.map(
      async ({ taskId, channel, content }): Promise<CheckpointPendingWrite> => [
        taskId,
        channel,
        await decoder.content(content),
      ],
    ),
  );
}

/** Returns the thread of a config, if it has one. Throws an Error if that is not a text or empty. */
function threadOf({ configurable }: RunnableConfig): string | undefined {
  const id: unknown = configurable?.["thread_id"];
  if (id !== undefined && (typeof id !== "string" || !id)) {
    throw new Error('"thread_id" in the "configurable" of a config must be a text that is not empty');
  }
  return id;
}

function requiredThread(config: RunnableConfig, what: string): string {
  const threadId = threadOf(config);
  if (threadId === undefined) {
    throw new Error(`the config of ${what} has no "thread_id" in "configurable"; set it`);
  }
  return threadId;
}

function namespaceOf({ configurable }: RunnableConfig): string | undefined {
  return configurable?.["checkpoint_ns"];
}

function configOf({ threadId, ns, id }: Place): RunnableConfig {
  return { configurable: { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: id } };
}

/** Returns the error of a checkpoint that refers to a record that does not exist; other errors unchanged. */
function lost(error: unknown, { state }: Row): unknown {
  if (!(error instanceof Missing)) {
    return error;
  }
  const checkpoint = `checkpoint ${JSON.stringify(state.id)} of thread ${JSON.stringify(state.threadId)}`;
  return new ParleyError(
    "DATA_LOSS",
    `${checkpoint} refers to the record ${error.message}, which does not exist`,
  );
}
