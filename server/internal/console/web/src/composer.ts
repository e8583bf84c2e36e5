import { OnBusy } from "@parleyhq/client/web";

import { startTurn } from "./conversation-actions.js";
import { fill, h } from "./dom.js";
import { type Context, failure } from "./view.js";

/**
 * Returns the form with which the user asks. Enter sends; Shift+Enter begins a new line. The signal aborts when the
 * form is no longer shown.
 */
export function composer(context: Context, conversationId: string, signal: AbortSignal): HTMLElement {
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
  const problem = h("div");
  const form = h(
    "form",
    {
      class: "composer",
      onsubmit: async (event) => {
        event.preventDefault();
        const content = text.value;
        if (content.trim() === "" || send.disabled) {
          return;
        }
        send.disabled = true;
        try {
          await startTurn(context, {
            conversationId,
            content,
            agent: agent.value,
            onBusy: onBusy.value as OnBusy,
          });
          text.value = "";
          context.drafts.delete(conversationId);
          fill(problem);
        } catch (error) {
          fill(problem, failure(error)); // The text stays, so that the user can send it again.
        } finally {
          send.disabled = false;
          text.focus();
        }
      },
    },
    text,
    h("div", { class: "composer-row" }, agent, onBusy, send),
    problem,
  );
  text.value = context.drafts.get(conversationId) ?? "";
  text.addEventListener("input", () => {
    if (text.value === "") {
      context.drafts.delete(conversationId);
    } else {
      context.drafts.set(conversationId, text.value);
    }
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  void context.session.client.listAgents({}, { signal }).then(
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
