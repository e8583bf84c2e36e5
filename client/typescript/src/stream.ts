import type { Call, Calls } from "./calls.js";

/** Why a stream ends whose reader has left. */
const left = Symbol("the reader has left");

/**
 * A stream that begins anew each time it is iterated over. It holds on to nothing before the first
 * item is asked for, nor after its end. Leaving it ends it at once, even while an item is waited for.
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
          call.end();
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
