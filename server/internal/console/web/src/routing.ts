import { type ActiveAgent, ParleyError, type RoutingSummary } from "@parleyhq/client/web";

import { attempt } from "./conversation-actions.js";
import { arrange, button, type Child, fill, h, nameCells } from "./dom.js";
import { clock, count, enumName, until } from "./format.js";
import { jsonTree, type Unfolded, unfoldedOnce } from "./json-tree.js";
import { argumentsElement, contents } from "./message.js";
import { messageHead } from "./message-head.js";
import { rewrite } from "./route.js";
import { block, line } from "./text.js";
import { coalesced, View } from "./view.js";
import { isPiece, numberField, setNumber } from "./view-settings.js";

/**
 * The time between reads after the end of a lease, in milliseconds. If the clock of the user is later than that of the
 * server, the lease has not ended yet.
 */
const endInterval = 10_000;

/** What a coordinator gets to choose the agent for the next message, and the lease that it sets. */
export class RoutingView extends View {
  readonly #query = new URLSearchParams(this.route.query);
  readonly #problem = h("div");
  readonly #lease = h("section", { class: "lease", "aria-label": "Routing lease" });
  readonly #summary = h("div", { class: "summary" });
  readonly #json = h("details", { class: "folded reply-json" }, h("summary", {}, "The reply as JSON"));
  readonly #tree = h("div");
  readonly #end = button("End the lease", () =>
    attempt(async () => {
      await this.session.client.setActiveAgent({ conversationId: this.route.id!, agent: "" });
    }),
  );
  /** What the user has unfolded of the reply, and of the referenced data. */
  readonly #unfolded = unfoldedOnce();
  readonly #unfoldedData: Unfolded = new Map();
  /** The parts that are shown, by what they show. */
  #shown = new Map<string, HTMLElement>();
  #active: ActiveAgent | undefined;
  #endReadAt = 0;

  protected show(): void {
    this.#json.append(this.#tree);
    this.#json.addEventListener("toggle", () => void this.#readJson(), { signal: this.signal });
    fill(
      this,
      h("p", { class: "hint" }, "What a coordinator gets from GetRoutingSummary with these limits."),
      this.#settings(),
      this.#problem,
      this.#summary,
      this.#json,
      this.#lease,
      this.session.mayWrite && this.#leaseForm(),
    );
    this.context.feed.onChange((change) => {
      if (change.conversationId === this.route.id && !isPiece(change)) {
        this.#reloadSoon();
      }
    }, this.signal);
    this.context.feed.onGap(this.#reloadSoon, this.signal);
    this.everySecond(() => this.#tick());
    this.#reloadSoon();
  }

  /** The recent messages to ask for; undefined leaves it to the server. */
  get #limit(): number | undefined {
    const text = this.#query.get("limit");
    return text === null ? undefined : Number(text);
  }

  get #maxBytes(): number {
    return Number(this.#query.get("bytes") ?? 0);
  }

  #settings(): HTMLElement {
    const set = (name: string, value: string) => {
      setNumber(this.#query, name, value);
      rewrite({ ...this.route, query: this.#query });
      this.#reloadSoon();
    };
    return h(
      "form",
      {
        class: "window-settings",
        "aria-label": "Settings of the summary",
        onsubmit: (event) => event.preventDefault(),
      },
      numberField("message_limit", this.#query.get("limit") ?? "", "3", 20, (value) => set("limit", value)),
      numberField("max_bytes", this.#query.get("bytes") ?? "", "no limit", 2 ** 31 - 1, (value) =>
        set("bytes", value),
      ),
    );
  }

  readonly #reloadSoon = coalesced(() => this.#reload());

  async #reload(): Promise<void> {
    if (this.signal.aborted) {
      return;
    }
    await this.run(this.#problem, async () => {
      try {
        const { summary } = await this.session.client.getRoutingSummary(
          { conversationId: this.route.id!, messageLimit: this.#limit, maxBytes: this.#maxBytes },
          { signal: this.signal },
        );
        fill(this.#problem);
        this.#showLease(summary!.activeAgent);
        this.#showSummary(summary!);
        await this.#readJson();
      } catch (error) {
        if (!(error instanceof ParleyError && error.code === "NOT_FOUND")) {
          throw error;
        }
        fill(this.#problem); // The head of the conversation says so.
        fill(this.#lease);
        fill(this.#summary);
        this.#shown.clear();
      }
    });
  }

  /** Reads the reply as the HTTP API sends it, if it is open. */
  async #readJson(): Promise<void> {
    if (!this.#json.open) {
      return;
    }
    await this.run(this.#tree, async () => {
      const limit = this.#limit === undefined ? "" : `&messageLimit=${this.#limit}`;
      const id = encodeURIComponent(this.route.id!);
      const path = `/v1/conversations/${id}/routing-summary?maxBytes=${this.#maxBytes}${limit}`;
      const reply = JSON.parse(await this.session.read(path, this.signal));
      fill(this.#tree, jsonTree(reply, undefined, this.#unfolded));
    });
  }

  /** Updates the summary in place: parts that are as before stay, with what the user has unfolded and the focus. */
  #showSummary(summary: RoutingSummary): void {
    const shown = new Map<string, HTMLElement>();
    const keep = (key: string, make: () => HTMLElement) => {
      const element = this.#shown.get(key) ?? make();
      shown.set(key, element);
      return element;
    };
    arrange(this.#summary, summaryParts(summary, keep, this.#unfoldedData));
    this.#shown = shown;
  }

  #showLease(active: ActiveAgent | undefined): void {
    this.#active = active;
    this.#end.disabled = !active;
    if (!active) {
      fill(this.#lease, h("h2", {}, "Lease"), h("p", { class: "hint" }, "No agent holds the lease."));
      return;
    }
    const { agent, reason, startTime } = active;
    fill(
      this.#lease,
      h("h2", {}, "Lease"),
      h(
        "p",
        {},
        line(agent, { class: "agent" }),
        " · since ",
        h("time", { title: clock(startTime) }, clock(startTime).slice(0, 19)),
        " · ",
        h("span", { class: "lease-end" }),
      ),
      reason !== "" && h("p", { class: "lease-reason" }, "reason: ", line(reason)),
    );
    this.#tick();
  }

  #tick(): void {
    const element = this.#lease.querySelector(".lease-end");
    if (!element || !this.#active) {
      return;
    }
    const end = this.#active.leaseExpireTime;
    element.textContent = end ? `ends ${until(end)}` : "ends with the conversation";
    const now = Date.now();
    if (end && end.getTime() <= now && now - this.#endReadAt >= endInterval) {
      this.#endReadAt = now;
      this.#reloadSoon(); // The end of a lease does not change the conversation.
    }
  }

  #leaseForm(): HTMLElement {
    const { client } = this.session;
    const conversationId = this.route.id!;
    const names = h("datalist", { id: "lease-agents" });
    void client.listAgents({}, { signal: this.signal }).then(
      ({ agents }) =>
        fill(
          names,
          agents.map(({ name }) => h("option", { value: name })),
        ),
      () => {}, // The user can write the name, which need not be that of an agent of this server.
    );
    const agent = h("input", {
      type: "text",
      list: "lease-agents",
      required: true,
      maxlength: 128,
      autocomplete: "off",
    });
    const reason = h("input", { type: "text", maxlength: 1024, autocomplete: "off" });
    const minutes = h("input", {
      type: "number",
      min: "0.1",
      max: 366 * 24 * 60,
      step: "any",
      placeholder: "no end",
    });
    const set = h("button", { type: "submit" }, "Set the lease");
    return h(
      "form",
      {
        class: "lease-form window-settings",
        "aria-label": "Change the lease",
        onsubmit: async (event) => {
          event.preventDefault();
          set.disabled = true;
          await attempt(async () => {
            const milliseconds = Math.round(Number(minutes.value) * 60_000);
            await client.setActiveAgent({
              conversationId,
              agent: agent.value.trim(),
              reason: reason.value,
              leaseDuration: milliseconds
                ? { seconds: Math.floor(milliseconds / 1000), nanos: (milliseconds % 1000) * 1_000_000 }
                : undefined,
            });
          });
          set.disabled = false;
        },
      },
      h("label", {}, "Agent", agent),
      h("label", {}, "Reason", reason),
      h("label", {}, "Minutes", minutes),
      names,
      h("div", { class: "actions" }, set, this.#end),
    );
  }
}

/** Returns the element that is shown for a key, or makes it. */
type Keep = (key: string, make: () => HTMLElement) => HTMLElement;

function summaryParts(summary: RoutingSummary, keep: Keep, unfolded: Unfolded): HTMLElement[] {
  /** Returns a part of the summary with its heading. */
  const part = (name: string, label: string, children: readonly HTMLElement[]) => {
    const section = keep(`part ${name}`, () =>
      h("section", { class: `summary-part ${name}`, "aria-label": label }, h("h2", {}, label)),
    );
    const heading = section.firstElementChild as HTMLElement;
    arrange(section, [heading, ...(children.length > 0 ? children : [h("p", { class: "hint" }, "None")])]);
    return section;
  };
  const { text, truncated, version, awaitingAnswer, activeTurnId, messageCount, lastSequence, expireTime } =
    summary;
  return [
    part("text", "Text", text === "" ? [] : [block(text, { class: "content" })]),
    h(
      "p",
      { class: "facts summary-facts" },
      `version ${version} · ${count(messageCount, "message")} · last sequence ${lastSequence}`,
      expireTime && ` · expires ${clock(expireTime).slice(0, 19)}`,
      " ",
      h(
        "span",
        { class: awaitingAnswer ? "badge warning" : "badge" },
        `awaiting answer: ${awaitingAnswer ? "yes" : "no"}`,
      ),
      activeTurnId !== "" && [
        " ",
        h("span", { class: "badge running" }, "turn "),
        " ",
        line(activeTurnId, { class: "id" }),
      ],
      truncated && [" ", h("span", { class: "badge warning" }, "truncated")],
    ),
    part(
      "pending-calls",
      "Pending tool calls",
      summary.pendingToolCalls.map((call, index) =>
        keep(`call ${index} ${JSON.stringify(call)}`, () =>
          h(
            "div",
            { class: "tool-call open" },
            h("p", {}, line(call.name, { class: "name" }), " ", line(call.id, { class: "id" })),
            argumentsElement(call.arguments),
          ),
        ),
      ),
    ),
    part("data-types", "Types of structured data", typesTable(summary)),
    part(
      "referenced-data",
      "Referenced data",
      summary.referencedData.map((referenced, index) =>
        keep(`data ${index} ${JSON.stringify(referenced)}`, () => {
          const { sequence, agent, data } = referenced;
          return h(
            "div",
            { class: "data" },
            h("span", { class: "badge" }, line(data?.type ?? "")),
            ` #${sequence} `,
            line(agent, { class: "agent" }),
            jsonTree(data?.value, undefined, unfolded, `${index} ${data?.type}`),
          );
        }),
      ),
    ),
    part("recent-agents", "Recent agents", agentsTable(summary)),
    part(
      "recent-messages",
      "Recent messages",
      summary.recentMessages.map((message) =>
        keep(`message ${JSON.stringify(message)}`, () =>
          h(
            "article",
            { class: `message ${enumName(message.role, "ROLE_")}`, "data-sequence": message.sequence },
            messageHead(message),
            contents(message),
          ),
        ),
      ),
    ),
  ];
}

function typesTable({ structuredDataTypes }: RoutingSummary): HTMLElement[] {
  return rows(
    ["Type", "Values", "Last sequence", "Last agent"],
    structuredDataTypes.map(({ type, count, lastSequence, lastAgent }) => [
      line(type),
      count,
      lastSequence,
      line(lastAgent),
    ]),
  );
}

function agentsTable({ recentAgents }: RoutingSummary): HTMLElement[] {
  return rows(
    ["Agent", "Last sequence", "Time"],
    recentAgents.map(({ agent, lastSequence, lastTime }) => [
      line(agent),
      lastSequence,
      clock(lastTime).slice(0, 19),
    ]),
  );
}

function rows(columns: readonly string[], cells: readonly (readonly Child[])[]): HTMLElement[] {
  return cells.length === 0
    ? []
    : [
        h(
          "div",
          { class: "wide" },
          h(
            "table",
            { class: "cards" },
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                columns.map((name) => h("th", { scope: "col" }, name)),
              ),
            ),
            h(
              "tbody",
              {},
              cells.map((row) =>
                nameCells(
                  h(
                    "tr",
                    {},
                    row.map((cell) => h("td", {}, cell)),
                  ),
                  columns,
                ),
              ),
            ),
          ),
        ),
      ];
}

customElements.define("parley-routing", RoutingView);
