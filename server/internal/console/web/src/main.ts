/** The console: it signs in, and shows the view that the address names. Start at {@link App}. */
import { AnsweredTurns } from "./answered.js";
import { ConversationsView } from "./conversations.js";
import { button, fill, h } from "./dom.js";
import { Feed } from "./feed.js";
import { onKeys } from "./keys.js";
import { LogView } from "./log.js";
import { Outbox } from "./outbox.js";
import { format, parse, type Route, type View as ViewName, views } from "./route.js";
import { Samples } from "./samples.js";
import { ServerView } from "./server.js";
import { type Credential, errorText, Session, SignInError } from "./session.js";
import { signInForm } from "./sign-in.js";
import { Titles } from "./titles.js";
import { TurnTimes } from "./turn-times.js";
import { TurnsView } from "./turns.js";
import type { Context, View } from "./view.js";
import { Waiting, waitingBadge } from "./waiting.js";

const names: { readonly [view in ViewName]: string } = {
  conversations: "Conversations",
  turns: "Turns",
  log: "Log",
  server: "Server",
};

/** Runs the console. */
class App {
  #view: View | undefined;

  async start(credential: Credential = {}): Promise<void> {
    let session: Session;
    try {
      session = await Session.open(credential);
    } catch (error) {
      if (error instanceof SignInError) {
        fill(
          document.body,
          signInForm(error.message, (given) => void this.start(given), error.isOfToken ? {} : credential),
        );
        return;
      }
      fill(
        document.body,
        h("main", { class: "sign-in" }, h("p", { class: "failure", role: "alert" }, errorText(error)), [
          button("Try again", () => void this.start(credential)),
        ]),
      );
      return;
    }
    this.#open(session);
  }

  #open(session: Session): void {
    const ending = new AbortController();
    const { signal } = ending;
    const feed = new Feed(session, signal);
    const context: Context = {
      session,
      feed,
      samples: new Samples(session, signal),
      titles: new Titles(session, feed, signal),
      waiting: new Waiting(session, feed, signal),
      answered: new AnsweredTurns(session, feed, signal),
      times: new TurnTimes(feed, signal),
      outbox: new Outbox(session, signal),
      results: new Map(),
    };
    const leave = (problem: string) => {
      ending.abort();
      session.client.close();
      fill(
        document.body,
        signInForm(problem, (given) => void this.start(given)),
      );
    };
    const connection = h("p", { class: "connection", role: "status" });
    const links = views.map((view) =>
      h(
        "a",
        { href: format({ view }) },
        names[view],
        view === "turns" && waitingBadge(context.waiting, signal),
      ),
    );
    const main = h("main", { id: "main", tabindex: "-1" });
    const { caller } = session;
    fill(
      document.body,
      h("a", { class: "skip", href: "#main", onclick: (event) => skipTo(event, main) }, "Skip to the view"),
      h(
        "header",
        {},
        h("h1", { class: "brand" }, "Parley"),
        h("nav", { "aria-label": "Views" }, links),
        connection,
        h(
          "span",
          { class: "caller" },
          session.readOnly && h("span", { class: "badge" }, "read only"),
          session.signInRequired && [`${caller.name} · ${caller.role} · ${caller.tenant} `],
          session.signInRequired && button("Sign out", () => leave("")),
        ),
      ),
      main,
    );
    session.addEventListener(
      "connection",
      () => {
        document.body.classList.toggle("lost", session.isLost);
        connection.textContent = session.isLost ? "Connection lost. Reconnecting…" : "";
      },
      { signal },
    );
    session.addEventListener("expired", () => leave("The sign-in is no longer valid; sign in again."), {
      signal,
    });
    onKeys(() => this.#view, signal);
    const show = () => {
      const route = parse(location.hash);
      for (const [index, link] of links.entries()) {
        if (views[index] === route.view) {
          link.setAttribute("aria-current", "page");
        } else {
          link.removeAttribute("aria-current");
        }
      }
      this.#show(context, route, main);
    };
    addEventListener("hashchange", show, { signal });
    show();
  }

  #show(context: Context, route: Route, main: HTMLElement): void {
    document.title = route.id ? `${route.id} – Parley` : `${names[route.view]} – Parley`;
    // The list stays while conversations are opened and closed.
    if (this.#view instanceof ConversationsView && this.#view.isConnected && this.#view.open(route)) {
      return;
    }
    this.#view = newView(context, route);
    fill(main, this.#view);
  }
}

function newView(context: Context, route: Route): View {
  switch (route.view) {
    case "conversations":
      return new ConversationsView(context, route);
    case "turns":
      return new TurnsView(context, route);
    case "log":
      return new LogView(context, route);
    case "server":
      return new ServerView(context, route);
  }
}

/** Moves the focus without changing the address, which names the view. */
function skipTo(event: Event, main: HTMLElement): void {
  event.preventDefault();
  main.focus();
}

void new App().start();
