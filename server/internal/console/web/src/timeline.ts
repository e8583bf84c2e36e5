import {
  type ConversationChange,
  ParleyError,
  type Turn,
  type TurnEvent,
  TurnState,
} from "@parleyhq/client/web";

import { button, type Child, fill, h, nameCells } from "./dom.js";
import { bytes, count } from "./format.js";
import { jsonTree } from "./json-tree.js";
import { argumentsElement, contents, folded } from "./message.js";
import { format } from "./route.js";
import { block, cut, line, visible } from "./text.js";
import {
  createdElement,
  durationElement,
  reasonElement,
  stateBadge,
  table,
  tickDurations,
  took,
} from "./turn-row.js";
import { coalesced, View } from "./view.js";
import { isPiece } from "./view-settings.js";

/** Text above this length is shown in a block of its own, in UTF-16 units. */
const longText = 20_000;

/** The most rows of a timeline. Older ones are removed while newer ones come. */
const maxRows = 2000;

/** The most text of a row, in UTF-16 units: the rest of a longer text is left out. */
const maxRowText = 100_000;

/** The newest events whose times are remembered. The times that a row shows stay. */
const maxTimes = 10_000;

const columns = ["Index", "Kind", "Time", "Contents"] as const;

/** The events of one turn, as they come. */
export class TimelineView extends View {
  readonly #head = h("div", { class: "timeline-head" });
  readonly #note = h(
    "p",
    { class: "hint timeline-note", hidden: true },
    "Events without a time were sent before the page opened this turn, or while it was hidden. The API replays them without times.",
  );
  readonly #removed = h("p", { class: "hint timeline-removed", hidden: true });
  readonly #problem = h("div");
  readonly #table = table("Events of the turn", columns, {
    Time: "Since the creation of the turn, by the clock of the server",
  });
  /** The times of events that the feed has sent while the view is open, by their indexes. */
  readonly #times = new Map<number, Date>();
  /** The index of the first event that had a time. */
  #firstTimed: number | undefined;
  #rows: EventRow[] = [];
  #removedRows = 0;
  #turn: Turn | undefined;

  protected show(): void {
    fill(this, this.#head, this.#note, this.#removed, this.#problem, this.#table.element);
    this.context.feed.onChange((change) => {
      this.#noteTime(change);
      if (change.conversationId === this.route.id && !isPiece(change)) {
        this.#checkSoon(); // It may be a result.
      }
    }, this.signal);
    this.context.feed.onGap(this.#checkSoon, this.signal);
    this.everySecond(() => tickDurations(this));
    void this.run(this.#problem, async () => {
      this.#rows = [];
      this.#removedRows = 0;
      this.#removed.hidden = true;
      this.#table.element.hidden = false;
      fill(this.#table.rows);
      fill(this.#problem);
      await this.#follow();
    });
  }

  async #follow(): Promise<void> {
    const request = { conversationId: this.route.id!, turnId: this.route.turn! };
    const options = { signal: this.signal };
    try {
      this.#showTurn((await this.session.client.getTurn(request, options)).turn!);
      for await (const event of this.session.client.resumeTurn(request, options)) {
        this.#add(event);
        const step = event.event;
        if (step?.$case === "finished" && step.value.turn) {
          this.#showTurn(step.value.turn);
        } else if (step?.$case === "started" && this.#turn?.state === TurnState.TURN_STATE_QUEUED) {
          this.#showTurn({ ...this.#turn, state: TurnState.TURN_STATE_RUNNING });
        }
      }
    } catch (error) {
      if (!(error instanceof ParleyError && error.code === "NOT_FOUND")) {
        throw error;
      }
      if (!(await this.#openOrigin(request.turnId))) {
        this.#table.element.hidden = true;
        fill(this.#problem, h("p", { class: "hint" }, "This turn does not exist or is no longer kept."));
      }
    }
  }

  /** Opens the turn in another conversation that has it: the messages of a fork have the turns of its origin. */
  async #openOrigin(turnId: string): Promise<boolean> {
    try {
      const { turn } = await this.session.client.getTurn({ turnId }, { signal: this.signal });
      if (turn!.conversationId === this.route.id) {
        return false;
      }
      location.replace(format({ ...this.route, id: turn!.conversationId }));
      return true;
    } catch (error) {
      // A turn of an earlier version of the server is not found without its conversation.
      if (error instanceof ParleyError && (error.code === "NOT_FOUND" || error.code === "INVALID_ARGUMENT")) {
        return false;
      }
      throw error;
    }
  }

  readonly #checkSoon = coalesced(() => this.#check(), 16, 100);

  /** Finds out whether the turn waited for results and has them. */
  async #check(): Promise<void> {
    const turn = this.#turn;
    if (turn && !this.context.answered.has(turn)) {
      await this.context.answered.check([turn], this.signal, () => this.#showTurn(turn));
    }
  }

  #showTurn(turn: Turn): void {
    this.#turn = turn;
    const { answered } = this.context;
    if (!answered.has(turn)) {
      this.#checkSoon();
    }
    const { id, state, agent, error, inputSequence, requestId } = turn;
    const first = this.context.times.firstPiece(turn);
    fill(
      this.#head,
      h("h2", {}, "Turn ", line(id, { class: "id" }), " ", stateBadge(state, answered.has(turn))),
      h(
        "p",
        { class: "facts" },
        "agent ",
        line(agent),
        ` · answers message ${inputSequence} · created `,
        createdElement(turn),
        " · first piece ",
        h(
          "span",
          {
            class: "first-piece",
            title: first === undefined ? "Known if the turn started while the page was open" : undefined,
          },
          first === undefined ? "—" : `after ${took(first)}`,
        ),
        turn.finishTime ? " · ended after " : " · open for ",
        durationElement(turn),
        requestId !== "" && [" · request ", line(requestId, { class: "id" })],
      ),
      error && reasonElement(error, state),
      state === TurnState.TURN_STATE_INPUT_REQUIRED &&
        !answered.has(turn) &&
        this.session.mayWrite &&
        h(
          "p",
          {},
          h(
            "a",
            { class: "answer-link", href: format({ ...this.route, tab: "messages", turn: "" }) },
            "Answer in Messages",
          ),
        ),
      !turn.finishTime &&
        this.session.mayWrite &&
        button(
          "Cancel",
          () =>
            void this.run(this.#problem, async () => {
              await this.session.client.cancelTurn({ conversationId: this.route.id!, turnId: id });
              fill(this.#problem);
            }),
        ),
    );
  }

  #add(event: TurnEvent): void {
    const last = this.#rows.at(-1);
    if (last?.add(event)) {
      this.#showTime(last);
      return;
    }
    const row = new EventRow(event, (last?.last ?? 0) + 1);
    this.#rows.push(row);
    this.#table.rows.append(row.element);
    this.#limitRows();
    this.#showTime(row);
  }

  /** Removes the oldest row if there are too many, and says so. */
  #limitRows(): void {
    if (this.#rows.length > maxRows) {
      this.#rows.shift()!.element.remove();
      this.#removedRows++;
      const { after } = this.#rows[0]!;
      this.#removed.hidden = false;
      this.#removed.textContent =
        `The newest ${count(maxRows, "row")} are shown. ` +
        `${count(this.#removedRows, "older row")} with the events before ${after} ${this.#removedRows === 1 ? "is" : "are"} left out.`;
    }
  }

  /** Notes when the server has sent an event. The event itself comes over another stream, before or after this. */
  #noteTime({ payload, time }: ConversationChange): void {
    if (payload?.$case !== "turnEvent" || payload.value.turnId !== this.route.turn || !time) {
      return;
    }
    const { index } = payload.value;
    this.#times.set(index, time);
    this.#firstTimed = Math.min(index, this.#firstTimed ?? index);
    const oldest = this.#times.keys().next().value;
    if (this.#times.size > maxTimes && oldest !== undefined) {
      this.#times.delete(oldest);
    }
    const row = this.#rows.findLast(({ after, last }) => after <= index && index <= last);
    if (row) {
      this.#showTime(row);
    }
    if (
      this.#turn &&
      !this.#turn.finishTime &&
      !this.#head.querySelector(".first-piece")?.textContent?.includes("after")
    ) {
      const first = this.context.times.firstPiece(this.#turn);
      if (first !== undefined) {
        const element = this.#head.querySelector(".first-piece")!;
        fill(element, `after ${took(first)}`);
        element.removeAttribute("title");
      }
    }
  }

  #showTime(row: EventRow): void {
    const created = this.#turn?.createTime?.getTime();
    if (created !== undefined) {
      row.showTime(this.#times, this.#firstTimed, created);
    }
    this.#note.hidden = !this.#rows.some(({ hasTime }) => !hasTime);
  }
}

/** A row of the timeline: one event, or deltas of one kind that follow one another. */
class EventRow {
  readonly element: HTMLElement;
  /** The first index that the row may have: those between are of merged deltas. */
  readonly after: number;
  last: number;
  hasTime = false;
  readonly #key: string;
  readonly #index = h("td", { class: "index" });
  readonly #time = h("td", { class: "time" });
  readonly #text = h("div", { class: "content", dir: "auto" });
  readonly #facts = h("span", { class: "facts" });
  #count = 0;
  #size = 0;
  #length = 0;
  #firstTime: Date | undefined;

  constructor(event: TurnEvent, after: number) {
    this.after = after;
    this.last = event.index;
    this.#key = keyOf(event);
    const kind = event.event?.$case ?? "unknown";
    this.element = h(
      "tr",
      { class: `turn-event ${kind}`, "data-index": event.index },
      this.#index,
      h("td", { class: "kind" }, names[kind]),
      this.#time,
      h("td", { class: "contents" }, this.#key === "" ? eventContents(event) : [this.#facts, this.#text]),
    );
    nameCells(this.element, columns);
    this.#note(event);
  }

  /** Adds another delta of the same text. Returns false if the event is none. */
  add(event: TurnEvent): boolean {
    if (this.#key === "" || keyOf(event) !== this.#key) {
      return false;
    }
    this.#note(event);
    return true;
  }

  /** Shows when the events of the row were sent. firstTimed is the index of the first event that had a time. */
  showTime(times: ReadonlyMap<number, Date>, firstTimed: number | undefined, created: number): void {
    for (let index = this.#firstTime ? this.last : this.after; index <= this.last; index++) {
      this.#firstTime ??= times.get(index);
    }
    if (!this.#firstTime) {
      return;
    }
    this.hasTime = true;
    const from = seconds(this.#firstTime.getTime() - created);
    const to = seconds((times.get(this.last) ?? this.#firstTime).getTime() - created);
    if ((firstTimed ?? this.after) > this.after) {
      this.#time.textContent = `until ${to}`; // Its first pieces were replayed.
    } else {
      this.#time.textContent = from === to ? from : `${from} to ${to}`;
    }
  }

  #note(event: TurnEvent): void {
    this.#count++;
    this.last = event.index;
    if (this.#key === "") {
      this.#index.textContent = String(this.last);
      return;
    }
    this.#index.textContent = this.after === this.last ? String(this.last) : `${this.after}–${this.last}`;
    const text = deltaText(event);
    this.#size += new TextEncoder().encode(text).length;
    const left = maxRowText - this.#length;
    this.#length += text.length;
    if (left > 0) {
      const shown = cut(text, 0, left);
      this.#text.append(...(shown.length > longText ? [block(shown)] : (visible(shown) as Node[])));
    }
    // The server merges the deltas that wait for a reader, and does not say how many they are.
    const isMerged = this.#count < this.last - this.after + 1;
    const size = this.#size > 0 ? `, ${bytes(this.#size)}` : "";
    fill(
      this.#facts,
      deltaName(event),
      `${isMerged ? "merged events" : count(this.#count, "event")}${size}`,
      this.#length > maxRowText &&
        `. The first ${count(maxRowText, "character")} are shown, and the rest is left out.`,
    );
  }
}

/** Returns a time after the creation of the turn, to the millisecond: rows are compared with one another. */
function seconds(milliseconds: number): string {
  return `+${(Math.max(0, milliseconds) / 1000).toFixed(3)} s`;
}

/** Returns what the deltas of one text have in common; empty if the event is no delta. */
function keyOf({ event }: TurnEvent): string {
  switch (event?.$case) {
    case "textDelta":
    case "reasoningDelta":
      return event.$case;
    case "toolCallDelta":
      return `call ${event.value.index} ${event.value.id}`;
    case "progress":
      return event.value.text === "" ? "progress" : "";
    default:
      return "";
  }
}

function deltaText({ event }: TurnEvent): string {
  switch (event?.$case) {
    case "textDelta":
    case "reasoningDelta":
      return event.value.text;
    case "toolCallDelta":
      return event.value.arguments;
    default:
      return "";
  }
}

function deltaName({ event }: TurnEvent): Child {
  switch (event?.$case) {
    case "toolCallDelta":
      return [line(event.value.name, { class: "name" }), " ", line(event.value.id, { class: "id" }), " · "];
    case "progress":
      return "progress without text · ";
    default:
      return null;
  }
}

/** The names of the kinds of event. */
const names: { readonly [kind in NonNullable<TurnEvent["event"]>["$case"] | "unknown"]: string } = {
  started: "started",
  textDelta: "text",
  reasoningDelta: "reasoning",
  structuredData: "data",
  toolCall: "tool call",
  toolCallDelta: "tool call, in pieces",
  toolResult: "tool result",
  answerStarted: "next message",
  queued: "queued",
  progress: "progress",
  record: "record",
  finished: "finished",
  unknown: "unknown",
};

/** Returns what an event that is no delta contains. */
function eventContents({ event }: TurnEvent): Child {
  switch (event?.$case) {
    case "started": {
      const { agent, historyCount, created, userMessage } = event.value;
      return [
        h("p", {}, "agent ", line(agent), ` · gets ${count(historyCount, "message")} before this one`),
        created && h("p", {}, "created the conversation"),
        userMessage && contents(userMessage),
      ];
    }
    case "structuredData":
      return [h("span", { class: "badge" }, line(event.value.type)), jsonTree(event.value.value)];
    case "toolCall": {
      const { id, name } = event.value;
      return [
        h("p", {}, "calls ", line(name, { class: "name" }), " ", line(id, { class: "id" })),
        argumentsElement(event.value.arguments),
      ];
    }
    case "toolResult": {
      const { name, callId, content, isError } = event.value;
      return [
        h(
          "p",
          { class: isError ? "tool-result error" : "tool-result" },
          isError ? "error of " : "result of ",
          line(name || "a tool"),
          " ",
          line(callId, { class: "id" }),
        ),
        block(content, { class: "content" }),
      ];
    }
    case "answerStarted":
      return ["agent ", line(event.value.agent)];
    case "queued":
      return `position ${event.value.position}`;
    case "progress":
      return block(event.value.text, { class: "content" });
    case "record": {
      const { key, deleted, tenantScope } = event.value;
      return [deleted ? "deletes " : "writes ", line(key), tenantScope && " of the tenant"];
    }
    case "finished": {
      const { turn, messages, conversationVersion } = event.value;
      return [
        h(
          "p",
          {},
          turn && [stateBadge(turn.state), " "],
          `${count(messages.length, "message")} kept · version ${conversationVersion}`,
        ),
        turn?.error && reasonElement(turn.error, turn.state),
        messages.map((message) =>
          folded(`Message ${message.sequence}`, () => h("div", {}, contents(message))),
        ),
      ];
    }
    default:
      return "This page does not know this kind of event.";
  }
}

customElements.define("parley-timeline", TimelineView);
