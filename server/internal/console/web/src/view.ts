import type { AnsweredTurns } from "./answered.js";
import { button, fill, h } from "./dom.js";
import type { Feed } from "./feed.js";
import type { Outbox } from "./outbox.js";
import type { ResultDraft } from "./result-form.js";
import type { Route } from "./route.js";
import type { Samples } from "./samples.js";
import { errorText, isAbort, type Session } from "./session.js";
import type { Titles } from "./titles.js";
import type { TurnTimes } from "./turn-times.js";
import type { Waiting } from "./waiting.js";

/** What every view works with. */
export interface Context {
  readonly session: Session;
  readonly feed: Feed;
  readonly samples: Samples;
  readonly titles: Titles;
  readonly waiting: Waiting;
  readonly answered: AnsweredTurns;
  readonly times: TurnTimes;
  readonly outbox: Outbox;
  /** The results of tool calls that the user has written and not sent; see result-form.ts. */
  readonly results: Map<string, ResultDraft>;
}

/**
 * A part of the page. It begins when it is put into the page, and everything that it has begun ends with its signal,
 * when it is removed.
 */
export abstract class View extends HTMLElement {
  readonly context: Context;
  readonly route: Route;
  #ending = new AbortController();

  constructor(context: Context, route: Route) {
    super();
    this.context = context;
    this.route = route;
  }

  get session(): Session {
    return this.context.session;
  }

  /** Aborts when the view is removed. */
  get signal(): AbortSignal {
    return this.#ending.signal;
  }

  connectedCallback(): void {
    this.#ending = new AbortController();
    this.show();
  }

  disconnectedCallback(): void {
    this.#ending.abort();
  }

  /** Shows the view. */
  protected abstract show(): void;

  /** Runs a task of the view. If it fails, its error is shown in place, with a button that runs it again. */
  protected async run(place: HTMLElement, task: () => Promise<void>): Promise<void> {
    try {
      await task();
    } catch (error) {
      if (!isAbort(error) && !this.signal.aborted) {
        fill(
          place,
          failure(error, () => void this.run(place, task)),
        );
      }
    }
  }

  /** Calls a function now, and then every second while the page is visible, until the view is removed. */
  protected everySecond(update: () => void): void {
    update();
    const timer = setInterval(() => {
      if (!document.hidden) {
        update();
      }
    }, 1000);
    this.signal.addEventListener("abort", () => clearInterval(timer));
  }
}

/** Returns the text of an error, with a button if there is something to try again. */
export function failure(error: unknown, again?: () => void): HTMLElement {
  return h(
    "p",
    { class: "failure", role: "alert" },
    errorText(error),
    again && [" ", button("Try again", again)],
  );
}

/**
 * Returns a function that runs a task once for many calls that follow one another: after a delay in milliseconds, by
 * default a frame of the browser, and when the last run has ended and a pause after it has passed.
 */
export function coalesced(task: () => unknown, delay = 16, pause = 0): () => void {
  let isDue = false;
  let last: Promise<unknown> = Promise.resolve();
  const run = () => {
    isDue = false;
    const wait = () => new Promise((resolve) => setTimeout(resolve, pause));
    last = Promise.resolve(task()).then(wait, wait);
  };
  return () => {
    if (!isDue) {
      isDue = true;
      setTimeout(() => void last.then(run, run), delay);
    }
  };
}
