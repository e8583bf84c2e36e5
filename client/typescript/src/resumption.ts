import type { Clock } from "./clock.js";
import { ParleyError } from "./errors.js";
import { type Connection, isResumable, Retry } from "./retry.js";

/** How a call resumes: what each stream requests, and what of its responses is new. */
export interface Resumption<Response, Item> {
  /** Opens the next stream, which begins after the last delivered item. */
  open(signal: AbortSignal): AsyncIterable<Response>;
  /** Records a response as delivered and returns the part of it that is new, if there is one. */
  accept(response: Response): Item | undefined;
  /** Reports whether no item follows this one. */
  isLast(item: Item): boolean;
  /** Reports whether the item is more than a sign that the server is reachable. */
  isProgress(item: Item): boolean;
  /** Reports whether the call is complete although the stream ended without a last item. */
  isComplete(): boolean;
  /** Reports whether the next stream may begin at once after this error. */
  restarts(error: ParleyError, progress: boolean): boolean;
  /** Reports whether to retry after this error, in addition to those that isResumable accepts. */
  isRetryable(error: ParleyError): boolean;
}

/**
 * Yields the items of a call as one uninterrupted stream, over as many streams of the server as it
 * takes. Throws a ParleyError if the call cannot resume, and the signal's reason when it aborts.
 */
export async function* resumed<Response, Item>(
  resumption: Resumption<Response, Item>,
  connection: Connection,
  signal: AbortSignal,
  clock?: Clock,
): AsyncGenerator<Item, void, undefined> {
  const retry = new Retry(connection, clock);
  try {
    for (let failure: ParleyError | undefined; ; ) {
      let progress = false;
      const attempt = new Attempt(signal);
      try {
        const stream = resumption.open(attempt.signal)[Symbol.asyncIterator]();
        try {
          for (;;) {
            const next = await retry.receive(stream.next(), attempt.abortSilent);
            if (next.done) {
              if (resumption.isComplete()) {
                return;
              }
              throw new ParleyError("UNKNOWN", "the server ended the stream too early");
            }
            const item = resumption.accept(next.value);
            if (item === undefined) {
              continue;
            }
            progress = true;
            yield item;
            retry.resetDeadline(resumption.isProgress(item));
            if (resumption.isLast(item)) {
              // The status of the stream does not matter now. But the server would see a disconnect
              // if the client left before the server ends the stream.
              await retry.receive(stream.next(), attempt.abortSilent, true).catch(() => {});
              return;
            }
          }
        } finally {
          await stream.return?.().catch(() => {});
        }
      } catch (error) {
        signal.throwIfAborted();
        let cause = error;
        if (attempt.isSilent) {
          // The error of the previous stream is more specific.
          const previous = !progress && failure && isResumable(failure) ? failure : undefined;
          cause = previous ?? new ParleyError("UNAVAILABLE", "the stream has been silent for too long");
        }
        if (!(cause instanceof ParleyError)) {
          throw cause;
        }
        failure = cause;
      } finally {
        attempt.close();
      }
      if (!resumption.restarts(failure, progress)) {
        if (!isResumable(failure) && !resumption.isRetryable(failure)) {
          throw failure;
        }
        await retry.wait(failure, signal);
      }
    }
  } finally {
    retry.close();
  }
}

/** One stream of a call. It ends when the call ends, or after too long a silence. */
export class Attempt {
  isSilent = false;
  readonly #controller = new AbortController();
  readonly #callSignal: AbortSignal;

  constructor(callSignal: AbortSignal) {
    this.#callSignal = callSignal;
    callSignal.addEventListener("abort", this.#abort);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  readonly abortSilent = (): void => {
    this.isSilent = true;
    this.#controller.abort();
  };

  readonly #abort = (): void => this.#controller.abort(this.#callSignal.reason);

  close(): void {
    this.#callSignal.removeEventListener("abort", this.#abort);
  }
}
