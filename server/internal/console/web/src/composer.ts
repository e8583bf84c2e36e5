import { OnBusy } from "@parleyhq/client/web";

import { attempt } from "./conversation-actions.js";
import { button, fill, h } from "./dom.js";
import type { Asking } from "./outbox.js";
import { line } from "./text.js";
import type { Context } from "./view.js";

/**
 * Returns the form with which the user asks. Enter sends; Shift+Enter begins a new line. Calls onSend when the user
 * sends. The signal aborts when the form is no longer shown.
 */
export function composer(
  { session, outbox }: Context,
  conversationId: string,
  signal: AbortSignal,
  onSend: () => void,
): HTMLElement {
  const text = h("textarea", { rows: 2, "aria-label": "Message", placeholder: "Ask… (Enter sends)" });
  const agent = h(
    "select",
    { "aria-label": "Agent" },
    h("option", { value: "" }, "agent of the conversation"),
  );
  const onBusy = h(
    "select",
    { "aria-label": "If a turn is running" },
    h("option", { value: OnBusy.ON_BUSY_QUEUE }, "wait in the queue"),
    h("option", { value: OnBusy.ON_BUSY_INTERRUPT }, "interrupt the turn"),
    h("option", { value: OnBusy.ON_BUSY_REJECT }, "refuse if busy"),
  );
  const send = h("button", { type: "submit" }, "Ask");
  const waiting = h("div", { role: "status" });
  const problem = h("div");
  const form = h(
    "form",
    {
      class: "composer",
      onsubmit: (event) => {
        event.preventDefault();
        if (text.value.trim() === "" || send.disabled) {
          return;
        }
        onSend();
        void outbox.send(conversationId, { agent: agent.value, onBusy: onBusy.value as OnBusy });
        text.focus();
      },
    },
    waiting,
    text,
    h("div", { class: "composer-row" }, agent, onBusy, send),
    problem,
  );
  let queued: Asking["queued"] = [];
  const update = () => {
    const asking = outbox.get(conversationId);
    const shown = asking.sending || asking.draft;
    if (text.value !== shown) {
      text.value = shown;
    }
    text.readOnly = send.disabled = asking.sending !== "";
    if (queued !== asking.queued) {
      queued = asking.queued;
      fill(
        waiting,
        queued.map((message) =>
          h(
            "p",
            { class: "queued-message" },
            h("span", { class: "badge warning" }, `queued, position ${message.position}`),
            line(message.content),
            button("Take back", () => attempt(() => outbox.takeBack(conversationId, message)), {
              title: "Removes the message from the queue and puts its text into the field",
            }),
          ),
        ),
        queued.length > 0 &&
          h(
            "p",
            { class: "facts" },
            "Keep this page open: the server stores a message when its turn begins.",
          ),
      );
    }
    if (problem.textContent !== asking.problem) {
      fill(problem, asking.problem !== "" && h("p", { class: "failure", role: "alert" }, asking.problem));
    }
  };
  update();
  outbox.addEventListener("change", update, { signal });
  text.addEventListener("input", () => outbox.write(conversationId, text.value));
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  void session.client.listAgents({}, { signal }).then(
    ({ agents }) => {
      agent.append(
        ...agents.map(({ name, isDefault }) =>
          h("option", { value: name }, isDefault ? `${name} (default)` : name),
        ),
      );
    },
    () => {}, // The agent of the conversation can be asked without the list.
  );
  return form;
}
