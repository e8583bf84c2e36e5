import { type Interaction, ParleyError } from "@parleyhq/client/web";

import { button, type Child, fill, h } from "./dom.js";
import { enumName, utcClock } from "./format.js";
import { jsonTree } from "./json-tree.js";
import { folded } from "./message.js";
import { format } from "./route.js";
import { isAbort } from "./session.js";
import { block, line } from "./text.js";
import { failure } from "./view.js";

/** Entries that are read at once. */
export const pageSize = 100;

/** The characters of an entry that are shown at first: a day has many entries. */
const shownAtOnce = 2000;

/** A page of the log, as the calls of the API return it. */
interface Page {
  readonly interactions: readonly Interaction[];
  readonly nextPageToken: string;
  readonly skippedCount: number;
  readonly unreachable: readonly string[];
}

/** What a list of entries shows. */
export interface Source {
  /** Reads a page. An empty token is that of the first page. */
  readonly read: (pageToken: string) => Promise<Page>;
  /** Text that is marked in the entries. */
  readonly search?: string;
  /** All entries are of the open conversation, so they do not name it. */
  readonly isOneConversation?: boolean;
  /** New entries come to the end of the list. */
  readonly grows?: boolean;
  /** Called after each read, unless it was aborted, with whether the log is off. */
  readonly onKnown?: (isOff: boolean) => void;
}

/** Entries of the log, page by page. Calls of one list do not overlap. */
export class LogEntries {
  readonly element: HTMLElement;
  readonly #source: Source;
  readonly #entries = h("div", { class: "entries" });
  readonly #status = h("div", { class: "log-status", role: "status" });
  readonly #end = h("div", { class: "log-end" });
  readonly #more = button("Show more", () => void this.more());
  /** Of the page that is shown last. It is read again when there may be more entries. */
  #token = "";
  /** The number of entries of that page that are shown, and how many were skipped before its end. */
  #shown = 0;
  #skipped = 0;
  #skippedBefore = 0;
  #unreachable = new Set<string>();
  #isComplete = false;
  #reading: Promise<number> | undefined;
  #chosen = -1;

  constructor(source: Source) {
    this.#source = source;
    this.element = h("section", { class: "log-entries", "aria-label": "Entries of the log" });
    fill(this.element, this.#status, this.#entries, this.#end);
    fill(this.#status, "Loading…");
  }

  /** Whether the last page is shown. */
  get isComplete(): boolean {
    return this.#isComplete;
  }

  /** Reads the next entries, and returns how many there are. If that fails, the end of the list says why. */
  more(): Promise<number> {
    this.#reading ??= this.#read().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  /** Chooses the next entry, or the previous one with -1. */
  move(by: 1 | -1): void {
    const { children } = this.#entries;
    children[this.#chosen]?.classList.remove("chosen");
    this.#chosen = Math.min(Math.max(this.#chosen + by, 0), children.length - 1);
    const entry = children[this.#chosen] as HTMLElement | undefined;
    entry?.classList.add("chosen");
    entry?.focus({ preventScroll: true });
    entry?.scrollIntoView({ block: "nearest" });
  }

  /** Opens the conversation of the chosen entry. */
  choose(): void {
    this.#entries.children[this.#chosen]?.querySelector<HTMLAnchorElement>("a.conversation")?.click();
  }

  async #read(): Promise<number> {
    this.#more.disabled = true;
    try {
      let page = await this.#source.read(this.#token);
      if (page.interactions.length < this.#shown) {
        // Entries were erased. The others may be at other places now.
        this.#clear();
        page = await this.#source.read("");
      }
      this.#source.onKnown?.(false);
      return this.#add(page);
    } catch (error) {
      if (!isAbort(error)) {
        this.#showFailure(error);
      }
      return 0;
    } finally {
      this.#more.disabled = false;
    }
  }

  #clear(): void {
    fill(this.#entries);
    this.#token = "";
    this.#shown = this.#skipped = this.#skippedBefore = 0;
    this.#chosen = -1;
    this.#unreachable.clear();
  }

  #add(page: Page): number {
    const added = page.interactions.slice(this.#shown);
    this.#entries.append(...added.map((entry) => entryElement(entry, this.#source)));
    this.#skipped = this.#skippedBefore + page.skippedCount;
    for (const address of page.unreachable) {
      this.#unreachable.add(address);
    }
    this.#isComplete = page.nextPageToken === "";
    if (this.#isComplete) {
      this.#shown = page.interactions.length;
    } else {
      this.#token = page.nextPageToken;
      this.#shown = 0;
      this.#skippedBefore = this.#skipped;
    }
    this.#showStatus();
    return added.length;
  }

  #showStatus(): void {
    const { length } = this.#entries.children;
    const entries = length === 1 ? "1 entry" : `${length.toLocaleString("en")} entries`;
    const notes: Child[] = [
      this.#skipped > 0 && [
        h(
          "p",
          { class: "log-note skipped" },
          `Entries of the log that could not be read: ${this.#skipped}. The log of the server names their files.`,
        ),
      ],
      this.#unreachable.size > 0 &&
        h(
          "p",
          { class: "log-note unreachable" },
          "The entries of these servers are missing, because they did not answer: ",
          [...this.#unreachable].map((address, index) => [index > 0 && ", ", line(address)]),
        ),
    ];
    fill(
      this.#status,
      length === 0 && this.#isComplete
        ? "No entries"
        : `${entries}${this.#isComplete ? "" : " so far"}. Days and times are UTC.`,
      notes,
    );
    this.#more.textContent = this.#isComplete ? "Check for new entries" : "Show more";
    fill(this.#end, (!this.#isComplete || this.#source.grows) && this.#more);
  }

  #showFailure(error: unknown): void {
    if (this.#entries.children.length === 0) {
      fill(this.#status);
    }
    const isOff = error instanceof ParleyError && error.reason === "INTERACTION_LOG_OFF";
    this.#source.onKnown?.(isOff);
    fill(
      this.#end,
      isOff
        ? h(
            "p",
            { class: "hint log-off", role: "alert" },
            "The interaction log of this server is off. To turn it on, restart the server with --interaction-log. " +
              "Messages that are stored while it is off get no entry.",
          )
        : failure(error, () => {
            fill(this.#end);
            void this.more();
          }),
    );
  }
}

function entryElement(entry: Interaction, { search = "", isOneConversation }: Source): HTMLElement {
  const { role, agent, conversationId, content, timestamp, metadata = {} } = entry;
  const { turn_number: sequence, turn_id: turn, removed_count: removed } = metadata;
  const isRemoval = removed !== undefined && sequence === 0;
  return h(
    "article",
    {
      class: isRemoval ? "entry removal" : `entry ${enumName(role, "ROLE_")}`,
      tabindex: "-1",
      "aria-label": `Entry of ${utcClock(timestamp)}`,
    },
    h(
      "header",
      {},
      h("time", { datetime: timestamp?.toISOString() }, utcClock(timestamp)),
      h("strong", {}, isRemoval ? "removal" : enumName(role, "ROLE_")),
      line(agent, { class: "agent" }),
      !isOneConversation &&
        h(
          "a",
          { class: "conversation", href: format({ view: "conversations", id: conversationId, tab: "log" }) },
          line(conversationId),
        ),
      typeof sequence === "number" && sequence > 0 && h("span", { class: "facts" }, `#${sequence}`),
      typeof turn === "string" &&
        turn !== "" &&
        h("a", { href: format({ view: "conversations", id: conversationId, tab: "turns", turn }) }, "turn"),
    ),
    content === ""
      ? h("p", { class: "hint" }, "No text")
      : block(content, { class: "content" }, { search, first: shownAtOnce }),
    Object.keys(metadata).length > 0 && folded("Metadata", () => jsonTree(metadata)),
  );
}
