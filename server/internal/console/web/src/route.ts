/** The views of the console. Each place has an address: the part of the URL after #. */

export const tabs = ["messages", "routing", "context", "turns", "log", "details"] as const;
export type Tab = (typeof tabs)[number];

export const views = ["conversations", "turns", "log", "server"] as const;
export type View = (typeof views)[number];

/** A place in the console. */
export interface Route {
  readonly view: View;
  /** The id of the open conversation, in the view of conversations. */
  readonly id?: string;
  /** The open part of the conversation. */
  readonly tab: Tab;
  /** The open turn, in the tab of turns. */
  readonly turn?: string;
  /** What the view is filtered by. */
  readonly query: URLSearchParams;
}

/** Returns the place of an address. Any other address is that of the list of conversations. */
export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").map(decode);
  const view = views.find((view) => view === parts[0]) ?? "conversations";
  const id = view === "conversations" ? parts[1] : undefined;
  return {
    view,
    tab: tabs.find((tab) => tab === parts[2]) ?? "messages",
    query: new URLSearchParams(query),
    ...(id ? { id } : {}),
    ...(id && parts[3] ? { turn: parts[3] } : {}),
  };
}

/** Returns the address of a place. */
export function format({ view, id, tab, turn, query }: Partial<Route>): string {
  const parts: string[] = [view ?? "conversations"];
  if (id) {
    parts.push(id, tab ?? "messages");
    if (turn) {
      parts.push(turn);
    }
  }
  const text = query?.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Goes to a place. */
export function go(route: Partial<Route>): void {
  location.hash = format(route);
}

/** Replaces the address without another entry in the history of the browser. The view is not opened again. */
export function rewrite(route: Partial<Route>): void {
  history.replaceState(null, "", format(route));
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // The user has changed the address.
  }
}
