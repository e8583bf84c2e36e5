import { ChangeKind, type ConversationChange, ParleyError } from "@parleyhq/client/web";

import type { Session } from "./session.js";

/**
 * How long the feed waits before it opens a watch again that the server has refused, in milliseconds. Each refusal in a
 * row doubles it: the server may write an audit entry about each.
 */
const retryDelay = { first: 2000, longest: 60_000 };

type Listener = (change: ConversationChange) => void;

/**
 * The changes of all conversations of the tenant, with the events of their turns, over one watch. After a GAP, and when
 * the feed has begun, the listeners of gaps are called: they read again what they show.
 *
 * The watch is open only while the page is visible. Browsers open six connections to a host with HTTP/1.1, for all of
 * their tabs together, and a watch occupies one.
 */
export class Feed {
  readonly #session: Session;
  readonly #changes = new Set<Listener>();
  readonly #gaps = new Set<() => void>();
  #signal: AbortSignal;

  /** Begins the feed. It ends with the signal. */
  constructor(session: Session, signal: AbortSignal) {
    this.#session = session;
    this.#signal = signal;
    void this.#run();
  }

  /** Calls a function at each change, until the signal aborts. */
  onChange(listener: Listener, signal: AbortSignal): void {
    this.#changes.add(listener);
    signal.addEventListener("abort", () => this.#changes.delete(listener));
  }

  /** Calls a function when changes may be missing, until the signal aborts. */
  onGap(listener: () => void, signal: AbortSignal): void {
    this.#gaps.add(listener);
    signal.addEventListener("abort", () => this.#gaps.delete(listener));
  }

  async #run(): Promise<void> {
    let delay = retryDelay.first;
    while (!this.#signal.aborted) {
      if (document.hidden) {
        await new Promise((resolve) =>
          document.addEventListener("visibilitychange", resolve, { once: true }),
        );
        continue;
      }
      const hiding = new AbortController();
      const onChange = () => document.hidden && hiding.abort();
      document.addEventListener("visibilitychange", onChange);
      try {
        let hasBegun = false;
        const signal = AbortSignal.any([this.#signal, hiding.signal]);
        const changes = this.#session.client.watchConversations({ includeTurnEvents: true }, { signal });
        for await (const change of changes) {
          // The first response of a new watch is where it begins. What was read before may be older.
          if (!hasBegun || change.kind === ChangeKind.CHANGE_KIND_GAP) {
            hasBegun = true;
            delay = retryDelay.first;
            for (const listener of this.#gaps) {
              listener();
            }
          }
          for (const listener of this.#changes) {
            listener(change);
          }
        }
      } catch (error) {
        if (this.#signal.aborted) {
          return;
        }
        if (hiding.signal.aborted) {
          continue;
        }
        if (error instanceof ParleyError && error.code === "UNAUTHENTICATED") {
          this.#session.dispatchEvent(new Event("expired"));
          return;
        }
      } finally {
        document.removeEventListener("visibilitychange", onChange);
      }
      await new Promise((resolve) => setTimeout(resolve, delay));
      delay = Math.min(2 * delay, retryDelay.longest);
    }
  }
}
