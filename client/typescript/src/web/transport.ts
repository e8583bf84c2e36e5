import type { Prepared } from "../append-queue.js";
import { Calls, type Responses, untilAborted } from "../calls.js";
import { ParleyError, waitAskedBy } from "../errors.js";
import type {
  AppendMessagesRequest,
  AppendMessagesResponse,
  AppendStreamRequest,
  ImportConversationsResponse,
} from "../gen/index.parley.v1.js";
import { methods } from "../gen/schema.js";
import type { Input } from "../input.js";
import { resumable, retryPolicy, sentOnce } from "../methods.js";
import { CallerError, invalidRequest, iterate, maxMessageBytes } from "../request.js";
import type { ResumableRequests, Stub, Transport } from "../transport.js";
import { newID } from "./id.js";
import { fieldsOf, fromJSON, toJSON } from "./json.js";
import { type CallOptions, type ClientOptions, connectionSettings } from "./options.js";
import { encode, type HTTPRequest, httpRequest, line, linesRequest } from "./request.js";
import {
  bodyJSON,
  events,
  fromResponse,
  fromStatus,
  isRedirect,
  lines,
  parse,
  redirected,
  type Status,
} from "./response.js";

/** The longest wait, in milliseconds, for which a proxy can ask before the next attempt of a call. */
const maxRetryAfter = 5000;

/** The server reads at most 1024 lines before it needs to send a reply, and a page reads only when it has sent all. */
const maxBatch = 1000;

type Fields = { [name: string]: unknown };

/**
 * The options with which a browser does not let a read wait for another one with the same URL. Some workers refuse
 * them.
 */
const uncached: object = accepts({ cache: "no-store" }) ? { cache: "no-store" } : {};

/** Calls a server with fetch. */
export class FetchTransport implements Transport<CallOptions> {
  readonly calls: Calls;
  readonly stub: Stub<CallOptions>;
  readonly #base: string;
  readonly #fetch: typeof fetch;
  readonly #listeners = new Set<() => void>();

  constructor(target: string, options: ClientOptions) {
    const { base, signIn } = connectionSettings(target, options);
    this.#base = base;
    const own = options.fetch;
    this.#fetch = own ? (...request) => own(...request) : (...request) => fetch(...request);
    this.calls = new Calls(signIn);
    const calls = Object.entries(methods).map(([name, { stream }]) => [
      name,
      stream
        ? (request: unknown, options?: CallOptions) => this.#stream(name, request, options)
        : (request: unknown, options?: CallOptions) => this.#unary(name, request, options),
    ]);
    const importConversations: Stub<CallOptions>["importConversations"] = (requests, options) =>
      this.#import(requests, options);
    const { appendStream: _, ...others } = Object.fromEntries(calls);
    this.stub = { ...others, importConversations } as Stub<CallOptions>;
  }

  complete<M extends keyof ResumableRequests>(method: M, request: unknown): ResumableRequests[M] {
    const type = methods[method]!.request;
    return fromJSON(type, requestJSON(type, request)) as unknown as ResumableRequests[M];
  }

  prepareAppend(request: Input<AppendMessagesRequest>): Prepared {
    const json = requestJSON("AppendMessagesRequest", request);
    const append = fromJSON("AppendMessagesRequest", json) as unknown as AppendMessagesRequest;
    return {
      request: { append },
      size: encode({ append: json }).length,
      conversationId: append.conversationId,
    };
  }

  /** Sends the requests in batches, each of which begins when the replies to the previous one have arrived. */
  appendStream(
    requests: AsyncIterable<AppendStreamRequest>,
    options: CallOptions,
  ): AsyncIterable<AppendMessagesResponse | ParleyError> {
    return this.#run(
      "appendStream",
      options,
      () => (signal, headers) => this.#sendBatches(requests, signal, headers),
    );
  }

  close(): void {
    this.calls.close();
  }

  onReady(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async #unary(name: string, request: unknown, options?: CallOptions): Promise<unknown> {
    const type = methods[name]!;
    const responses = this.#run(name, options, () => {
      const sent = httpRequest(name, requestJSON(type.request, request));
      return (signal, headers) => this.#sendUnary(name, sent, type.response, signal, headers);
    });
    return (await responses.next()).value;
  }

  /** Returns the response. */
  async *#sendUnary(
    name: string,
    request: HTTPRequest,
    type: string,
    signal: AbortSignal,
    headers: Headers,
  ): Responses<unknown> {
    return await this.#retry(name, signal, async () => {
      const response = await this.#open(request, signal, headers);
      return fromServer(type, await bodyJSON(response));
    });
  }

  #stream(name: string, request: unknown, options?: CallOptions): AsyncIterable<unknown> {
    const type = methods[name]!;
    return this.#run(name, options, () => {
      const sent = httpRequest(name, requestJSON(type.request, request));
      return (signal, headers) => this.#sendStream(name, sent, type.response, signal, headers);
    });
  }

  async *#sendStream(
    name: string,
    request: HTTPRequest,
    type: string,
    signal: AbortSignal,
    headers: Headers,
  ): Responses<unknown> {
    headers.set("accept", "text/event-stream");
    const response = await this.#retry(name, signal, () => this.#open(request, signal, headers));
    for await (const event of events(response)) {
      const json = parse(event.data);
      if (event.type === "error") {
        throw fromStatus(json as Status);
      }
      yield fromServer(type, json);
    }
    return undefined;
  }

  /** Makes a call. start copies its request, and returns the function that sends it. */
  #run<Response>(
    name: string,
    { metadata, signal }: CallOptions = {},
    start: () => (signal: AbortSignal, headers: Headers) => Responses<Response>,
  ): Responses<Response> {
    return this.calls.run(() => {
      const send = start();
      const given = headersOf(metadata);
      return {
        isSet: (key) => given.has(key),
        attempt: (signal, added) => {
          const headers = new Headers(given);
          for (const [key, value] of added) {
            headers.set(key, value);
          }
          return send(signal, headers);
        },
        mayRepeat: true,
        mayResume: resumable.has(nameOf(name)),
      };
    }, signal);
  }

  /** Sends the requests of an appender. Yields the replies. */
  async *#sendBatches(
    requests: AsyncIterable<AppendStreamRequest>,
    signal: AbortSignal,
    headers: Headers,
  ): Responses<AppendMessagesResponse | ParleyError> {
    for await (const batch of batches(requests)) {
      const jsons = batch.map((request) => toJSON("AppendStreamRequest", request));
      const sent = linesRequest("appendStream", jsons.map(line));
      const response = await this.#retry("appendStream", signal, () => this.#open(sent, signal, headers));
      let missing = batch.length;
      for await (const reply of lines(response)) {
        const { response, error } = parse(reply) as { response?: unknown; error?: Status };
        missing--;
        yield error
          ? fromStatus(error)
          : (fromServer("AppendMessagesResponse", response) as unknown as AppendMessagesResponse);
      }
      if (missing > 0) {
        throw new ParleyError("UNKNOWN", "the server ended the stream before it answered all requests");
      }
    }
    return undefined;
  }

  /** Imports in batches, none of which ends within a conversation. */
  async #import(requests: unknown, options?: CallOptions): Promise<ImportConversationsResponse> {
    const total: ImportConversationsResponse = {
      importedCount: 0,
      skippedCount: 0,
      noRoomCount: 0,
      failures: [],
    };
    let lines: string[] = [];
    let size = 0;
    let conversation: unknown;
    const send = async () => {
      const reply = await this.#importLines(lines, options);
      total.importedCount += reply.importedCount;
      total.skippedCount += reply.skippedCount;
      total.noRoomCount += reply.noRoomCount;
      total.failures.push(...reply.failures);
      lines = [];
      size = 0;
    };
    const call = this.calls.begin(options?.signal);
    const iterator = iterate(requests);
    try {
      for (;;) {
        const next = await untilAborted(iterator.next(), call.signal);
        if (next.done) {
          break;
        }
        const json = requestJSON("ImportConversationsRequest", next.value);
        const id = (json["conversation"] as Fields | undefined)?.["id"];
        if (size > maxMessageBytes && id !== conversation) {
          await send();
        }
        conversation = id;
        lines.push(line(json));
        size += lines.at(-1)!.length;
      }
      await send();
      return total;
    } catch (error) {
      void iterator.return().catch(() => {});
      call.signal.throwIfAborted();
      throw error instanceof CallerError ? error.reason : error;
    } finally {
      call.release();
    }
  }

  async #importLines(
    lines: readonly string[],
    options: CallOptions | undefined,
  ): Promise<ImportConversationsResponse> {
    const type = methods["importConversations"]!.response;
    const responses = this.#run("importConversations", options, () => {
      const sent = linesRequest("importConversations", lines);
      return (signal, headers) => this.#sendUnary("importConversations", sent, type, signal, headers);
    });
    return (await responses.next()).value as ImportConversationsResponse;
  }

  /** Sends a request and returns the response, if it is not an error. */
  async #open({ method, path, body }: HTTPRequest, signal: AbortSignal, headers: Headers): Promise<Response> {
    let response: Response;
    try {
      // Without a Content-Type, which the server does not need, browsers send a POST without asking first.
      const content = body ? { body } : {};
      const fixed = { redirect: "manual", ...uncached } as const;
      response = await this.#fetch(this.#base + path, { method, headers, signal, ...fixed, ...content });
    } catch (cause) {
      throw new ParleyError(
        "UNAVAILABLE",
        `cannot reach ${this.#base}: ${cause}; a web page needs its origin in --http-allowed-origins`,
        { cause },
      );
    }
    if (isRedirect(response)) {
      await response.body?.cancel().catch(() => {});
      throw redirected(this.#base, response);
    }
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const listener of listeners) {
      listener();
    }
    if (!response.ok) {
      throw await fromResponse(response);
    }
    return response;
  }

  /**
   * Makes attempts while the server is unavailable, with the times of gRPC, or after the Retry-After of a proxy. If
   * that is too long, the error is thrown.
   */
  async #retry<T>(name: string, signal: AbortSignal, attempt: () => Promise<T>): Promise<T> {
    const { maxAttempts, initialBackoff, maxBackoff, backoffMultiplier } = retryPolicy;
    for (let count = 1; ; count++) {
      let asked = 0;
      try {
        return await attempt();
      } catch (error) {
        const isUnavailable = error instanceof ParleyError && error.code === "UNAVAILABLE";
        if (!isUnavailable || signal.aborted || count === maxAttempts || sentOnce.has(nameOf(name))) {
          throw error;
        }
        asked = waitAskedBy(error);
        if (asked > maxRetryAfter) {
          throw error;
        }
      }
      const backoff = Math.min(initialBackoff * backoffMultiplier ** (count - 1), maxBackoff);
      await sleep(Math.max(1000 * backoff * (0.8 + 0.4 * Math.random()), asked), signal);
    }
  }
}

/** Reports whether fetch has options. */
function accepts(options: object): boolean {
  try {
    new Request("http://localhost", options);
    return true;
  } catch {
    return false;
  }
}

/** Returns the name of a method in the protos. */
function nameOf(name: string): string {
  return name[0]!.toUpperCase() + name.slice(1);
}

/** Returns a request as JSON, with a random requestId if its requestId is empty. */
function requestJSON(type: string, request: unknown): Fields {
  if (typeof request !== "object" || request === null) {
    throw invalidRequest(`it is ${request === null ? "null" : typeof request}, want an object`);
  }
  let json: Fields;
  try {
    json = toJSON(type, request);
  } catch (error) {
    throw invalidRequest((error as Error).message, error);
  }
  if (json["requestId"] === undefined && fieldsOf(type).some(({ name }) => name === "requestId")) {
    json["requestId"] = newID();
  }
  return json;
}

/** Converts JSON of the server. */
function fromServer(type: string, json: unknown): Fields {
  try {
    return fromJSON(type, json);
  } catch (cause) {
    throw new ParleyError("INTERNAL", `the response is not valid: ${(cause as Error).message}`, { cause });
  }
}

function headersOf(metadata: Headers | undefined): Headers {
  try {
    return new Headers(metadata);
  } catch (error) {
    throw invalidRequest((error as Error).message, error);
  }
}

/** Yields the requests that arrive while the caller uses the previous ones. */
async function* batches(
  requests: AsyncIterable<AppendStreamRequest>,
): AsyncGenerator<AppendStreamRequest[], void, undefined> {
  const waiting: AppendStreamRequest[] = [];
  let hasEnded = false;
  let wake = () => {};
  void (async () => {
    for await (const request of requests) {
      waiting.push(request);
      wake();
    }
    hasEnded = true;
    wake();
  })();
  for (;;) {
    if (waiting.length > 0) {
      await new Promise((resolve) => setTimeout(resolve)); // The requests of a loop are one batch.
      yield waiting.splice(0, maxBatch);
    } else if (hasEnded) {
      return;
    } else {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  }
}

/** Waits. Throws the reason of the signal if it aborts before. */
async function sleep(delay: number, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", abort);
      resolve();
    }, delay);
    signal.addEventListener("abort", abort, { once: true });
  });
}
