import {
  type CheckpointPendingWrite,
  compareWritesSortKeys,
  writesSortKey,
} from "@langchain/langgraph-checkpoint";
import { type Client, ParleyError, type Record } from "@parleyhq/client";

import { hasReason, notFound } from "./calls.js";
import { type Decoder, isStateKey, Missing, type Pending, prefixOf, read, type State } from "./records.js";

const maxPage = 1000;

/** A checkpoint and the records of its writes. */
export interface Row {
  readonly record: Record;
  readonly state: State;
  readonly pending: Pending[];
}

/** Returns the ids of all conversations that have records. */
export async function conversationsWithRecords(client: Client): Promise<string[]> {
  const ids: string[] = [];
  let pageToken = "";
  do {
    const page = await client.listConversations({ pageSize: maxPage, pageToken });
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
export async function* rowsOf(
  client: Client,
  conversation: string,
  prefix: string,
  fields: { afterKey?: string; pageSize: number },
): AsyncGenerator<Row, undefined> {
  let open: Row | undefined; // More of its writes may follow.
  const records = client.records(conversation).list({ ...fields, prefix, descending: true });
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

/** Returns the writes of a checkpoint in the order in which LangGraph applies them. */
export async function pendingWrites(
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

/** Returns the error of a checkpoint that refers to a record that does not exist; other errors unchanged. */
export function lost(error: unknown, { state }: Row): unknown {
  if (!(error instanceof Missing)) {
    return error;
  }
  const checkpoint = `checkpoint ${JSON.stringify(state.id)} of thread ${JSON.stringify(state.threadId)}`;
  return new ParleyError(
    "DATA_LOSS",
    `${checkpoint} refers to the record ${error.message}, which does not exist`,
  );
}
