import { type Turn, type TurnError, TurnState } from "@parleyhq/client/web";

import { button, type Child, h } from "./dom.js";
import { clock, count, enumName, span } from "./format.js";
import { line } from "./text.js";

/** The colours of the states that need one. */
const classes: { readonly [state in TurnState]?: string } = {
  [TurnState.TURN_STATE_RUNNING]: "running",
  [TurnState.TURN_STATE_QUEUED]: "warning",
  [TurnState.TURN_STATE_INPUT_REQUIRED]: "warning",
  [TurnState.TURN_STATE_FAILED]: "error",
  [TurnState.TURN_STATE_INTERRUPTED]: "error",
};

/** Returns the state of a turn. isAnswered says that it waited for results and has them. */
export function stateBadge(state: TurnState, isAnswered = false): HTMLElement {
  const colour = isAnswered ? "" : (classes[state] ?? "");
  return h(
    "span",
    { class: "turn-state" },
    h("span", { class: `badge ${colour}` }, enumName(state, "TURN_STATE_")),
    isAnswered && [
      " ",
      h("span", { class: "badge answered", title: "Each tool call of this turn has its result" }, "answered"),
    ],
  );
}

/** Returns the link from a turn to its events, with its state. */
export function eventsLink({ id, state }: Turn, href: string, isAnswered: boolean): HTMLElement {
  return h(
    "a",
    { class: "open-turn", href, title: `Events of turn ${id}` },
    stateBadge(state, isAnswered),
    " ",
    h("span", { class: "link" }, "Events"),
  );
}

/** Returns why a turn did not complete. That a user cancelled it is no failure. */
export function reasonElement({ reason, message, retryable }: TurnError, state: TurnState): HTMLElement {
  const isFailure = state !== TurnState.TURN_STATE_CANCELLED;
  return h(
    "div",
    { class: "turn-reason" },
    line(reason, { class: isFailure ? "reason" : "quiet-reason" }),
    h("span", { class: "badge" }, retryable ? "retryable" : "not retryable"),
    " ",
    line(message),
  );
}

/** Returns when a turn was created. */
export function createdElement({ createTime }: Turn): HTMLElement {
  const text = clock(createTime);
  return h("time", { title: text }, text.slice(0, 19));
}

/** Returns a time that a turn took: "250 ms", "8.1 s", "1 min 3 s". */
export function took(milliseconds: number): string {
  return milliseconds < 1000 || milliseconds >= 60_000
    ? span(milliseconds)
    : `${(milliseconds / 1000).toFixed(1)} s`;
}

/** Returns how long a turn took. While it is open, {@link tickDurations} updates it. */
export function durationElement({ createTime, finishTime }: Turn): HTMLElement {
  return createTime && finishTime
    ? h("span", { class: "duration" }, took(finishTime.getTime() - createTime.getTime()))
    : sinceElement(createTime);
}

/** Returns how long ago a time was. {@link tickDurations} updates it. */
export function sinceElement(time: Date | undefined): HTMLElement {
  return h("span", { class: "duration", "data-since": time?.getTime() }, since(time?.getTime()));
}

/** Updates the durations of the open turns in an element. */
export function tickDurations(parent: ParentNode): void {
  for (const element of parent.querySelectorAll<HTMLElement>(".duration[data-since]")) {
    element.textContent = since(Number(element.dataset["since"]));
  }
}

function since(time: number | undefined): string {
  return time ? span(Date.now() - time) : "";
}

/**
 * Returns a table and the place of its rows, whose cells are named by nameCells. It scrolls where it is wider than the
 * page; where the page is narrow, its rows are cards. Titles explain columns by their names.
 */
export function table(
  label: string,
  columns: readonly string[],
  titles: { readonly [column: string]: string } = {},
): { element: HTMLElement; rows: HTMLElement } {
  const rows = h("tbody");
  const head = h(
    "tr",
    {},
    columns.map((name) =>
      h("th", { scope: "col" }, titles[name] ? h("span", { title: titles[name] }, name) : name),
    ),
  );
  const element = h(
    "div",
    { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: "turn-table cards" }, h("thead", {}, head), rows),
  );
  return { element, rows };
}

/** The turns of one page. */
const pageSize = 50;

/** Pages that are read for each page of results: a page may have no turns although others follow. */
const pagesAtOnce = 20;

/** The most turns of a list: all of them are read again at each change. */
const maxTurns = 1000;

/** Pages of turns. */
type Page = (
  pageSize: number,
  pageToken: string,
) => Promise<{ turns: readonly Turn[]; nextPageToken: string }>;

/** The newest turns of a list. They are read from the beginning each time, because states change in their places. */
export class TurnList {
  turns: readonly Turn[] = [];
  hasMore = false;
  readonly #page: Page;
  #pages = 1;

  constructor(page: Page) {
    this.#page = page;
  }

  /** There are more turns than a list shows. */
  get isFull(): boolean {
    return this.#pages * pageSize >= maxTurns;
  }

  /** Makes the next read return another page. */
  more(): void {
    this.#pages++;
  }

  async load(): Promise<void> {
    const turns: Turn[] = [];
    const wanted = this.#pages * pageSize;
    let token = "";
    for (let page = 0; page < this.#pages * pagesAtOnce && turns.length < wanted; page++) {
      const reply = await this.#page(Math.min(1000, wanted - turns.length), token);
      turns.push(...reply.turns);
      token = reply.nextPageToken;
      if (token === "") {
        break;
      }
    }
    this.turns = turns;
    this.hasMore = token !== "";
  }
}

/** Returns what follows a list of turns: a button for more, or a note that the limit maxTurns is reached. */
export function moreTurns(list: TurnList, more: () => void): Child {
  if (!list.hasMore) {
    return null;
  }
  return list.isFull
    ? `The list shows the newest ${count(maxTurns, "turn")} at most. Older turns are left out.`
    : button("Show more", more);
}
