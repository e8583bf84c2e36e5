import { type CallOptions, ClientError, type ClientMiddleware } from "nice-grpc";

import { fromClientError, ParleyError } from "./errors.js";
import { complete, completeEach, IterableError, invalidRequest, requestTypes } from "./request.js";

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
  #isClosed = false;

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
   * the requests, once for all attempts, and converts errors to ParleyErrors.
   */
  middleware(): ClientMiddleware {
    const types = requestTypes();
    const begin = (signal?: AbortSignal) => this.begin(signal);
    return async function* middleware(call, options: CallOptions) {
      const { signal, release } = begin(options.signal);
      const type = types.get(call.method.path)!;
      try {
        const request = call.requestStream ? completeEach(type, call.request) : complete(type, call.request);
        return yield* call.next(request as typeof call.request, { ...options, signal });
      } catch (error) {
        signal.throwIfAborted();
        throw toCallerError(error);
      } finally {
        release();
      }
    };
  }
}

function closedError(): ParleyError {
  return new ParleyError("CANCELLED", "the client is closed");
}

/** Converts an error to the one that the caller receives. */
function toCallerError(error: unknown): unknown {
  if (error instanceof IterableError) {
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
