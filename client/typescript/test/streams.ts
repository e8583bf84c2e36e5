import { ParleyError } from "parley";

import type { Line } from "../src/patience.js";

/** A connection that stands. */
export const reachable: Line = {
  onReady(listener) {
    listener();
    return () => {};
  },
};

/** A connection that is never made. */
export const unreachable: Line = { onReady: () => () => {} };

/** Waits until the stream is given up. */
export function hang(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}

/** An error as a Parley server makes them. */
export function refused(code: ParleyError["code"], reason: string): ParleyError {
  return new ParleyError(code, reason.toLowerCase(), { reason });
}

/** The ends of streams that are gone on with. */
export const breaks: Record<string, ParleyError | undefined> = {
  "the server ends the stream": undefined,
  "the server restarts": refused("UNAVAILABLE", "SHUTTING_DOWN"),
  "the caller was slow": refused("RESOURCE_EXHAUSTED", "SLOW_READER"),
  "something in between is away": new ParleyError("UNAVAILABLE", "bad gateway"),
  "something in between resets it": new ParleyError("INTERNAL", "RST_STREAM"),
  "something in between cancels it": new ParleyError("CANCELLED", "RST_STREAM"),
  "something in between is confused": new ParleyError("UNKNOWN", "no trailers"),
};

/** The ends of streams that are the end. */
export const refusals: Record<string, ParleyError> = {
  "the request is refused": refused("INVALID_ARGUMENT", "INVALID_REQUEST"),
  "it is gone": refused("NOT_FOUND", "TURN_NOT_FOUND"),
  "a fault of the server": refused("INTERNAL", "INTERNAL"),
  "no longer signed in": new ParleyError("UNAUTHENTICATED", "expired"),
  "a limit of gRPC's": new ParleyError("RESOURCE_EXHAUSTED", "message too large"),
  "a deadline": new ParleyError("DEADLINE_EXCEEDED", "late"),
  "a server that is full": refused("RESOURCE_EXHAUSTED", "TOO_MANY_WATCHERS"),
  "not in this version": new ParleyError("UNIMPLEMENTED", "no such call"),
};

/** Reads to the end, and calls step with each item and how many there are. */
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
