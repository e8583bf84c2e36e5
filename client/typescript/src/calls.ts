import { randomUUID } from "node:crypto";

import { type CallOptions, ClientError, type ClientMiddleware } from "nice-grpc";

import { fromClientError, ParleyError } from "./errors.js";
import { carriesRequestID } from "./retry.js";

/** A call under way. */
export interface Call {
  /** Ends with the caller's signal, and with the client. */
  readonly signal: AbortSignal;
  /** Ends the call itself. */
  abort(reason: unknown): void;
  /** Lets go of the caller's signal. */
  end(): void;
}

/** The calls of one client, which end with it. */
export class Calls {
  readonly #running = new Set<AbortController>();
  #isClosed = false;

  /** Begins a call. Throws when the client is closed or the caller's signal has ended. */
  begin(signal?: AbortSignal): Call {
    if (this.#isClosed) {
      throw closed();
    }
    signal?.throwIfAborted();
    const controller = new AbortController();
    const follow = () => controller.abort(signal?.reason);
    signal?.addEventListener("abort", follow);
    this.#running.add(controller);
    return {
      signal: controller.signal,
      abort: (reason) => controller.abort(reason),
      end: () => {
        signal?.removeEventListener("abort", follow);
        this.#running.delete(controller);
      },
    };
  }

  /** Ends all calls; no more can begin. */
  close(): void {
    this.#isClosed = true;
    for (const controller of this.#running) {
      controller.abort(closed());
    }
  }

  /**
   * Goes with every call, ahead of gRPC's retries: fills an empty requestId, on a copy and once for
   * all attempts, and makes errors ours.
   */
  middleware(): ClientMiddleware {
    const carriers = carriesRequestID();
    const begin = (signal?: AbortSignal) => this.begin(signal);
    return async function* middleware(call, options: CallOptions) {
      const { signal, end } = begin(options.signal);
      const request = carriers.has(call.method.path) ? withRequestID(call.request) : call.request;
      try {
        return yield* call.next(request, { ...options, signal });
      } catch (error) {
        signal.throwIfAborted();
        throw error instanceof ClientError ? fromClientError(error) : error;
      } finally {
        end();
      }
    };
  }
}

function closed(): ParleyError {
  return new ParleyError("CANCELLED", "the client is closed");
}

/** The request itself, or a copy with a random requestId when it has none. */
export function withRequestID<T>(request: T): T {
  return (request as { requestId?: string }).requestId ? request : { ...request, requestId: randomUUID() };
}
