import {
  ChangeKind,
  type Conversation,
  type ConversationChange,
  ListOrder,
  type ToolCall,
  type Turn,
  TurnState,
} from "@parleyhq/client/web";

import { headerOf } from "./conversation-list.js";
import { h } from "./dom.js";
import type { Feed } from "./feed.js";
import { format } from "./route.js";
import { isAbort, type Session } from "./session.js";
import { coalesced } from "./view.js";

/** The number of turns of one page. */
const pageSize = 50;

/** Pages that are read for each page of results: most of their turns may have been answered since. */
const pagesAtOnce = 5;

/** How long changes are collected before the list is read again, in milliseconds. */
const delay = 1000;

/** The last changed conversations that are searched for forks. */
const searched = 100;

/** A conversation with tool calls that have no result. */
export interface WaitingConversation {
  readonly id: string;
  readonly calls: readonly ToolCall[];
  /** The newest turn that has ended with such calls. A fork has none: it has the calls of its origin. */
  readonly turn: Turn | undefined;
  /** When the turn has ended, or the fork was created. */
  readonly since: Date | undefined;
}

/**
 * The conversations of the tenant in which a tool call of a turn waits for its result. The API lists turns that wait,
 * but no forks: those are known that are among the last changed conversations when the page opens, or are created
 * later. Sends an event "change" when they have been read again.
 */
export class Waiting extends EventTarget {
  /** Forks without a turn first, then by their turns, newest first. */
  conversations: readonly WaitingConversation[] = [];
  /** There may be more than {@link conversations}. */
  hasMore = false;
  /** The first read has ended. */
  isKnown = false;
  /** Why the last read has failed. */
  error: unknown;
  readonly #session: Session;
  readonly #signal: AbortSignal;
  /** The forks that may have calls without a result. */
  readonly #forks = new Map<string, Conversation>();
  #areForksKnown = false;
  #wanted = pageSize;

  /** Begins to follow the changes of the feed, until the signal aborts. */
  constructor(session: Session, feed: Feed, signal: AbortSignal) {
    super();
    this.#session = session;
    this.#signal = signal;
    feed.onGap(() => {
      this.#areForksKnown = false;
      this.refresh();
    }, signal);
    feed.onChange((change) => {
      this.#noteResult(change);
      if (this.#mayMatter(change)) {
        this.refresh();
      }
    }, signal);
    void this.#load();
  }

  /** Reports whether a call of a conversation waits. */
  has(conversationId: string): boolean {
    return this.conversations.some(({ id }) => id === conversationId);
  }

  /** The number of conversations: "3", or "50+" if there may be more. */
  get count(): string {
    return `${this.conversations.length}${this.hasMore ? "+" : ""}`;
  }

  /** Reads the conversations again. */
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
      const found: WaitingConversation[] = [];
      const seen = new Set<string>();
      let token: string | undefined;
      for (let page = 0; page < (pagesAtOnce * this.#wanted) / pageSize && token !== ""; page++) {
        if (found.length >= this.#wanted) {
          break;
        }
        token = await this.#loadPage(token, seen, found);
      }
      this.conversations = [...(await this.#loadForks(seen)), ...found];
      this.hasMore = token !== "";
      this.isKnown = true;
      this.error = undefined;
    } catch (error) {
      if (isAbort(error) || this.#signal.aborted) {
        return;
      }
      this.error = error;
      this.#areForksKnown = false;
    }
    this.dispatchEvent(new Event("change"));
  }

  /** Adds the conversations of a page of turns. Returns the token of the next one; empty if it was the last one. */
  async #loadPage(
    pageToken: string | undefined,
    seen: Set<string>,
    found: WaitingConversation[],
  ): Promise<string> {
    const page = await this.#session.client.listTurns(
      { states: [TurnState.TURN_STATE_INPUT_REQUIRED], pageSize, pageToken },
      { signal: this.#signal },
    );
    const newest = new Map<string, Turn>();
    for (const turn of page.turns) {
      if (!seen.has(turn.conversationId)) {
        seen.add(turn.conversationId);
        newest.set(turn.conversationId, turn);
      }
    }
    for (const [id, calls] of await this.#openCalls([...newest.keys()])) {
      const turn = newest.get(id);
      found.push({ id, calls, turn, since: turn?.finishTime });
    }
    return page.nextPageToken;
  }

  /** Returns the forks with open calls that have no turn of their own. Others are not looked at again. */
  async #loadForks(seen: ReadonlySet<string>): Promise<WaitingConversation[]> {
    if (!this.#areForksKnown) {
      this.#areForksKnown = true;
      const { conversations } = await this.#session.client.listConversations(
        { pageSize: searched, order: ListOrder.LIST_ORDER_UPDATE_TIME_DESC },
        { signal: this.#signal },
      );
      for (const { conversation } of conversations.toReversed()) {
        this.#noteFork(conversation!);
      }
    }
    const ids = [...this.#forks.keys()].filter((id) => !seen.has(id));
    const calls = await this.#openCalls(ids);
    const found: WaitingConversation[] = [];
    for (const id of ids.reverse()) {
      const own = calls.get(id);
      if (own) {
        found.push({ id, calls: own, turn: undefined, since: this.#forks.get(id)?.createTime });
      } else {
        this.#forks.delete(id);
      }
    }
    return found;
  }

  /** Returns the calls without a result of those conversations that have some, in the order of the ids. */
  async #openCalls(conversationIds: string[]): Promise<Map<string, readonly ToolCall[]>> {
    if (conversationIds.length === 0) {
      return new Map();
    }
    const { summaries } = await this.#session.client.batchGetRoutingSummaries(
      // Only the calls matter here, so that data is left out.
      { conversationIds, messageLimit: 0, maxBytes: 1 },
      { signal: this.#signal },
    );
    return new Map(
      summaries
        .filter(({ pendingToolCalls }) => pendingToolCalls.length > 0)
        .map(({ conversationId, pendingToolCalls }) => [conversationId, pendingToolCalls]),
    );
  }

  /** Notes a conversation if it is a fork that may have open calls. Returns whether it is. */
  #noteFork(header: Conversation): boolean {
    const { id, forkedFrom, messageCount } = header;
    if (!forkedFrom || messageCount === 0) {
      return false;
    }
    this.#forks.delete(id);
    this.#forks.set(id, header);
    const oldest = this.#forks.keys().next().value;
    if (this.#forks.size > searched && oldest !== undefined) {
      this.#forks.delete(oldest);
    }
    return true;
  }

  /** Removes a call whose result is stored, before the conversations are read again. */
  #noteResult({ conversationId, payload }: ConversationChange): void {
    const callId = payload?.$case === "message" ? payload.value.toolResult?.callId : undefined;
    if (callId !== undefined && this.has(conversationId)) {
      this.conversations = this.conversations
        .map((one) =>
          one.id === conversationId ? { ...one, calls: one.calls.filter(({ id }) => id !== callId) } : one,
        )
        .filter(({ calls }) => calls.length > 0);
      this.dispatchEvent(new Event("change"));
    }
  }

  /** Reports whether a change may add a conversation that waits, or answer its calls. */
  #mayMatter(change: ConversationChange): boolean {
    const { conversationId, kind, payload } = change;
    const event = payload?.$case === "turnEvent" ? payload.value.event : undefined;
    if (event?.$case === "finished") {
      return event.value.turn?.state === TurnState.TURN_STATE_INPUT_REQUIRED;
    }
    if (kind === ChangeKind.CHANGE_KIND_CREATED && this.#noteFork(headerOf(change)!)) {
      return true;
    }
    return event === undefined && this.has(conversationId);
  }
}

/**
 * Returns a badge with the number of conversations that wait. It is hidden while there is none, unless it shows zero. It follows
 * the number until the signal aborts.
 */
export function waitingBadge(waiting: Waiting, signal: AbortSignal, showsZero = false): HTMLElement {
  const badge = h("span", {
    class: "badge waiting-count",
    title: "Conversations that wait for a tool result",
  });
  const update = () => {
    const isZero = waiting.conversations.length === 0 && !waiting.hasMore;
    badge.hidden = isZero && !(showsZero && waiting.isKnown);
    badge.classList.toggle("warning", !isZero);
    badge.textContent = waiting.count;
  };
  update();
  waiting.addEventListener("change", update, { signal });
  return badge;
}

/** Returns a link to the conversations that wait, with their number. It is hidden while there is none. */
export function waitingLink(waiting: Waiting, signal: AbortSignal): HTMLElement {
  const link = h("a", { href: format({ view: "turns", query: new URLSearchParams({ state: "waiting" }) }) });
  const element = h("p", { class: "waiting-link" }, link);
  const update = () => {
    element.hidden = waiting.conversations.length === 0;
    link.textContent = `${waiting.count} ${waiting.count === "1" ? "waits" : "wait"} for a result`;
  };
  update();
  waiting.addEventListener("change", update, { signal });
  return element;
}
