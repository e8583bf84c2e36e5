import {
  ChangeKind,
  type ConversationChange,
  type ToolCall,
  type Turn,
  TurnState,
} from "@parleyhq/client/web";

import { arrange, button, type Child, fill, h, nameCells } from "./dom.js";
import { count } from "./format.js";
import { format, go } from "./route.js";
import { line } from "./text.js";
import {
  createdElement,
  durationElement,
  eventsLink,
  moreTurns,
  reasonElement,
  sinceElement,
  TurnList,
  table,
  tickDurations,
} from "./turn-row.js";
import { coalesced, failure, View } from "./view.js";
import { waitingBadge } from "./waiting.js";

/** The lists of the view, by their names in the address. No states are those of all turns. */
const chips: readonly { readonly name: string; readonly label: string; readonly states: TurnState[] }[] = [
  {
    name: "running",
    label: "Running & queued",
    states: [TurnState.TURN_STATE_RUNNING, TurnState.TURN_STATE_QUEUED],
  },
  { name: "waiting", label: "Waiting for a tool result", states: [] },
  { name: "failed", label: "Failed", states: [TurnState.TURN_STATE_FAILED] },
  { name: "all", label: "All", states: [] },
];

/** A row of the table: a turn, or a conversation whose calls wait for a result. A fork that waits has no turn. */
interface Row {
  readonly id: string;
  readonly turn: Turn | undefined;
  readonly calls: readonly ToolCall[];
  readonly since?: Date | undefined;
}

/** The turns of the tenant. */
export class TurnsView extends View {
  readonly #chip =
    chips.find(({ name }) => name === this.route.query.get("state")) ??
    chips[this.context.waiting.conversations.length > 0 ? 1 : 0]!;
  readonly #status = h("p", { class: "list-status", role: "status" }, "Loading…");
  readonly #problem = h("div");
  readonly #more = h("p", { class: "more" });
  readonly #columns = [
    "State",
    "Agent",
    "Conversation",
    "Created",
    this.#isWaiting ? "Waiting" : "Duration",
    this.#isWaiting ? "Calls without a result" : "Reason",
  ];
  readonly #table = table("Turns", this.#columns);
  readonly #list = new TurnList((pageSize, pageToken) =>
    this.session.client.listTurns(
      { states: this.#chip.states, pageSize, pageToken },
      { signal: this.signal },
    ),
  );
  readonly #shown = new Map<string, { readonly element: HTMLElement; readonly key: string }>();
  #rows: readonly Row[] = [];
  #chosen = -1;

  protected show(): void {
    fill(
      this,
      h("h1", {}, "Turns"),
      this.#chips(),
      this.#status,
      this.#problem,
      this.#table.element,
      this.#more,
    );
    this.everySecond(() => tickDurations(this));
    if (this.#isWaiting) {
      const { waiting } = this.context;
      waiting.addEventListener("change", () => this.#showWaiting(), { signal: this.signal });
      this.#showWaiting();
      return;
    }
    this.context.feed.onChange((change) => {
      if (isChangeOfTurns(change)) {
        this.#reloadSoon();
      } else if (change.payload?.$case === "message" && change.payload.value.toolResult) {
        this.#checkSoon();
      }
    }, this.signal);
    this.context.feed.onGap(this.#reloadSoon, this.signal);
    void this.#reload();
  }

  move(by: 1 | -1): void {
    this.#chosen = Math.min(Math.max(this.#chosen + by, 0), this.#rows.length - 1);
    this.#draw();
    this.#table.rows.children[this.#chosen]?.querySelector<HTMLElement>("a.conversation")?.focus();
  }

  choose(): void {
    const row = this.#rows[this.#chosen];
    if (row) {
      go({ view: "conversations", id: row.id });
    }
  }

  search(): void {
    this.querySelector<HTMLElement>(".chips [aria-current]")?.focus();
  }

  get #isWaiting(): boolean {
    return this.#chip.name === "waiting";
  }

  #chips(): HTMLElement {
    return h(
      "nav",
      { class: "chips", "aria-label": "Turns to show" },
      chips.map(({ name, label }) =>
        h(
          "a",
          {
            class: "chip",
            href: format({ view: "turns", query: new URLSearchParams({ state: name }) }),
            "aria-current": name === this.#chip.name ? "page" : undefined,
          },
          label,
          name === "waiting" && [" ", waitingBadge(this.context.waiting, this.signal, true)],
        ),
      ),
    );
  }

  readonly #reloadSoon = coalesced(() => this.#reload(), 250);
  readonly #checkSoon = coalesced(() => this.#check(), 250);
  readonly #drawSoon = coalesced(() => this.#draw());

  readonly #readTitles = coalesced(() =>
    this.context.titles.read(
      this.#rows.map(({ id }) => id),
      this.signal,
      this.#drawSoon,
    ),
  );

  /** Finds out which of the turns that waited for results have them. */
  #check(): Promise<void> {
    return this.context.answered.check(this.#list.turns, this.signal, this.#drawSoon);
  }

  async #reload(): Promise<void> {
    if (this.signal.aborted) {
      return;
    }
    await this.run(this.#problem, async () => {
      await this.#list.load();
      fill(this.#problem);
      this.#rows = this.#list.turns.map((turn) => ({ id: turn.conversationId, turn, calls: [] }));
      this.#showRows(
        this.#list.hasMore,
        moreTurns(this.#list, () => {
          this.#list.more();
          void this.#reload();
        }),
      );
      this.#checkSoon();
    });
  }

  #showWaiting(): void {
    const { waiting } = this.context;
    fill(this.#problem, Boolean(waiting.error) && failure(waiting.error, waiting.refresh));
    if (waiting.isKnown) {
      this.#rows = waiting.conversations;
      this.#showRows(waiting.hasMore, waiting.hasMore && button("Show more", () => waiting.more()));
    }
  }

  #showRows(hasMore: boolean, more: Child): void {
    const noun = this.#isWaiting ? "conversation" : "turn";
    const none = hasMore ? "None among the newest turns." : `No ${noun}s.`;
    fill(
      this.#status,
      this.#rows.length === 0 ? none : `${count(this.#rows.length, noun)}${hasMore ? " and more" : ""}`,
    );
    fill(this.#more, more);
    this.#chosen = Math.min(this.#chosen, this.#rows.length - 1);
    this.#draw();
    this.#readTitles();
  }

  /** Updates the table in place: rows that are as before stay, so that the focus stays, too. */
  #draw(): void {
    const { answered, titles } = this.context;
    const ids = new Set<string>();
    const wanted = this.#rows.map((row) => {
      const { turn } = row;
      const id = turn?.id ?? row.id;
      ids.add(id);
      const isAnswered = turn !== undefined && answered.has(turn);
      const title = titles.of(row.id);
      const calls = row.calls.map(({ name }) => name);
      const key = [turn?.state, turn?.agent, turn?.finishTime?.getTime(), isAnswered, title, ...calls].join();
      const shown = this.#shown.get(id);
      const element =
        shown?.key === key ? shown.element : nameCells(rowElement(row, title, isAnswered), this.#columns);
      this.#shown.set(id, { element, key });
      return element;
    });
    for (const id of this.#shown.keys()) {
      if (!ids.has(id)) {
        this.#shown.delete(id);
      }
    }
    for (const [index, element] of wanted.entries()) {
      element.classList.toggle("chosen", index === this.#chosen);
    }
    arrange(this.#table.rows, wanted);
  }
}

function rowElement({ id, turn, calls, since }: Row, title: string, isAnswered: boolean): HTMLElement {
  return h(
    "tr",
    { class: "turn", "data-turn": turn?.id },
    h(
      "td",
      {},
      turn
        ? eventsLink(turn, format({ view: "conversations", id, tab: "turns", turn: turn.id }), isAnswered)
        : h(
            "span",
            { class: "badge warning", title: "A fork has the calls of its origin, but no turn." },
            "fork",
          ),
    ),
    h("td", { class: "agent-cell" }, turn && line(turn.agent, { class: "agent" })),
    h(
      "td",
      { class: "conversation-cell" },
      h("a", { class: "conversation", href: format({ view: "conversations", id }) }, line(title || id)),
      title !== "" && [" ", line(id, { class: "id" })],
    ),
    h("td", {}, turn ? createdElement(turn) : "—"),
    h("td", {}, turn && calls.length === 0 ? durationElement(turn) : sinceElement(since)),
    h(
      "td",
      { class: "why" },
      calls.map(({ name, id }) =>
        h("div", { class: "waiting-call" }, line(name, { class: "name" }), " ", line(id, { class: "id" })),
      ),
      turn?.error && reasonElement(turn.error, turn.state),
    ),
  );
}

/** Reports whether a change may add, change or remove a turn. */
export function isChangeOfTurns({ kind, payload }: ConversationChange): boolean {
  if (payload?.$case === "turnEvent") {
    const step = payload.value.event?.$case;
    return step === "started" || step === "finished" || step === "queued";
  }
  return (
    kind === ChangeKind.CHANGE_KIND_DELETED ||
    kind === ChangeKind.CHANGE_KIND_EXPIRED ||
    kind === ChangeKind.CHANGE_KIND_EVICTED ||
    kind === ChangeKind.CHANGE_KIND_CLEARED
  );
}

customElements.define("parley-turns", TurnsView);
