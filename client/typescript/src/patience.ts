import { ParleyError } from "./errors.js";

/**
 * How long is asked in a row without anything new: the server sends something every 15 s at least.
 * What the caller does in its loop does not count. All times are in milliseconds.
 */
const giveUpAfter = 60_000;
/**
 * Silence of a stream after which it counts as broken, though the connection is well: three of what
 * the server sends are missing. It leaves time to ask once more. Dead connections are found sooner,
 * by their keepalive.
 */
const maxSilence = 45_000;
/**
 * The wait before the next ask doubles from the first to the last until there is something new.
 * Each ask may be up to five attempts of gRPC's own.
 */
const firstDelay = 100;
const maxDelay = 2000;

/** What is known of the connection. */
export interface Line {
  /**
   * Calls once as soon as the server may have been reached, perhaps before it returns. Returns how to
   * stop listening.
   */
  onReady(listener: () => void): () => void;
}

/** The time, in milliseconds. */
export interface Clock {
  now(): number;
  /** Calls after so many. Returns how to stop it. */
  after(delay: number, callback: () => void): () => void;
}

const systemClock: Clock = {
  now: () => performance.now(),
  after(delay, callback) {
    const timer = setTimeout(callback, delay);
    return () => clearTimeout(timer);
  },
};

/** How one call that goes on over many streams bears what ends them. */
export class Patience {
  /** Before the next ask, but for chance. */
  #delay = firstDelay;
  #giveUp = Infinity;
  /** The server may have been reached. */
  #connected = false;
  #rearm = () => {};
  readonly #clock: Clock;
  readonly #unlisten: () => void;

  constructor(line: Line, clock: Clock = systemClock) {
    this.#clock = clock;
    this.#unlisten = line.onReady(() => {
      this.#connected = true;
      this.calm();
      this.#rearm();
    });
  }

  /** Lets go of the connection. */
  end(): void {
    this.#unlisten();
  }

  /**
   * Begins to count anew how long there has been nothing new. What only says that the server is there
   * is not progress: one that breaks each stream behind that is not to be asked ever more quickly.
   */
  calm(isProgress = true): void {
    this.#giveUp = this.#clock.now() + giveUpAfter;
    if (isProgress) {
      this.#delay = firstDelay;
    }
  }

  /**
   * Waits for what a stream brings next, and calls silent when that takes too long. rest: all has
   * come but the end.
   */
  async hear<T>(next: Promise<T>, silent: () => void, rest = false): Promise<T> {
    let disarm = () => {};
    this.#rearm = () => {
      if (this.#connected) {
        const left = rest ? maxSilence : Math.min(maxSilence, this.#giveUp - this.#clock.now());
        disarm = this.#clock.after(Math.max(left, 0), silent);
      } // Else gRPC knows when there is no server.
    };
    this.#rearm();
    try {
      return await next;
    } finally {
      disarm();
      this.#rearm = () => {};
    }
  }

  /** Waits until it is time to ask again; throws what is for the caller when it never will be. */
  async wait(broken: ParleyError, signal: AbortSignal): Promise<void> {
    if (!this.#connected) {
      throw broken;
    }
    const delay = this.#delay * (0.8 + 0.4 * Math.random());
    if (this.#giveUp - this.#clock.now() < delay) {
      const text = broken.message.replace(`${broken.code}: `, "");
      throw new ParleyError(broken.code, `nothing new for ${giveUpAfter / 1000} s: ${text}`, {
        ...broken,
        cause: broken,
      });
    }
    this.#delay = Math.min(2 * this.#delay, maxDelay);
    await new Promise<void>((resolve, reject) => {
      const aborted = () => {
        stop();
        reject(signal.reason);
      };
      const stop = this.#clock.after(delay, () => {
        signal.removeEventListener("abort", aborted);
        resolve();
      });
      signal.addEventListener("abort", aborted, { once: true });
    });
  }
}

/**
 * Reports whether a stream that ended so may be gone on with: the connection broke, the server
 * restarts, something in between has reset the stream, or the caller was slow.
 */
export function isBreak({ code, reason }: ParleyError): boolean {
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
