import { type Clock, systemClock } from "./clock.js";
import { derived, type ParleyError, TokenExpiredError, waitAskedBy } from "./errors.js";

/**
 * The limit of the time without a new message over all attempts. The server sends something at least
 * every 15 s. The time that the caller's loop takes does not count, nor does that for which the machine or the page is
 * suspended. All times are in milliseconds.
 */
const giveUpAfter = 60_000;
/**
 * The time without a message after which a stream counts as broken although its connection works:
 * three messages of the server are then missing. It leaves time for another attempt before
 * giveUpAfter. Keepalive detects dead connections sooner.
 */
const maxSilence = 45_000;
/**
 * The delay before the next attempt doubles from firstDelay to maxDelay until there is a new message.
 * gRPC itself may send each attempt up to five times.
 */
const firstDelay = 100;
const maxDelay = 2000;

/** The connection of a client. */
export interface Connection {
  /**
   * Calls listener once the server may have been reached, perhaps before onReady returns. Returns a
   * function that removes the listener.
   */
  onReady(listener: () => void): () => void;
}

/** Decides when a call that resumes over many streams opens the next one, and when it gives up. */
export class Retry {
  /** The delay before the next attempt, without its random part. */
  #delay = firstDelay;
  /** The call gives up at this time. */
  #deadline = Infinity;
  /** The server may have been reached. */
  #connected = false;
  #rearm = () => {};
  readonly #clock: Clock;
  readonly #removeListener: () => void;

  constructor(connection: Connection, clock: Clock = systemClock) {
    this.#clock = clock;
    this.#removeListener = connection.onReady(() => {
      this.#connected = true;
      this.resetDeadline();
      this.#rearm();
    });
  }

  /** Stops listening to the connection. */
  close(): void {
    this.#removeListener();
  }

  /**
   * Restarts the time limit and, if there was progress, the delay. A heartbeat or a gap is no
   * progress, so that the client does not retry quickly against a server that breaks each stream
   * after its first messages.
   */
  resetDeadline(isProgress = true): void {
    this.#deadline = this.#clock.now() + giveUpAfter;
    if (isProgress) {
      this.#delay = firstDelay;
    }
  }

  /** Restarts the time limit, and the time of receive: before this there was nothing to wait for. */
  restart(): void {
    this.resetDeadline(false);
    this.#rearm();
  }

  /**
   * Waits for the next message of a stream, and calls onSilence if that takes too long. ended means
   * that the last message has arrived and only the end of the stream is missing.
   */
  async receive<T>(next: Promise<T>, onSilence: () => void, ended = false): Promise<T> {
    let disarm = () => {};
    this.#rearm = () => {
      disarm();
      // Before the connection, gRPC itself detects that there is no server.
      if (this.#connected) {
        const timeout = ended ? maxSilence : Math.min(maxSilence, this.#deadline - this.#clock.now());
        disarm = this.#clock.after(Math.max(timeout, 0), onSilence);
      }
    };
    this.#rearm();
    try {
      return await next;
    } finally {
      disarm();
      this.#rearm = () => {};
    }
  }

  /** Waits until the next attempt may begin. Throws the error for the caller if there must be none. */
  async wait(failure: ParleyError, signal: AbortSignal): Promise<void> {
    if (!this.#connected) {
      throw failure;
    }
    const asked = waitAskedBy(failure);
    const delay = Math.max(this.#delay * (0.8 + 0.4 * Math.random()), asked);
    const left = this.#deadline - this.#clock.now();
    if (asked > left) {
      throw failure;
    }
    if (left < delay) {
      throw derived(failure, `nothing new for ${giveUpAfter / 1000} s: `);
    }
    this.#delay = Math.min(2 * this.#delay, maxDelay);
    await new Promise<void>((resolve, reject) => {
      const abort = () => {
        stop();
        reject(signal.reason);
      };
      const stop = this.#clock.after(delay, () => {
        signal.removeEventListener("abort", abort);
        resolve();
      });
      signal.addEventListener("abort", abort, { once: true });
    });
  }
}

/**
 * Reports whether a call may resume after a stream that ended with this error. That is so if the
 * connection broke, the server restarts, a proxy reset the stream, the caller was too slow, or the token
 * has expired and there is another one.
 */
export function isResumable(error: ParleyError): boolean {
  if (error instanceof TokenExpiredError) {
    return true;
  }
  const { code, reason } = error;
  switch (code) {
    case "UNAVAILABLE":
      return true;
    case "RESOURCE_EXHAUSTED":
      return reason === "SLOW_READER";
    case "INTERNAL":
    case "UNKNOWN":
    case "CANCELLED":
      return reason === "";
    default:
      return false;
  }
}
