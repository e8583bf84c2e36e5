import type { ParleyError } from "./errors.js";
import type { ChatRequest, ResumeTurnRequest, TurnEvent } from "./gen/index.parley.v1.js";
import type { Resumption } from "./resumption.js";
import { View } from "./view.js";

/** A response of Chat or ResumeTurn. */
interface Response {
  event?: TurnEvent | undefined;
}

/** The calls that stream a turn. */
export interface Turns {
  chat(request: ChatRequest, options: { signal: AbortSignal }): AsyncIterable<Response>;
  resumeTurn(request: ResumeTurnRequest, options: { signal: AbortSignal }): AsyncIterable<Response>;
}

/** Delivers the events of one turn to one caller. */
export class Follower implements Resumption<Response, TurnEvent> {
  readonly #turns: Turns;
  readonly #view: View;
  /** The request that starts the turn; undefined once the turn has started. */
  #chat: ChatRequest | undefined;
  /** The client generated the requestId of chat and uses it for the first time. */
  readonly #generatedID: boolean;
  /** The id of the turn's conversation, once the turn has started. */
  #conversation: string;
  /** The index after which the newest stream begins; 0 is the beginning of the turn. */
  #after = 0;
  /** The caller has received an event. */
  #delivered = false;

  private constructor(
    turns: Turns,
    view: View,
    conversation: string,
    chat?: ChatRequest,
    generatedID = false,
  ) {
    this.#turns = turns;
    this.#view = view;
    this.#conversation = conversation;
    this.#chat = chat;
    this.#generatedID = generatedID;
  }

  /** Follows a new turn. generatedID means that the client generated the requestId. */
  static chat(turns: Turns, request: ChatRequest, generatedID: boolean): Follower {
    return new Follower(turns, new View(), "", request, generatedID);
  }

  /** Follows an existing turn. */
  static resume(turns: Turns, request: ResumeTurnRequest): Follower {
    return new Follower(turns, new View(request.turnId, request.afterIndex), request.conversationId);
  }

  open(signal: AbortSignal): AsyncIterable<Response> {
    this.#after = this.#chat ? 0 : this.#view.resumeIndex();
    this.#view.startStream(this.#after);
    if (this.#chat) {
      return this.#turns.chat(this.#chat, { signal });
    }
    const request = { conversationId: this.#conversation, turnId: this.#view.turn, afterIndex: this.#after };
    return this.#turns.resumeTurn(request, { signal });
  }

  accept(response: Response): TurnEvent | undefined {
    const event = response.event && this.#view.newPart(response.event);
    if (!event) {
      return undefined;
    }
    this.#delivered = true;
    if (event.event?.$case !== "started" || !this.#chat) {
      return event;
    }
    const { value } = event.event;
    this.#conversation = value.conversation?.id || this.#chat.conversationId;
    this.#chat = undefined;
    // With a generated id this call itself has sent the request more than once, perhaps in gRPC.
    const replayed = value.replayed && !this.#generatedID;
    return { ...event, event: { $case: "started", value: { ...value, replayed } } };
  }

  isLast({ event }: TurnEvent): boolean {
    return event?.$case === "finished";
  }

  isProgress(): boolean {
    return true;
  }

  /** The caller resumed after the last event. */
  isComplete(): boolean {
    return !this.#delivered && this.#after > 0;
  }

  restarts({ reason }: ParleyError, progress: boolean): boolean {
    return reason === "EVENTS_GONE" && (progress || this.#after > 0) && this.#view.restart();
  }

  isRetryable(): boolean {
    return false;
  }
}
