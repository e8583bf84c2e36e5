import { bytes } from "./format.js";

/** How the values of a plot are written, and which of them its axis names. */
export interface Scale {
  readonly format: (value: number) => string;
  readonly steps: readonly number[];
}

export const counts: Scale = {
  format: (value) => Math.round(value).toLocaleString("en"),
  steps: [1, 2, 5]
    .flatMap((first) => Array.from({ length: 12 }, (_, zeros) => first * 10 ** zeros))
    .sort(ascending),
};

export const sizes: Scale = {
  format: (value) => bytes(Math.round(value)),
  steps: Array.from({ length: 40 }, (_, power) => 1024 * 2 ** power),
};

export const rates: Scale = {
  format: (value) =>
    value.toLocaleString("en", { maximumFractionDigits: value < 1 ? 2 : value < 10 ? 1 : 0 }),
  steps: [0.1, 0.2, 0.5, ...counts.steps],
};

export const percents: Scale = { format: (value) => `${rates.format(value)} %`, steps: counts.steps };

/** Returns the highest value of an axis: a multiple of the least step of which three are not below the values. */
export function topOf({ steps }: Scale, most: number): number {
  const step = steps.find((step) => 3 * step >= most) ?? steps.at(-1)!;
  return step * Math.max(1, Math.ceil(most / step));
}

function ascending(a: number, b: number): number {
  return a - b;
}
