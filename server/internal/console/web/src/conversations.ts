import { type Conversation, type ConversationEntry, ListOrder } from "@parleyhq/client/web";

import { ConversationView } from "./conversation.js";
import { ConversationList, type Filter } from "./conversation-list.js";
import { button, fill, h } from "./dom.js";
import { ago, clock, count, until } from "./format.js";
import { go, type Route, rewrite } from "./route.js";
import { isAbort } from "./session.js";
import { line } from "./text.js";
import { coalesced, failure, View } from "./view.js";
import { chosenId, VirtualList } from "./virtual-list.js";
import { waitingLink } from "./waiting.js";

/** The height of a row in pixels, as in style.css. */
const rowHeight = 68;

/** Pages that are read at once to find conversations that match the filter; each may be short or empty. */
const pagesAtOnce = 20;

/** The list of conversations, with the open one beside it. */
export class ConversationsView extends View {
  #route: Route = this.route;
  #list!: ConversationList;
  #rows!: VirtualList;
  #listEnding = new AbortController();
  #filter!: HTMLInputElement;
  #status = h("p", { class: "list-status", role: "status" });
  #problem = h("div");
  #waiting!: HTMLElement;
  readonly #side = h("section", { class: "list-side", "aria-label": "Conversations" });
  readonly #detail = h("section", { class: "detail", "aria-label": "Conversation" });
  /** The entries that are shown. */
  #entries: readonly ConversationEntry[] = [];
  readonly #elements = new Map<string, { readonly element: HTMLElement; readonly key: string }>();
  /** The id of the conversation at the cursor: opened, or moved to by a key. The list may change around it. */
  #chosen: string | undefined;
  /** The conversation that has been opened and is not yet in view in the list. */
  #toReveal: string | undefined;
  #isLoading = false;
  #pagesLeft = pagesAtOnce;
  /** Enter was pressed in the filter: the conversation at the cursor is opened when the filtered list is shown. */
  #opensFirst = false;

  protected show(): void {
    fill(this, this.#side, this.#detail);
    this.#waiting = waitingLink(this.context.waiting, this.signal);
    this.#showSide();
    this.context.feed.onChange((change) => {
      if (this.#list.apply(change)) {
        this.#redraw();
      }
      if (this.#list.isTopOld) {
        this.#loadTopSoon();
      }
    }, this.signal);
    this.context.waiting.addEventListener("change", this.#redraw, { signal: this.signal });
    document.addEventListener("visibilitychange", this.#redraw, { signal: this.signal });
    this.context.feed.onGap(() => this.#reload(this.#entries.length || 1), this.signal);
    this.everySecond(() => this.#tick());
    this.#openDetail();
  }

  /** Shows another place of this view. Returns false if it is one of another view. */
  open(route: Route): boolean {
    if (route.view !== "conversations") {
      return false;
    }
    const isSameList = !route.query.size || route.query.toString() === this.#route.query.toString();
    const query = isSameList ? this.#route.query : route.query;
    this.#route = { ...route, query };
    if (isSameList) {
      rewrite(this.#route); // The filter stays while conversations are opened.
    } else {
      this.#showSide();
    }
    this.#openDetail();
    return true;
  }

  move(by: 1 | -1): void {
    const index = Math.min(Math.max(this.#indexOf(this.#chosen) + by, 0), this.#entries.length - 1);
    if (index >= 0) {
      this.#chosen = this.#entries[index]!.conversation!.id;
      this.#rows.reveal(index);
      this.#redraw();
    }
  }

  choose(): void {
    if (this.#chosen !== undefined) {
      this.#open(this.#chosen);
    }
  }

  #indexOf(id: string | undefined): number {
    return this.#entries.findIndex(({ conversation }) => conversation!.id === id);
  }

  #open(id: string): void {
    go({ view: "conversations", id, query: this.#route.query });
  }

  search(): void {
    this.#filter.focus();
    this.#filter.select();
  }

  leave(): void {
    if (this.#route.id) {
      go({ view: "conversations", query: this.#route.query });
    }
  }

  get #query(): Filter {
    const { query } = this.#route;
    const label = query.get("label") ?? "";
    const [name, ...value] = label.split("=");
    return {
      order:
        query.get("order") === "create"
          ? ListOrder.LIST_ORDER_CREATE_TIME_DESC
          : ListOrder.LIST_ORDER_UPDATE_TIME_DESC,
      text: query.get("text") ?? "",
      label: name && label.includes("=") ? [name, value.join("=")] : undefined,
      agent: query.get("agent") ?? "",
      dataType: query.get("type") ?? "",
    };
  }

  #showSide(): void {
    const input = (name: string, label: string, placeholder: string) => {
      const set = (): void => this.#setFilter(name, field.value.trim());
      const field = h("input", {
        type: "search",
        "aria-label": label,
        placeholder,
        value: this.#route.query.get(name) ?? "",
        autocomplete: "off",
        spellcheck: "false",
        oninput: coalesced(set, 300),
        onchange: set,
      });
      return field;
    };
    this.#filter = input("text", "Filter by id or title", "Id or title");
    this.#filter.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") {
        event.preventDefault();
        this.#rows.element.focus();
        if (this.#indexOf(this.#chosen) < 0) {
          this.move(1);
        }
      } else if (event.key === "Enter" && !event.isComposing) {
        this.#setFilter("text", this.#filter.value.trim());
        this.#opensFirst = true;
        this.#redraw();
      }
    });
    const order = h(
      "select",
      {
        "aria-label": "Order",
        onchange: () => this.#setFilter("order", order.value === "update" ? "" : order.value),
      },
      h("option", { value: "update" }, "Last changed first"),
      h("option", { value: "create" }, "Newest first"),
    );
    order.value = this.#route.query.get("order") === "create" ? "create" : "update";
    const more = ["label", "agent", "type"];
    fill(
      this.#side,
      h(
        "form",
        { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
        this.#filter,
        order,
        h(
          "details",
          { open: more.some((name) => this.#route.query.get(name)) },
          h("summary", {}, "More filters"),
          input("label", "Filter by label, as in team=red", "Label: name=value"),
          input("agent", "Filter by agent", "Agent"),
          input("type", "Filter by type of structured data", "Type of structured data"),
        ),
      ),
      this.#status,
      this.#waiting,
      this.#problem,
    );
    this.#rows = new VirtualList(
      "Conversations",
      rowHeight,
      (index) => this.#row(index),
      () => void this.#loadMore(),
      this.signal,
    );
    this.#side.append(this.#rows.element);
    this.#reload();
  }

  #setFilter(name: string, value: string): void {
    if (value === (this.#route.query.get(name) ?? "")) {
      return;
    }
    const query = new URLSearchParams(this.#route.query);
    if (value) {
      query.set(name, value);
    } else {
      query.delete(name);
    }
    this.#route = { ...this.#route, query };
    this.#opensFirst = false;
    rewrite(this.#route);
    this.#reload();
  }

  /** Reads the list from its beginning, up to a number of matches. The rows stay until they have arrived. */
  #reload(wanted = 1): void {
    this.#listEnding.abort();
    this.#listEnding = new AbortController();
    const { signal } = this.#listEnding;
    this.signal.addEventListener("abort", () => this.#listEnding.abort(), { signal });
    this.#list = new ConversationList(this.session.client, this.#query, signal);
    this.#isLoading = false;
    this.#pagesLeft = pagesAtOnce;
    void this.#loadMore(wanted);
  }

  /** Loads pages until the list has more matches, this number at least, or ends. */
  async #loadMore(wanted = this.#list.matches.length + 1): Promise<void> {
    const list = this.#list;
    if (this.#isLoading || list.isComplete || this.#pagesLeft === 0) {
      return;
    }
    this.#isLoading = true;
    const { length } = list.matches;
    try {
      while (!list.isComplete && list.matches.length < wanted && this.#pagesLeft > 0) {
        await list.loadPage();
        this.#pagesLeft--;
        this.#showStatus();
      }
      if (list.matches.length > length) {
        this.#pagesLeft = pagesAtOnce;
      }
      fill(this.#problem);
    } catch (error) {
      if (!isAbort(error)) {
        this.#opensFirst = false;
        fill(
          this.#problem,
          failure(error, () => void this.#loadMore(wanted)),
        );
      }
      return;
    } finally {
      if (list === this.#list) {
        this.#isLoading = false;
      }
    }
    if (list === this.#list) {
      this.#draw();
    }
  }

  /** Scrolls to the conversation that has been opened, once: the user may scroll away from it. */
  #reveal(): void {
    if (this.#toReveal === undefined || this.#list.total === undefined) {
      return;
    }
    const at = this.#indexOf(this.#toReveal);
    this.#toReveal = undefined;
    if (at >= 0) {
      this.#rows.reveal(at);
      this.#rows.show(this.#entries.length);
    }
  }

  readonly #loadTopSoon = coalesced(() => this.#loadTop(), 20, 100);

  /** Adds the conversations that have changed and are on no loaded page. */
  async #loadTop(): Promise<void> {
    const list = this.#list;
    if (document.hidden || !list.isTopOld || this.signal.aborted) {
      return;
    }
    try {
      await list.loadTop();
    } catch {
      return; // The connection is lost, and the list is read again when it is back.
    }
    this.#redraw();
  }

  readonly #redraw = coalesced(() => this.#draw());

  /** Updates what has changed. A hidden page is not drawn: a busy server changes its list often. */
  #draw(): void {
    if (document.hidden) {
      return;
    }
    if (this.#list.isTopOld) {
      this.#loadTopSoon();
    }
    // The rows stay until another list is as long as it shall be.
    if (
      this.#list.total !== undefined &&
      (!this.#isLoading || this.#list.matches.length >= this.#entries.length)
    ) {
      this.#entries = this.#list.matches;
    }
    const { length } = this.#entries;
    const opensFirst = this.#opensFirst && this.#list.total !== undefined && !this.#isLoading;
    // The cursor stays at the conversation that is open while the list does not have it, such as a new fork.
    const isOpen = this.#chosen !== undefined && this.#chosen === this.#route.id;
    if (this.#indexOf(this.#chosen) < 0 && (!isOpen || opensFirst)) {
      this.#chosen = this.#entries[0]?.conversation?.id;
    }
    if (opensFirst) {
      this.#opensFirst = false;
      this.choose();
    }
    this.#showStatus();
    this.#rows.show(length);
    this.#reveal();
    for (const [id, { element }] of this.#elements) {
      if (!element.isConnected) {
        this.#elements.delete(id);
      }
    }
  }

  #showStatus(): void {
    const list = this.#list;
    if (list.total === undefined) {
      fill(this.#status, "Loading…");
      return;
    }
    const { text, agent, label, dataType } = this.#query;
    const isFiltered = Boolean(text || agent || label || dataType);
    const shown = list.matches.length;
    const matching = shown === 1 ? "1 match" : `${shown || "No"} ${shown === 0 ? "match" : "matches"}`;
    const isMalformed = this.#route.query.has("label") && !label;
    fill(
      this.#status,
      isMalformed && h("span", { class: "failure" }, "A label has the form name=value."),
      isFiltered
        ? `${matching}${list.isComplete ? "" : " so far"} among ${count(list.total, "conversation")}`
        : count(list.total, "conversation"),
      isFiltered &&
        !list.isComplete &&
        this.#pagesLeft === 0 && [
          " ",
          button("Search more", () => {
            this.#pagesLeft = pagesAtOnce;
            void this.#loadMore();
          }),
        ],
    );
  }

  /** Returns the row of an entry: the one that is in the page if it is as before, so that the pointer stays on it. */
  #row(index: number): HTMLElement {
    const entry = this.#entries[index];
    if (!entry) {
      return h("div", { class: "row" }); // The list has become shorter and is drawn soon.
    }
    const { id } = entry.conversation!;
    const isWaiting = this.context.waiting.has(id);
    const key = keyOf(entry, isWaiting);
    const old = this.#elements.get(id);
    const element = old?.key === key ? old.element : this.#newRow(entry, isWaiting);
    const isChosen = id === this.#chosen;
    element.classList.toggle("chosen", isChosen);
    element.id = isChosen ? chosenId : `row-${index}`;
    element.setAttribute("aria-selected", id === this.#route.id ? "true" : "false");
    element.setAttribute("aria-posinset", String(index + 1));
    element.setAttribute("aria-setsize", String(this.#entries.length));
    this.#elements.set(id, { element, key });
    return element;
  }

  #newRow(entry: ConversationEntry, isWaiting: boolean): HTMLElement {
    const header = entry.conversation!;
    return h(
      "div",
      {
        class: "row",
        role: "option",
        onclick: () => this.#open(header.id),
      },
      h(
        "div",
        { class: "row-title" },
        header.activeTurnId !== "" && h("span", { class: "running", title: "A turn is running" }, "●"),
        line(header.title || header.id, { class: "name" }),
        isWaiting && h("span", { class: "badge warning" }, "waits for a result"),
        ages(header),
      ),
      line(entry.preview.replace(/\s+/g, " ") || (header.messageCount > 0 ? "No text" : "No messages"), {
        class: "preview",
      }),
      h("div", { class: "row-facts" }, facts(header)),
    );
  }

  /** Updates ages and countdowns in place: a new row would lose the place of the pointer. */
  #tick(): void {
    for (const element of this.querySelectorAll<HTMLElement>("[data-time]")) {
      const time = new Date(Number(element.dataset["time"]));
      element.textContent = element.dataset["until"] === "" ? `expires ${until(time)}` : ago(time);
    }
  }

  #openDetail(): void {
    const { id } = this.#route;
    if (id !== undefined) {
      this.#chosen = this.#toReveal = id;
    }
    this.classList.toggle("has-detail", id !== undefined);
    const shown = this.#detail.firstElementChild;
    if (!id) {
      fill(
        this.#detail,
        h("p", { class: "hint" }, "Choose a conversation. Keys: j and k move, Enter opens, / filters."),
      );
    } else if (!(shown instanceof ConversationView) || !shown.open(this.#route)) {
      fill(this.#detail, new ConversationView(this.context, this.#route));
    }
    this.#redraw();
  }
}

/** Returns a text that differs if a row shows something else. */
function keyOf({ conversation, preview }: ConversationEntry, isWaiting: boolean): string {
  const { title, messageCount, updateTime, expireTime, agent, activeAgent, activeTurnId } = conversation!;
  const answering = activeAgent?.agent || agent;
  const numbers = [messageCount, updateTime?.getTime(), expireTime?.getTime()];
  return JSON.stringify([title, preview, answering, activeTurnId !== "", isWaiting, ...numbers]);
}

function ages({ updateTime }: Conversation): HTMLElement {
  return h(
    "span",
    { class: "age", "data-time": updateTime?.getTime(), title: clock(updateTime) },
    ago(updateTime),
  );
}

function facts({ messageCount, agent, activeAgent, expireTime }: Conversation): (HTMLElement | string)[] {
  const answering = activeAgent?.agent || agent;
  return [
    `${count(messageCount, "message")} · `,
    ...(answering ? [line(answering), " · "] : []),
    expireTime
      ? h("span", { "data-time": expireTime.getTime(), "data-until": "" }, `expires ${until(expireTime)}`)
      : "no expiry",
  ];
}

customElements.define("parley-conversations", ConversationsView);
