import type { Conversation } from "@parleyhq/client/web";
import { ChangeKind, ParleyError } from "@parleyhq/client/web";

import { ContextView } from "./context.js";
import { actions } from "./conversation-actions.js";
import { ConversationTurnsView } from "./conversation-turns.js";
import { fill, h } from "./dom.js";
import { bytes, clock, count, until } from "./format.js";
import { jsonTree, unfoldedOnce } from "./json-tree.js";
import { StoryView } from "./log.js";
import { MessagesView } from "./messages.js";
import { hasPending } from "./pending.js";
import { format, type Route, type Tab, tabs } from "./route.js";
import { RoutingView } from "./routing.js";
import { isAbort } from "./session.js";
import { line } from "./text.js";
import { coalesced, View } from "./view.js";
import { isPiece } from "./view-settings.js";

const names: { readonly [tab in Tab]: string } = {
  messages: "Messages",
  routing: "Routing",
  context: "Context",
  turns: "Turns",
  log: "Log",
  details: "Details",
};

/** One conversation: its header, and one of its parts. */
export class ConversationView extends View {
  #route: Route = this.route;
  readonly #about = h("div");
  readonly #actions = h("div", { class: "actions" });
  readonly #head = h("header", { class: "conversation-head" }, this.#about, this.#actions);
  readonly #tabs = h("nav", { class: "tabs", "aria-label": "Parts of the conversation" });
  readonly #part = h("div", { class: "part" });
  /** What the user has unfolded of the details. */
  readonly #unfolded = unfoldedOnce();
  #header: Conversation | undefined;
  #actionsKey = "";
  #end = "";

  protected show(): void {
    fill(this, this.#head, this.#tabs, this.#part);
    this.context.feed.onChange((change) => {
      if (change.conversationId === this.#id && !isPiece(change)) {
        this.#end = ends[change.kind] ?? (change.kind === ChangeKind.CHANGE_KIND_CREATED ? "" : this.#end);
        this.#refreshSoon();
      }
    }, this.signal);
    this.context.feed.onGap(this.#refreshSoon, this.signal);
    this.everySecond(() => {
      const element = this.querySelector(".expiry");
      if (element) {
        element.textContent = `expires ${until(this.#header?.expireTime)}`;
      }
    });
    this.#showPart();
    this.#refreshSoon();
  }

  /** Shows another part of the same conversation. Returns false if the place is in another one. */
  open(route: Route): boolean {
    if (route.id !== this.#id) {
      return false;
    }
    const isSame = route.tab === this.#route.tab && route.turn === this.#route.turn;
    this.#route = route;
    if (!isSame) {
      this.#showPart();
    }
    return true;
  }

  get #id(): string {
    return this.route.id!;
  }

  #showPart(): void {
    const { tab } = this.#route;
    fill(
      this.#tabs,
      tabs.map((name) =>
        h(
          "a",
          {
            href: format({ view: "conversations", id: this.#id, tab: name, query: this.#route.query }),
            "aria-current": name === tab ? "page" : undefined,
          },
          names[name],
        ),
      ),
    );
    fill(this.#part, this.#newPart(tab));
    this.#showDetails();
  }

  #newPart(tab: Tab): HTMLElement {
    switch (tab) {
      case "messages":
        return new MessagesView(this.context, this.#route);
      case "routing":
        return new RoutingView(this.context, this.#route);
      case "context":
        return new ContextView(this.context, this.#route);
      case "turns":
        return new ConversationTurnsView(this.context, this.#route);
      case "log":
        return new StoryView(this.context, this.#route);
      case "details":
        return h("div", { class: "details" });
    }
  }

  readonly #refreshSoon = coalesced(() => this.#refresh(), 16, 100);

  async #refresh(): Promise<void> {
    if (this.signal.aborted) {
      return;
    }
    await this.run(this.#about, async () => {
      try {
        const reply = await this.session.client.getConversation(
          { conversationId: this.#id },
          { signal: this.signal },
        );
        this.#header = reply.conversation!;
        this.#showHead(this.#header);
        await this.#offerAnswer(this.#header);
      } catch (error) {
        if (!(error instanceof ParleyError && error.code === "NOT_FOUND")) {
          throw error;
        }
        this.#header = undefined;
        this.#actionsKey = "";
        fill(this.#actions);
        this.#showMissing();
        this.#showDetails();
      }
    });
  }

  /**
   * Offers to answer again if a message has no answer and no turn runs. If the messages cannot be read, the button stays
   * as it is: the head of the conversation is known and shown.
   */
  async #offerAnswer({ activeTurnId }: Conversation): Promise<void> {
    const again = this.#actions.querySelector<HTMLElement>(".answer-again");
    if (!again || activeTurnId !== "") {
      return;
    }
    try {
      again.hidden = !(await hasPending((pageSize, pageToken) =>
        this.session.client.listMessages(
          { conversationId: this.#id, pageSize, pageToken },
          { signal: this.signal },
        ),
      ));
    } catch (error) {
      const isMissing = error instanceof ParleyError && error.code === "NOT_FOUND";
      if (isAbort(error) || isMissing) {
        throw error;
      }
    }
  }

  #showHead(header: Conversation): void {
    const { id, title, labels, activeTurnId, activeAgent, agent, forkedFrom } = header;
    fill(
      this.#about,
      h(
        "div",
        { class: "title" },
        h(
          "a",
          { class: "back", href: format({ query: this.#route.query }), "aria-label": "Back to the list" },
          "←",
        ),
        h("h2", {}, line(title || id)),
        activeTurnId !== "" && h("span", { class: "badge running" }, "● running"),
      ),
      title !== "" && h("p", { class: "id" }, line(id)),
      forkedFrom &&
        h(
          "p",
          { class: "fork-origin" },
          "fork of ",
          h(
            "a",
            { href: format({ view: "conversations", id: forkedFrom.conversationId }) },
            line(forkedFrom.conversationId),
          ),
          forkedFrom.sequence > 0 ? ` up to message ${forkedFrom.sequence}` : " without messages",
        ),
      h(
        "p",
        { class: "facts" },
        `version ${header.version} · ${count(header.messageCount, "message")} · ${bytes(header.sizeBytes)} · `,
        h(
          "span",
          { class: "created" },
          "created ",
          h("time", { title: clock(header.createTime) }, clock(header.createTime).slice(0, 19)),
          " · ",
        ),
        h("span", { class: header.expireTime ? "expiry" : "" }, header.expireTime ? "" : "no expiry"),
        (activeAgent?.agent || agent) && [" · agent ", line(activeAgent?.agent || agent)],
        Object.entries(labels).map(([name, value]) => [
          " ",
          h("span", { class: "badge" }, line(`${name}=${value}`)),
        ]),
      ),
    );
    // Buttons that stay keep the focus, and a click during a change is not lost.
    const key = `${activeTurnId}/${title}`;
    if (key !== this.#actionsKey) {
      this.#actionsKey = key;
      fill(this.#actions, actions(this.context, header));
    }
    const expiry = this.#head.querySelector(".expiry");
    if (expiry) {
      expiry.textContent = `expires ${until(header.expireTime)}`;
    }
    this.#showDetails();
  }

  #showDetails(): void {
    const details = this.#part.querySelector(".details");
    if (!details) {
      return;
    }
    if (!this.#header) {
      fill(details);
      return;
    }
    fill(details, jsonTree(JSON.parse(JSON.stringify(this.#header)), undefined, this.#unfolded));
  }

  #showMissing(): void {
    fill(
      this.#about,
      h(
        "div",
        { class: "title" },
        h(
          "a",
          { class: "back", href: format({ query: this.#route.query }), "aria-label": "Back to the list" },
          "←",
        ),
        h("h2", {}, line(this.#id)),
      ),
      h(
        "p",
        { class: "failure", role: "alert" },
        `This conversation ${this.#end || "does not exist"}. The interaction log may still have its messages.`,
      ),
    );
  }
}

/** How a conversation ends. */
const ends: { readonly [kind in ChangeKind]?: string } = {
  [ChangeKind.CHANGE_KIND_DELETED]: "was deleted",
  [ChangeKind.CHANGE_KIND_EXPIRED]: "has expired",
  [ChangeKind.CHANGE_KIND_EVICTED]: "was evicted",
};

customElements.define("parley-conversation", ConversationView);
