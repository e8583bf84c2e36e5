import type { AppendMessagesResponse, AppendStreamRequest } from "./gen/index.parley.v1.js";

/** The limit of the requests without a reply. The server also reads at most this number of one stream. */
const maxRequests = 1024;
/** The limit of the encoded requests together. One larger request goes alone. */
const maxBytes = 4 << 20;
/**
 * A conversation remembers its newest 32 request ids, so a request that is sent again is still known. The
 * other half is for other writers.
 */
const maxRequestsOfConversation = 16;

/** A complete copy of a request. */
export interface Prepared {
  readonly request: AppendStreamRequest;
  readonly conversationId: string;
  /** The size of the encoded request. */
  readonly size: number;
}

/** A request and the promise of its reply. */
export interface Append extends Prepared {
  readonly resolve: (reply: AppendMessagesResponse) => void;
  readonly reject: (reason: unknown) => void;
}

/**
 * The requests of an appender without a reply, in the order of append. The first of them are under way:
 * they are within the limits. Of these, the first were sent on the current stream.
 */
export class AppendQueue {
  readonly #appends: Append[] = [];
  readonly #byConversation = new Map<string, number>();
  #bytes = 0;
  #underWay = 0;
  #sent = 0;

  /** The number of requests. */
  get length(): number {
    return this.#appends.length;
  }

  /** Reports whether another small request for another conversation would be under way at once. */
  hasSpace(): boolean {
    return !this.hasWaiting() && this.#underWay < maxRequests && this.#bytes < maxBytes;
  }

  /** Reports whether requests wait for others to be answered. */
  hasWaiting(): boolean {
    return this.#underWay < this.#appends.length;
  }

  /** Adds a request at the end. */
  add(append: Append): void {
    this.#appends.push(append);
    this.#admit();
  }

  /** Begins another stream, which sends all requests that are under way. */
  beginStream(): void {
    this.#sent = 0;
  }

  /** Records the next request as sent, and returns it. Returns undefined if there is none. */
  nextUnsent(): AppendStreamRequest | undefined {
    return this.#sent < this.#underWay ? this.#appends[this.#sent++]!.request : undefined;
  }

  /** Returns the request that the server answers next, if the current stream has sent one. */
  firstSent(): Append | undefined {
    return this.#sent > 0 ? this.#appends[0] : undefined;
  }

  /** Removes the request that the server has answered. */
  removeFirstSent(): void {
    const { size, conversationId } = this.#appends.shift()!;
    this.#sent--;
    this.#underWay--;
    this.#bytes -= size;
    const left = this.#byConversation.get(conversationId)! - 1;
    if (left > 0) {
      this.#byConversation.set(conversationId, left);
    } else {
      this.#byConversation.delete(conversationId);
    }
    this.#admit();
  }

  /** Removes all requests and returns them. */
  removeAll(): Append[] {
    this.#byConversation.clear();
    this.#bytes = this.#underWay = this.#sent = 0;
    return this.#appends.splice(0);
  }

  /** Extends the requests that are under way to the limits. */
  #admit(): void {
    for (let next = this.#appends[this.#underWay]; next; next = this.#appends[this.#underWay]) {
      const ofConversation = this.#byConversation.get(next.conversationId) ?? 0;
      const fits =
        this.#underWay < maxRequests &&
        this.#bytes + next.size <= maxBytes &&
        ofConversation < maxRequestsOfConversation;
      if (!fits && this.#underWay > 0) {
        return;
      }
      this.#underWay++;
      this.#bytes += next.size;
      this.#byConversation.set(next.conversationId, ofConversation + 1);
    }
  }
}
