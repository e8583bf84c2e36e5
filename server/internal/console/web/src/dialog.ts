import { button, type Child, fill, h } from "./dom.js";
import { failure } from "./view.js";

/**
 * Asks before an action. The action runs when the user confirms; if it fails, its error is shown and the dialog stays.
 * Returns whether the action has succeeded.
 */
export async function confirm(
  question: string,
  details: Child,
  label: string,
  action: () => Promise<void>,
): Promise<boolean> {
  const place = h("div");
  const ok = h("button", { type: "submit", class: "danger" }, label);
  let hasSucceeded = false;
  const dialog = h(
    "dialog",
    { "aria-label": question },
    h(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          ok.disabled = true;
          try {
            await action();
            hasSucceeded = true;
            dialog.close();
          } catch (error) {
            fill(place, failure(error));
            ok.disabled = false;
          }
        },
      },
      h("h2", {}, question),
      h("div", {}, details),
      place,
      h(
        "div",
        { class: "actions" },
        button("Cancel", () => dialog.close(), { autofocus: true }),
        ok,
      ),
    ),
  );
  dialog.addEventListener("cancel", (event) => {
    if (ok.disabled) {
      event.preventDefault(); // The action is running: the dialog stays until its result is known.
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve));
  dialog.remove();
  return hasSucceeded;
}

/** Shows a short note at the end of the page, which screen readers read. */
export function notify(text: Child): void {
  let place = document.querySelector<HTMLElement>("#notes");
  if (!place) {
    place = h("div", { id: "notes", role: "status" });
    document.body.append(place);
  }
  const note = h("p", {}, text);
  fill(place, note);
  setTimeout(() => note.remove(), 6000);
}
