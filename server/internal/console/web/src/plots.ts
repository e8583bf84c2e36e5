import uPlot from "uplot";

import { fill, h } from "./dom.js";
import { clock } from "./format.js";
import { kept, type Measure, type Sample } from "./samples.js";
import { type Scale, topOf } from "./scales.js";

/** A line of a plot. */
export interface Line {
  readonly measure: Measure;
  /** The name of the line, if the plot has several. */
  readonly name?: string;
  /** The class of the line's key, whose colour the line has. */
  readonly class: string;
}

/** Samples that are further apart than this are not joined: the page was hidden, or the server away. */
const longestStep = 35_000;

/** The shortest time that a plot shows, in milliseconds. It grows with the samples, up to those that are kept. */
const shortest = 300_000;

/** A small plot of one or more measures over time. Its text says the newest values, or those under the pointer. */
export class Plot {
  readonly element: HTMLElement;
  readonly #label: string;
  readonly #lines: readonly Line[];
  readonly #scale: Scale;
  readonly #keys: HTMLElement[];
  readonly #values: HTMLElement[];
  readonly #time = h("span", { class: "plot-time" });
  readonly #canvas = h("div", { class: "plot-canvas", role: "img" });
  #plot: uPlot | undefined;
  #data: uPlot.AlignedData = [[]];

  /** The plot ends with the signal. */
  constructor(label: string, lines: readonly Line[], scale: Scale, signal: AbortSignal) {
    this.#label = label;
    this.#lines = lines;
    this.#scale = scale;
    this.#keys = lines.map((line) => h("span", { class: `plot-key ${line.class}`, "aria-hidden": "true" }));
    this.#values = lines.map(() => h("span", { class: "plot-value" }));
    this.element = h(
      "figure",
      { class: "plot", "data-plot": lines[0]!.measure },
      h(
        "figcaption",
        {},
        h("strong", {}, label),
        lines.map(({ name }, index) =>
          h("span", {}, this.#keys[index], name && `${name} `, this.#values[index]),
        ),
        this.#time,
      ),
      this.#canvas,
    );
    const resizing = new ResizeObserver(() => this.#draw());
    resizing.observe(this.#canvas);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.#plot?.redraw(), { signal });
    signal.addEventListener("abort", () => {
      resizing.disconnect();
      this.#plot?.destroy();
      this.#plot = undefined;
    });
  }

  /** What the plot shows. */
  get measures(): Measure[] {
    return this.#lines.map(({ measure }) => measure);
  }

  /** Shows samples. */
  show(samples: readonly Sample[]): void {
    const times: number[] = [];
    const columns: (number | null)[][] = this.#lines.map(() => []);
    for (const { time, values } of samples) {
      const last = times.at(-1);
      if (last !== undefined && time - last * 1000 > longestStep) {
        times.push(last + 1);
        for (const column of columns) {
          column.push(null);
        }
      }
      times.push(time / 1000);
      for (const [index, { measure }] of this.#lines.entries()) {
        columns[index]!.push(values[measure] ?? null);
      }
    }
    this.#data = [times, ...columns];
    this.#plot?.setData(this.#data);
    this.#showValues();
    this.#draw();
  }

  /** Shows the values of a sample, by default the newest. */
  #showValues(at?: number | null): void {
    const [times, ...columns] = this.#data;
    const isPointed = at !== null && at !== undefined && at < times.length;
    const index = isPointed ? at : times.length - 1;
    const texts = columns.map((column) => {
      const value = column[index];
      return typeof value === "number" ? this.#scale.format(value) : "–";
    });
    for (const [place, text] of texts.entries()) {
      fill(this.#values[place]!, text);
    }
    fill(this.#time, isPointed ? clock(new Date(times[index]! * 1000)).slice(11, 19) : "");
    if (!isPointed) {
      const named = this.#lines.map(({ name }, place) => `${name ? `${name} ` : ""}${texts[place]}`);
      this.#canvas.setAttribute("aria-label", `${this.#label}, now: ${named.join(", ")}`);
    }
  }

  #draw(): void {
    const width = this.#canvas.clientWidth;
    const height = 110;
    if (width === 0) {
      return;
    }
    if (this.#plot) {
      if (this.#plot.width !== width) {
        this.#plot.setSize({ width, height });
      }
      return;
    }
    const quiet = () => getComputedStyle(this.element).color;
    const grid = { stroke: () => getComputedStyle(this.element).borderTopColor, width: 1 };
    const axis = {
      stroke: quiet,
      grid,
      ticks: { ...grid, size: 4 },
      gap: 3,
      font: "11px system-ui, sans-serif",
    };
    this.#plot = new uPlot(
      {
        width,
        height,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        hooks: {
          setCursor: [({ cursor }) => this.#showValues((cursor.left ?? -1) < 0 ? undefined : cursor.idx)],
        },
        scales: {
          x: { time: true, range: (_, first) => timeRange(first) },
          y: { range: (_, _least, most) => [0, topOf(this.#scale, most ?? 0)] },
        },
        axes: [
          {
            ...axis,
            size: 22,
            space: 44,
            values: (_, times) => times.map((time) => clock(new Date(time * 1000)).slice(11, 16)),
          },
          {
            ...axis,
            size: 58,
            space: 22, // Three steps fit; see topOf.
            incrs: [...this.#scale.steps],
            values: (_, values) => values.map(this.#scale.format),
          },
        ],
        series: [
          {},
          ...this.#keys.map((key) => ({
            stroke: () => getComputedStyle(key).color,
            width: 1.5,
            points: { show: false },
          })),
        ],
      },
      this.#data,
      this.#canvas,
    );
  }
}

/** Returns the first and the last time of a plot, in seconds. */
function timeRange(first: number | null): [number, number] {
  const now = Date.now();
  const begin = first === null ? now : first * 1000;
  return [Math.max(now - kept, Math.min(begin, now - shortest)) / 1000, now / 1000];
}
