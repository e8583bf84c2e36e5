import { once } from "node:events";

import { Agent, type Answering, type Piece, type RespondRequest } from "@parleyhq/client";

export type Script = (
  request: RespondRequest,
  answering: Answering,
) => AsyncIterable<Piece> | Iterable<Piece>;

/** An agent that repeats messages, or answers by the script that the message names. */
export class Scripts extends Agent {
  readonly requests: RespondRequest[] = [];
  readonly #scripts: { [name: string]: Script };
  #change = new EventTarget();
  #isReleased = false;

  constructor(scripts: { [name: string]: Script } = {}) {
    super();
    this.#scripts = scripts;
  }

  /** Ends the answers of {@link slow}. */
  release(): void {
    this.#isReleased = true;
    this.#change.dispatchEvent(new Event("release"));
  }

  /** A script that waits in the middle until the test calls {@link release}. */
  readonly slow: Script = async function* (this: Scripts, _: RespondRequest, { signal }: Answering) {
    yield "Once upon";
    if (!this.#isReleased) {
      await once(this.#change, "release", { signal });
    }
    yield " a time.";
  }.bind(this);

  override async *respond(request: RespondRequest, answering: Answering): AsyncGenerator<Piece> {
    this.requests.push(request);
    const last = request.messages.at(-1)!;
    const name = last.toolResult ? "result" : last.content;
    if (name === "slow") {
      yield* this.slow(request, answering);
    } else if (name in this.#scripts) {
      yield* this.#scripts[name]!(request, answering);
    } else {
      yield `re: ${last.content || last.toolResult?.content}`;
    }
  }
}
