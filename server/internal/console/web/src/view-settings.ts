import type { ConversationChange } from "@parleyhq/client/web";

import { h } from "./dom.js";

/** Returns a field for a whole number from 0 to a maximum, with its name. Empty is the default, which is shown. */
export function numberField(
  name: string,
  value: string,
  placeholder: string,
  max: number,
  set: (value: string) => void,
): HTMLElement {
  const input = h("input", { type: "number", min: 0, max, step: 1, value, placeholder, "aria-label": name });
  input.addEventListener("change", () => {
    if (input.checkValidity()) {
      set(input.value);
    } else {
      input.reportValidity();
    }
  });
  return h("label", {}, name, input);
}

/** Sets a field of a query; empty removes it. */
export function setNumber(query: URLSearchParams, name: string, value: string): void {
  if (value === "") {
    query.delete(name);
  } else {
    query.set(name, value);
  }
}

/** Reports whether a change is an event within a turn, which leaves the conversation as it was. */
export function isPiece({ payload }: ConversationChange): boolean {
  const kind = payload?.$case === "turnEvent" ? payload.value.event?.$case : undefined;
  return kind !== undefined && kind !== "started" && kind !== "finished";
}
