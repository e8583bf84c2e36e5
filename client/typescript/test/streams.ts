import { ParleyError } from "@parleyhq/client";

import type { Connection } from "../src/retry.js";

/** A connection that is ready. */
export const reachable: Connection = {
  onReady(listener) {
    listener();
    return () => {};
  },
};

/** A connection that is never ready. */
export const unreachable: Connection = { onReady: () => () => {} };

/** Waits until the signal aborts, then throws its reason. */
export function hang(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

/** Returns an error of a Parley server. */
export function refused(code: ParleyError["code"], reason: string): ParleyError {
  return new ParleyError(code, reason.toLowerCase(), { reason });
}

/** Ends of streams after which a call resumes. */
export const breaks: Record<string, ParleyError | undefined> = {
  "the server ends the stream": undefined,
  "the server restarts": refused("UNAVAILABLE", "SHUTTING_DOWN"),
  "the caller was slow": refused("RESOURCE_EXHAUSTED", "SLOW_READER"),
  "a proxy has no server": new ParleyError("UNAVAILABLE", "bad gateway"),
  "a proxy resets the stream": new ParleyError("INTERNAL", "RST_STREAM"),
  "a proxy cancels the stream": new ParleyError("CANCELLED", "RST_STREAM"),
  "a proxy sends no status": new ParleyError("UNKNOWN", "no trailers"),
};

/** Ends of streams after which a call does not resume. */
export const refusals: Record<string, ParleyError> = {
  "the request is refused": refused("INVALID_ARGUMENT", "INVALID_REQUEST"),
  "the turn is gone": refused("NOT_FOUND", "TURN_NOT_FOUND"),
  "an internal error of the server": refused("INTERNAL", "INTERNAL"),
  "no longer signed in": new ParleyError("UNAUTHENTICATED", "expired"),
  "a limit of gRPC": new ParleyError("RESOURCE_EXHAUSTED", "message too large"),
  "a deadline": new ParleyError("DEADLINE_EXCEEDED", "late"),
  "a server at its limit of watchers": refused("RESOURCE_EXHAUSTED", "TOO_MANY_WATCHERS"),
  "not in this version": new ParleyError("UNIMPLEMENTED", "no such call"),
};

/** Reads to the end. Calls step with each item and the number of items so far. */
export async function read<T>(
  items: AsyncIterable<T>,
  step: (item: T, count: number) => Promise<void> | void = () => {},
): Promise<{ items: T[]; error?: unknown }> {
  const seen: T[] = [];
  try {
    for await (const item of items) {
      seen.push(item);
      await step(item, seen.length);
    }
    return { items: seen };
  } catch (error) {
    return { items: seen, error };
  }
}
