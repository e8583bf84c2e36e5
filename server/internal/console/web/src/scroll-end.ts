/** The end counts as reached by a scroll that comes as near as this, in pixels. */
const near = 40;

/** How long a scroll may follow what the user does, in milliseconds. */
const inputTime = 500;

/** What the user scrolls with, except a wheel. */
const inputs = ["touchmove", "keydown", "pointerdown", "pointermove"] as const;

/**
 * Keeps an element at its end while the heights of its contents change, until the user scrolls up. The browser estimates
 * the heights of what it has not laid out yet, so an end that is reached once is not the end a frame later.
 */
export class ScrollEnd {
  readonly #element: HTMLElement;
  readonly #onReached: () => void;
  #isKept = true;
  #inputAt = -Infinity;
  /** The position and the height when they were last checked. */
  #top = 0;
  #height = 0;

  /** Observes an element and its contents until the signal aborts. Calls onReached whenever the end is reached. */
  constructor(
    element: HTMLElement,
    contents: readonly HTMLElement[],
    signal: AbortSignal,
    onReached: () => void,
  ) {
    this.#element = element;
    this.#onReached = onReached;
    const options = { passive: true, signal };
    const noteInput = () => {
      this.#inputAt = performance.now();
    };
    for (const input of inputs) {
      element.addEventListener(input, noteInput, options);
    }
    element.addEventListener("wheel", ({ deltaY }) => deltaY < 0 && noteInput(), options);
    element.addEventListener("scroll", () => this.#check(), options);
    const resizing = new ResizeObserver(() => this.#check());
    for (const one of [element, ...contents]) {
      resizing.observe(one);
    }
    signal.addEventListener("abort", () => resizing.disconnect());
  }

  /** The user reads the end. */
  get isKept(): boolean {
    return this.#isKept;
  }

  /** Scrolls to the end and stays there. */
  keep(): void {
    this.#isKept = true;
    this.#element.scrollTop = this.#element.scrollHeight;
    this.#note();
    this.#onReached();
  }

  /** Stays where the element is. */
  leave(): void {
    this.#isKept = false;
  }

  #check(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.#element;
    const left = scrollHeight - clientHeight - scrollTop;
    const isUp = scrollTop < this.#top - 1;
    // When heights change, the browser moves the contents, too.
    const isOfUser = scrollHeight === this.#height || performance.now() - this.#inputAt < inputTime;
    if (this.#isKept && left > 1 && isUp && isOfUser) {
      this.leave();
    }
    const isReached = left <= 1 || (left < near && scrollTop > this.#top);
    if (this.#isKept || isReached) {
      this.keep();
    } else {
      this.#note();
    }
  }

  #note(): void {
    this.#top = this.#element.scrollTop;
    this.#height = this.#element.scrollHeight;
  }
}
