import { randomUUID } from "node:crypto";

import {
  type Client,
  type Input,
  type Record,
  type RecordWrite,
  type Retention,
  RevisionMismatchError,
} from "@parleyhq/client";

import { batches, getAll, hasReason, listKeys, notFound } from "./calls.js";
import { checkpoints, generation, root } from "./records.js";

/** A sequence after which there is never a message. */
const maxSequence = 2 ** 31 - 1;
/** The number of threads of which a saver remembers the pieces, and of pieces of one thread. */
const maxThreads = 256;
const maxPieces = 10_000;

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

/** Writes and deletes the records of threads, so that no checkpoint refers to a piece that does not exist. */
export class Commits {
  readonly #client: Client;
  readonly #retention: Input<Retention>;
  readonly #known = new Map<string, Known>();
  /** The last commit of each conversation that refers to pieces. */
  readonly #last = new Map<string, Promise<void>>();

  /** New conversations have the retention. */
  constructor(client: Client, retention: Input<Retention>) {
    this.#client = client;
    this.#retention = retention;
  }

  /**
   * Writes records and those of the pieces they refer to that the server does not have. It is one commit, unless the
   * records are too many or too large for a call. Then the last ones are written last.
   */
  async commit(
    conversation: string,
    pieces: ReadonlyMap<string, Uint8Array>,
    writes: readonly Input<RecordWrite>[],
  ): Promise<void> {
    if (pieces.size === 0 && batches(writes, 0).length === 1) {
      await this.#write(conversation, writes);
      return;
    }
    // One after the other, because each needs the revision of the one before.
    const before = this.#last.get(conversation) ?? Promise.resolve();
    const commit = before.then(() => this.#commitGuarded(conversation, pieces, writes));
    const settled = commit.catch(() => {});
    this.#last.set(conversation, settled);
    try {
      await commit;
    } finally {
      if (this.#last.get(conversation) === settled) {
        this.#last.delete(conversation);
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
    return this.learn(conversation, record ?? { value: Buffer.from(randomUUID()), revision: 0 }, []);
  }

  /** Remembers pieces that were read after the record of their generation. */
  learn(
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
  async deleteRecords(conversationId: string): Promise<void> {
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
