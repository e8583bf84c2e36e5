import { setImmediate } from "node:timers/promises";

import type { Clock } from "../src/clock.js";

/** A clock that stands still while any task can run, and then jumps to the next timer. */
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

  /** Passes time in which no timer fires, as a suspended machine does. */
  suspend(time: number): void {
    this.#time += time;
  }

  /** The number of timers that have neither fired nor been stopped. */
  get pending(): number {
    return this.#timers.size;
  }

  /** Advances the time until the promise has settled. It must not wait for real timers or I/O. */
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
        throw new Error(`the promise is pending at ${this.#time} ms, and no timer is left`);
      }
      this.#timers.delete(next);
      this.#time = Math.max(this.#time, next.at);
      next.callback();
    }
  }
}
