import type { Call, Calls } from "./calls.js";

/** The abort reason of a stream whose loop the caller has left. */
const left = Symbol("the caller has left the loop");

/**
 * Returns a stream that starts again for each loop over it. It holds no resources before the first
 * item is requested, nor after its end. Leaving the loop ends the stream at once, even during the wait
 * for an item.
 */
export function restartable<T>(
  calls: Calls,
  signal: AbortSignal | undefined,
  start: (signal: AbortSignal) => AsyncGenerator<T, void, undefined>,
): AsyncIterable<T> {
  return {
    [Symbol.asyncIterator]() {
      let call: Call | undefined;
      async function* run(): AsyncGenerator<T, void, undefined> {
        call = calls.begin(signal);
        try {
          yield* start(call.signal);
        } catch (error) {
          if (error !== left) {
            throw error;
          }
        } finally {
          call.release();
        }
      }
      const items = run();
      return {
        next: () => items.next(),
        return: () => {
          call?.abort(left);
          return items.return();
        },
      };
    },
  };
}
