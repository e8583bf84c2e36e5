import type { Message, ToolCall } from "@parleyhq/client/web";

import { startTurn } from "./conversation-actions.js";
import { confirm } from "./dialog.js";
import { fill, h } from "./dom.js";
import { line } from "./text.js";
import { type Context, failure } from "./view.js";

/** What the user writes as the result of a call. */
export interface ResultDraft {
  readonly content: string;
  readonly isError: boolean;
}

const nothing: ResultDraft = { content: "", isError: false };

/** Returns the key of a result in {@link Context.results}. */
function keyOf({ sequence }: Message, conversationId: string, { id }: ToolCall): string {
  return JSON.stringify([conversationId, sequence, id]);
}

/** Returns the id of the form that sends the results of a message's calls. */
function formId({ sequence }: Message): string {
  return `results-of-${sequence}`;
}

/** Returns the field for the result of an open call. It belongs to the {@link resultForm} of the message. */
export function resultField(
  { results }: Context,
  conversationId: string,
  message: Message,
  call: ToolCall,
): HTMLElement {
  const key = keyOf(message, conversationId, call);
  const form = formId(message);
  const draft = results.get(key) ?? nothing;
  const content = h("textarea", {
    form,
    rows: 2,
    "aria-label": `Result of ${call.name}`,
    placeholder: "Result of the call (Ctrl+Enter sends)",
  });
  content.value = draft.content;
  const isError = h("input", { form, type: "checkbox", checked: draft.isError });
  const note = () => {
    results.set(key, { content: content.value, isError: isError.checked });
  };
  content.addEventListener("input", note);
  isError.addEventListener("change", note);
  content.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) {
      event.preventDefault();
      content.form?.requestSubmit();
    }
  });
  return h("div", { class: "result-field" }, content, h("label", {}, isError, " the call failed"));
}

/** Returns the form that sends the results of the open calls of a message, in one request. */
export function resultForm(
  context: Context,
  conversationId: string,
  message: Message,
  calls: readonly ToolCall[],
): HTMLElement {
  const { results } = context;
  const what = calls.length === 1 ? "result" : `${calls.length} results`;
  const send = h("button", { type: "submit" }, `Send the ${what}`);
  const receiver = h("span", { class: "facts" });
  const problem = h("div");
  const draftOf = (call: ToolCall) => results.get(keyOf(message, conversationId, call)) ?? nothing;
  const submit = async () => {
    await startTurn(context, {
      conversationId,
      agent: await agentOf(context, conversationId, message),
      toolResults: calls.map((call) => ({ callId: call.id, name: call.name, ...draftOf(call) })),
    });
    for (const call of calls) {
      results.delete(keyOf(message, conversationId, call));
    }
  };
  const form = h(
    "form",
    {
      class: "result-form",
      id: formId(message),
      onsubmit: async (event) => {
        event.preventDefault();
        if (send.disabled) {
          return;
        }
        send.disabled = true;
        fill(problem);
        const empty = calls.filter((call) => draftOf(call).content.trim() === "");
        try {
          if (empty.length === 0) {
            await submit();
          } else {
            await confirm(
              empty.length === 1 ? "Send an empty result?" : "Send empty results?",
              h("p", {}, "Nothing is written as the result of ", names(empty), "."),
              "Send",
              submit,
            );
          }
        } catch (error) {
          fill(
            problem,
            h("p", {}, `The ${what} ${calls.length === 1 ? "was" : "were"} not sent.`),
            failure(error),
          );
        } finally {
          send.disabled = false;
        }
      },
    },
    h("div", {}, send, " ", receiver),
    problem,
  );
  void agentOf(context, conversationId, message).then(
    (agent) => fill(receiver, agent ? ["to the agent ", line(agent)] : "to the agent of the conversation"),
    () => {}, // The form sends nothing until the agent is known.
  );
  return form;
}

function names(calls: readonly ToolCall[]) {
  return calls.map(({ name, id }, index) => [index > 0 && ", ", line(name), " ", line(id, { class: "id" })]);
}

/**
 * Returns the agent that gets the results of the calls of a message: that of its turn. Returns "" if the server does not
 * have it, which means the agent of the conversation: the message was appended by another service.
 */
async function agentOf(
  { session }: Context,
  conversationId: string,
  { turnId, agent }: Message,
): Promise<string> {
  const { client } = session;
  const [{ agents }, turn] = await Promise.all([
    client.listAgents({}),
    // A turn that is no longer kept does not say its agent.
    turnId === "" ? undefined : client.getTurn({ conversationId, turnId }).catch(() => undefined),
  ]);
  const name = turn?.turn?.agent || agent;
  return agents.some((one) => one.name === name) ? name : "";
}
