import { button, type Child, h } from "./dom.js";
import { block, line } from "./text.js";

/** The number of entries of a list or object that are shown at once. */
const shownAtOnce = 100;

/**
 * What the user has unfolded, by its path: the number of entries that are shown. A tree that replaces another one, with
 * the same values of this type, is unfolded as that one was.
 */
export type Unfolded = Map<string, number>;

/** Returns that the outermost list or object is unfolded. */
export function unfoldedOnce(): Unfolded {
  return new Map([["", shownAtOnce]]);
}

/**
 * Returns a JSON value with its lists and objects folded. Each is made when the user opens it. What the user unfolds is
 * noted in unfolded under the path, and those that are in it already are open.
 */
export function jsonTree(
  value: unknown,
  name?: string,
  unfolded: Unfolded = new Map(),
  path = "",
): HTMLElement {
  const label: Child = name !== undefined && [h("span", { class: "key" }, line(name)), ": "];
  if (typeof value !== "object" || value === null) {
    return h("div", { class: "json" }, label, scalar(value));
  }
  const entries: [string, unknown][] = Array.isArray(value)
    ? value.map((item, index) => [String(index), item])
    : Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const details = h(
    "details",
    { class: "json" },
    h("summary", {}, label, h("span", { class: "size" }, size), " ", preview(entries, Array.isArray(value))),
  );
  let isMade = false;
  const make = () => {
    if (!isMade) {
      isMade = true;
      showEntries(details, entries, 0, unfolded, path);
    }
  };
  if (unfolded.has(path)) {
    details.open = true;
    make();
  }
  details.addEventListener("toggle", () => {
    if (details.open) {
      make();
      unfolded.set(path, unfolded.get(path) ?? shownAtOnce);
    } else if (details.isConnected) {
      unfolded.delete(path);
    }
  });
  return details;
}

function showEntries(
  parent: HTMLElement,
  entries: readonly [string, unknown][],
  start: number,
  unfolded: Unfolded,
  path: string,
): void {
  const wanted = Math.max(unfolded.get(path) ?? 0, start + shownAtOnce);
  const end = Math.min(wanted, entries.length);
  parent.append(
    ...entries
      .slice(start, end)
      .map(([name, item]) => jsonTree(item, name, unfolded, `${path}/${JSON.stringify(name)}`)),
  );
  if (end < entries.length) {
    const more = button(
      `Show ${Math.min(shownAtOnce, entries.length - end)} of ${entries.length - end} more`,
      () => {
        more.remove();
        unfolded.set(path, end + shownAtOnce);
        showEntries(parent, entries, end, unfolded, path);
      },
    );
    parent.append(more);
  }
}

/** Returns the beginning of a list or object on one line. */
function preview(entries: readonly [string, unknown][], isList: boolean): HTMLElement {
  const parts: string[] = [];
  for (const [name, item] of entries.slice(0, 6)) {
    const text = typeof item === "object" && item !== null ? "…" : short(JSON.stringify(item));
    parts.push(isList ? text : `${short(name)}: ${text}`);
  }
  return line(short(parts.join(", "), 120), { class: "preview" });
}

function short(text: string, length = 40): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function scalar(value: unknown): HTMLElement {
  if (typeof value === "string") {
    return block(JSON.stringify(value), { class: "string" });
  }
  return h("span", { class: "literal" }, String(value));
}
