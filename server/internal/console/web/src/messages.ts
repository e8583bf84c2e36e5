import {
  ChangeKind,
  type ConversationChange,
  type Message,
  ParleyError,
  type Turn,
  TurnState,
} from "@parleyhq/client/web";

import { answerElement } from "./answer.js";
import { type Call, pairCalls } from "./calls.js";
import { composer } from "./composer.js";
import { arrange, button, fill, h } from "./dom.js";
import { count } from "./format.js";
import { callElement, messageElement } from "./message.js";
import { resultForm } from "./result-form.js";
import { ScrollEnd } from "./scroll-end.js";
import { coalesced, View } from "./view.js";

/** The number of messages of one page. */
const pageSize = 50;

/**
 * The sequences of one group of messages. The browser observes each part of a page that it may skip, in every frame:
 * with groups those are the groups, and the messages of the groups near the view.
 */
const groupSize = 25;

/** More messages than this are left out again when the user reads the end. */
const longest = 1000;

/** The changes after which the shown messages may be others. A lower limit, set by an update, drops messages. */
const reloading: ReadonlySet<ChangeKind> = new Set([
  ChangeKind.CHANGE_KIND_CREATED,
  ChangeKind.CHANGE_KIND_UPDATED,
  ChangeKind.CHANGE_KIND_CLEARED,
  ChangeKind.CHANGE_KIND_DELETED,
  ChangeKind.CHANGE_KIND_EXPIRED,
  ChangeKind.CHANGE_KIND_EVICTED,
]);

/** A message in the page, with its tool calls. */
interface Shown {
  readonly key: string;
  readonly element: HTMLElement;
  readonly calls: { element: HTMLElement; key: string }[];
  /** The form for the results of the open calls, and their ids. */
  form?: { readonly element: HTMLElement; readonly key: string } | undefined;
}

/** The messages of a conversation, oldest first, with the answers that are in progress. */
export class MessagesView extends View {
  readonly #messages = new Map<number, Message>();
  readonly #shown = new Map<number, Shown>();
  /** The groups of messages in the page, by their numbers. */
  readonly #groups = new Map<number, HTMLElement>();
  readonly #answers = new Map<string, HTMLElement>();
  /** The newest turns whose answers have ended here. The feed may still bring their events. */
  readonly #ended = new Set<string>();
  readonly #older = h("div", { class: "older" });
  readonly #list = h("div", { class: "messages" });
  readonly #running = h("div", { class: "messages" });
  readonly #news = h("div", { class: "news" });
  readonly #scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Messages" });
  #oldest = 1;
  /** The token of the page before the shown messages; undefined if there is none. */
  #next: string | undefined;
  /** What changes have added since the current read began. */
  #arrived: Message[] = [];
  /** The number of reads from the newest message on. What an older read returns is outdated. */
  #reads = 0;
  #isLoading = false;
  #end: ScrollEnd | undefined;
  #watching: IntersectionObserver | undefined;

  get #id(): string {
    return this.route.id!;
  }

  protected show(): void {
    const { signal } = this;
    const end = new ScrollEnd(this.#scroll, [this.#list, this.#running], signal, () => fill(this.#news));
    this.#end = end;
    fill(this.#scroll, this.#older, this.#list, this.#running, this.#news);
    const ask = this.session.mayWrite && composer(this.context, this.#id, signal, () => end.keep());
    fill(this, this.#scroll, ask);
    this.context.feed.onChange((change) => this.#apply(change), this.signal);
    this.context.feed.onGap(this.#reloadSoon, this.signal);
    const watching = new IntersectionObserver(
      ([entry]) => {
        if (entry?.isIntersecting) {
          void this.#loadOlder();
        }
      },
      { root: this.#scroll, rootMargin: "600px 0px 0px 0px" },
    );
    this.#watching = watching;
    this.signal.addEventListener("abort", () => watching.disconnect());
    this.#reloadSoon();
  }

  readonly #reloadSoon = coalesced(() => this.#reload());

  /** Reads the shown messages and the turns that run. What is shown stays until they have arrived. */
  async #reload(): Promise<void> {
    if (this.signal.aborted) {
      return;
    }
    this.#reads++;
    this.#arrived = [];
    this.#isLoading = true;
    await this.run(this.#older, async () => {
      try {
        await this.#read();
      } catch (error) {
        if (!(error instanceof ParleyError && error.code === "NOT_FOUND")) {
          throw error;
        }
        // The head of the conversation says that it does not exist.
        this.#messages.clear();
        this.#next = undefined;
        this.#oldest = 1;
        this.#draw();
        fill(this.#older);
        fill(this.#running);
      }
    });
    this.#isLoading = false;
    this.#watchOlder();
  }

  async #read(): Promise<void> {
    const { client } = this.session;
    const conversationId = this.#id;
    const options = { signal: this.signal };
    // At the end, a long list is not worth reading again.
    const lowest = this.#isLong ? Infinity : Math.min(...this.#messages.keys());
    const messages: Message[] = [];
    let pageToken = "";
    let oldest = 1;
    do {
      const page = await client.listMessages({ conversationId, pageSize, pageToken }, options);
      messages.push(...page.messages);
      pageToken = page.nextPageToken;
      oldest = page.oldestSequence;
    } while (pageToken !== "" && (messages.at(-1)?.sequence ?? 0) > lowest);
    const { turns } = await client.listTurns(
      { conversationId, states: [TurnState.TURN_STATE_RUNNING] },
      options,
    );
    this.#messages.clear();
    this.#next = pageToken || undefined;
    this.#oldest = oldest;
    this.#add([...messages, ...this.#arrived]);
    for (const { id } of turns.toReversed()) {
      this.#follow(id);
    }
  }

  async #loadOlder(): Promise<void> {
    if (this.#isLoading || this.#next === undefined) {
      return;
    }
    const read = this.#reads;
    this.#isLoading = true;
    await this.run(this.#older, async () => {
      const page = await this.session.client.listMessages(
        { conversationId: this.#id, pageSize, pageToken: this.#next! },
        { signal: this.signal },
      );
      if (read !== this.#reads) {
        return;
      }
      this.#next = page.nextPageToken || undefined;
      this.#oldest = page.oldestSequence;
      const { scrollHeight, scrollTop } = this.#scroll;
      for (const message of page.messages) {
        this.#messages.set(message.sequence, message);
      }
      this.#draw();
      if (this.#isAtEnd) {
        this.#end?.keep();
      } else {
        // The messages that the user reads stay where they are.
        this.#scroll.scrollTop = scrollTop + this.#scroll.scrollHeight - scrollHeight;
      }
      this.#watchOlder();
    });
    if (read === this.#reads) {
      this.#isLoading = false;
    }
  }

  /** Reports again whether the beginning is in view: pages may be shorter than the view. */
  #watchOlder(): void {
    this.#watching?.unobserve(this.#older);
    if (!this.signal.aborted) {
      this.#watching?.observe(this.#older);
    }
  }

  #apply(change: ConversationChange): void {
    if (change.conversationId !== this.#id) {
      return;
    }
    const { kind, payload } = change;
    if (payload?.$case === "message") {
      this.#arrived.push(payload.value);
      this.#add([payload.value]);
      this.#showNews();
      if (this.#isLong) {
        this.#reloadSoon();
      }
    } else if (payload?.$case === "turnEvent") {
      const step = payload.value.event?.$case;
      if (step !== "queued" && step !== "finished") {
        this.#follow(payload.value.turnId);
      }
    } else if (reloading.has(kind)) {
      this.#arrived = [];
      this.#reloadSoon();
    }
  }

  /** Adds messages, and stays at the end if the user reads the end. */
  #add(messages: readonly Message[]): void {
    for (const message of messages) {
      this.#messages.set(message.sequence, message);
    }
    this.#draw();
    if (this.#isAtEnd) {
      this.#end?.keep();
    }
  }

  get #isAtEnd(): boolean {
    return this.#end?.isKept ?? true;
  }

  /** Says that there are new messages below, unless they are in view. */
  #showNews(): void {
    fill(this.#news, !this.#isAtEnd && button("New messages below", () => this.#end?.keep()));
  }

  /** There are more messages than a page should hold, and the user does not read the older ones. */
  get #isLong(): boolean {
    return this.#messages.size > longest && this.#isAtEnd;
  }

  #follow(turnId: string): void {
    if (this.#answers.has(turnId) || this.#ended.has(turnId)) {
      return;
    }
    const element = answerElement(this.context, this.#id, turnId, this.signal, (last) => {
      const place = element.getBoundingClientRect();
      element.remove();
      this.#answers.delete(turnId);
      this.#rememberEnd(turnId);
      const finished = last?.event?.$case === "finished" ? last.event.value : undefined;
      this.#arrived.push(...(finished?.messages ?? []));
      this.#add(finished?.messages ?? []);
      this.#putAt(place, finished?.messages ?? []);
      if (finished?.turn?.error) {
        this.#running.append(failedTurn(finished.turn));
      }
    });
    this.#answers.set(turnId, element);
    for (const failed of this.#running.querySelectorAll(":scope > .failure")) {
      failed.remove(); // It is about an earlier turn.
    }
    this.#running.append(element);
    this.#showNews();
  }

  /** Keeps stored messages at the place of the answer that they replace, unless the user reads the end. */
  #putAt({ top, height }: DOMRect, messages: readonly Message[]): void {
    const first = this.#shown.get(messages[0]?.sequence ?? 0)?.element;
    const last = this.#shown.get(messages.at(-1)?.sequence ?? 0)?.element;
    if (first && last && !this.#isAtEnd) {
      // It is the estimate until the browser has laid out the message.
      last.style.setProperty("contain-intrinsic-height", `auto ${height}px`);
      this.#scroll.scrollTop += first.getBoundingClientRect().top - top;
    }
  }

  #rememberEnd(turnId: string): void {
    this.#ended.add(turnId);
    const [first] = this.#ended;
    if (this.#ended.size > 100 && first !== undefined) {
      this.#ended.delete(first);
    }
  }

  /** Updates the list in place: only messages that are new, and tool calls with another result, are made. */
  #draw(): void {
    const messages = [...this.#messages.values()].sort((a, b) => a.sequence - b.sequence);
    const calls = pairCalls(messages);
    const callers = new Map<number, number>(); // the messages with the calls, by those with their results
    for (const [sequence, own] of calls) {
      for (const { result } of own) {
        if (result) {
          callers.set(result.sequence, sequence);
        }
      }
    }
    const wanted = new Map<number, HTMLElement[]>();
    let previous = 0;
    const first = messages[0];
    fill(
      this.#older,
      this.#next !== undefined && h("p", { class: "hint" }, "Older messages load as you scroll."),
      this.#next === undefined &&
        this.#oldest > 1 &&
        h("p", { class: "dropped" }, dropped(1, Math.min(this.#oldest, first?.sequence ?? this.#oldest) - 1)),
      messages.length === 0 && this.#oldest <= 1 && h("p", { class: "hint" }, "No messages yet."),
    );
    for (const message of messages) {
      const { sequence } = message;
      const number = Math.floor(sequence / groupSize);
      const group = wanted.get(number) ?? [];
      wanted.set(number, group);
      if (previous > 0 && sequence > previous + 1) {
        group.push(this.#gap(previous + 1, sequence - 1));
      }
      previous = sequence;
      group.push(this.#element(message, calls.get(sequence) ?? [], callers.get(sequence)));
    }
    for (const sequence of this.#shown.keys()) {
      if (!this.#messages.has(sequence)) {
        this.#shown.delete(sequence);
      }
    }
    this.#arrange(wanted);
  }

  /** Shows groups of elements, in their order. */
  #arrange(wanted: ReadonlyMap<number, readonly HTMLElement[]>): void {
    for (const number of this.#groups.keys()) {
      if (!wanted.has(number)) {
        this.#groups.delete(number);
      }
    }
    for (const [number, elements] of wanted) {
      const group = this.#groups.get(number) ?? h("div", { class: "message-group" });
      this.#groups.set(number, group);
      arrange(group, elements);
    }
    arrange(
      this.#list,
      [...wanted.keys()].map((number) => this.#groups.get(number)!),
    );
  }

  /** Returns the element of a message. If it is the result of a call that is shown, caller is the sequence of the call. */
  #element(message: Message, calls: readonly Call[], caller: number | undefined): HTMLElement {
    let shown = this.#shown.get(message.sequence);
    const key = `${message.id} ${caller}`;
    if (shown?.key !== key) {
      const reference =
        caller === undefined
          ? undefined
          : button(`message ${caller}`, () => this.#reveal(caller), { class: "quiet" });
      const element = messageElement(this.context, this.#id, message, reference);
      shown = { key, element, calls: [] };
      this.#shown.set(message.sequence, shown);
    }
    for (const [index, call] of calls.entries()) {
      const key = `${call.isOpen} ${call.result?.id}`;
      const old = shown.calls[index];
      if (old?.key !== key) {
        // The other calls stay: the user may be writing a result.
        const element = callElement(this.context, this.#id, message, call);
        shown.calls[index] = { element, key };
        if (old) {
          old.element.replaceWith(element);
        } else {
          shown.element.append(element);
        }
      }
    }
    this.#showForm(shown, message, calls);
    return shown.element;
  }

  /** Shows the form that sends the results of the open calls of a message. */
  #showForm(shown: Shown, message: Message, calls: readonly Call[]): void {
    const open = calls.filter(({ isOpen }) => isOpen).map(({ call }) => call);
    const key = JSON.stringify(open.map(({ id }) => id));
    if (shown.form?.key === key) {
      return;
    }
    shown.form?.element.remove();
    shown.form = undefined;
    if (open.length > 0 && this.session.mayWrite) {
      const element = resultForm(this.context, this.#id, message, open);
      shown.form = { element, key };
      shown.element.append(element);
    }
  }

  /** Scrolls to a message. */
  #reveal(sequence: number): void {
    this.#end?.leave();
    this.#shown.get(sequence)?.element.scrollIntoView({ block: "center" });
  }

  #gap(first: number, last: number): HTMLElement {
    return h("p", { class: "dropped" }, dropped(first, last, "removed"));
  }
}

function dropped(first: number, last: number, how = "dropped"): string {
  const n = last - first + 1;
  return n === 1
    ? `Message ${first} was ${how}.`
    : `${count(n, "message")} (${first} to ${last}) were ${how}.`;
}

/** How a turn ends without a complete answer, if its agent has not failed. */
const failures: { readonly [state in TurnState]?: string } = {
  [TurnState.TURN_STATE_CANCELLED]: "The turn was cancelled. ",
  [TurnState.TURN_STATE_INTERRUPTED]: "The turn was interrupted. ",
};

function failedTurn({ error, state }: Turn): HTMLElement {
  return h(
    "p",
    { class: "failure", role: "alert" },
    failures[state] ?? "The turn failed. ",
    `${error?.reason ?? ""}: `,
    error?.message ?? "",
  );
}

customElements.define("parley-messages", MessagesView);
