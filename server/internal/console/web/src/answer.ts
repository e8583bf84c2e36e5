import { ParleyError, type TurnEvent } from "@parleyhq/client/web";

import { attempt } from "./conversation-actions.js";
import { button, fill, h } from "./dom.js";
import { jsonTree } from "./json-tree.js";
import { argumentsElement } from "./message.js";
import { isAbort } from "./session.js";
import { line, visible } from "./text.js";
import { type Context, failure } from "./view.js";

/**
 * Shows the answer of a running turn as it comes. Calls onFinished with the last event; the messages of the answer are
 * in it. Ends with the signal.
 */
export function answerElement(
  context: Context,
  conversationId: string,
  turnId: string,
  signal: AbortSignal,
  onFinished: (event: TurnEvent | undefined) => void,
): HTMLElement {
  const agent = h("span", { class: "agent" });
  const progress = h("p", { class: "progress", role: "status" });
  const body = h("div", { class: "answer-body" });
  const element = h(
    "article",
    { class: "message assistant answer", "aria-label": "Answer in progress", "data-turn": turnId },
    h(
      "header",
      {},
      h("strong", {}, "assistant"),
      agent,
      h("span", { class: "badge running" }, "● running"),
      context.session.mayWrite &&
        button("Cancel", () =>
          attempt(async () => {
            await context.session.client.cancelTurn({ conversationId, turnId });
          }),
        ),
    ),
    body,
    progress,
  );
  let pieces = new Pieces(body);
  const show = (event: TurnEvent) => {
    const step = event.event;
    switch (step?.$case) {
      case "started":
        fill(agent, line(step.value.agent));
        break;
      case "progress":
        if (step.value.text) {
          fill(progress, line(step.value.text));
        }
        break;
      case "answerStarted":
        fill(agent, line(step.value.agent));
        pieces.end();
        break;
      case "finished":
        break;
      default:
        pieces.add(event);
    }
  };
  const run = () => {
    void follow(context, conversationId, turnId, signal, show).then(onFinished, (error) => {
      if (isAbort(error) || signal.aborted) {
        return;
      }
      if (error instanceof ParleyError && error.code === "NOT_FOUND") {
        onFinished(undefined); // The conversation or the turn is deleted.
        return;
      }
      const again = () => {
        fill(progress);
        fill(body); // All events come again.
        pieces = new Pieces(body);
        run();
      };
      fill(progress, failure(error, again));
    });
  };
  run();
  return element;
}

/** Passes the events of a turn to show. Returns the last one. */
async function follow(
  { session }: Context,
  conversationId: string,
  turnId: string,
  signal: AbortSignal,
  show: (event: TurnEvent) => void,
): Promise<TurnEvent | undefined> {
  for await (const event of session.client.resumeTurn({ conversationId, turnId }, { signal })) {
    show(event);
    if (event.event?.$case === "finished") {
      return event;
    }
  }
  return undefined;
}

/** A text that is longer than this continues in another element, in UTF-16 units: browsers lay out only those in view. */
const longText = 20_000;

/** The pieces of an answer. Deltas of one kind become one text. */
class Pieces {
  readonly #body: HTMLElement;
  readonly #calls = new Map<string, HTMLElement>();
  #text: HTMLElement | undefined;
  #kind = "";
  #length = 0;
  #endsLine = false;

  constructor(body: HTMLElement) {
    this.#body = body;
  }

  /** Ends the current text: the next delta begins another one. */
  end(): void {
    this.#kind = "";
  }

  add({ event }: TurnEvent): void {
    switch (event?.$case) {
      case "textDelta":
        this.#append("content", event.value.text);
        break;
      case "reasoningDelta":
        this.#append("reasoning", event.value.text);
        break;
      case "structuredData":
        this.#put(
          h(
            "div",
            { class: "data" },
            h("span", { class: "badge" }, line(event.value.type)),
            jsonTree(event.value.value),
          ),
        );
        break;
      case "toolCallDelta": {
        const { id, name } = event.value;
        if (!this.#calls.has(id)) {
          this.#calls.set(id, this.#put(h("p", { class: "tool-call" }, "calls ", line(name), " …")));
        }
        break;
      }
      case "toolCall": {
        const { id, name } = event.value;
        const call = h(
          "div",
          { class: "tool-call" },
          h("p", {}, "calls ", line(name, { class: "name" }), " ", line(id, { class: "id" })),
          argumentsElement(event.value.arguments),
        );
        this.#calls.get(id)?.remove();
        this.#put(call);
        break;
      }
      case "toolResult":
        this.#put(
          h("p", { class: "tool-result" }, "result of ", line(event.value.name || event.value.callId)),
        );
    }
  }

  #append(kind: string, text: string): void {
    const isLong = this.#length > longText && (this.#endsLine || this.#length > 2 * longText);
    if (this.#kind !== kind || !this.#text || isLong) {
      this.#kind = kind;
      this.#length = 0;
      this.#text = h("div", { class: `${kind} piece`, dir: "auto" });
      this.#body.append(this.#text);
    }
    this.#length += text.length;
    this.#endsLine = text.endsWith("\n");
    this.#text.append(...(visible(text) as Node[]));
  }

  #put(element: HTMLElement): HTMLElement {
    this.end();
    this.#body.append(element);
    return element;
  }
}
