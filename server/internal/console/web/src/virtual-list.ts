import { arrange, h } from "./dom.js";

/** Rows above and below the part that is in view which are in the page, too. */
const spare = 8;

/** The id of the row that the keys have moved to. */
export const chosenId = "chosen-row";

/**
 * A list of rows of the same height, of which only those in view are in the page. The element scrolls. It is a list
 * box, whose rows are options. The row with the id {@link chosenId} is the active one.
 */
export class VirtualList {
  readonly element: HTMLElement;
  readonly #rows: HTMLElement;
  readonly #rowHeight: number;
  readonly #render: (index: number) => HTMLElement;
  readonly #onEnd: () => void;
  #count = 0;
  #first = 0;
  #last = 0;

  /**
   * render returns a row. A row that is in the page and is returned again stays. onEnd is called when the end of the
   * list comes into view. The list ends with the signal.
   */
  constructor(
    label: string,
    rowHeight: number,
    render: (index: number) => HTMLElement,
    onEnd: () => void,
    signal: AbortSignal,
  ) {
    this.#rowHeight = rowHeight;
    this.#render = render;
    this.#onEnd = onEnd;
    this.#rows = h("div", { class: "rows", role: "presentation" });
    this.element = h(
      "div",
      {
        class: "virtual-list",
        tabindex: "0",
        role: "listbox",
        "aria-label": label,
      },
      this.#rows,
    );
    this.element.addEventListener("scroll", () => this.#update(), { signal, passive: true });
    const resizing = new ResizeObserver(() => this.#update());
    resizing.observe(this.element);
    signal.addEventListener("abort", () => resizing.disconnect());
  }

  /** Shows this number of rows. render is called for those in view. */
  show(count: number): void {
    this.#count = count;
    this.#rows.style.height = `${count * this.#rowHeight}px`;
    this.#update(true);
  }

  /** Scrolls until a row is in view. */
  reveal(index: number): void {
    const top = index * this.#rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) {
      this.element.scrollTop = top;
    } else if (top + this.#rowHeight > scrollTop + clientHeight) {
      this.element.scrollTop = top + this.#rowHeight - clientHeight;
    }
  }

  #update(isChanged = false): void {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.#rowHeight) - spare);
    const last = Math.min(this.#count, Math.ceil((scrollTop + clientHeight) / this.#rowHeight) + spare);
    if (isChanged || first !== this.#first || last !== this.#last) {
      this.#first = first;
      this.#last = last;
      const length = Math.max(0, last - first);
      arrange(
        this.#rows,
        Array.from({ length }, (_, index) => this.#row(first + index)),
      );
      if (this.#rows.querySelector(`#${chosenId}`)) {
        this.element.setAttribute("aria-activedescendant", chosenId);
      } else {
        this.element.removeAttribute("aria-activedescendant");
      }
    }
    if (clientHeight > 0 && last >= this.#count) {
      this.#onEnd();
    }
  }

  #row(index: number): HTMLElement {
    const row = this.#render(index);
    row.style.top = `${index * this.#rowHeight}px`;
    return row;
  }
}
