import type { GetStatsResponse } from "@parleyhq/client/web";

import { AgentsView } from "./agent-health.js";
import { type Child, fill, h } from "./dom.js";
import { bytes, clock, span } from "./format.js";
import { type Line, Plot } from "./plots.js";
import { type EndState, endStates } from "./samples.js";
import { counts, percents, rates, type Scale, sizes } from "./scales.js";
import { block, line } from "./text.js";
import { View } from "./view.js";

/** The lines of ended turns. */
const lineClasses: { readonly [state in EndState]: string } = {
  completed: "line-good",
  input_required: "line-1",
  failed: "line-bad",
  cancelled: "line-quiet",
  interrupted: "line-warn",
};

/** The server: its versions, statistics, metrics of the last hour, agents and settings. */
export class ServerView extends View {
  readonly #facts = h("dl", { class: "server-facts" });
  readonly #stats = h("div", { class: "server-stats" });
  readonly #scope = h("p", { class: "hint plot-scope" });
  readonly #problem = h("p", { class: "hint metrics-problem", role: "status" });
  #plots: Plot[] = [];

  protected show(): void {
    const { samples } = this.context;
    this.#plots = this.#newPlots();
    fill(
      this,
      h("h1", {}, "Server"),
      this.#facts,
      new AgentsView(this.context, this.route),
      h("h2", {}, "Last hour"),
      this.#scope,
      this.#problem,
      h(
        "div",
        { class: "plots" },
        this.#plots.map(({ element }) => element),
      ),
      h("h2", {}, "Statistics"),
      this.#stats,
      h("h2", {}, "Settings"),
      this.#settings(),
    );
    samples.onSample(() => this.#showSamples(), this.signal);
    this.#showSamples();
    this.everySecond(() => this.#tick());
  }

  #newPlots(): Plot[] {
    const one = (label: string, measure: Line["measure"], scale: Scale) =>
      new Plot(label, [{ measure, class: "line-1" }], scale, this.signal);
    return [
      one("Conversations", "conversations", counts),
      one("Messages", "messages", counts),
      one("Data", "bytes", sizes),
      one("Memory", "memory", sizes),
      one("Running turns", "turns", counts),
      one("Watchers", "watchers", counts),
      one("Calls per second", "calls", rates),
      one("Failed calls", "failed", percents),
      new Plot(
        "Ended turns per minute",
        endStates.map((state) => ({
          measure: `ended ${state}` as const,
          name: state.replace("_", " "),
          class: lineClasses[state],
        })),
        rates,
        this.signal,
      ),
    ];
  }

  #showSamples(): void {
    const { all, metricsProblem, statsProblem } = this.context.samples;
    this.#showFacts();
    this.#showStats();
    const measured = new Set(all.flatMap(({ values }) => Object.keys(values)));
    for (const plot of this.#plots) {
      const isKnown = plot.measures.some((measure) => measured.has(measure));
      plot.element.hidden = !isKnown;
      if (isKnown) {
        plot.show(all);
      }
    }
    setText(this.#scope, measured.size > 0 ? this.#scopeText(measured.has("calls")) : "");
    let problem = metricsProblem && `There are no metrics of calls and of ended turns. ${metricsProblem}`;
    if (measured.size === 0) {
      problem = metricsProblem && statsProblem ? `${statsProblem} ${metricsProblem}` : "Measuring…";
    }
    setText(this.#problem, problem);
  }

  #scopeText(hasMetrics: boolean): string {
    const { stats } = this.context.samples;
    const texts = ["The page measures every 10 s while it is visible, and keeps one hour."];
    if (!stats || stats.memoryBytes > 0) {
      texts.push("The numbers are those of the whole server.");
    } else if (hasMetrics) {
      texts.push(
        "Memory, calls and ended turns are those of the whole server. The other numbers are those of this tenant.",
      );
    } else {
      texts.push("The numbers are those of this tenant.");
    }
    if (hasMetrics) {
      texts.push("Calls that were cancelled by their caller do not count as failed.");
    }
    return texts.join(" ");
  }

  #showFacts(): void {
    const { stats } = this.context.samples;
    const { version, caller, signInRequired } = this.session;
    const now = stats?.version ?? version;
    const unknown = this.session.isAdmin ? "…" : "needs the role admin";
    const facts: [string, Child][] = [
      ["Server", line(now)],
      ["Console", [line(version), now !== version && " – reload the page to get that of the server"]],
      ["Started", stats?.startTime ? h("time", {}, clock(stats.startTime).slice(0, 19)) : unknown],
      ["Uptime", h("span", { class: "uptime" })],
      ["Store", stats ? line(stats.store) : unknown],
      [
        "You",
        signInRequired ? line(`${caller.name} · ${caller.role}`) : "sign-in is off; all callers are admin",
      ],
      ["Tenant", line(caller.tenant)],
    ];
    fill(
      this.#facts,
      facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    );
    this.#tick();
  }

  #tick(): void {
    const start = this.context.samples.stats?.startTime;
    const place = this.#facts.querySelector(".uptime");
    if (place) {
      place.textContent = start ? span(Math.floor((Date.now() - start.getTime()) / 1000) * 1000) : "–";
    }
  }

  #showStats(): void {
    const { stats, statsProblem } = this.context.samples;
    fill(
      this.#stats,
      statsProblem && h("p", { class: this.session.isAdmin ? "failure" : "hint" }, statsProblem),
      !stats && !statsProblem && h("p", { class: "hint" }, "Loading…"),
      stats &&
        h(
          "div",
          { class: "wide" },
          h(
            "table",
            { class: "stats" },
            h("caption", {}, stats.memoryBytes > 0 ? "The whole server" : "This tenant"),
            h(
              "tbody",
              {},
              rows(stats).map(([name, value]) =>
                h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)),
              ),
            ),
          ),
        ),
    );
  }

  /** Returns the settings, which are read when the user opens them, because they may change. */
  #settings(): HTMLElement {
    const { caller } = this.session;
    if (!this.session.isAdmin || !caller.allTenants) {
      return h("p", { class: "hint settings-refused" }, "The settings need the role admin for all tenants.");
    }
    const place = h("div");
    const details = h("details", { class: "settings" }, h("summary", {}, "Settings in effect"), place);
    details.addEventListener("toggle", () => {
      if (details.open) {
        void this.run(place, async () => {
          const text = await this.session.read("/console/settings", this.signal);
          fill(place, block(text, { class: "settings-text" }));
        });
      }
    });
    return details;
  }
}

/** Returns the statistics with their names. Those of one tenant have no numbers of the whole server. */
function rows(stats: GetStatsResponse): [string, string][] {
  const isWhole = stats.memoryBytes > 0;
  const { format } = counts;
  const all: [string, string | false][] = [
    ["Conversations", format(stats.conversationCount)],
    ["Messages", format(stats.messageCount)],
    ["Records", `${format(stats.recordCount)} with ${bytes(stats.recordBytes)}`],
    ["Data, with records", bytes(stats.dataBytes)],
    ["Running turns", format(stats.activeTurnCount)],
    ["Watchers", format(stats.watcherCount)],
    ["Heap in use", isWhole && bytes(stats.memoryBytes)],
    [
      "File of the store",
      stats.fileBytes > 0 && `${bytes(stats.fileBytes)}, ${bytes(stats.fileBytesInUse)} in use`,
    ],
    ["Expired conversations since the start", isWhole && format(stats.expiredTotal)],
    ["Evicted conversations since the start", isWhole && format(stats.evictedTotal)],
    ["Log entries that could not be written", isWhole && format(stats.lostInteractionTotal)],
    ["Requests that read damaged data", isWhole && format(stats.dataLossTotal)],
  ];
  return all.filter((row): row is [string, string] => row[1] !== false);
}

/** Changes a text only if it is another one, so that screen readers do not read it again. */
function setText(element: HTMLElement, text: string): void {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

customElements.define("parley-server", ServerView);
