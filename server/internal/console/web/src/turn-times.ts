import type { ConversationChange, Turn } from "@parleyhq/client/web";

import type { Feed } from "./feed.js";

/** The turns whose times are remembered. */
const limit = 1000;

/** The kinds of event that are pieces of an answer. */
const pieces: ReadonlySet<string | undefined> = new Set([
  "textDelta",
  "reasoningDelta",
  "structuredData",
  "toolCall",
  "toolCallDelta",
]);

/**
 * When turns have sent the first piece of their answer. The API has no such time, so it is known only for turns that
 * have started while the page was open.
 */
export class TurnTimes {
  /** The time of the first piece by the id of the turn; undefined as long as there is none. */
  readonly #first = new Map<string, Date | undefined>();

  /** Begins to follow the feed, until the signal aborts. */
  constructor(feed: Feed, signal: AbortSignal) {
    feed.onChange((change) => this.#add(change), signal);
    feed.onGap(() => this.#forgetOpen(), signal);
  }

  /** Returns the time from the creation of a turn to its first piece in milliseconds, if it is known. */
  firstPiece({ id, createTime }: Turn): number | undefined {
    const first = this.#first.get(id);
    return first && createTime && Math.max(0, first.getTime() - createTime.getTime());
  }

  #add({ payload, time }: ConversationChange): void {
    if (payload?.$case !== "turnEvent") {
      return;
    }
    const { turnId, event } = payload.value;
    if (event?.$case === "started") {
      this.#first.set(turnId, undefined);
      const oldest = this.#first.keys().next().value;
      if (this.#first.size > limit && oldest !== undefined) {
        this.#first.delete(oldest);
      }
    } else if (pieces.has(event?.$case) && this.#first.has(turnId)) {
      this.#first.set(turnId, this.#first.get(turnId) ?? time);
    } else if (event?.$case === "finished" && this.#first.get(turnId) === undefined) {
      this.#first.delete(turnId);
    }
  }

  /** Forgets the turns without a piece: changes are missing, and the next piece may not be the first one. */
  #forgetOpen(): void {
    for (const [id, first] of this.#first) {
      if (!first) {
        this.#first.delete(id);
      }
    }
  }
}
