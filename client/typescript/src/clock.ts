/** The time, in milliseconds. */
export interface Clock {
  now(): number;
  /** Calls callback after a delay. Returns a function that stops the timer. */
  after(delay: number, callback: () => void): () => void;
}

/**
 * The longest time in milliseconds for which a timer of the platform is set. If it fires later than that and tolerance,
 * the machine or the page was suspended.
 */
const slice = 5000;
const tolerance = 2000;

/**
 * A clock that stands still while the machine or the page is suspended. Many platforms count that time, although no
 * message can arrive in it. The clock notices a suspension by its timers, so only while one is set. Up to 7 s between two
 * reads count as they are, and a longer time counts as 5 s. In a hidden page, where timers fire about once a minute, the
 * clock is slow.
 */
export class AwakeClock implements Clock {
  readonly #platform: Clock;
  #suspended = 0;
  /** The time of the platform when this clock was read last, while a timer is set. */
  #seen = 0;
  #timers = 0;

  constructor(platform: Clock) {
    this.#platform = platform;
  }

  now(): number {
    const time = this.#platform.now();
    if (this.#timers > 0) {
      const gap = time - this.#seen;
      if (gap > slice + tolerance) {
        this.#suspended += gap - slice;
      }
      this.#seen = time;
    }
    return time - this.#suspended;
  }

  after(delay: number, callback: () => void): () => void {
    const end = this.now() + delay;
    if (this.#timers++ === 0) {
      this.#seen = this.#platform.now();
    }
    let isSet = true;
    let stopPart = () => {};
    const stop = () => {
      if (isSet) {
        this.now(); // Without this timer, a later call would not recognize the suspension.
        isSet = false;
        this.#timers--;
        stopPart();
      }
    };
    const wait = (left: number) => {
      stopPart = this.#platform.after(Math.min(left, slice), () => {
        const left = end - this.now();
        if (left >= 1) {
          wait(left);
        } else {
          stop();
          callback();
        }
      });
    };
    wait(delay);
    return stop;
  }
}

/** The clock of the client. */
export const systemClock: Clock = new AwakeClock({
  now: () => performance.now(),
  after(delay, callback) {
    const timer = setTimeout(callback, delay);
    return () => clearTimeout(timer);
  },
});
