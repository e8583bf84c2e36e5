import type { ParleyError } from "./errors.js";
import type {
  ConversationChange,
  WatchConversationsRequest,
  WatchConversationsResponse,
} from "./gen/index.parley.v1.js";
import type { Resumption } from "./resumption.js";

/** The call that streams changes. */
export interface Changes {
  watchConversations(
    request: WatchConversationsRequest,
    options: { signal: AbortSignal },
  ): AsyncIterable<WatchConversationsResponse>;
}

/** Delivers changes to one caller. */
export class Watcher implements Resumption<WatchConversationsResponse, ConversationChange> {
  readonly #changes: Changes;
  /** Its cursor is that of the last delivered change. */
  #request: WatchConversationsRequest;
  /** The server has sent a change on any stream. */
  #accepted = false;

  constructor(changes: Changes, request: WatchConversationsRequest) {
    this.#changes = changes;
    this.#request = request;
  }

  open(signal: AbortSignal): AsyncIterable<WatchConversationsResponse> {
    return this.#changes.watchConversations(this.#request, { signal });
  }

  accept({ change }: WatchConversationsResponse): ConversationChange | undefined {
    if (change) {
      this.#accepted = true;
      this.#request = { ...this.#request, cursor: change.cursor || this.#request.cursor };
    }
    return change;
  }

  isLast(): boolean {
    return false;
  }

  isProgress({ kind }: ConversationChange): boolean {
    return kind !== "CHANGE_KIND_HEARTBEAT" && kind !== "CHANGE_KIND_GAP";
  }

  isComplete(): boolean {
    return false;
  }

  restarts(): boolean {
    return false;
  }

  /** The server may still count the broken stream of a watch that it accepted before. */
  isRetryable({ reason }: ParleyError): boolean {
    return this.#accepted && reason === "TOO_MANY_WATCHERS";
  }
}
