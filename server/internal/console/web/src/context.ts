import { type GetContextResponse, type Message, ParleyError, type ToolCall } from "@parleyhq/client/web";

import { arrange, button, fill, h } from "./dom.js";
import { count, enumName } from "./format.js";
import { argumentsElement, contents, folded } from "./message.js";
import { messageHead } from "./message-head.js";
import { rewrite } from "./route.js";
import { block, line } from "./text.js";
import { coalesced, View } from "./view.js";
import { isPiece, numberField, setNumber } from "./view-settings.js";

/** The kept messages of one page. */
const pageSize = 50;

/** The most kept messages that are shown: all of them are read again at each change. */
const maxMessages = 1000;

/** Pages that are read until a message is found that is left out. */
const pagesAtOnce = 4;

/** The limits of the window, by their names in the API. */
const limits = ["max_messages", "max_exchanges", "max_bytes"] as const;
const switches = ["cache_stable", "include_reasoning"] as const;

/** What an agent would be given, and which of the kept messages would be left out. */
export class ContextView extends View {
  readonly #query = new URLSearchParams(this.route.query);
  readonly #status = h("p", { class: "facts context-status", role: "status" }, "Loading…");
  readonly #prompt = h("section", { class: "system-prompt", "aria-label": "System prompt" });
  readonly #older = h("p", { class: "more" });
  readonly #list = h("div", { class: "messages" });
  readonly #shown = new Map<number, { readonly element: HTMLElement; readonly key: string }>();
  /** The folded runs of messages that are left out, in their order. */
  readonly #folds: Fold[] = [];
  #pages = 0;

  protected show(): void {
    fill(this, this.#settings(), this.#status, this.#prompt, this.#older, this.#list);
    this.context.feed.onChange((change) => {
      if (change.conversationId === this.route.id && !isPiece(change)) {
        this.#reloadSoon();
      }
    }, this.signal);
    this.context.feed.onGap(this.#reloadSoon, this.signal);
    this.#reloadSoon();
  }

  #settings(): HTMLElement {
    const set = (name: string, value: string) => {
      setNumber(this.#query, name, value);
      rewrite({ ...this.route, query: this.#query });
      this.#pages = 0;
      this.#reloadSoon();
    };
    return h(
      "form",
      { class: "window-settings", "aria-label": "Window", onsubmit: (event) => event.preventDefault() },
      limits.map((name) =>
        numberField(name, this.#query.get(name) ?? "", "no limit", 2 ** 31 - 1, (value) => set(name, value)),
      ),
      switches.map((name) => {
        const input = h("input", { type: "checkbox", checked: this.#isOn(name) });
        input.addEventListener("change", () => set(name, input.checked ? "1" : ""));
        return h("label", { class: "switch" }, input, name);
      }),
    );
  }

  #isOn(name: (typeof switches)[number]): boolean {
    return this.#query.has(name);
  }

  readonly #reloadSoon = coalesced(() => this.#reload());

  async #reload(): Promise<void> {
    if (this.signal.aborted) {
      return;
    }
    await this.run(this.#status, async () => {
      try {
        await this.#load();
      } catch (error) {
        if (!(error instanceof ParleyError && error.code === "NOT_FOUND")) {
          throw error;
        }
        // The head of the conversation says that it does not exist.
        for (const part of [this.#status, this.#prompt, this.#older, this.#list]) {
          fill(part);
        }
      }
    });
  }

  async #load(): Promise<void> {
    const { client } = this.session;
    const conversationId = this.route.id!;
    const options = { signal: this.signal };
    const limit = (name: (typeof limits)[number]) => Number(this.#query.get(name) ?? 0);
    const given = await client.getContext(
      {
        conversationId,
        window: {
          maxMessages: limit("max_messages"),
          maxExchanges: limit("max_exchanges"),
          maxBytes: limit("max_bytes"),
          cacheStable: this.#isOn("cache_stable"),
        },
        includeReasoning: this.#isOn("include_reasoning"),
      },
      options,
    );
    const inWindow = new Map(given.messages.map((message) => [message.sequence, message]));
    const kept: Message[] = [];
    let token = "";
    let pages = 0;
    do {
      const page = await client.listMessages({ conversationId, pageSize, pageToken: token }, options);
      kept.push(...page.messages);
      token = page.nextPageToken;
      pages++;
    } while (
      token !== "" &&
      (pages < this.#pages || (this.#pages === 0 && pages < pagesAtOnce && isAll(kept, inWindow)))
    );
    this.#pages = pages;
    this.#showHead(given, token !== "");
    this.#draw(kept.reverse(), inWindow, given.omittedCount);
  }

  #showHead({ systemPrompt, messages, omittedCount, version }: GetContextResponse, hasOlder: boolean): void {
    fill(
      this.#status,
      `${count(messages.length, "message")} in the window · `,
      h("span", { class: "omitted-count" }, `${count(omittedCount, "kept message")} left out`),
      ` · version ${version}`,
      omittedCount > 0 &&
        messages.length < Number(this.#query.get("max_messages") ?? 0) && [
          h("br"),
          "A window begins at a message of the user and does not separate a tool call from its result. " +
            "So it may have fewer messages than the limit, or none.",
        ],
    );
    fill(
      this.#prompt,
      h("h2", {}, "System prompt"),
      systemPrompt === ""
        ? h("p", { class: "hint" }, "The conversation has none; an agent may have its own.")
        : block(systemPrompt, { class: "content" }),
      h("h2", {}, "Messages, oldest first"),
    );
    fill(
      this.#older,
      hasOlder &&
        (this.#pages * pageSize >= maxMessages
          ? `The newest ${count(maxMessages, "kept message")} are shown at most. Older ones are left out.`
          : button("Show more", () => {
              this.#pages++;
              this.#reloadSoon();
            })),
    );
  }

  /** Updates the list in place. The messages are in their order. Those that are left out are folded. */
  #draw(kept: readonly Message[], inWindow: ReadonlyMap<number, Message>, omittedCount: number): void {
    const wanted: HTMLElement[] = [];
    const runs: HTMLElement[][] = [];
    let run: HTMLElement[] | undefined;
    for (const message of kept) {
      const given = inWindow.get(message.sequence);
      const key = `${message.id} ${given !== undefined} ${this.#isOn("include_reasoning")}`;
      const shown = this.#shown.get(message.sequence);
      const element =
        shown?.key === key ? shown.element : contextMessage(given ?? message, given !== undefined);
      this.#shown.set(message.sequence, { element, key });
      if (given) {
        run = undefined;
        wanted.push(element);
      } else if (run) {
        run.push(element);
      } else {
        run = [element];
        const fold = this.#folds[runs.length] ?? new Fold();
        this.#folds[runs.push(run) - 1] = fold;
        wanted.push(fold.element);
      }
    }
    // Messages that are not loaded are before the first one, and left out, too.
    const unloaded = omittedCount - runs.flat().length;
    for (const [index, run] of runs.entries()) {
      this.#folds[index]!.show(run, index === 0 ? unloaded : 0);
    }
    const sequences = new Set(kept.map(({ sequence }) => sequence));
    for (const sequence of this.#shown.keys()) {
      if (!sequences.has(sequence)) {
        this.#shown.delete(sequence);
      }
    }
    arrange(this.#list, wanted);
  }
}

/** Messages that follow one another and are left out. Their number is shown; they are shown when the user unfolds them. */
class Fold {
  readonly #summary = h("summary");
  readonly element = h("details", { class: "left-out-run" }, this.#summary);

  /** Shows messages. unloaded is the number of messages before them that are not loaded. */
  show(messages: readonly HTMLElement[], unloaded: number): void {
    this.#summary.textContent =
      `${count(messages.length + unloaded, "message")} left out` +
      (unloaded > 0 ? `, of which the newest ${messages.length.toLocaleString("en")} are loaded` : "");
    arrange(this.element, [this.#summary, ...messages]);
  }
}

function isAll(messages: readonly Message[], inWindow: ReadonlyMap<number, Message>): boolean {
  return messages.every(({ sequence }) => inWindow.has(sequence));
}

function contextMessage(message: Message, isGiven: boolean): HTMLElement {
  return h(
    "article",
    {
      class: `message ${enumName(message.role, "ROLE_")}${isGiven ? "" : " left-out"}`,
      "data-sequence": message.sequence,
      "aria-label": `Message ${message.sequence}${isGiven ? "" : ", left out"}`,
    },
    messageHead(message, !isGiven && h("span", { class: "badge" }, "left out")),
    contents(message),
    message.toolCalls.map(toolCall),
  );
}

function toolCall({ id, name, arguments: text }: ToolCall): HTMLElement {
  return h(
    "section",
    { class: "tool-call" },
    h("p", {}, "calls ", line(name, { class: "name" }), " ", line(id, { class: "id" })),
    folded("Arguments", () => argumentsElement(text)),
  );
}

customElements.define("parley-context", ContextView);
