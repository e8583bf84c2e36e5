import { type Client, type Input, ParleyError, type Record, type RecordWrite } from "@parleyhq/client";

const maxWrites = 100;
/** The bytes of the records of a call, which may have 4 MiB. */
const maxBatchBytes = 3 << 20;
const maxPage = 1000;

/** The reason of the error of a call if the conversation does not exist. */
export const notFound = "CONVERSATION_NOT_FOUND";

/** Reports whether an error has this reason. */
export function hasReason(error: unknown, reason: string): boolean {
  return error instanceof ParleyError && error.reason === reason;
}

/** Returns records by their keys. An empty conversation id means the tenant. */
export async function getAll(
  client: Client,
  conversation: string,
  keys: readonly string[],
): Promise<Map<string, Record>> {
  const records = new Map<string, Record>();
  const from = conversation ? client.records(conversation) : client.tenantRecords();
  try {
    for await (const record of from.getAll(keys)) {
      records.set(record.key, record);
    }
  } catch (error) {
    if (!hasReason(error, notFound)) {
      throw error;
    }
  }
  return records;
}

/** Returns the records whose keys begin with a prefix, in the order of the keys; none without the conversation. */
export async function listAll(
  client: Client,
  conversation: string,
  prefix: string,
  fields: { keysOnly: boolean },
): Promise<Record[]> {
  const records: Record[] = [];
  const from = conversation ? client.records(conversation) : client.tenantRecords();
  try {
    for await (const record of from.list({ ...fields, prefix, pageSize: maxPage })) {
      records.push(record);
    }
  } catch (error) {
    if (!hasReason(error, notFound)) {
      throw error;
    }
  }
  return records;
}

/** Returns the keys that begin with a prefix. */
export async function listKeys(client: Client, conversation: string, prefix: string): Promise<string[]> {
  return (await listAll(client, conversation, prefix, { keysOnly: true })).map(({ key }) => key);
}

/** Splits writes into those of one call each, in their order, with space for some more. */
export function batches(writes: readonly Input<RecordWrite>[], spare: number): Input<RecordWrite>[][] {
  const all: Input<RecordWrite>[][] = [];
  let batch: Input<RecordWrite>[] = [];
  let bytes = 0;
  for (const write of writes) {
    const more = (write.value?.length ?? 0) + Buffer.byteLength(write.key ?? "") + 1024;
    if (batch.length > 0 && (batch.length + spare === maxWrites || bytes + more > maxBatchBytes)) {
      all.push(batch);
      batch = [];
      bytes = 0;
    }
    batch.push(write);
    bytes += more;
  }
  return batch.length > 0 ? [...all, batch] : all;
}
