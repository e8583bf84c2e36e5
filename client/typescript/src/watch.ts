import type { ParleyError } from "./errors.js";
import type {
  ConversationChange,
  WatchConversationsRequest,
  WatchConversationsResponse,
} from "./gen/index.parley.v1.js";
import type { Source } from "./unbroken.js";

/** How changes are asked for. */
export interface Changes {
  watchConversations(
    request: WatchConversationsRequest,
    options: { signal: AbortSignal },
  ): AsyncIterable<WatchConversationsResponse>;
}

/** Shows changes to one caller. */
export class Watcher implements Source<WatchConversationsResponse, ConversationChange> {
  readonly #changes: Changes;
  /** Its cursor is that of the last change shown. */
  #request: WatchConversationsRequest;
  /** The server has sent something, ever. */
  #letIn = false;

  constructor(changes: Changes, request: WatchConversationsRequest) {
    this.#changes = changes;
    this.#request = request;
  }

  open(signal: AbortSignal): AsyncIterable<WatchConversationsResponse> {
    return this.#changes.watchConversations(this.#request, { signal });
  }

  take({ change }: WatchConversationsResponse): ConversationChange | undefined {
    if (change) {
      this.#letIn = true;
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

  mayEnd(): boolean {
    return false;
  }

  resumes(): boolean {
    return false;
  }

  /** The broken stream of a watcher that was let in may still be counted. */
  bears({ reason }: ParleyError): boolean {
    return this.#letIn && reason === "TOO_MANY_WATCHERS";
  }
}
