import type { GetStatsResponse } from "@parleyhq/client/web";

import { type Metrics, parseMetrics, sum } from "./metrics.js";
import { errorText, type Session } from "./session.js";

/** The time between two samples, in milliseconds. */
const interval = 10_000;

/** How long samples are kept, in milliseconds. */
export const kept = 3_600_000;

/** The states in which turns end, as the label of parley_turns_total names them. */
export const endStates = ["completed", "input_required", "failed", "cancelled", "interrupted"] as const;
export type EndState = (typeof endStates)[number];

/** What is measured. Calls are per second, ended turns per minute. failed is a percentage of the calls. */
export type Measure =
  | "conversations"
  | "messages"
  | "bytes"
  | "memory"
  | "turns"
  | "watchers"
  | "calls"
  | "failed"
  | `ended ${EndState}`;

type Values = { [measure in Measure]?: number };

/** The state of the server at one time, in milliseconds since 1970. It lacks what could not be read. */
export interface Sample {
  readonly time: number;
  readonly values: Readonly<Values>;
}

/** Totals since the start of the server, from which rates are calculated. */
interface Totals {
  readonly time: number;
  readonly values: { readonly [name: string]: number | undefined };
}

const calls = "grpc_server_handled_total";
const ended = "parley_turns_total";

/** The metrics with the same meaning as the statistics, for callers who may not read those. */
const gauges = {
  conversations: "parley_conversations",
  messages: "parley_messages",
  bytes: "parley_conversation_bytes",
  memory: "process_resident_memory_bytes", // The heap of the metrics includes the ballast of the garbage collector.
  turns: "parley_turns_running",
  watchers: "parley_watchers",
} as const;

const names: ReadonlySet<string> = new Set([calls, ended, ...Object.values(gauges)]);

/**
 * Samples of the last hour, while the page is visible. They are in the memory of the page only, and continue while
 * other views are open.
 */
export class Samples {
  /** The newest statistics. */
  stats: GetStatsResponse | undefined;
  /** Why there are no statistics now; empty if there are. */
  statsProblem = "";
  /** Why there are no metrics now; empty if there are. */
  metricsProblem = "";
  readonly #session: Session;
  readonly #signal: AbortSignal;
  readonly #samples: Sample[] = [];
  readonly #listeners = new Set<() => void>();
  #totals: Totals | undefined;
  #isRefused = false;
  #isReading = false;
  #readAt = 0;

  /** Begins to take samples. They end with the signal. */
  constructor(session: Session, signal: AbortSignal) {
    this.#session = session;
    this.#signal = signal;
    if (!session.isAdmin) {
      this.statsProblem = "The statistics need the role admin.";
    }
    if (session.caller.allTenants) {
      // The server that is back may have other settings. One that stops refuses requests.
      const retry = () => {
        this.#isRefused = false;
      };
      session.addEventListener("connection", retry, { signal });
    } else {
      // The server writes an audit entry about every refused request.
      this.#isRefused = true;
      this.metricsProblem = "The metrics need a credential for all tenants.";
    }
    const take = () => {
      if (!document.hidden && Date.now() - this.#readAt >= interval - 500) {
        void this.#take();
      }
    };
    take();
    const timer = setInterval(take, interval);
    signal.addEventListener("abort", () => clearInterval(timer));
    document.addEventListener("visibilitychange", take, { signal });
  }

  /** The samples, oldest first. */
  get all(): readonly Sample[] {
    return this.#samples;
  }

  /** Calls a function after each sample, also after one that failed, until the signal aborts. */
  onSample(listener: () => void, signal: AbortSignal): void {
    this.#listeners.add(listener);
    signal.addEventListener("abort", () => this.#listeners.delete(listener));
  }

  async #take(): Promise<void> {
    if (this.#isReading) {
      return;
    }
    this.#isReading = true;
    this.#readAt = Date.now();
    const signal = AbortSignal.any([this.#signal, AbortSignal.timeout(interval)]);
    const [stats, metrics] = await Promise.all([this.#readStats(signal), this.#readMetrics(signal)]);
    this.#isReading = false;
    if (this.#signal.aborted) {
      return;
    }
    const time = Date.now();
    if (stats || metrics) {
      this.#samples.push({
        time,
        values: { ...(metrics && this.#valuesOf(metrics, time)), ...(stats && valuesOf(stats)) },
      });
    }
    while (this.#samples.length > 0 && this.#samples[0]!.time < time - kept) {
      this.#samples.shift();
    }
    for (const listener of this.#listeners) {
      listener();
    }
  }

  async #readStats(signal: AbortSignal): Promise<GetStatsResponse | undefined> {
    if (!this.#session.isAdmin) {
      return undefined;
    }
    try {
      this.stats = await this.#session.client.getStats({}, { signal });
      this.statsProblem = "";
      return this.stats;
    } catch (error) {
      this.statsProblem = problem(error);
      return undefined;
    }
  }

  async #readMetrics(signal: AbortSignal): Promise<Metrics | undefined> {
    if (this.#isRefused) {
      return undefined;
    }
    try {
      const metrics = parseMetrics(await this.#session.read("/metrics", signal), names);
      this.metricsProblem = "";
      return metrics;
    } catch (error) {
      this.metricsProblem = problem(error);
      // Fetch throws a TypeError if there is no connection, and a DOMException if the signal aborts. Any other error is
      // a reply of the server, and the next reply would be the same.
      this.#isRefused = !(error instanceof TypeError || error instanceof DOMException);
      if (this.#isRefused && this.metricsProblem.includes('"/metrics" does not exist')) {
        this.metricsProblem =
          "The HTTP listener serves them only if its address is loopback and the setting metrics_address is empty.";
      }
      return undefined;
    }
  }

  #valuesOf(metrics: Metrics, time: number): Values {
    const values: Values = {};
    for (const [measure, name] of Object.entries(gauges)) {
      set(values, measure as Measure, sum(metrics, name));
    }
    const last = this.#totals;
    this.#totals = {
      time,
      values: {
        calls: sum(metrics, calls),
        // A caller who leaves a stream ends it with the code Canceled, as the views of this page do.
        failed: sum(metrics, calls, ({ grpc_code: code }) => code !== "OK" && code !== "Canceled"),
        ...Object.fromEntries(
          endStates.map((state) => [state, sum(metrics, ended, (labels) => labels["state"] === state)]),
        ),
      },
    };
    if (last) {
      const perSecond = (name: string) => rate(last, this.#totals!, name);
      const all = perSecond("calls");
      const failed = perSecond("failed");
      set(values, "calls", all);
      if (all !== undefined && failed !== undefined) {
        values.failed = all === 0 ? 0 : (failed / all) * 100;
      }
      for (const state of endStates) {
        const ended = perSecond(state);
        set(values, `ended ${state}`, ended === undefined ? undefined : ended * 60);
      }
    }
    return values;
  }
}

/** Returns the change of a total per second. It is unknown if the total is smaller: the server has started again. */
function rate(from: Totals, to: Totals, name: string): number | undefined {
  const old = from.values[name];
  const now = to.values[name];
  return old === undefined || now === undefined || now < old || to.time <= from.time
    ? undefined
    : ((now - old) * 1000) / (to.time - from.time);
}

function valuesOf(stats: GetStatsResponse): Values {
  return {
    conversations: stats.conversationCount,
    messages: stats.messageCount,
    bytes: stats.dataBytes,
    turns: stats.activeTurnCount,
    watchers: stats.watcherCount,
    // The statistics of one tenant do not have it.
    ...(stats.memoryBytes > 0 && { memory: stats.memoryBytes }),
  };
}

function set(values: Values, measure: Measure, value: number | undefined): void {
  if (value !== undefined) {
    values[measure] = value;
  }
}

function problem(error: unknown): string {
  return error instanceof TypeError || error instanceof DOMException
    ? "The server cannot be reached. The page reconnects automatically."
    : errorText(error);
}
