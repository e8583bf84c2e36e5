import { type ConversationChange, ParleyError } from "@parleyhq/client/web";

import { headerOf } from "./conversation-list.js";
import type { Feed } from "./feed.js";
import type { Session } from "./session.js";

/** Titles that are remembered. */
const limit = 10_000;

/** The titles of conversations: turns do not have them. Each is read once, and follows the changes. */
export class Titles {
  readonly #session: Session;
  readonly #titles = new Map<string, string>();
  /** The conversations whose titles may be others since changes were missed. They are read again. */
  readonly #outdated = new Set<string>();

  /** Begins to follow the changes of the feed, until the signal aborts. */
  constructor(session: Session, feed: Feed, signal: AbortSignal) {
    this.#session = session;
    feed.onGap(() => {
      for (const id of this.#titles.keys()) {
        this.#outdated.add(id);
      }
    }, signal);
    feed.onChange((change) => this.#apply(change), signal);
  }

  /** Returns the title of a conversation; empty if it has none or is not known. */
  of(conversationId: string): string {
    return this.#titles.get(conversationId) ?? "";
  }

  /** Reads the titles that are not known, one by one, until the signal aborts. Calls onFound after each one. */
  async read(conversationIds: Iterable<string>, signal: AbortSignal, onFound: () => void): Promise<void> {
    for (const conversationId of new Set(conversationIds)) {
      if (this.#titles.has(conversationId) && !this.#outdated.has(conversationId)) {
        continue;
      }
      try {
        const { conversation } = await this.#session.client.getConversation({ conversationId }, { signal });
        this.#set(conversationId, conversation!.title);
        onFound();
      } catch (error) {
        if (!(error instanceof ParleyError && error.code === "NOT_FOUND")) {
          return; // The view shows its own errors, and the ids are enough without titles.
        }
        this.#set(conversationId, ""); // It was deleted, and the list has its turns still.
      }
    }
  }

  #apply(change: ConversationChange): void {
    const header = headerOf(change);
    if (header) {
      this.#set(header.id, header.title);
    }
  }

  #set(id: string, title: string): void {
    this.#titles.set(id, title);
    this.#outdated.delete(id);
    const oldest = this.#titles.keys().next().value;
    if (this.#titles.size > limit && oldest !== undefined) {
      this.#titles.delete(oldest);
      this.#outdated.delete(oldest);
    }
  }
}
