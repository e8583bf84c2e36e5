import { type ConversationChange, type Turn, TurnState } from "@parleyhq/client/web";
import { pairCalls } from "./calls.js";
import type { Feed } from "./feed.js";
import type { Session } from "./session.js";
import { isPiece } from "./view-settings.js";

/** Messages that are read from the beginning of an answer on: its results are usually among them. */
const pageSize = 20;

/** Turns that are remembered, of each kind. */
const limit = 1000;

/**
 * Which turns that ended in INPUT_REQUIRED have their results by now: the state of such a turn stays. A turn counts as
 * answered if each call of its answer has a result within the 20 messages from the answer on. A turn whose results come
 * later does not count as answered.
 */
export class AnsweredTurns {
  readonly #session: Session;
  readonly #signal: AbortSignal;
  readonly #answered = new Set<string>();
  /** The conversations of turns that were read and are not answered, until the conversation changes. */
  readonly #open = new Map<string, string>();
  /** The reads that run, by the ids of their turns. They do not depend on the view that began them. */
  readonly #reads = new Map<string, Promise<void>>();

  /** Begins to follow the changes of the feed, until the signal aborts, which is that of the page. */
  constructor(session: Session, feed: Feed, signal: AbortSignal) {
    this.#session = session;
    this.#signal = signal;
    feed.onGap(() => this.#open.clear(), signal);
    feed.onChange((change) => this.#apply(change), signal);
  }

  has({ id }: Turn): boolean {
    return this.#answered.has(id);
  }

  /**
   * Reads the turns that are not known, one by one, until the signal of the view aborts or the connection is lost.
   * Calls onFound after each turn that is answered.
   */
  async check(turns: readonly Turn[], signal: AbortSignal, onFound: () => void): Promise<void> {
    const unknown = turns.filter(
      (turn) => turn.state === TurnState.TURN_STATE_INPUT_REQUIRED && !this.has(turn),
    );
    for (const turn of unknown) {
      for (let read = this.#reads.get(turn.id); read; read = this.#reads.get(turn.id)) {
        await read; // Of another view.
      }
      if (signal.aborted) {
        return;
      }
      if (!this.has(turn) && !this.#open.has(turn.id)) {
        await this.#note(turn);
      }
      if (signal.aborted || this.#session.isLost) {
        return;
      }
      if (this.has(turn)) {
        onFound();
      }
    }
  }

  /** Reads a turn, and notes whether it is answered. It does not throw: after an error the turn is not known. */
  #note(turn: Turn): Promise<void> {
    const { id, conversationId } = turn;
    this.#open.set(id, conversationId); // A change while it is read removes it again.
    const read = this.#read(turn)
      .then(
        (isAnswered) => {
          if (isAnswered) {
            this.#open.delete(id);
            this.#answered.add(id);
          }
          forgetOldest(this.#answered);
          forgetOldest(this.#open);
        },
        () => {
          this.#open.delete(id);
        },
      )
      .finally(() => this.#reads.delete(id));
    this.#reads.set(id, read);
    return read;
  }

  async #read(turn: Turn): Promise<boolean> {
    const { id, conversationId, firstAnswerSequence } = turn;
    if (firstAnswerSequence === 0) {
      return false;
    }
    const { messages } = await this.#session.client.listMessages(
      { conversationId, afterSequence: firstAnswerSequence - 1, ascending: true, pageSize },
      { signal: this.#signal },
    );
    const calls = pairCalls(messages);
    const own = messages
      .filter(({ turnId }) => turnId === id)
      .flatMap(({ sequence }) => calls.get(sequence) ?? []);
    return own.length > 0 && own.every(({ result }) => result !== undefined);
  }

  #apply(change: ConversationChange): void {
    if (isPiece(change) || this.#open.size === 0) {
      return;
    }
    for (const [id, conversationId] of this.#open) {
      if (conversationId === change.conversationId) {
        this.#open.delete(id);
      }
    }
  }
}

function forgetOldest(ids: Set<string> | Map<string, string>): void {
  for (const id of ids.keys()) {
    if (ids.size <= limit) {
      return;
    }
    ids.delete(id);
  }
}
