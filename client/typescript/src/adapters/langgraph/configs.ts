import type { RunnableConfig } from "@langchain/core/runnables";

/** The thread, the namespace and the id of a checkpoint. */
interface Place {
  readonly threadId: string;
  readonly ns: string;
  readonly id: string;
}

/** Returns the thread of a config, if it has one. Throws an Error if that is not a text or empty. */
export function threadOf({ configurable }: RunnableConfig): string | undefined {
  const id: unknown = configurable?.["thread_id"];
  if (id !== undefined && (typeof id !== "string" || !id)) {
    throw new Error('"thread_id" in the "configurable" of a config must be a text that is not empty');
  }
  return id;
}

export function requiredThread(config: RunnableConfig, what: string): string {
  const threadId = threadOf(config);
  if (threadId === undefined) {
    throw new Error(`the config of ${what} has no "thread_id" in "configurable"; set it`);
  }
  return threadId;
}

export function namespaceOf({ configurable }: RunnableConfig): string | undefined {
  return configurable?.["checkpoint_ns"];
}

export function configOf({ threadId, ns, id }: Place): RunnableConfig {
  return { configurable: { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: id } };
}
