import { derived, ParleyError, TokenExpiredError } from "./errors.js";
import { CallerError } from "./request.js";
import type { Credential, SignIn } from "./sign-in.js";

/** A running call. */
export interface Call {
  /** Aborts with the caller's signal, and when the client is closed. */
  readonly signal: AbortSignal;
  /** Aborts the signal. */
  abort(reason: unknown): void;
  /** Removes the listener from the caller's signal. */
  release(): void;
}

/** The running calls of one client. close aborts them. */
export class Calls {
  readonly #running = new Set<AbortController>();
  readonly #signIn: SignIn;
  #isClosed = false;

  /** signIn adds the caller's credential to each call. */
  constructor(signIn: SignIn) {
    this.#signIn = signIn;
  }

  /** Begins a call. Throws if the client is closed or the caller's signal has aborted. */
  begin(signal?: AbortSignal): Call {
    if (this.#isClosed) {
      throw closedError();
    }
    signal?.throwIfAborted();
    const controller = new AbortController();
    const onAbort = () => controller.abort(signal?.reason);
    signal?.addEventListener("abort", onAbort);
    this.#running.add(controller);
    return {
      signal: controller.signal,
      abort: (reason) => controller.abort(reason),
      release: () => {
        signal?.removeEventListener("abort", onAbort);
        this.#running.delete(controller);
      },
    };
  }

  /** Aborts all calls. Later calls throw. */
  close(): void {
    this.#isClosed = true;
    for (const controller of this.#running) {
      controller.abort(closedError());
    }
  }

  /**
   * Makes a call and yields its responses, or returns the only one. start copies the request and returns the function
   * that sends it. run signs in, and sends the call again if the server rejects the token and there is another one.
   */
  async *run<Response>(start: () => Sending<Response>, signal: AbortSignal | undefined): Responses<Response> {
    const call = this.begin(signal);
    try {
      const sending = start();
      const sign = (isRejected: boolean) =>
        untilAborted(this.#signIn.sign(sending.isSet, isRejected), call.signal);
      return yield* send(sending, sign, call.signal);
    } catch (error) {
      call.signal.throwIfAborted();
      throw error instanceof CallerError ? error.reason : error;
    } finally {
      call.release();
    }
  }
}

/** Yields the responses of a stream, or returns the only response. */
export type Responses<Response> = AsyncGenerator<Response, Response | undefined, undefined>;

/** A call of a transport. */
export interface Sending<Response> {
  /** Reports whether the caller has set this key of the metadata. */
  isSet(key: string): boolean;
  /** Sends the call with this metadata in addition. It throws ParleyErrors and CallerErrors. */
  attempt(signal: AbortSignal, metadata: Credential["metadata"]): Responses<Response>;
  /** The call may be sent again if the server has refused it. */
  readonly mayRepeat: boolean;
  /** The call is a stream that resumes after a TokenExpiredError. */
  readonly mayResume: boolean;
}

/**
 * Sends a call with a token. If the server rejects the token and there is another one, the call continues:
 * it is sent again, once, because the server has not executed it. If the server had accepted a stream that
 * resumes, send throws a TokenExpiredError. A stream of requests that does not resume must not be sent again,
 * because gRPC has taken requests from it.
 */
async function* send<Response>(
  { attempt, mayRepeat, mayResume }: Sending<Response>,
  sign: (isRejected: boolean) => Promise<Credential>,
  signal: AbortSignal,
): Responses<Response> {
  let isRepeated = false;
  for (let signed = await sign(false); ; ) {
    let isAccepted = false;
    try {
      const responses = attempt(signal, signed.metadata);
      try {
        for (;;) {
          const next = await responses.next();
          if (next.done) {
            return next.value;
          }
          isAccepted = true;
          yield next.value;
        }
      } finally {
        await responses.return(undefined);
      }
    } catch (error) {
      const isRejected = error instanceof ParleyError && error.code === "UNAUTHENTICATED";
      const mayContinue = isAccepted ? mayResume : mayRepeat && !isRepeated;
      if (!isRejected || signed.token === undefined || !mayContinue) {
        throw error;
      }
      const next = await sign(true);
      if (next.token === signed.token) {
        throw error;
      }
      if (isAccepted) {
        throw derived(error, "", TokenExpiredError);
      }
      isRepeated = true;
      signed = next;
    }
  }
}

/** Waits for a promise. Throws the signal's reason if the signal aborts before. */
export async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  let onAbort = () => {};
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason);
  });
  signal.addEventListener("abort", onAbort);
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

function closedError(): ParleyError {
  return new ParleyError("CANCELLED", "the client is closed");
}
