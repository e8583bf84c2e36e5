/// <reference lib="esnext.disposable" preserve="true" />

import { AppendQueue, type Prepared } from "./append-queue.js";
import type { Call } from "./calls.js";
import { type Clock, systemClock } from "./clock.js";
import { ParleyError } from "./errors.js";
import type {
  AppendMessagesRequest,
  AppendMessagesResponse,
  AppendStreamRequest,
} from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";
import { Attempt } from "./resumption.js";
import { type Connection, isResumable, Retry } from "./retry.js";

/** Milliseconds to wait until the server ends a stream of which it has answered all requests. */
const endDelay = 5000;

/** What an appender needs of its client. */
export interface Appending {
  readonly connection: Connection;
  /** Begins to use the client. Throws if it is closed, or if the caller's signal has aborted. */
  begin(): Call;
  /** Copies a request. Throws INVALID_ARGUMENT if it cannot be encoded. */
  prepare(request: Input<AppendMessagesRequest>): Prepared;
  /** Opens a stream of replies. The error of a request is an item. Each iteration over the requests begins with the first one without a reply. */
  open(
    requests: AsyncIterable<AppendStreamRequest>,
    signal: AbortSignal,
  ): AsyncIterable<AppendMessagesResponse | ParleyError>;
}

/**
 * Appends messages over one stream, without waiting for a reply before the next request. A client makes
 * it: {@link Client.appender}.
 */
export class Appender {
  readonly #client: Appending;
  readonly #clock: Clock;
  readonly #queue = new AppendQueue();
  /** Resolves when the newest request has a reply, which is the last one. */
  #last: Promise<void> = Promise.resolve();
  /** The use of streams; undefined if there is no stream and no request without a reply. */
  #running: Promise<void> | undefined;
  #call: Call | undefined;
  #retry: Retry | undefined;
  /** The number of the newest iteration over the requests. */
  #iteration = 0;
  /** Continues that iteration. */
  #wake = () => {};
  /** Continue the callers of ready. */
  #onSpace: (() => void)[] = [];
  /** The server has answered a request. */
  #isAccepted = false;
  /** No request follows. */
  #isClosed = false;
  /** Why the appender has failed. */
  #failure: { readonly reason: unknown } | undefined;

  constructor(client: Appending, clock: Clock = systemClock) {
    this.#client = client;
    this.#clock = clock;
  }

  /**
   * Sends a request and returns its reply. Requests are sent in the order of the calls, so do not wait for
   * a reply before the next call. A request waits while 1024 requests, 4 MiB of requests, or 16 requests for
   * the same conversation are without a reply, and so do those after it. append copies the request, and sets
   * requestId if it is empty.
   *
   * A refused request throws the {@link ParleyError} that appendMessages would throw. The other requests are
   * not affected. The promise may be awaited later: it causes no unhandled rejection.
   */
  append(request: Input<AppendMessagesRequest>): Promise<AppendMessagesResponse> {
    const reply = this.#send(request);
    reply.catch(() => {});
    return reply;
  }

  /**
   * Waits while requests wait to be sent, or while a limit of requests without a reply is reached. To limit
   * the requests in memory, await ready before each append.
   */
  async ready(): Promise<void> {
    while (!this.#failure && !this.#queue.hasSpace()) {
      await new Promise<void>((resolve) => this.#onSpace.push(resolve));
    }
  }

  /**
   * Waits until all requests so far have a reply. Throws the error of the appender if it has failed, but not
   * the errors of single requests.
   */
  async flush(): Promise<void> {
    await this.#last;
    if (this.#failure) {
      throw this.#failure.reason;
    }
  }

  /**
   * Waits until all requests have a reply, and ends the stream. Later calls of append throw. Throws the error
   * of the appender if it has failed. It may be called again.
   */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#wake();
    await this.#last;
    const stop = this.#clock.after(endDelay, () => this.#call?.abort(undefined));
    await this.#running;
    stop();
    await this.flush();
  }

  /** Calls {@link close}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #send(request: Input<AppendMessagesRequest>): Promise<AppendMessagesResponse> {
    if (this.#failure) {
      throw this.#failure.reason;
    }
    if (this.#isClosed) {
      throw new ParleyError("FAILED_PRECONDITION", "the appender is closed");
    }
    const copy = this.#client.prepare(request);
    const reply = new Promise<AppendMessagesResponse>((resolve, reject) => {
      this.#queue.add({ ...copy, resolve, reject });
    });
    this.#last = reply.then(
      () => {},
      () => {},
    );
    if (this.#queue.length === 1) {
      this.#retry?.restart();
    }
    this.#wake();
    this.#running ??= this.#run();
    return reply;
  }

  /** Uses streams, one after the other, until one ends while no request is without a reply. */
  async #run(): Promise<void> {
    try {
      this.#call = this.#client.begin();
      this.#retry = new Retry(this.#client.connection, this.#clock);
      for (let previous: ParleyError | undefined; ; ) {
        const failure = await this.#attempt(this.#call.signal, this.#retry, previous);
        if (this.#queue.length === 0) {
          return;
        }
        if (failure.code === "UNIMPLEMENTED") {
          const text = "the server has no AppendStream: update it, or use appendMessages";
          throw new ParleyError("UNIMPLEMENTED", text, { cause: failure });
        }
        // The server ended a stream that was idle until the request. Or the tenant is at its limit of streams or
        // of requests: the server may still count the broken stream, and its requests.
        const { reason } = failure;
        const isLimit = reason === "TENANT_STREAMS" || reason === "TENANT_REQUESTS";
        const isExpected = reason === "SLOW_SENDER" || (this.#isAccepted && isLimit);
        if (!isExpected && !isResumable(failure)) {
          throw failure;
        }
        await this.#retry.wait(failure, this.#call.signal);
        previous = failure;
      }
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#retry?.close();
      this.#call?.release();
      this.#retry = this.#call = this.#running = undefined;
    }
  }

  /** Opens a stream, and uses it to its end. Returns why it has ended. */
  async #attempt(signal: AbortSignal, retry: Retry, previous: ParleyError | undefined): Promise<ParleyError> {
    const attempt = new Attempt(signal);
    let progress = false;
    try {
      const replies = this.#client.open(this.#requests, attempt.signal)[Symbol.asyncIterator]();
      try {
        for (;;) {
          const onSilence = () => this.#queue.length > 0 && attempt.abortSilent();
          const next = await retry.receive(replies.next(), onSilence);
          if (next.done) {
            return new ParleyError("UNKNOWN", "the server ended the stream before it answered all requests");
          }
          this.#accept(next.value);
          progress = true;
          retry.resetDeadline();
        }
      } finally {
        await replies.return?.().catch(() => {});
      }
    } catch (error) {
      signal.throwIfAborted();
      if (attempt.isSilent) {
        return silenceError(progress ? undefined : previous);
      }
      if (!(error instanceof ParleyError)) {
        throw error;
      }
      return error;
    } finally {
      attempt.close();
      this.#iteration++;
      this.#wake();
    }
  }

  /** Answers a request. Throws if the stream must not be used after this reply. */
  #accept(reply: AppendMessagesResponse | ParleyError): void {
    this.#isAccepted = true;
    const append = this.#queue.firstSent();
    if (!append) {
      throw new ParleyError("INTERNAL", "the server answered a request that was not sent");
    }
    if (!(reply instanceof ParleyError)) {
      append.resolve(reply);
    } else if (reply.code === "UNAVAILABLE") {
      throw reply; // Another stream sends the request again, as calls do, and then those after it.
    } else {
      append.reject(reply);
    }
    this.#queue.removeFirstSent();
    this.#wake();
    this.#notifySpace();
  }

  /** Fails the requests without a reply. Without such requests the end of a stream does not matter. */
  #fail(reason: unknown): void {
    const appends = this.#queue.removeAll();
    if (appends.length > 0) {
      this.#failure = { reason };
    }
    for (const { reject } of appends) {
      reject(reason);
    }
    this.#notifySpace();
  }

  #notifySpace(): void {
    if (this.#onSpace.length > 0 && (this.#failure || this.#queue.hasSpace())) {
      for (const resolve of this.#onSpace.splice(0)) {
        resolve();
      }
    }
  }

  /** The requests of a stream. */
  readonly #requests: AsyncIterable<AppendStreamRequest> = {
    [Symbol.asyncIterator]: () => {
      const iteration = ++this.#iteration;
      this.#wake(); // It ends the previous iteration.
      this.#queue.beginStream();
      return { next: () => this.#nextRequest(iteration) };
    },
  };

  /** Waits for the next request of an iteration. It ends with the stream, or when no request follows. */
  async #nextRequest(iteration: number): Promise<IteratorResult<AppendStreamRequest, undefined>> {
    while (iteration === this.#iteration) {
      const value = this.#queue.nextUnsent();
      if (value) {
        return { done: false, value };
      }
      if (this.#isClosed && !this.#queue.hasWaiting()) {
        break;
      }
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return { done: true, value: undefined };
  }
}

/** Returns the error of a silent stream. That of the previous stream is more specific. */
function silenceError(previous: ParleyError | undefined): ParleyError {
  return previous && isResumable(previous)
    ? previous
    : new ParleyError("UNAVAILABLE", "the stream has been silent for too long");
}
