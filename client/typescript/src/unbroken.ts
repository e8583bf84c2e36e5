import { ParleyError } from "./errors.js";
import { type Clock, isBreak, type Line, Patience } from "./patience.js";

/** What is asked for again and again until the caller has seen it all. */
export interface Source<Response, Item> {
  /** Asks once more, behind what the caller has seen. */
  open(signal: AbortSignal): AsyncIterable<Response>;
  /** Notes a response as shown and returns what is new of it, if anything. */
  take(response: Response): Item | undefined;
  /** Nothing follows this one. */
  isLast(item: Item): boolean;
  /** This one says more than that the server is there. */
  isProgress(item: Item): boolean;
  /** The stream may end as it did, without a last item. */
  mayEnd(): boolean;
  /** Whether there is a way on at once from an error, after which there need not be a break. */
  resumes(error: ParleyError, news: boolean): boolean;
  /** Whether to ask again, after a while, even though the error is no break. */
  bears(error: ParleyError): boolean;
}

/**
 * Yields the items of a source as one stream, over as many streams of the server's as that takes.
 * Throws a ParleyError when there is no way on, and the signal's reason at its end.
 */
export async function* unbroken<Response, Item>(
  source: Source<Response, Item>,
  line: Line,
  signal: AbortSignal,
  clock?: Clock,
): AsyncGenerator<Item, void, undefined> {
  const patience = new Patience(line, clock);
  try {
    for (let broken: ParleyError | undefined; ; ) {
      let news = false;
      const attempt = new Attempt(signal);
      try {
        const stream = source.open(attempt.signal)[Symbol.asyncIterator]();
        try {
          for (;;) {
            const next = await patience.hear(stream.next(), attempt.silence);
            if (next.done) {
              if (source.mayEnd()) {
                return;
              }
              throw new ParleyError("UNKNOWN", "the server ended the stream too early");
            }
            const item = source.take(next.value);
            if (item === undefined) {
              continue;
            }
            news = true;
            yield item;
            patience.calm(source.isProgress(item));
            if (source.isLast(item)) {
              // How the line closes changes nothing any more. But to leave before the server has
              // ended the stream would look like a break there.
              await patience.hear(stream.next(), attempt.silence, true).catch(() => {});
              return;
            }
          }
        } finally {
          await stream.return?.().catch(() => {});
        }
      } catch (error) {
        signal.throwIfAborted();
        let failure = error;
        if (attempt.isSilent) {
          // What broke the streams before says more.
          const why = !news && broken && isBreak(broken) ? broken : undefined;
          failure = why ?? new ParleyError("UNAVAILABLE", "the stream has been silent for too long");
        }
        if (!(failure instanceof ParleyError)) {
          throw failure;
        }
        broken = failure;
      } finally {
        attempt.end();
      }
      if (!source.resumes(broken, news)) {
        if (!isBreak(broken) && !source.bears(broken)) {
          throw broken;
        }
        await patience.wait(broken, signal);
      }
    }
  } finally {
    patience.end();
  }
}

/** One stream of the server's, which ends with the whole, or for its silence. */
class Attempt {
  isSilent = false;
  readonly #controller = new AbortController();
  readonly #whole: AbortSignal;

  constructor(whole: AbortSignal) {
    this.#whole = whole;
    whole.addEventListener("abort", this.#follow);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  readonly silence = (): void => {
    this.isSilent = true;
    this.#controller.abort();
  };

  readonly #follow = (): void => this.#controller.abort(this.#whole.reason);

  end(): void {
    this.#whole.removeEventListener("abort", this.#follow);
  }
}
