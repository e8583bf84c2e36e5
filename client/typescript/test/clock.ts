import { setImmediate } from "node:timers/promises";

import type { Clock } from "../src/patience.js";

/** A clock that stands still while anything happens, and then jumps to what is to happen next. */
export class FakeClock implements Clock {
  #time = 0;
  readonly #timers = new Set<{ at: number; callback: () => void }>();

  now(): number {
    return this.#time;
  }

  after(delay: number, callback: () => void): () => void {
    const timer = { at: this.#time + delay, callback };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  sleep(delay: number): Promise<void> {
    return new Promise((resolve) => this.after(delay, resolve));
  }

  /** How many timers have not been stopped. */
  get pending(): number {
    return this.#timers.size;
  }

  /** Lets time pass until the promise has settled. Nothing that it waits for may be real. */
  async run<T>(promise: Promise<T>): Promise<T> {
    let settled = false;
    const settle = () => {
      settled = true;
    };
    promise.then(settle, settle);
    for (;;) {
      await setImmediate();
      if (settled) {
        return await promise;
      }
      const [next] = [...this.#timers].sort((a, b) => a.at - b.at);
      if (!next) {
        throw new Error(`at ${this.#time} ms nothing is going to happen any more`);
      }
      this.#timers.delete(next);
      this.#time = Math.max(this.#time, next.at);
      next.callback();
    }
  }
}
