import { type Message, MessageStatus } from "@parleyhq/client/web";

import { type Child, h } from "./dom.js";
import { clock, enumName } from "./format.js";
import { line } from "./text.js";

/** Returns the head of a message that is only shown, without buttons. */
export function messageHead(message: Message, ...badges: Child[]): HTMLElement {
  const { role, agent, status, sequence, exchange, createTime } = message;
  return h(
    "header",
    {},
    h("strong", {}, enumName(role, "ROLE_")),
    agent !== "" && line(agent, { class: "agent" }),
    status === MessageStatus.MESSAGE_STATUS_INCOMPLETE && h("span", { class: "badge warning" }, "incomplete"),
    h("span", { class: "facts" }, `#${sequence} · exchange ${exchange} · `, h("time", {}, clock(createTime))),
    badges,
  );
}
