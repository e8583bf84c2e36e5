import { type ConversationChange, type Turn, TurnState } from "@parleyhq/client/web";

import type { Feed } from "./feed.js";
import { pairCalls } from "./message.js";
import { isAbort, type Session } from "./session.js";
import { isPiece } from "./view-settings.js";

/** Turns that are read at once: as many as a list shows at first. */
const turnsAtOnce = 50;

/** Messages that are read from the beginning of an answer on: its results are usually among them. */
const pageSize = 20;

/** Turns that are remembered, of each kind. */
const limit = 1000;

/**
 * Which turns that ended in INPUT_REQUIRED have their results by now: the state of such a turn stays. A turn counts as
 * answered if each call of its answer has a result within the 20 messages from the answer on. Others stay unknown.
 */
export class AnsweredTurns {
  readonly #session: Session;
  readonly #answered = new Set<string>();
  /** The conversations of turns that were read and are not answered, until the conversation changes. */
  readonly #open = new Map<string, string>();

  /** Begins to follow the changes of the feed, until the signal aborts. */
  constructor(session: Session, feed: Feed, signal: AbortSignal) {
    this.#session = session;
    feed.onGap(() => this.#open.clear(), signal);
    feed.onChange((change) => this.#apply(change), signal);
  }

  has({ id }: Turn): boolean {
    return this.#answered.has(id);
  }

  /** Reads the first of these turns that are not known. Returns whether more turns are known to be answered. */
  async check(turns: readonly Turn[], signal: AbortSignal): Promise<boolean> {
    const unknown = turns.filter(
      ({ id, state }) =>
        state === TurnState.TURN_STATE_INPUT_REQUIRED && !this.#answered.has(id) && !this.#open.has(id),
    );
    const size = this.#answered.size;
    for (const turn of unknown.slice(0, turnsAtOnce)) {
      this.#open.set(turn.id, turn.conversationId); // A change while it is read removes it again.
      try {
        if (await this.#read(turn, signal)) {
          this.#open.delete(turn.id);
          this.#answered.add(turn.id);
        }
      } catch (error) {
        this.#open.delete(turn.id);
        if (isAbort(error) || signal.aborted) {
          break;
        }
      }
    }
    const isChanged = this.#answered.size !== size;
    forgetOldest(this.#answered);
    forgetOldest(this.#open);
    return isChanged;
  }

  async #read(turn: Turn, signal: AbortSignal): Promise<boolean> {
    const { id, conversationId, firstAnswerSequence } = turn;
    if (firstAnswerSequence === 0) {
      return false;
    }
    const { messages } = await this.#session.client.listMessages(
      { conversationId, afterSequence: firstAnswerSequence - 1, ascending: true, pageSize },
      { signal },
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
