import { type ConversationChange, type ToolCall, type Turn, TurnState } from "@parleyhq/client/web";

import { h } from "./dom.js";
import type { Feed } from "./feed.js";
import { isAbort, type Session } from "./session.js";
import { coalesced } from "./view.js";

/** The number of turns of one page. */
const pageSize = 50;

/** Pages that are read for each page of results: most of their turns may have been answered since. */
const pagesAtOnce = 5;

/** How long changes are collected before the list is read again, in milliseconds. */
const delay = 1000;

/** A turn that has ended with tool calls, of which some have no result. */
export interface WaitingTurn {
  readonly turn: Turn;
  readonly calls: readonly ToolCall[];
}

/**
 * The conversations of the tenant in which a tool call of a turn waits for its result. Each has its newest such turn.
 * Sends an event "change" when they have been read again.
 */
export class Waiting extends EventTarget {
  /** Newest first. */
  turns: readonly WaitingTurn[] = [];
  /** There may be more than {@link turns}. */
  hasMore = false;
  /** The first read has ended. */
  isKnown = false;
  /** Why the last read has failed. */
  error: unknown;
  readonly #session: Session;
  readonly #signal: AbortSignal;
  #wanted = pageSize;

  /** Begins to follow the changes of the feed, until the signal aborts. */
  constructor(session: Session, feed: Feed, signal: AbortSignal) {
    super();
    this.#session = session;
    this.#signal = signal;
    feed.onGap(this.refresh, signal);
    feed.onChange((change) => {
      if (this.#mayMatter(change)) {
        this.refresh();
      }
    }, signal);
    void this.#load();
  }

  /** Reports whether a call of a conversation waits. */
  has(conversationId: string): boolean {
    return this.turns.some(({ turn }) => turn.conversationId === conversationId);
  }

  /** The number of turns: "3", or "50+" if there may be more. */
  get count(): string {
    return `${this.turns.length}${this.hasMore ? "+" : ""}`;
  }

  /** Reads the turns again. */
  readonly refresh = coalesced(() => this.#load(), delay);

  /** Reads another page. */
  more(): void {
    this.#wanted += pageSize;
    void this.#load();
  }

  async #load(): Promise<void> {
    if (document.hidden) {
      // The number is not in view, so the server is not asked for it.
      document.addEventListener("visibilitychange", this.refresh, { once: true, signal: this.#signal });
      return;
    }
    try {
      const turns: WaitingTurn[] = [];
      const seen = new Set<string>();
      let token: string | undefined;
      for (let page = 0; page < (pagesAtOnce * this.#wanted) / pageSize && token !== ""; page++) {
        if (turns.length >= this.#wanted) {
          break;
        }
        token = await this.#loadPage(token, seen, turns);
      }
      this.turns = turns;
      this.hasMore = token !== "";
      this.isKnown = true;
      this.error = undefined;
    } catch (error) {
      if (isAbort(error) || this.#signal.aborted) {
        return;
      }
      this.error = error;
    }
    this.dispatchEvent(new Event("change"));
  }

  /** Adds the turns of a page. Returns the token of the next one; empty if it was the last one. */
  async #loadPage(pageToken: string | undefined, seen: Set<string>, turns: WaitingTurn[]): Promise<string> {
    const { client } = this.#session;
    const signal = this.#signal;
    const page = await client.listTurns(
      { states: [TurnState.TURN_STATE_INPUT_REQUIRED], pageSize, pageToken },
      { signal },
    );
    const newest = new Map<string, Turn>();
    for (const turn of page.turns) {
      if (!seen.has(turn.conversationId)) {
        seen.add(turn.conversationId);
        newest.set(turn.conversationId, turn);
      }
    }
    if (newest.size > 0) {
      const { summaries } = await client.batchGetRoutingSummaries(
        // Only the calls matter here, so that data is left out.
        { conversationIds: [...newest.keys()], messageLimit: 0, maxBytes: 1 },
        { signal },
      );
      for (const { conversationId, pendingToolCalls } of summaries) {
        if (pendingToolCalls.length > 0) {
          turns.push({ turn: newest.get(conversationId)!, calls: pendingToolCalls });
        }
      }
    }
    return page.nextPageToken;
  }

  /** Reports whether a change may add a waiting turn, or answer one. */
  #mayMatter({ conversationId, payload }: ConversationChange): boolean {
    const event = payload?.$case === "turnEvent" ? payload.value.event : undefined;
    if (event?.$case === "finished") {
      return event.value.turn?.state === TurnState.TURN_STATE_INPUT_REQUIRED;
    }
    return event === undefined && this.turns.some(({ turn }) => turn.conversationId === conversationId);
  }
}

/**
 * Returns a badge with the number of waiting turns. It is hidden while there is none, unless it shows zero. It follows
 * the number until the signal aborts.
 */
export function waitingBadge(waiting: Waiting, signal: AbortSignal, showsZero = false): HTMLElement {
  const badge = h("span", { class: "badge waiting-count", title: "Turns that wait for a tool result" });
  const update = () => {
    const isZero = waiting.turns.length === 0 && !waiting.hasMore;
    badge.hidden = isZero && !(showsZero && waiting.isKnown);
    badge.classList.toggle("warning", !isZero);
    badge.textContent = waiting.count;
  };
  update();
  waiting.addEventListener("change", update, { signal });
  return badge;
}
