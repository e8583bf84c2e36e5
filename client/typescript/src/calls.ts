import { type CallOptions, ClientError, type ClientMiddleware } from "nice-grpc";

import { fromClientError, ParleyError } from "./errors.js";
import { requestTypes, Thrown, unsendable, whole, wholes } from "./request.js";

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
   * Goes with every call, ahead of gRPC's retries: makes whole copies of the requests, once for all
   * attempts, and makes errors ours.
   */
  middleware(): ClientMiddleware {
    const types = requestTypes();
    const begin = (signal?: AbortSignal) => this.begin(signal);
    return async function* middleware(call, options: CallOptions) {
      const { signal, end } = begin(options.signal);
      const type = types.get(call.method.path)!;
      try {
        const request = call.requestStream ? wholes(type, call.request) : whole(type, call.request);
        return yield* call.next(request as typeof call.request, { ...options, signal });
      } catch (error) {
        signal.throwIfAborted();
        throw ours(error);
      } finally {
        end();
      }
    };
  }
}

function closed(): ParleyError {
  return new ParleyError("CANCELLED", "the client is closed");
}

/** What a caller is told of an error. */
function ours(error: unknown): unknown {
  if (error instanceof Thrown) {
    return error.reason;
  }
  if (error instanceof ParleyError) {
    return error;
  }
  // What is not of the call itself is of its metadata: gRPC refuses them before it sends anything.
  return error instanceof ClientError ? fromClientError(error) : unsendable((error as Error).message, error);
}
