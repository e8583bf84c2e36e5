/** The keys of the console. They do nothing while the user writes. */
export interface Keyed {
  /** Moves to the next place of a list, or to the previous one with -1. */
  move?(by: 1 | -1): void;
  /** Opens the chosen place. */
  choose?(): void;
  /** Moves the focus to the filter. */
  search?(): void;
  /** Leaves what is open. */
  leave?(): void;
}

/** Passes keys to the view until the signal aborts: j and k move, Enter opens, / filters, Escape leaves. In a list box, the arrows move, too. */
export function onKeys(view: () => (Keyed & HTMLElement) | undefined, signal: AbortSignal): void {
  addEventListener(
    "keydown",
    (event) => {
      const target = event.target as HTMLElement;
      const isWriting = target.matches("input, textarea, select");
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) {
        return;
      }
      const keyed = view();
      if (event.key === "Escape") {
        if (isWriting) {
          target.blur();
        } else {
          keyed?.leave?.();
        }
        return;
      }
      if (isWriting) {
        return;
      }
      const isInList = target.matches("[role=listbox]");
      if (isInList && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
        event.preventDefault();
        keyed?.move?.(event.key === "ArrowDown" ? 1 : -1);
        return;
      }
      switch (event.key) {
        case "j":
          keyed?.move?.(1);
          break;
        case "k":
          keyed?.move?.(-1);
          break;
        case "/":
          event.preventDefault();
          keyed?.search?.();
          break;
        case "Enter":
          if (!target.matches("a, button, summary")) {
            keyed?.choose?.();
          }
      }
    },
    { signal },
  );
}
