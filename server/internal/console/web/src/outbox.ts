import { startTurn } from "./conversation-actions.js";
import { notify } from "./dialog.js";
import { count } from "./format.js";
import { errorText, type Session } from "./session.js";

/**
 * The most messages of the page that may wait. Each has a stream of its own, and browsers open six connections to a
 * server: the others are for the changes, the answer that runs and the calls of the views.
 */
const maxWaiting = 3;

type ChatRequest = Parameters<Session["client"]["chat"]>[0];

/** A message that waits in the queue of its conversation. */
export interface QueuedMessage {
  readonly content: string;
  readonly turnId: string;
  readonly position: number;
}

/** What the user asks a conversation. */
export interface Asking {
  /** What the user writes. */
  readonly draft: string;
  /** What is being sent: the server has neither stored nor queued it. Empty if nothing is. */
  readonly sending: string;
  /** Oldest first. */
  readonly queued: readonly QueuedMessage[];
  /** Why the last message was not sent; empty if it was. */
  readonly problem: string;
}

const nothing: Asking = { draft: "", sending: "", queued: [], problem: "" };

/**
 * What the user asks, until the server has stored it. A queued message is not stored, and the server drops it when its
 * stream ends. So the outbox keeps the stream, whichever view is shown. If the message is not stored in the end, its
 * text is a draft again. Sends an event "change" after each change.
 */
export class Outbox extends EventTarget {
  readonly #session: Session;
  readonly #signal: AbortSignal;
  readonly #askings = new Map<string, Asking>();
  readonly #takenBack = new Set<string>();
  #waiting = 0;

  /** Until the signal aborts, the browser asks before it leaves the page while messages wait. */
  constructor(session: Session, signal: AbortSignal) {
    super();
    this.#session = session;
    this.#signal = signal;
    addEventListener(
      "beforeunload",
      (event) => {
        if (this.#waiting > 0) {
          event.preventDefault();
        }
      },
      { signal },
    );
  }

  get(conversationId: string): Asking {
    return this.#askings.get(conversationId) ?? nothing;
  }

  /** Changes the draft. The last problem is no longer shown. */
  write(conversationId: string, draft: string): void {
    this.#set(conversationId, { draft, problem: "" });
  }

  /** Sends the draft. Returns when the server has stored it, or when it is a draft again. It does not throw. */
  async send(conversationId: string, options: ChatRequest): Promise<void> {
    const { draft: content } = this.get(conversationId);
    if (this.#waiting >= maxWaiting) {
      const problem = `${count(maxWaiting, "message")} of this page wait. Send this one when one of them is stored.`;
      this.#set(conversationId, { problem });
      return;
    }
    let message: QueuedMessage | undefined;
    /** Ends the sending, or replaces the queued message. */
    const become = (next: QueuedMessage | undefined, change: Partial<Asking> = {}) => {
      const others = this.get(conversationId).queued.filter((one) => one !== message);
      const queued = next ? [...others, next].sort((a, b) => a.position - b.position) : others;
      this.#set(conversationId, { ...(message ? {} : { sending: "" }), queued, ...change });
      message = next;
    };
    this.#waiting++;
    this.#set(conversationId, { draft: "", sending: content, problem: "" });
    try {
      await startTurn(
        { session: this.#session },
        { ...options, conversationId, content },
        (turnId, position) => {
          // The server repeats the position while the message waits.
          if (message?.turnId !== turnId || message.position !== position) {
            become({ content, turnId, position });
          }
        },
      );
      become(undefined);
    } catch (error) {
      const wasQueued = message !== undefined;
      const isTakenBack = message !== undefined && this.#takenBack.delete(message.turnId);
      const problem = isTakenBack
        ? ""
        : `The message was not sent. Its text is in the field again. ${errorText(error)}`;
      const { draft } = this.get(conversationId);
      // What the user has written in the meantime follows.
      become(undefined, { draft: draft === "" ? content : `${content}\n${draft}`, problem });
      if (wasQueued && problem !== "" && !this.#signal.aborted) {
        notify(problem); // The user may see another view.
      }
    } finally {
      this.#waiting--;
    }
  }

  /** Removes a message from the queue: its text is a draft again, unless its turn has begun. */
  async takeBack(conversationId: string, { turnId }: QueuedMessage): Promise<void> {
    this.#takenBack.add(turnId);
    try {
      await this.#session.client.cancelTurn({ conversationId, turnId });
    } catch (error) {
      this.#takenBack.delete(turnId);
      throw error;
    }
  }

  #set(conversationId: string, change: Partial<Asking>): void {
    const asking = { ...this.get(conversationId), ...change };
    if (asking.draft || asking.sending || asking.queued.length > 0 || asking.problem) {
      this.#askings.set(conversationId, asking);
    } else {
      this.#askings.delete(conversationId);
    }
    this.dispatchEvent(new Event("change"));
  }
}
