import type { ServerCredentials } from "@grpc/grpc-js";
import { type CallContext, createServer, type Metadata, type Server, ServerError, Status } from "nice-grpc";
import { HealthDefinition, HealthServiceImpl, HealthState } from "nice-grpc-server-health";

import type { Code } from "./errors.js";
import { AgentServiceDefinition, type RespondRequest, RespondResponse } from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";

type Cases = NonNullable<RespondResponse["piece"]>;
type Values = { [C in Cases as C["$case"]]: Input<C["value"]> };

/**
 * A piece of an answer. A string is a piece of its text, split between any two characters. Any other
 * piece is an object with one property:
 * `{ structuredData: { type, value } }`, `{ toolCall: { id, name, arguments } }`,
 * `{ toolResult: { callId, content } }`, `{ summary: "…" }`, `{ usage: { model, outputTokens } }`,
 * `{ native: { type, value } }`, `{ progress: { text } }`, `{ nextAgent: "…" }`, `{ reasoning: "…" }`,
 * `{ toolCallDelta: { id, name, arguments } }`, `{ record: { key, value } }`. {@link RespondResponse} explains
 * each of them. Records are written in the same commit as the answer, if the turn completes or ends as
 * INPUT_REQUIRED.
 */
export type Piece =
  | string
  | { [K in keyof Values]: Pick<Values, K> & { [Other in Exclude<keyof Values, K>]?: never } }[keyof Values];

/** The context of an answer. */
export interface Answering {
  /**
   * Aborts when the answer is cancelled: the turn was cancelled or took too long, or the agent stops.
   * Pass it to the calls that the answer waits for.
   */
  readonly signal: AbortSignal;
  /** The metadata of the call: the headers of the agent in the server's configuration. */
  readonly metadata: Metadata;
}

/**
 * The base class of agents, which answer the messages of conversations. {@link serve} serves an agent.
 * One agent writes many answers at the same time. It needs no state, because each request contains the
 * conversation.
 */
export abstract class Agent {
  /**
   * Answers the last message of request.messages. Write it as `async *respond`: each piece is sent as
   * soon as it is yielded. The answer is complete when the generator ends.
   *
   * If respond throws, the turn fails, and the pieces before are stored as an incomplete message. The
   * user sees the message of an {@link AgentError}. Of any other error the user sees only the name,
   * and {@link ServeOptions.log} receives the error.
   */
  abstract respond(request: RespondRequest, answering: Answering): AsyncIterable<Piece>;
}

/** The reason why {@link Agent.respond} has no answer, as a text for the user. */
export class AgentError extends Error {
  /** The gRPC status. UNAVAILABLE and RESOURCE_EXHAUSTED mean that a retry may help. */
  readonly code: Code;

  constructor(code: Code, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "AgentError";
    this.code = code;
  }
}

/** The options of {@link serve}. */
export interface ServeOptions {
  /** How many milliseconds running answers have to end at a stop. The default is 10,000. */
  readonly grace?: number;
  /** Receives log messages, with the error if there is one. The default writes to standard error. */
  readonly log?: (message: string, error?: unknown) => void;
  /** The credentials for TLS. The default is plaintext. */
  readonly credentials?: ServerCredentials;
}

/** The server of an agent. */
export interface AgentServer extends AsyncDisposable {
  /** The address of the server, with the actual port. */
  readonly address: string;
  /**
   * Stops the server: it accepts no new calls, waits for running answers for the grace, and then fails
   * the rest with UNAVAILABLE. Resolves when all answers have ended. It may be called more than once.
   * SIGINT and SIGTERM call it, too.
   */
  stop(): Promise<void>;
}

/**
 * Serves an agent and the gRPC health service at `"HOST:PORT"` or `"unix:PATH"` until SIGINT or
 * SIGTERM. With port 0 the system chooses a free port. A second signal of the same kind ends the
 * process at once. Without credentials in the options the agent serves plaintext: use a loopback
 * address or a trusted network. Throws if the address is invalid or in use.
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
/** How many milliseconds cancelled answers, and then the connections, may take to end. */
const closingTime = 1000;
/**
 * How many milliseconds the last status has to leave the process. Node 18 closes a connection in
 * shutdown together with the last call on it, and may lose the status of that call.
 */
const flushTime = 50;

function logToStandardError(message: string, ...error: unknown[]): void {
  console.error(`agent: ${message}`, ...error);
}

/** The gRPC service of an agent. */
class Service {
  readonly server: Server = createServer();
  readonly #agent: Agent;
  readonly #grace: number;
  readonly #log: (message: string, error?: unknown) => void;
  readonly #health = HealthState();
  /** Aborts the Watch calls of the health service. */
  readonly #watchController = new AbortController();
  /** The functions that cancel the running answers. */
  readonly #cancels = new Set<(reason: AgentError) => void>();
  /** Called when the last running answer has ended. */
  #onIdle = () => {};
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
        const signal = AbortSignal.any([context.signal, this.#watchController.signal]);
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
    const timers = [setTimeout(() => this.#cancelAnswers(), this.#grace)];
    timers.push(setTimeout(() => this.server.forceShutdown(), this.#grace + closingTime));
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
      if (this.#cancels.size === 0) {
        resolve();
      }
    });
    this.#watchController.abort();
    await new Promise((resolve) => setTimeout(resolve, flushTime));
    await this.server.shutdown();
    timers.forEach(clearTimeout);
  }

  #cancelAnswers(): void {
    if (this.#cancels.size > 0) {
      this.#log(`cancelled the answers that still ran ${this.#grace / 1000} s after the stop began`);
    }
    for (const cancel of this.#cancels) {
      cancel(
        new AgentError("UNAVAILABLE", "the agent was stopped before its answer was complete; try again"),
      );
    }
  }

  async *#respond(
    request: RespondRequest,
    context: CallContext,
  ): AsyncGenerator<RespondResponse, void, undefined> {
    if (this.#stopped) {
      throw new ServerError(Status.UNAVAILABLE, "the agent is stopping; try again");
    }
    const controller = new AbortController();
    const { signal } = controller;
    let rejectNext = (_: unknown) => {};
    const cancel = (reason: unknown) => {
      controller.abort(reason);
      rejectNext(reason);
    };
    const onAbort = () => cancel(context.signal.reason);
    context.signal.addEventListener("abort", onAbort);
    this.#cancels.add(cancel);
    let answer: AsyncIterator<Piece> | undefined;
    try {
      context.signal.throwIfAborted();
      answer = this.#agent.respond(request, { signal, metadata: context.metadata })[Symbol.asyncIterator]();
      for (;;) {
        // If the agent ignores the signal, its promise is abandoned.
        const next = await new Promise<IteratorResult<Piece>>((resolve, reject) => {
          rejectNext = reject;
          answer!.next().then(resolve, reject);
        });
        if (next.done) {
          answer = undefined;
          return;
        }
        yield toResponse(next.value);
      }
    } catch (error) {
      context.signal.throwIfAborted();
      throw this.#status(signal.aborted ? signal.reason : error);
    } finally {
      context.signal.removeEventListener("abort", onAbort);
      controller.abort();
      this.#cancels.delete(cancel);
      if (this.#cancels.size === 0) {
        this.#onIdle();
      }
      answer?.return?.().then(undefined, (error) => this.#log("cancelled answer failed", error));
    }
  }

  /** Converts an error to the status for the caller. */
  #status(error: unknown): ServerError {
    if (error instanceof ServerError) {
      return error;
    }
    if (error instanceof AgentError) {
      return new ServerError(Status[error.code], error.message);
    }
    this.#log("respond failed", error);
    const name = error instanceof Error ? error.name : typeof error;
    return new ServerError(Status.INTERNAL, `the agent failed with ${name}; see its log`);
  }
}

/** Converts a piece to a message of the API. Throws a TypeError if it is not a valid piece. */
function toResponse(piece: Piece): RespondResponse {
  const entries = typeof piece === "string" ? [["text", piece] as const] : Object.entries(piece ?? {});
  const [$case, value] = entries[0] ?? [];
  if (entries.length === 1 && value !== undefined) {
    const message = RespondResponse.fromPartial({ piece: { $case, value } as Cases });
    if (message.piece) {
      RespondResponse.encode(message); // It throws a specific error, which nice-grpc would hide.
      return message;
    }
  }
  const want = "want a string or an object with one property of RespondResponse";
  throw new TypeError(`respond yielded ${JSON.stringify(piece)}, ${want}`);
}
