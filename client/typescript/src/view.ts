import { Buffer } from "node:buffer";

import type { TurnEvent } from "./gen/index.parley.v1.js";

/** How much of a message a caller has been shown that brought its afterIndex from elsewhere. */
const unknown = -1;

/**
 * What a caller has been shown of a turn. It cuts a stream that repeats some of that to what is
 * new.
 *
 * The messages of an answer follow each other: answerStarted or toolResult opens another, and
 * nothing of the one before comes later. So an event behind the last one shown is of the message
 * under way then, or of one that such an event behind the last one opens first. Of the message
 * under way, text is cut by the bytes shown of it; everything else, and all text of the others, is
 * either not behind the last one, and known, or new.
 *
 * Where texts are merged, data may overtake the text that came before it; the indexes left out in
 * between tell. From then on only a stream from the start can be gone on with: the one behind the
 * last index would lack that text.
 */
export class View {
  /** Its id; empty until it is known. */
  #turn: string;
  /** Index of the newest event shown. */
  #last: number;
  /** Shown of the text of the answer message under way, in bytes of UTF-8; or unknown. */
  #bytes: number;
  /** The events before the last one have not all been shown one by one. */
  #merged = false;
  /** The stream begins before the last one. */
  #repeats = false;

  /** A view of a caller that has seen the events of a turn up to an index; 0: none. */
  constructor(turn = "", afterIndex = 0) {
    this.#turn = turn;
    this.#last = afterIndex;
    this.#bytes = afterIndex === 0 ? 0 : unknown;
  }

  /** The id of the turn; empty until it is known. */
  get turn(): string {
    return this.#turn;
  }

  /** Where the next stream has to begin: the index behind which it does. */
  next(): number {
    return this.#merged && this.#bytes !== unknown ? 0 : this.#last;
  }

  /** Notes that a stream begins there. */
  begin(after: number): void {
    this.#repeats = after < this.#last;
  }

  /**
   * Notes that the server does not keep the events one by one any more. Returns whether there is a
   * way to go on.
   */
  gone(): boolean {
    this.#merged = this.#bytes !== unknown;
    return this.#merged;
  }

  /** Notes an event as shown and returns what is new of it: all, some of its text, or nothing. */
  take(event: TurnEvent): TurnEvent | undefined {
    if (event.turnId !== "" && event.turnId !== this.#turn) {
      if (this.#turn !== "") {
        this.#last = this.#bytes = 0;
        this.#merged = this.#repeats = false;
      }
      this.#turn = event.turnId;
    }
    let shown = event;
    if (event.index <= this.#last) {
      if (event.event?.$case !== "finished") {
        return undefined;
      }
      // A server that lost count in a crash; the end is news in any case.
      shown = { ...event, index: this.#last + 1 };
    }
    this.#merged ||= shown.index > this.#last + 1;
    this.#last = shown.index;
    switch (shown.event?.$case) {
      case "answerStarted":
      case "toolResult":
        this.#bytes = 0;
        return shown;
      case "textDelta":
        return this.#takeText(shown, shown.event.value);
      default:
        return shown;
    }
  }

  #takeText(event: TurnEvent, { text, offset }: { text: string; offset: number }): TurnEvent | undefined {
    const length = Buffer.byteLength(text);
    const known = this.#bytes - offset;
    this.#bytes = Math.max(this.#bytes, offset + length);
    if (!this.#repeats || known <= 0) {
      return event;
    }
    if (known >= length) {
      return undefined; // All of it; or a crash has taken the end of what was shown.
    }
    const rest = Buffer.from(text).subarray(known).toString();
    return { ...event, event: { $case: "textDelta", value: { text: rest, offset: offset + known } } };
  }
}
