/**
 * Makes elements. Text from the server becomes text nodes and attributes only: nothing in the console parses HTML, and
 * the page's policy refuses it.
 */

export type Child = Node | string | number | null | undefined | false | readonly Child[];

type Listener = (event: Event) => void;

/** Attributes of an element. Those whose names begin with "on" are listeners. False and undefined are left out. */
export interface Attributes {
  readonly [name: string]: string | number | boolean | undefined | Listener;
}

/** Returns a new element. */
export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

function add(parent: ParentNode, children: readonly Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) {
      add(parent, child);
    } else if (child !== null && child !== undefined && child !== false) {
      parent.append(child instanceof Node ? child : String(child));
    }
  }
}

/** Replaces the children of an element. */
export function fill(parent: ParentNode, ...children: Child[]): void {
  parent.replaceChildren();
  add(parent, children);
}

/** Makes these elements the children of a parent. Those that are in their place are not touched. */
export function arrange(parent: HTMLElement, wanted: readonly HTMLElement[]): void {
  const keep = new Set(wanted);
  for (const child of [...parent.children]) {
    if (!keep.has(child as HTMLElement)) {
      child.remove();
    }
  }
  let next = parent.firstElementChild;
  for (const element of wanted) {
    if (element === next) {
      next = next.nextElementSibling;
    } else {
      parent.insertBefore(element, next);
    }
  }
}

/** Names the cells of a row after their columns: where the page is narrow, a row is a card with these names. */
export function nameCells(row: HTMLElement, columns: readonly string[]): HTMLElement {
  for (const [index, cell] of [...row.children].entries()) {
    cell.setAttribute("data-column", columns[index] ?? "");
  }
  return row;
}

/** Returns a button. */
export function button(label: string, onclick: () => void, attributes: Attributes = {}): HTMLButtonElement {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

/** Returns a link to a place that a message names, or its text if a browser would run it or read a file of the user. */
export function outerLink(uri: string, label: Child): HTMLElement {
  let isWeb = false;
  try {
    isWeb = /^https?:$/.test(new URL(uri).protocol);
  } catch {
    // It is not a URL.
  }
  return isWeb
    ? h("a", { href: uri, target: "_blank", rel: "noopener noreferrer nofollow", title: uri }, label)
    : h("span", { title: uri }, label);
}
