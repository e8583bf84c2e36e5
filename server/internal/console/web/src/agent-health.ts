import { type AgentInfo, ChangeKind, type Turn, TurnState } from "@parleyhq/client/web";

import { type Child, fill, h, nameCells } from "./dom.js";
import { ago, clock, count, enumName } from "./format.js";
import { format } from "./route.js";
import { line } from "./text.js";
import { View } from "./view.js";

/** The number of turns from which the health of the agents is derived. */
const turnCount = 100;

/** Pages that are read to find them. A page may have fewer turns than it could, or none. */
const pageCount = 5;

/** How long the view waits after a turn has ended until it reads the turns again, in milliseconds. */
const readDelay = 2000;

/** The agents of the server. The API has no health of agents, so it is that of the newest turns of the tenant. */
export class AgentsView extends View {
  readonly #place = h("div");

  protected show(): void {
    fill(this, h("h2", {}, "Agents"), this.#place);
    fill(this.#place, h("p", { class: "hint" }, "Loading…"));
    const read = () => void this.run(this.#place, () => this.#read());
    let timer: ReturnType<typeof setTimeout> | undefined;
    const later = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        if (this.#place.contains(document.activeElement)) {
          later(); // A new table would lose the focus.
        } else {
          read();
        }
      }, readDelay);
    };
    this.signal.addEventListener("abort", () => clearTimeout(timer));
    this.context.feed.onChange(({ kind, payload }) => {
      const event = payload?.$case === "turnEvent" ? payload.value.event?.$case : undefined;
      if (kind === ChangeKind.CHANGE_KIND_TURN && event === "finished") {
        later();
      }
    }, this.signal);
    this.context.feed.onGap(read, this.signal);
    this.everySecond(() => {
      for (const element of this.querySelectorAll<HTMLElement>("[data-time]")) {
        element.textContent = ago(new Date(Number(element.dataset["time"])));
      }
    });
    read();
  }

  async #read(): Promise<void> {
    const { client } = this.session;
    const { signal } = this;
    const [{ agents }, turns] = await Promise.all([client.listAgents({}, { signal }), this.#readTurns()]);
    fill(
      this.#place,
      h(
        "div",
        { class: "wide", tabindex: "0", role: "group", "aria-label": "Agents" },
        h(
          "table",
          { class: "agents cards" },
          h("thead", {}, h("tr", {}, columns.map(heading))),
          h(
            "tbody",
            {},
            agents.map((agent) => nameCells(row(agent, turns), columns)),
          ),
        ),
      ),
      h(
        "p",
        { class: "hint" },
        turns.length > 0
          ? `The last three columns are from the newest ${count(turns.length, "turn")} of this tenant. The page does not call agents to check them.`
          : "This tenant has no turns yet, so the health of the agents is not known.",
      ),
    );
  }

  async #readTurns(): Promise<Turn[]> {
    const turns: Turn[] = [];
    let pageToken = "";
    for (let page = 0; page < pageCount && turns.length < turnCount; page++) {
      const reply = await this.session.client.listTurns(
        { pageSize: turnCount - turns.length, pageToken },
        { signal: this.signal },
      );
      turns.push(...reply.turns);
      pageToken = reply.nextPageToken;
      if (!pageToken) {
        break;
      }
    }
    return turns;
  }
}

const columns = ["Agent", "Kind", "Description", "Last turn", "Failed", "Last error"] as const;

function heading(name: string): HTMLElement {
  return h("th", { scope: "col" }, name);
}

/** Returns the row of an agent. turns are newest first, of all agents. */
function row({ name, kind, description, isDefault }: AgentInfo, turns: readonly Turn[]): HTMLElement {
  const own = turns.filter(({ agent }) => agent === name);
  const ended = own.filter(({ finishTime }) => finishTime);
  const failed = ended.filter(({ state }) => state === TurnState.TURN_STATE_FAILED);
  const share = ended.length > 0 ? Math.round((failed.length / ended.length) * 100) : 0;
  return h(
    "tr",
    { "data-agent": name },
    h("th", { scope: "row" }, line(name), isDefault && [" ", h("span", { class: "badge" }, "default")]),
    h("td", { class: "kind" }, line(kind)),
    h("td", {}, line(description)),
    h("td", { class: "last-turn" }, lastTurn(own[0])),
    h(
      "td",
      { class: failed.length > 0 ? "failures some" : "failures" },
      ended.length > 0 ? `${failed.length} of ${ended.length} (${share} %)` : "–",
    ),
    h(
      "td",
      { class: "last-error" },
      lastError(own.find(({ error, state }) => error && state !== TurnState.TURN_STATE_CANCELLED)),
    ),
  );
}

function lastTurn(turn: Turn | undefined): Child {
  if (!turn) {
    return "no turns";
  }
  const { id, conversationId, state, createTime, finishTime } = turn;
  const time = finishTime ?? createTime;
  return [
    h(
      "a",
      {
        class: `badge state ${state === TurnState.TURN_STATE_FAILED ? "error" : ""}`,
        href: format({ view: "conversations", id: conversationId, tab: "turns", turn: id }),
      },
      enumName(state, "TURN_STATE_"),
    ),
    " ",
    h("span", { "data-time": time?.getTime(), title: clock(time) }, ago(time)),
  ];
}

function lastError(turn: Turn | undefined): Child {
  if (!turn?.error) {
    return "–";
  }
  const { reason, message } = turn.error;
  return [
    line(reason, { class: "reason" }),
    ": ",
    line(message.length > 300 ? `${message.slice(0, 300)}…` : message),
  ];
}

customElements.define("parley-agents", AgentsView);
