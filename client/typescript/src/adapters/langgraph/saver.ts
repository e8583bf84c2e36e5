import { randomInt } from "node:crypto";
import { isDeepStrictEqual } from "node:util";

import type { RunnableConfig } from "@langchain/core/runnables";
import {
  BaseCheckpointSaver,
  type ChannelVersions,
  type Checkpoint,
  type CheckpointListOptions,
  type CheckpointMetadata,
  type CheckpointTuple,
  getCheckpointId,
  maxChannelVersion,
  type PendingWrite,
  type SerializerProtocol,
  TASKS,
  WRITES_IDX_MAP,
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
import { getAll, hasReason, listAll, listKeys, notFound } from "./calls.js";
import { Commits } from "./commits.js";
import { configOf, namespaceOf, requiredThread, threadOf } from "./configs.js";
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
import { conversationsWithRecords, lost, pendingWrites, type Row, rowsOf } from "./rows.js";

/** Usually the newest checkpoint with all its writes, and one record of the next. */
const newestPage = 4;
/** The number of fractions of a version: a power of 2, so that they are exact up to version 4,194,304. */
const versionFractions = 2 ** 31;

/** The options of a {@link ParleySaver}. */
export interface ParleySaverOptions {
  readonly server: Server;
  /** The serializer of checkpoints, values and writes; by default that of LangGraph. */
  readonly serde?: SerializerProtocol | undefined;
  /** The retention of conversations that the saver creates. Without one, nothing is lost until deletion. */
  readonly retention?: Input<Retention> | undefined;
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
  readonly #commits: Commits;

  /** Makes no call. */
  constructor({ server, serde, retention = kept }: ParleySaverOptions) {
    super(serde);
    this.#connection = new Connection(server);
    this.#client = this.#connection.client;
    this.#commits = new Commits(this.#client, retention);
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
      const { value: row } = await rowsOf(this.#client, conversation, prefix, {
        pageSize: id ? 0 : newestPage,
      }).next();
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
    await this.#commits.commit(conversationId(threadId), encoder.pieces, writes);
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
        return await this.#commits.commit(conversation, encoder.pieces, records);
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
          return await this.#commits.deleteRecords(conversation);
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
      for await (const row of rowsOf(this.#client, conversation, namespacePrefix(ns), {
        afterKey,
        pageSize: 0,
      })) {
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
        const { value: row } = await rowsOf(this.#client, conversation, prefixOf(key), {
          pageSize: 0,
        }).next();
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
    const conversations =
      threadId === undefined ? await conversationsWithRecords(this.#client) : [conversationId(threadId)];
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
      this.#commits.learn(conversation, current, used);
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
      const { value: parent } = await rowsOf(
        this.#client,
        conversation,
        checkpointPrefix(state.ns, parentId),
        {
          pageSize: 0,
        },
      ).next();
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
}
