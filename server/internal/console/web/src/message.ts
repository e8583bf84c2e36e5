import { type Message, MessageStatus } from "@parleyhq/client/web";

import type { Call } from "./calls.js";
import { attempt, fork } from "./conversation-actions.js";
import { button, type Child, h, outerLink } from "./dom.js";
import { bytes, clock, enumName } from "./format.js";
import { jsonTree } from "./json-tree.js";
import { resultField } from "./result-form.js";
import { format } from "./route.js";
import { block, line } from "./text.js";
import type { Context } from "./view.js";

/**
 * Returns a message without its tool calls; see {@link callElement}. If it is the result of a call that is shown with
 * it, reference is shown in place of the result.
 */
export function messageElement(
  context: Context,
  conversationId: string,
  message: Message,
  reference?: HTMLElement,
): HTMLElement {
  const { role, agent, status, sequence, exchange, createTime, turnId, finishReason } = message;
  const isIncomplete = status === MessageStatus.MESSAGE_STATUS_INCOMPLETE;
  return h(
    "article",
    {
      class: `message ${enumName(role, "ROLE_")}`,
      "data-sequence": sequence,
      "aria-label": `Message ${sequence}`,
    },
    h(
      "header",
      {},
      h("strong", {}, enumName(role, "ROLE_")),
      agent !== "" && line(agent, { class: "agent" }),
      isIncomplete && h("span", { class: "badge warning" }, "incomplete"),
      finishReason !== "" && line(finishReason, { class: "badge" }),
      h(
        "span",
        { class: "facts" },
        `#${sequence} · exchange ${exchange} · `,
        h("time", {}, clock(createTime)),
      ),
      turnId !== "" &&
        h(
          "a",
          { href: format({ view: "conversations", id: conversationId, tab: "turns", turn: turnId }) },
          "turn",
        ),
      context.session.mayWrite &&
        button("Fork here", () => attempt(() => fork(context, conversationId, sequence)), { class: "quiet" }),
    ),
    contents(message, reference),
  );
}

/** Returns everything that a message contains, except its tool calls. A reference replaces the tool result. */
export function contents(message: Message, reference?: HTMLElement): Child[] {
  const { content, reasoning, structuredData, attachments, toolResult, usage, summary, native, metadata } =
    message;
  return [
    reasoning !== "" && folded("Reasoning", () => block(reasoning, { class: "reasoning" })),
    content !== "" && block(content, { class: "content" }),
    toolResult && [
      h(
        "p",
        { class: toolResult.isError ? "tool-result error" : "tool-result" },
        toolResult.isError ? "error of " : "result of ",
        line(toolResult.name || "a tool"),
        " ",
        line(toolResult.callId, { class: "id" }),
        reference && [", shown with the call in ", reference],
      ),
      !reference && block(toolResult.content, { class: "content" }),
    ],
    structuredData.map(({ type, value }) =>
      h("div", { class: "data" }, h("span", { class: "badge" }, line(type)), jsonTree(value)),
    ),
    attachments.map(({ uri, mediaType, filename, sizeBytes }) =>
      h(
        "p",
        { class: "attachment" },
        "attachment ",
        attachmentLink(uri, filename),
        mediaType !== "" && [" ", line(mediaType, { class: "id" })],
        sizeBytes > 0 && ` ${bytes(sizeBytes)}`,
      ),
    ),
    summary !== "" && h("p", { class: "facts" }, "summary: ", line(summary)),
    usage &&
      h(
        "p",
        { class: "facts" },
        line(usage.model),
        ` · ${usage.inputTokens} tokens in (${usage.cachedInputTokens} cached), ${usage.outputTokens} out`,
      ),
    native &&
      h("p", { class: "facts" }, "native form ", line(native.type), ` · ${bytes(native.value.length)}`),
    Object.keys(metadata).length > 0 && folded("Metadata", () => jsonTree(metadata)),
  ];
}

/** Returns the link to an attachment. Where it leads is shown as text if it is no link. */
function attachmentLink(uri: string, filename: string): Child {
  const link = outerLink(uri, line(filename || uri));
  const isText = !(link instanceof HTMLAnchorElement) && filename !== "" && filename !== uri;
  return [link, isText && [" ", line(uri.length > 300 ? `${uri.slice(0, 300)}…` : uri, { class: "id" })]];
}

/** Returns a folded part. make is called when the user opens it. */
export function folded(label: string, make: () => HTMLElement): HTMLElement {
  const details = h("details", { class: "folded" }, h("summary", {}, label));
  details.addEventListener("toggle", () => details.append(make()), { once: true });
  return details;
}

/** Returns a tool call with its result, or with the field for it. */
export function callElement(
  context: Context,
  conversationId: string,
  message: Message,
  { call, result, isOpen }: Call,
): HTMLElement {
  return h(
    "div",
    { class: isOpen ? "tool-call open" : "tool-call", role: "group", "aria-label": `Tool call ${call.name}` },
    h(
      "p",
      {},
      "calls ",
      line(call.name, { class: "name" }),
      " ",
      line(call.id, { class: "id" }),
      isOpen && [" ", h("span", { class: "badge warning" }, "waits for a result")],
      !isOpen && !result && h("span", { class: "badge" }, "no result"),
    ),
    argumentsElement(call.arguments),
    result?.toolResult &&
      h(
        "div",
        { class: result.toolResult.isError ? "result error" : "result" },
        h("p", {}, result.toolResult.isError ? "failed" : "result", ` (#${result.sequence})`),
        block(result.toolResult.content, { class: "content" }),
      ),
    isOpen && context.session.mayWrite && resultField(context, conversationId, message, call),
  );
}

/** Returns the arguments of a call: a tree if they are JSON. */
export function argumentsElement(text: string): HTMLElement {
  try {
    return jsonTree(JSON.parse(text));
  } catch {
    return block(text, { class: "content" });
  }
}
