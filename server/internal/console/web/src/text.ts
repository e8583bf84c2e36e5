import { button, type Child, h } from "./dom.js";
import { bytes } from "./format.js";

/**
 * Characters that a reader cannot see, or that change the order or the look of others: controls, marks and overrides of
 * direction, zero-width characters, tags. The joiners U+200C and U+200D stay, because scripts and emoji need them.
 */
const hidden =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it finds them
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Returns text whose hidden characters are shown by their numbers, as "U+202E". */
export function visible(text: string): Child[] {
  const parts: Child[] = [];
  let end = 0;
  const normal = text.replaceAll("\r\n", "\n");
  for (const { 0: found, index } of normal.matchAll(hidden)) {
    const number = found.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0");
    parts.push(normal.slice(end, index), h("span", { class: "hidden-character" }, `U+${number}`));
    end = index + found.length;
  }
  parts.push(normal.slice(end));
  return parts;
}

/** Returns one line of text, isolated from the direction of the text beside it. */
export function line(text: string, attributes: { readonly class?: string } = {}): HTMLElement {
  return h("bdi", attributes, visible(text));
}

/** The longest text that is shown at once, in UTF-16 units. More than this takes browsers long to lay out. */
const shownAtOnce = 20_000;

/**
 * Returns text of any length. The part above the first characters, at most {@link shownAtOnce}, is shown on request.
 * Places that match a search are marked, as in {@link marked}. If the first of them is not in the beginning, the part
 * around it is shown instead.
 */
export function block(
  text: string,
  attributes: { readonly class?: string } = {},
  { search = "", first = shownAtOnce } = {},
): HTMLElement {
  const piece = (part: string) => h("div", { class: "piece" }, marked(part, search));
  const beginning = cut(text, 0, first);
  const match = search && beginning.length < text.length ? text.search(patternOf(search)) : 0;
  const shown = match + search.length > beginning.length ? around(text, match, first) : beginning;
  const element = h("div", { ...attributes, dir: "auto" }, piece(shown));
  if (beginning.length < text.length) {
    const more = button(`Show all (${bytes(new Blob([text]).size)})`, () => {
      element.replaceChildren();
      for (let at = 0; at < text.length; ) {
        const part = cut(text, at, shownAtOnce);
        // The browser lays out only the pieces that are in view.
        element.append(piece(part));
        at += part.length;
      }
    });
    element.append(more);
  }
  return element;
}

/** Returns the next piece of a text: up to its last line break if there is one, and never half a character. */
export function cut(text: string, start: number, size: number): string {
  let end = start + size;
  if (end >= text.length) {
    return text.slice(start);
  }
  const lineEnd = text.lastIndexOf("\n", end - 1);
  if (lineEnd > start + size / 2) {
    end = lineEnd + 1;
  } else if (isTrail(text.charCodeAt(end))) {
    end--;
  }
  return text.slice(start, end);
}

/** Returns the part of a text around a place, as a quotation. */
function around(text: string, place: number, size: number): string {
  let start = Math.max(0, place - Math.floor(size / 4));
  let end = Math.min(text.length, start + size);
  start -= isTrail(text.charCodeAt(start)) ? 1 : 0;
  end -= isTrail(text.charCodeAt(end)) ? 1 : 0;
  return `${start > 0 ? "… " : ""}${text.slice(start, end)}${end < text.length ? " …" : ""}`;
}

/** Returns the pattern of a text. Upper and lower case are the same, by simple case folding. */
function patternOf(search: string): RegExp {
  return new RegExp(search.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
}

function isTrail(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff;
}

/** Returns a text with the places that match a search marked. Upper and lower case are the same. */
export function marked(text: string, search: string): Child[] {
  const parts: Child[] = [];
  if (search === "") {
    return visible(text);
  }
  let end = 0;
  for (const { 0: found, index } of text.matchAll(patternOf(search))) {
    parts.push(visible(text.slice(end, index)), h("mark", {}, visible(found)));
    end = index + found.length;
  }
  parts.push(visible(text.slice(end)));
  return parts;
}
