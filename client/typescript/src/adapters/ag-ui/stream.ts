/** The limit of the time without a connection, and the delays between attempts, in milliseconds. */
const giveUpAfter = 60_000;
/** The same for a server that has never been reached: a connection that fetch keeps may be stale. */
const connectWithin = 3000;
const firstDelay = 100;
const maxDelay = 2000;
/** The time without data after which a stream counts as broken. The server sends something every 15 s. */
const maxSilence = 45_000;

/** How the streams of an agent are opened. */
export interface StreamOptions {
  /** An abort cancels the turn; otherwise the turn continues. */
  readonly isCancelled: boolean;
  readonly token: () => Promise<string | undefined>;
  readonly tenant: string | undefined;
  readonly fetch: Fetch;
}

type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** An event of a stream, as it was received. */
interface Frame {
  readonly text: string;
  readonly id: string | undefined;
  readonly event: { readonly type?: string; readonly runId?: string; readonly code?: string } | undefined;
}

/**
 * Returns a fetch whose response to a run, or to a connection to a thread, does not end when the connection breaks: it
 * continues after the last event.
 */
export function streaming(options: StreamOptions): Fetch {
  return async (url, init) => {
    const run = new Run(url, init, options);
    return await run.open();
  };
}

/** The errors of a stream whose turn continues. */
const interruptions = ["SHUTTING_DOWN", "UNAUTHENTICATED", "SERVER_UNREACHABLE", "STORE_UNAVAILABLE"];

/** One run of an agent over as many connections as it takes. */
class Run {
  readonly #url: URL;
  readonly #init: RequestInit;
  readonly #options: StreamOptions;
  readonly #signal: AbortSignal | null | undefined;
  readonly #threadId: string;
  #runId: string | undefined;
  /** The id of the last event that was passed on. */
  #lastId: string | undefined;
  /** Closes the connection. */
  #connection = new AbortController();
  /** The reader of the response has left. */
  #isLeft = false;
  /** The last event of the run has arrived. */
  #isEnded = false;
  /** The server has been reached. */
  #isConnected = false;
  #deadline = 0;
  #delay = firstDelay;

  constructor(url: string, { signal, ...init }: RequestInit, options: StreamOptions) {
    this.#url = absolute(url);
    this.#init = init;
    this.#options = options;
    this.#signal = signal;
    if (init.method === "POST") {
      // The turn continues when a page is loaded again, or its connection breaks.
      this.#url.searchParams.set("onDisconnect", "continue");
      ({ threadId: this.#threadId, runId: this.#runId } = JSON.parse(init.body as string));
    } else {
      this.#threadId = this.#url.searchParams.get("threadId")!;
    }
  }

  /** Opens the response. Rejects if the server cannot be reached, or with the reason of an abort. */
  async open(): Promise<Response> {
    this.#signal?.throwIfAborted();
    const abort = () => {
      if (!this.#options.isCancelled) {
        this.#connection.abort();
      }
    };
    this.#signal?.addEventListener("abort", abort);
    const release = () => this.#signal?.removeEventListener("abort", abort);
    try {
      this.#deadline = performance.now() + connectWithin;
      const response = await this.#connect();
      if (!response.ok || !response.body) {
        release();
        return response;
      }
      this.#cancelOnAbort();
      const frames = this.#frames(response);
      const encoder = new TextEncoder();
      const body = new ReadableStream<Uint8Array>({
        pull: async (controller) => {
          try {
            const next = await frames.next();
            if (next.done) {
              release();
              controller.close();
            } else {
              controller.enqueue(encoder.encode(next.value));
            }
          } catch (error) {
            release();
            controller.error(this.#isAborted ? this.#reason : error);
          }
        },
        cancel: () => {
          release();
          this.#isLeft = true;
          this.#connection.abort();
        },
      });
      return new Response(body, { status: response.status, headers: response.headers });
    } catch (error) {
      release();
      throw error;
    }
  }

  /** The page has left the turn, which continues. */
  get #isAborted(): boolean {
    return this.#signal?.aborted === true && !this.#options.isCancelled;
  }

  get #reason(): unknown {
    return this.#signal?.reason ?? new DOMException("The run was left.", "AbortError");
  }

  #resetDeadline(): void {
    this.#deadline = performance.now() + giveUpAfter;
    this.#delay = firstDelay;
  }

  /** Waits until the next attempt. Throws the error if there must be none. */
  async #wait(error: unknown): Promise<void> {
    const delay = this.#delay * (0.8 + 0.4 * Math.random());
    if (this.#isLeft || this.#isAborted || performance.now() + delay > this.#deadline) {
      throw error;
    }
    this.#delay = Math.min(2 * this.#delay, maxDelay);
    await new Promise((resolve) => setTimeout(resolve, delay));
    if (this.#isLeft || this.#isAborted) {
      throw error;
    }
  }

  async #request(url: URL, init: RequestInit): Promise<Response> {
    const headers = new Headers(init.headers);
    const token = await this.#options.token();
    if (token) {
      headers.set("authorization", `Bearer ${token}`);
    }
    if (this.#options.tenant) {
      headers.set("parley-tenant", this.#options.tenant);
    }
    return await this.#options.fetch(url.href, { ...init, headers });
  }

  /** Sends the request until there is a response that is no passing failure. */
  async #connect(): Promise<Response> {
    let isRejected = false;
    for (;;) {
      let failure: unknown;
      try {
        this.#connection = new AbortController();
        if (this.#isLeft || this.#isAborted) {
          throw this.#reason;
        }
        const headers = new Headers(this.#init.headers);
        if (this.#lastId !== undefined) {
          headers.set("last-event-id", this.#lastId);
        }
        const init = { ...this.#init, headers, signal: this.#connection.signal };
        const response: Response = await this.#request(this.#url, init);
        const isExpired: boolean = response.status === 401 && !isRejected && this.#lastId !== undefined;
        if (!this.#isConnected) {
          this.#isConnected = true;
          this.#resetDeadline();
        }
        if (!isExpired && response.status !== 429 && response.status < 502) {
          return response;
        }
        isRejected ||= isExpired;
        await response.body?.cancel();
        failure = new Error(`HTTP ${response.status}`);
      } catch (error) {
        failure = error;
      }
      await this.#wait(failure);
    }
  }

  /** Yields the events of the run. */
  async *#frames(first: Response): AsyncGenerator<string, void, undefined> {
    for (let response = first; ; ) {
      if (response.status === 204) {
        return; // All events have been passed on.
      }
      let failure: unknown = new TypeError("the connection broke");
      if (!response.ok) {
        yield `data: ${(await response.text()).trim()}\n\n`; // An event RUN_ERROR.
        return;
      }
      // Events without an id are received again after a break, so they wait for one that has one, or for the end.
      let held: Frame[] = [];
      try {
        for await (const frame of this.#receive(response)) {
          held.push(frame);
          const { event, id } = frame;
          if (event?.type === "RUN_STARTED") {
            this.#runId = event.runId;
          }
          const isEnd = event?.type === "RUN_FINISHED" || event?.type === "RUN_ERROR";
          if (isEnd && id === undefined && held.length === 1 && interruptions.includes(event.code ?? "")) {
            failure = new Error(frame.text);
            break;
          }
          if (id !== undefined || isEnd) {
            this.#lastId = id ?? this.#lastId;
            const texts = held.map(({ text }) => text).join("");
            held = [];
            this.#resetDeadline();
            yield texts;
          }
          if (isEnd) {
            this.#isEnded = true;
            this.#connection.abort();
            return;
          }
        }
      } catch (error) {
        failure = error;
      }
      await this.#wait(failure);
      response = await this.#connect();
    }
  }

  /** Yields the events of one response. */
  async *#receive(response: Response): AsyncGenerator<Frame, void, undefined> {
    const reader = response.body!.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const connection = this.#connection;
      const timer = setTimeout(() => connection.abort(), maxSilence);
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) {
        return;
      }
      const texts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = texts.pop()!;
      for (const text of texts) {
        const frame = parse(text);
        if (frame.event) {
          yield frame;
        }
      }
    }
  }

  /** Cancels the turn when the run is aborted. */
  #cancelOnAbort(): void {
    const signal = this.#signal;
    if (!signal || !this.#options.isCancelled) {
      return;
    }
    const cancel = () => void this.#cancel().catch(() => {});
    if (signal.aborted) {
      cancel();
    } else {
      signal.addEventListener("abort", cancel, { once: true });
    }
  }

  /** Cancels the turn. Its stream then ends with what is stored of the answer. */
  async #cancel(): Promise<void> {
    const url = new URL(this.#url);
    url.search = "";
    url.searchParams.set("threadId", this.#threadId);
    if (this.#runId !== undefined) {
      url.searchParams.set("runId", this.#runId);
    }
    const headers = new Headers(this.#init.headers);
    headers.delete("content-type");
    for (let delay = firstDelay; !this.#isEnded && !this.#isLeft; delay = Math.min(2 * delay, maxDelay)) {
      try {
        const { status, body } = await this.#request(url, { method: "DELETE", headers });
        await body?.cancel();
        if (status < 500 && status !== 429) {
          return; // The stream says how the run ends.
        }
      } catch {
        // The server may be restarting.
      }
      await new Promise((resolve) => setTimeout(resolve, delay));
    }
  }
}

/** Returns a URL that may be relative to that of the page. */
export function absolute(url: string): URL {
  return new URL(url, (globalThis as { location?: { href: string } }).location?.href);
}

/** Returns the event of a part of a stream. Comments have none. */
function parse(text: string): Frame {
  let id: string | undefined;
  let data: string | undefined;
  for (const line of text.split("\n")) {
    if (line.startsWith("id: ")) {
      id = line.slice("id: ".length);
    } else if (line.startsWith("data: ")) {
      data = line.slice("data: ".length);
    }
  }
  return { text: `${text}\n\n`, id, event: data === undefined ? undefined : JSON.parse(data) };
}
