import {
  type CallOptions,
  ClientError,
  type ClientMiddleware,
  type ClientMiddlewareCall,
  type Metadata,
  Status,
} from "nice-grpc";

import { fromClientError, ParleyError, TokenExpiredError } from "./errors.js";
import { CallerError, complete, completeEach, explainSize, invalidRequest, requestTypes } from "./request.js";
import { resumablePaths } from "./services.js";
import type { SignedMetadata, SignIn } from "./sign-in.js";

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
   * Returns the middleware of every call. It runs before gRPC's retries: it makes complete copies of
   * the requests, once for all attempts, signs in, and converts errors to ParleyErrors.
   */
  middleware(): ClientMiddleware {
    const types = requestTypes();
    const begin = (signal?: AbortSignal) => this.begin(signal);
    const signIn = this.#signIn;
    return async function* middleware<Request, Response>(
      call: ClientMiddlewareCall<Request, Response>,
      options: CallOptions,
    ) {
      const { signal, release } = begin(options.signal);
      const type = types.get(call.method.path)!;
      const mayResume = resumablePaths.has(call.method.path);
      let single: object | undefined; // The request, if there is only one.
      try {
        if (!call.requestStream) {
          single = complete(type, call.request);
        }
        const request = !call.requestStream
          ? single
          : mayResume
            ? call.request // of an Appender, which has completed its requests
            : completeEach(type, call.request);
        const attempt = (metadata: Metadata) =>
          call.next(request as typeof call.request, { ...options, signal, metadata }) as Responses<Response>;
        const sign = (isRejected: boolean) => untilAborted(signIn.sign(options.metadata, isRejected), signal);
        return yield* send(attempt, sign, {
          mayRepeat: mayResume || !call.requestStream,
          mayResume,
        });
      } catch (error) {
        signal.throwIfAborted();
        const shown = toCallerError(error);
        throw single ? explainSize(shown, type, single) : shown;
      } finally {
        release();
      }
    };
  }
}

/** Yields the responses of a stream, or returns the only response. */
type Responses<Response> = AsyncGenerator<Response, Response | undefined, undefined>;

/**
 * Sends a call with a token. If the server rejects the token and there is another one, the call continues:
 * it is sent again, once, because the server has not executed it. If the server had accepted a stream that
 * resumes, send throws a TokenExpiredError. A stream of requests that does not resume must not be sent again,
 * because gRPC has taken requests from it.
 */
async function* send<Response>(
  attempt: (metadata: Metadata) => Responses<Response>,
  sign: (isRejected: boolean) => Promise<SignedMetadata>,
  { mayRepeat, mayResume }: { mayRepeat: boolean; mayResume: boolean },
): Responses<Response> {
  let isRepeated = false;
  for (let signed = await sign(false); ; ) {
    let isAccepted = false;
    try {
      const responses = attempt(signed.metadata);
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
      const isRejected = error instanceof ClientError && error.code === Status.UNAUTHENTICATED;
      const mayContinue = isAccepted ? mayResume : mayRepeat && !isRepeated;
      if (!isRejected || signed.token === undefined || !mayContinue) {
        throw error;
      }
      const next = await sign(true);
      if (next.token === signed.token) {
        throw error;
      }
      if (isAccepted) {
        throw fromClientError(error, TokenExpiredError);
      }
      isRepeated = true;
      signed = next;
    }
  }
}

/** Waits for a promise. Throws the signal's reason if the signal aborts before. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
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

/** Converts an error to the one that the caller receives. */
function toCallerError(error: unknown): unknown {
  if (error instanceof CallerError) {
    return error.reason;
  }
  if (error instanceof ParleyError) {
    return error;
  }
  // Any other error is that of invalid metadata, which gRPC rejects before it sends anything.
  return error instanceof ClientError
    ? fromClientError(error)
    : invalidRequest((error as Error).message, error);
}
