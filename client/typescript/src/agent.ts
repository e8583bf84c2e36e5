import type { ServerCredentials } from "@grpc/grpc-js";
import { type CallContext, createServer, type Metadata, type Server, ServerError, Status } from "nice-grpc";
import { HealthDefinition, HealthServiceImpl, HealthState } from "nice-grpc-server-health";

import type { Code } from "./errors.js";
import { AgentServiceDefinition, type RespondRequest, RespondResponse } from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";

type Cases = NonNullable<RespondResponse["piece"]>;
type Values = { [C in Cases as C["$case"]]: Input<C["value"]> };

/**
 * A piece of an answer: a string is the next of its text, cut anywhere between two characters; the
 * rest is an object with one property, such as
 * `{ structuredData: { type, value } }`, `{ toolCall: { id, name, arguments } }`,
 * `{ toolResult: { callId, content } }`, `{ summary: "…" }`, `{ usage: { model, outputTokens } }`,
 * `{ progress: { text } }`, `{ nextAgent: "…" }`. What each does is said at {@link RespondResponse}.
 */
export type Piece =
  | string
  | { [K in keyof Values]: Pick<Values, K> & { [Other in Exclude<keyof Values, K>]?: never } }[keyof Values];

/** What an answer may need besides the request. */
export interface Answering {
  /**
   * Ends when nobody wants the answer any more: the turn was cancelled or is out of time, or the agent
   * stops. Hand it to whatever the answer waits for.
   */
  readonly signal: AbortSignal;
  /** What came with the call: the headers of the agent in the server's configuration. */
  readonly metadata: Metadata;
}

/**
 * An agent, which answers what people say in conversations that Parley keeps. {@link serve} serves it.
 * It may be asked for many answers at once. It needs no memory: all that it must know comes with each
 * request.
 */
export abstract class Agent {
  /**
   * Answers what request.messages ends with, best as an `async *respond`: what it yields is shown at
   * once. Its end means that the answer is whole.
   *
   * What was yielded before it throws is kept as incomplete. An {@link AgentError} says to the user
   * what went wrong; of any other error the user is told its name, and the rest goes to
   * {@link ServeOptions.log}.
   */
  abstract respond(request: RespondRequest, answering: Answering): AsyncIterable<Piece>;
}

/** Thrown by {@link Agent.respond}: why there is no answer, in words that the user may read. */
export class AgentError extends Error {
  /**
   * The gRPC status. After UNAVAILABLE and RESOURCE_EXHAUSTED the user is told that asking again may
   * help.
   */
  readonly code: Code;

  constructor(code: Code, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "AgentError";
    this.code = code;
  }
}

/** How an agent is served. */
export interface ServeOptions {
  /** How long answers that are under way at a stop may go on, in milliseconds; 10,000 if left out. */
  readonly grace?: number;
  /** Is told what nobody else is told, and the error that it is about; if left out, standard error. */
  readonly log?: (message: string, error?: unknown) => void;
  /** TLS; plaintext if left out. */
  readonly credentials?: ServerCredentials;
}

/** An agent that is being served. */
export interface AgentServer extends AsyncDisposable {
  /** Where it is reached; with port 0, with the port that it was given. */
  readonly address: string;
  /**
   * Takes no more calls, gives the answers that are under way their grace, and then cuts them off with
   * UNAVAILABLE. Ends when all have ended. Once is enough; SIGINT and SIGTERM call it, too.
   */
  stop(): Promise<void>;
}

/**
 * Serves an agent, and its health, at `"HOST:PORT"` or `"unix:PATH"` until SIGINT or SIGTERM; port 0
 * picks a free one. The same signal a second time ends the process at once. There is no TLS
 * unless the options have it: keep the agent to this machine or to a network that you trust. Fails
 * when the address makes no sense or is taken.
 */
export async function serve(agent: Agent, address: string, options: ServeOptions = {}): Promise<AgentServer> {
  const [, host, port] = /^(.+):(\d+)$/.exec(address) ?? [];
  const isSocket = /^unix:./.test(address);
  if (!isSocket && (!host || Number(port) > 65535)) {
    throw new TypeError(`address is ${JSON.stringify(address)}, want HOST:PORT or unix:PATH`);
  }
  const service = new Service(agent, options);
  const bound = await service.server.listen(address, options.credentials);
  for (const signal of signals) {
    process.once(signal, service.stop);
  }
  return {
    address: isSocket ? address : `${host}:${bound}`,
    stop: service.stop,
    [Symbol.asyncDispose]: service.stop,
  };
}

const signals = ["SIGINT", "SIGTERM"] as const;
/** How long answers that were cut off, and then the connections, may take to end, in milliseconds. */
const closingTime = 1000;
/**
 * How long what was sent last has to leave the process, in milliseconds: Node 18 ends a connection
 * that is to be closed with the last call on it, and may lose how that ended.
 */
const flushTime = 50;

function logToStandardError(message: string, ...error: unknown[]): void {
  console.error(`agent: ${message}`, ...error);
}

/** An agent behind its gRPC service. */
class Service {
  readonly server: Server = createServer();
  readonly #agent: Agent;
  readonly #grace: number;
  readonly #log: (message: string, error?: unknown) => void;
  readonly #health = HealthState();
  /** Aborts the Watch calls of the health service. */
  readonly #unwatch = new AbortController();
  readonly #answers = new Set<(why: AgentError) => void>();
  /** Is called when the last of the answers has ended. */
  #idle = () => {};
  #stopped: Promise<void> | undefined;

  constructor(agent: Agent, { grace = 10_000, log = logToStandardError }: ServeOptions) {
    this.#agent = agent;
    this.#grace = grace;
    this.#log = log;
    this.server.add(AgentServiceDefinition, { respond: this.#respond.bind(this) });
    this.#health.setMaxListeners(0); // Each Watch call adds a listener.
    this.#health.setStatus("healthy", AgentServiceDefinition.fullName);
    const { check, watch } = HealthServiceImpl(this.#health);
    this.server.add(HealthDefinition, {
      check,
      watch: (request, context) => {
        const signal = AbortSignal.any([context.signal, this.#unwatch.signal]);
        return watch(request, { ...context, signal });
      },
    });
  }

  readonly stop = (): Promise<void> => {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  };

  async #stop(): Promise<void> {
    for (const signal of signals) {
      process.off(signal, this.stop);
    }
    this.#health.setStatus("unhealthy");
    this.#health.setStatus("unhealthy", AgentServiceDefinition.fullName);
    const timers = [setTimeout(() => this.#cutOff(), this.#grace)];
    timers.push(setTimeout(() => this.server.forceShutdown(), this.#grace + closingTime));
    await new Promise<void>((resolve) => {
      this.#idle = resolve;
      if (this.#answers.size === 0) {
        resolve();
      }
    });
    this.#unwatch.abort();
    await new Promise((resolve) => setTimeout(resolve, flushTime));
    await this.server.shutdown();
    timers.forEach(clearTimeout);
  }

  #cutOff(): void {
    if (this.#answers.size > 0) {
      this.#log(
        `cut off the answers that were still under way ${this.#grace / 1000} s after the signal to stop`,
      );
    }
    for (const cut of this.#answers) {
      cut(new AgentError("UNAVAILABLE", "the agent was stopped before its answer was whole; ask again"));
    }
  }

  async *#respond(
    request: RespondRequest,
    context: CallContext,
  ): AsyncGenerator<RespondResponse, void, undefined> {
    if (this.#stopped) {
      throw new ServerError(Status.UNAVAILABLE, "the agent is stopping; ask again");
    }
    const controller = new AbortController();
    const { signal } = controller;
    let interrupt = (_: unknown) => {};
    const end = (reason: unknown) => {
      controller.abort(reason);
      interrupt(reason);
    };
    const leave = () => end(context.signal.reason);
    context.signal.addEventListener("abort", leave);
    this.#answers.add(end);
    let answer: AsyncIterator<Piece> | undefined;
    try {
      context.signal.throwIfAborted();
      answer = this.#agent.respond(request, { signal, metadata: context.metadata })[Symbol.asyncIterator]();
      for (;;) {
        // What does not heed the signal is left behind.
        const next = await new Promise<IteratorResult<Piece>>((resolve, reject) => {
          interrupt = reject;
          answer!.next().then(resolve, reject);
        });
        if (next.done) {
          answer = undefined;
          return;
        }
        yield response(next.value);
      }
    } catch (error) {
      context.signal.throwIfAborted();
      throw this.#status(signal.aborted ? signal.reason : error);
    } finally {
      context.signal.removeEventListener("abort", leave);
      controller.abort();
      this.#answers.delete(end);
      if (this.#answers.size === 0) {
        this.#idle();
      }
      answer?.return?.().then(undefined, (error) => this.#log("an answer that was cut off failed", error));
    }
  }

  /** The error as the caller is told it. */
  #status(error: unknown): ServerError {
    if (error instanceof ServerError) {
      return error;
    }
    if (error instanceof AgentError) {
      return new ServerError(Status[error.code], error.message);
    }
    this.#log("respond failed", error);
    const name = error instanceof Error ? error.name : typeof error;
    return new ServerError(Status.INTERNAL, `the agent failed with ${name}; its log says why`);
  }
}

/** The piece as it is sent. Throws when it is none. */
function response(piece: Piece): RespondResponse {
  const entries = typeof piece === "string" ? [["text", piece] as const] : Object.entries(piece ?? {});
  const [$case, value] = entries[0] ?? [];
  if (entries.length === 1 && value !== undefined) {
    const made = RespondResponse.fromPartial({ piece: { $case, value } as Cases });
    if (made.piece) {
      RespondResponse.encode(made); // Throws where the caller would only be told that something is wrong.
      return made;
    }
  }
  const want = "want a string or an object with one property that RespondResponse knows";
  throw new TypeError(`respond yielded ${JSON.stringify(piece)}, ${want}`);
}
