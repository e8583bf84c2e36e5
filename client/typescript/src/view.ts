import type { TurnEvent } from "./gen/index.parley.v1.js";

/**
 * The value of #bytes if the caller's afterIndex is from an earlier call, because the client then does
 * not know how much of the message the caller has.
 */
const unknown = -1;

/** The kinds of event that are pieces of something. Indexes that are left out before them are no loss. */
const deltas: ReadonlySet<string | undefined> = new Set(["textDelta", "reasoningDelta", "toolCallDelta"]);

/**
 * Records which part of a turn a caller has received. It reduces a stream that repeats some of that
 * part to what is new.
 *
 * The messages of an answer follow one another. The events answerStarted and toolResult begin the next
 * message, and no event of an earlier message follows them. So an event after the last delivered one
 * belongs either to the message that was current then, or to a later message that such an event begins
 * first. In the current message, the view cuts text, reasoning and the arguments of calls by the bytes
 * delivered of them. All other events, and all deltas of other messages, are either known, if their index
 * is not after the last one, or new.
 *
 * When the server merges all texts of a message, data may arrive before the text that preceded it. The
 * client sees this because indexes are left out before an event that is no delta. After that, only a
 * stream from the beginning can resume the turn: a stream after the last index would lack that text.
 * Indexes that are left out before a delta are those of deltas that were merged into it, or of deltas of
 * a call that is complete.
 */
export class View {
  /** The id of the turn; empty until it is known. */
  #turn: string;
  /** The index of the newest delivered event. */
  #last: number;
  /** The delivered bytes of the current message's text, in UTF-8, or unknown. */
  #bytes: number;
  /** The delivered bytes of its reasoning, as far as the client knows. */
  #reasoning = 0;
  /** The delivered bytes of the arguments of its calls, by id. */
  readonly #calls = new Map<string, number>();
  /** Text before the last event may not have been delivered. */
  #merged = false;
  /** The current stream begins before the last event. */
  #repeats = false;

  /** The view of a caller that has the events of a turn up to afterIndex; with 0 it has none. */
  constructor(turn = "", afterIndex = 0) {
    this.#turn = turn;
    this.#last = afterIndex;
    this.#bytes = afterIndex === 0 ? 0 : unknown;
  }

  /** The id of the turn; empty until it is known. */
  get turn(): string {
    return this.#turn;
  }

  /** Returns the index after which the next stream must begin. */
  resumeIndex(): number {
    return this.#merged && this.#bytes !== unknown ? 0 : this.#last;
  }

  /** Records that a stream begins after this index. */
  startStream(after: number): void {
    this.#repeats = after < this.#last;
  }

  /**
   * Records that the server no longer keeps the single events (EVENTS_GONE), so that the next stream
   * must begin at the start of the turn. Returns false if that is not possible, because the client
   * does not know how much text the caller has.
   */
  restart(): boolean {
    this.#merged = this.#bytes !== unknown;
    return this.#merged;
  }

  /** Records an event as delivered and returns its new part: all, the rest of its text, or undefined. */
  newPart(event: TurnEvent): TurnEvent | undefined {
    if (event.turnId !== "" && event.turnId !== this.#turn) {
      if (this.#turn !== "") {
        this.#last = this.#bytes = this.#reasoning = 0;
        this.#calls.clear();
        this.#merged = this.#repeats = false;
      }
      this.#turn = event.turnId;
    }
    let delivered = event;
    if (event.index <= this.#last) {
      if (event.event?.$case !== "finished") {
        return undefined;
      }
      // The server's indexes restarted after a crash. The caller needs finished in any case.
      delivered = { ...event, index: this.#last + 1 };
    }
    this.#merged ||= !deltas.has(delivered.event?.$case) && delivered.index > this.#last + 1;
    this.#last = delivered.index;
    const { event: kind } = delivered;
    switch (kind?.$case) {
      case "answerStarted":
      case "toolResult":
        this.#bytes = this.#reasoning = 0;
        this.#calls.clear();
        return delivered;
      case "textDelta": {
        const { text, offset } = kind.value;
        const rest = this.#cut(this.#bytes, text, offset);
        this.#bytes = Math.max(this.#bytes, offset + byteLength(text));
        return rest && { ...delivered, event: { $case: "textDelta", value: rest } };
      }
      case "reasoningDelta": {
        const { text, offset } = kind.value;
        const rest = this.#cut(this.#reasoning, text, offset);
        this.#reasoning = Math.max(this.#reasoning, offset + byteLength(text));
        return rest && { ...delivered, event: { $case: "reasoningDelta", value: rest } };
      }
      case "toolCallDelta": {
        const { id, arguments: text, offset } = kind.value;
        const bytes = this.#calls.get(id) ?? 0;
        const rest = this.#cut(bytes, text, offset);
        this.#calls.set(id, Math.max(bytes, offset + byteLength(text)));
        const value = rest && { ...kind.value, arguments: rest.text, offset: rest.offset };
        return value && { ...delivered, event: { $case: "toolCallDelta", value } };
      }
      default:
        return delivered;
    }
  }

  /** Cuts the bytes of a delta that the caller has. delivered is the number of bytes before the event. */
  #cut(delivered: number, text: string, offset: number): { text: string; offset: number } | undefined {
    const known = delivered - offset;
    if (!this.#repeats || known <= 0) {
      return { text, offset };
    }
    const bytes = new TextEncoder().encode(text);
    if (known >= bytes.length) {
      return undefined; // The caller has all of it, or has text that the server lost in a crash.
    }
    return {
      text: new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes.subarray(known)),
      offset: offset + known,
    };
  }
}

/** Returns the number of bytes of a text in UTF-8. */
function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}
