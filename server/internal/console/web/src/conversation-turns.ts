import { ParleyError, type Turn } from "@parleyhq/client/web";

import { arrange, fill, h, nameCells } from "./dom.js";
import { format } from "./route.js";
import { line } from "./text.js";
import { TimelineView } from "./timeline.js";
import {
  createdElement,
  durationElement,
  eventsLink,
  moreTurns,
  reasonElement,
  TurnList,
  table,
  tickDurations,
  took,
} from "./turn-row.js";
import { isChangeOfTurns } from "./turns.js";
import { coalesced, View } from "./view.js";
import { isPiece } from "./view-settings.js";

const columns = ["State", "Agent", "Created", "To first piece", "To the end", "Reason"] as const;

/** The turns of one conversation, or the events of one of them. */
export class ConversationTurnsView extends View {
  readonly #status = h("p", { class: "list-status", role: "status" }, "Loading…");
  readonly #more = h("p", { class: "more" });
  readonly #table = table("Turns of the conversation", columns, {
    "To first piece": "From the creation of the turn; known for turns that started while the page was open",
    "To the end": "From the creation of the turn",
  });
  readonly #list = new TurnList((pageSize, pageToken) =>
    this.session.client.listTurns(
      { conversationId: this.route.id!, pageSize, pageToken },
      { signal: this.signal },
    ),
  );
  readonly #shown = new Map<string, { readonly element: HTMLElement; readonly key: string }>();

  protected show(): void {
    if (this.route.turn) {
      fill(
        this,
        h("p", {}, h("a", { class: "all-turns", href: format({ ...this.route, turn: "" }) }, "← All turns")),
        new TimelineView(this.context, this.route),
      );
      return;
    }
    fill(this, this.#status, this.#table.element, this.#more);
    this.everySecond(() => tickDurations(this));
    this.context.feed.onChange((change) => {
      if (change.conversationId !== this.route.id) {
        return;
      }
      if (isChangeOfTurns(change)) {
        this.#reloadSoon();
      } else {
        this.#drawSoon(); // It may be the first piece.
        if (!isPiece(change)) {
          this.#checkSoon(); // It may be a result.
        }
      }
    }, this.signal);
    this.context.feed.onGap(this.#reloadSoon, this.signal);
    this.#reloadSoon();
  }

  readonly #reloadSoon = coalesced(() => this.#reload());
  readonly #drawSoon = coalesced(() => this.#draw());
  readonly #checkSoon = coalesced(() => this.#check(), 16, 100);

  /** Finds out which of the turns that waited for results have them. */
  #check(): Promise<void> {
    return this.context.answered.check(this.#list.turns, this.signal, this.#drawSoon);
  }

  async #reload(): Promise<void> {
    if (this.signal.aborted) {
      return;
    }
    await this.run(this.#status, async () => {
      try {
        await this.#list.load();
      } catch (error) {
        if (!(error instanceof ParleyError && error.code === "NOT_FOUND")) {
          throw error;
        }
        this.#list.turns = []; // The head of the conversation says that it does not exist.
      }
      fill(this.#status, this.#list.turns.length === 0 && "No turns yet.");
      fill(
        this.#more,
        moreTurns(this.#list, () => {
          this.#list.more();
          this.#reloadSoon();
        }),
      );
      this.#draw();
      this.#checkSoon();
    });
  }

  #draw(): void {
    const { times, answered } = this.context;
    const wanted = this.#list.turns.map((turn) => {
      const parts = [turn.state, turn.agent, turn.finishTime?.getTime(), times.firstPiece(turn)];
      const key = [...parts, answered.has(turn)].join();
      const shown = this.#shown.get(turn.id);
      const element = shown?.key === key ? shown.element : this.#row(turn);
      this.#shown.set(turn.id, { element, key });
      return element;
    });
    const ids = new Set(this.#list.turns.map(({ id }) => id));
    for (const id of this.#shown.keys()) {
      if (!ids.has(id)) {
        this.#shown.delete(id);
      }
    }
    arrange(this.#table.rows, wanted);
  }

  #row(turn: Turn): HTMLElement {
    const first = this.context.times.firstPiece(turn);
    const row = h(
      "tr",
      { class: "turn", "data-turn": turn.id },
      h(
        "td",
        {},
        eventsLink(turn, format({ ...this.route, turn: turn.id }), this.context.answered.has(turn)),
      ),
      h("td", { class: "agent-cell" }, line(turn.agent, { class: "agent" })),
      h("td", {}, createdElement(turn)),
      h("td", { class: "first-piece" }, first === undefined ? "—" : took(first)),
      h("td", {}, durationElement(turn)),
      h("td", { class: "why" }, turn.error && reasonElement(turn.error, turn.state)),
    );
    return nameCells(row, columns);
  }
}

customElements.define("parley-conversation-turns", ConversationTurnsView);
