import { ChangeKind, type Interaction } from "@parleyhq/client/web";

import { button, fill, h } from "./dom.js";
import { count } from "./format.js";
import { LogEntries, pageSize } from "./log-entries.js";
import { rewrite } from "./route.js";
import { line } from "./text.js";
import { View } from "./view.js";

/** The number of days that are searched unless the user names another. */
const usualDays = 7;

/** The seconds before midnight that are read for a list of today, newest first. Entries before midnight are left out. */
const spare = 600;

/** The interaction log of all conversations: a day, or the entries that contain a text. */
export class LogView extends View {
  #query = new URLSearchParams(this.route.query);
  #entries: LogEntries | undefined;
  /** What the user filters by. It is hidden while the log is off. */
  readonly #controls = h("div", { hidden: true });
  #isOff = false;
  readonly #what = h("h2", { class: "log-what" });
  readonly #place = h("div");
  #ending = new AbortController();
  readonly #day = h("input", {
    type: "date",
    "aria-label": "Day (UTC)",
    required: true,
    onchange: () => this.#day.value && this.#showDay(this.#day.value),
  });
  /** The API lists the last hours newest first, and other days only oldest first. So this is for today only. */
  readonly #order = h(
    "select",
    {
      "aria-label": "Order",
      onchange: () => this.#set({ order: this.#order.value }),
    },
    h("option", { value: "" }, "Oldest first"),
    h("option", { value: "newest" }, "Newest first"),
  );
  readonly #text = h("input", {
    type: "search",
    "aria-label": "Search for a text",
    placeholder: "Search for a text",
    maxlength: 1024,
    autocomplete: "off",
    spellcheck: "false",
  });
  readonly #days = h("input", {
    type: "number",
    "aria-label": "Number of days to search",
    min: 1,
    max: 36500,
    step: 1,
  });
  readonly #conversation = h("input", {
    type: "search",
    "aria-label": "Conversation id",
    placeholder: "Conversation id",
    autocomplete: "off",
    spellcheck: "false",
  });

  protected show(): void {
    const search = () => {
      this.#set({
        text: this.#text.value,
        days: Number(this.#days.value) === usualDays ? "" : this.#days.value,
        conversation: this.#conversation.value.trim(),
      });
    };
    for (const input of [this.#text, this.#days, this.#conversation]) {
      input.addEventListener("change", search, { signal: this.signal });
    }
    this.signal.addEventListener("abort", () => this.#ending.abort());
    // A server that has restarted may have turned the log on.
    this.context.feed.onGap(() => this.#isOff && this.#reload(), this.signal);
    fill(
      this.#controls,
      h(
        "form",
        {
          class: "log-filters",
          role: "search",
          "aria-label": "Filter of the log",
          onsubmit: (event) => {
            event.preventDefault();
            search();
          },
        },
        h(
          "div",
          { class: "log-day" },
          button("‹", () => this.#moveDay(-1), { "aria-label": "Previous day" }),
          this.#day,
          button("›", () => this.#moveDay(1), { "aria-label": "Next day" }),
          button("Today", () => this.#showDay(today())),
          this.#order,
        ),
        h("div", { class: "log-search" }, this.#text, h("label", {}, "in the last ", this.#days, " days")),
        this.#conversation,
        h("button", { type: "submit", class: "visually-hidden" }, "Search"),
      ),
      this.#what,
    );
    fill(this, h("h1", {}, "Interaction log"), this.#controls, this.#place);
    this.#reload();
  }

  move(by: 1 | -1): void {
    this.#entries?.move(by);
  }

  choose(): void {
    this.#entries?.choose();
  }

  search(): void {
    this.#text.focus();
    this.#text.select();
  }

  /** Ends the search and shows the day. */
  leave(): void {
    if (this.#query.get("text")) {
      this.#set({ text: "" });
    }
  }

  get #shownDay(): string {
    const day = this.#query.get("day") ?? "";
    return isDay(day) ? day : today();
  }

  #moveDay(by: 1 | -1): void {
    const day = new Date(this.#shownDay);
    day.setUTCDate(day.getUTCDate() + by);
    this.#showDay(day.toISOString().slice(0, 10));
  }

  #showDay(day: string): void {
    this.#set({ day: day === today() ? "" : day, text: "" });
  }

  /** Changes what is shown. An empty value is that of a place without the name. */
  #set(values: { readonly [name: string]: string }): void {
    const before = this.#query.toString();
    for (const [name, value] of Object.entries(values)) {
      if (value) {
        this.#query.set(name, value);
      } else {
        this.#query.delete(name);
      }
    }
    if (this.#query.toString() !== before) {
      rewrite({ view: "log", query: this.#query });
      this.#reload();
    }
  }

  #reload(): void {
    const day = this.#shownDay;
    const text = this.#query.get("text") ?? "";
    const given = Number(this.#query.get("days"));
    const days = Number.isInteger(given) && given > 0 && given <= 36500 ? given : usualDays;
    const conversationId = this.#query.get("conversation") ?? "";
    const isNewestFirst = day === today() && this.#query.get("order") === "newest";
    this.#order.hidden = text !== "" || day !== today();
    this.#order.value = isNewestFirst ? "newest" : "";
    this.#day.value = day;
    this.#text.value = text;
    this.#days.value = String(days);
    this.#conversation.value = conversationId;
    fill(
      this.#what,
      text
        ? ["Entries with “", line(text), `” of the last ${count(days, "day")}, newest first`]
        : `Entries of ${day}${isNewestFirst ? ", newest first" : ""}`,
      conversationId && [" of the conversation ", line(conversationId)],
    );
    this.#ending.abort();
    this.#ending = new AbortController();
    const { signal } = this.#ending;
    const { client } = this.session;
    const onKnown = (isOff: boolean) => {
      this.#isOff = isOff;
      this.#controls.hidden = isOff;
    };
    // A span stays the same for all pages, and ends at the time of each read, so it begins a little before the day.
    const midnight = Date.parse(`${day}T00:00:00Z`);
    const seconds = Math.round((Date.now() - midnight) / 1000) + spare;
    const read = async (pageToken: string) => {
      const span = isNewestFirst
        ? { $case: "within" as const, value: { seconds } }
        : { $case: "date" as const, value: day };
      const page = await client.listInteractions({ span, conversationId, pageSize, pageToken }, { signal });
      const isOfDay = ({ timestamp }: Interaction) => Number(timestamp) >= midnight;
      return isNewestFirst ? { ...page, interactions: page.interactions.filter(isOfDay) } : page;
    };
    this.#entries = new LogEntries(
      text
        ? {
            read: (pageToken) =>
              client.searchInteractions(
                { query: text, days, conversationId, pageSize, pageToken },
                { signal },
              ),
            search: text,
            onKnown,
          }
        : {
            read,
            grows: day >= today() && !isNewestFirst,
            onKnown,
          },
    );
    fill(
      this.#place,
      isNewestFirst && button("Check for new entries", () => this.#reload()),
      this.#entries.element,
    );
    void this.#entries.more();
  }
}

/** How long after a change the log has its entry at the latest, as a rule. In milliseconds. */
const logDelay = 400;

/** All entries of one conversation in the log, also after it has ended. */
export class StoryView extends View {
  protected show(): void {
    const { id: conversationId = "" } = this.route;
    const { signal } = this;
    const hint = h(
      "p",
      { class: "hint" },
      "Every message that the conversation has had, from the interaction log, oldest first.",
    );
    let wasOff = false;
    const entries = new LogEntries({
      onKnown: (isOff) => {
        wasOff = isOff;
        hint.hidden = isOff;
      },
      read: (pageToken) =>
        this.session.client.listInteractions({ conversationId, pageSize, pageToken }, { signal }),
      isOneConversation: true,
      grows: true,
    });
    fill(this, hint, entries.element);
    void entries.more();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = async (attempts: number) => {
      timer = undefined;
      // Older entries come first: if they are not all shown, new ones are on a page that is not open.
      if (entries.isComplete && (await entries.more()) === 0 && attempts > 1) {
        later(attempts - 1);
      }
    };
    const later = (attempts: number) => {
      if (!signal.aborted) {
        timer ??= setTimeout(() => void refresh(attempts), logDelay);
      }
    };
    signal.addEventListener("abort", () => clearTimeout(timer));
    this.context.feed.onChange((change) => {
      const { kind } = change;
      const isLogged =
        kind === ChangeKind.CHANGE_KIND_MESSAGE_APPENDED || kind === ChangeKind.CHANGE_KIND_CLEARED;
      if (isLogged && change.conversationId === conversationId) {
        later(3);
      }
    }, signal);
    // A server that has restarted may have turned the log on.
    this.context.feed.onGap(() => (wasOff ? void entries.more() : later(1)), signal);
  }
}

function today(): string {
  return new Date().toISOString().slice(0, 10);
}

/** Reports whether a text is a day of the calendar, as in "2026-11-20". */
function isDay(text: string): boolean {
  const day = new Date(`${text}T00:00:00Z`);
  return /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(day.getTime()) && day.toISOString().startsWith(text);
}

customElements.define("parley-log", LogView);
customElements.define("parley-story", StoryView);
