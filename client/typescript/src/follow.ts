import type { ParleyError } from "./errors.js";
import type { ChatRequest, ResumeTurnRequest, TurnEvent } from "./gen/index.parley.v1.js";
import type { Source } from "./unbroken.js";
import { View } from "./view.js";

/** A step as the server sends it. */
interface Step {
  event?: TurnEvent | undefined;
}

/** How a turn is asked for. */
export interface Turns {
  chat(request: ChatRequest, options: { signal: AbortSignal }): AsyncIterable<Step>;
  resumeTurn(request: ResumeTurnRequest, options: { signal: AbortSignal }): AsyncIterable<Step>;
}

/** Shows one turn to one caller. */
export class Follower implements Source<Step, TurnEvent> {
  readonly #turns: Turns;
  readonly #view: View;
  /** What asks for the turn; undefined once it has started. */
  #chat: ChatRequest | undefined;
  /** Nobody but this follower has used the requestId of chat. */
  readonly #ownID: boolean;
  /** Of the turn, once it has started. */
  #conversation: string;
  /** Behind which index the last ask was; 0: from the start. */
  #after = 0;
  /** Something was shown, since the beginning. */
  #shown = false;

  private constructor(turns: Turns, view: View, conversation: string, chat?: ChatRequest, ownID = false) {
    this.#turns = turns;
    this.#view = view;
    this.#conversation = conversation;
    this.#chat = chat;
    this.#ownID = ownID;
  }

  /** Asks for a new turn. ownID: nobody else has used the requestId. */
  static chat(turns: Turns, request: ChatRequest, ownID: boolean): Follower {
    return new Follower(turns, new View(), "", request, ownID);
  }

  /** Asks for a turn that there is. */
  static resume(turns: Turns, request: ResumeTurnRequest): Follower {
    return new Follower(turns, new View(request.turnId, request.afterIndex), request.conversationId);
  }

  open(signal: AbortSignal): AsyncIterable<Step> {
    this.#after = this.#chat ? 0 : this.#view.next();
    this.#view.begin(this.#after);
    if (this.#chat) {
      return this.#turns.chat(this.#chat, { signal });
    }
    const request = { conversationId: this.#conversation, turnId: this.#view.turn, afterIndex: this.#after };
    return this.#turns.resumeTurn(request, { signal });
  }

  take(step: Step): TurnEvent | undefined {
    const event = step.event && this.#view.take(step.event);
    if (!event) {
      return undefined;
    }
    this.#shown = true;
    if (event.event?.$case !== "started" || !this.#chat) {
      return event;
    }
    const { value } = event.event;
    this.#conversation = value.conversation?.id || this.#chat.conversationId;
    this.#chat = undefined;
    // With an id of its own it is this follower that asked more than once, perhaps down in gRPC.
    const replayed = value.replayed && !this.#ownID;
    return { ...event, event: { $case: "started", value: { ...value, replayed } } };
  }

  isLast({ event }: TurnEvent): boolean {
    return event?.$case === "finished";
  }

  isProgress(): boolean {
    return true;
  }

  /** The caller began behind the last event. */
  mayEnd(): boolean {
    return !this.#shown && this.#after > 0;
  }

  resumes({ reason }: ParleyError, news: boolean): boolean {
    return reason === "EVENTS_GONE" && (news || this.#after > 0) && this.#view.gone();
  }

  bears(): boolean {
    return false;
  }
}
