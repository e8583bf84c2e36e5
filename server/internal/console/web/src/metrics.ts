/** Reads the metrics of the server, which are text in the format of Prometheus. */

/** One value of a metric with its labels. */
export interface Series {
  readonly labels: { readonly [name: string]: string };
  readonly value: number;
}

/** The metrics that were asked for, by their names. */
export type Metrics = ReadonlyMap<string, readonly Series[]>;

/** Returns those metrics of a text that have one of the names. Lines that are none are left out. */
export function parseMetrics(text: string, names: ReadonlySet<string>): Metrics {
  const metrics = new Map<string, Series[]>();
  for (const row of text.split("\n")) {
    const name = /^[\w:]+/.exec(row)?.[0] ?? "";
    if (!names.has(name)) {
      continue; // Most lines are of other metrics.
    }
    const [, labels = "", value = ""] = /^(?:\{(.*)\})? +(\S+)/.exec(row.slice(name.length)) ?? [];
    const series = { labels: parseLabels(labels), value: Number(value) };
    if (value !== "" && Number.isFinite(series.value)) {
      const all = metrics.get(name);
      if (all) {
        all.push(series);
      } else {
        metrics.set(name, [series]);
      }
    }
  }
  return metrics;
}

/** Returns the sum of the values of a metric whose labels match, or undefined if there is none. */
export function sum(
  metrics: Metrics,
  name: string,
  matches: (labels: Series["labels"]) => boolean = () => true,
): number | undefined {
  const found = (metrics.get(name) ?? []).filter(({ labels }) => matches(labels));
  return found.length > 0 ? found.reduce((total, { value }) => total + value, 0) : undefined;
}

function parseLabels(text: string): { readonly [name: string]: string } {
  const escapes: { readonly [sequence: string]: string } = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };
  const labels: { [name: string]: string } = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name!] = value!.replace(/\\./g, (sequence) => escapes[sequence] ?? sequence);
  }
  return labels;
}
