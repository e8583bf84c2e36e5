import type { Prepared } from "./append-queue.js";
import type { Calls } from "./calls.js";
import type { ParleyError } from "./errors.js";
import type {
  AdminServiceDefinition,
  AppendMessagesRequest,
  AppendMessagesResponse,
  AppendStreamRequest,
  ChatRequest,
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
  RecordServiceDefinition,
  ResumeTurnRequest,
  WatchConversationsRequest,
} from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";
import type { Connection } from "./retry.js";

/** The options of a call that all transports have. */
export interface BaseCallOptions {
  /** Ends the call when it aborts. The call then throws the reason of the signal. */
  signal?: AbortSignal;
}

/** The requests of the calls that resume. */
export interface ResumableRequests {
  chat: ChatRequest;
  resumeTurn: ResumeTurnRequest;
  watchConversations: WatchConversationsRequest;
}

/** How a client reaches its server. */
export interface Transport<Options> extends Connection {
  readonly calls: Calls;
  readonly stub: Stub<Options>;
  /**
   * Returns a copy of a request with all fields set, and with a random requestId if its requestId is empty. Throws
   * INVALID_ARGUMENT if the request cannot be sent.
   */
  complete<M extends keyof ResumableRequests>(method: M, request: unknown): ResumableRequests[M];
  /** Returns such a copy of a request of an appender. */
  prepareAppend(request: Input<AppendMessagesRequest>): Prepared;
  /** Sends the requests of an appender. Yields the reply of each one or the error of it, in their order. */
  appendStream(
    requests: AsyncIterable<AppendStreamRequest>,
    options: Options,
  ): AsyncIterable<AppendMessagesResponse | ParleyError>;
  /** Ends all calls, and closes the connection. */
  close(): void;
}

/**
 * The calls of the services. A call returns its result or throws a ParleyError. It takes an Input, of which it makes
 * a complete copy.
 */
export type Stub<Options> = Omit<
  ServiceCalls<ConversationServiceDefinition, Options> &
    ServiceCalls<InteractionLogServiceDefinition, Options> &
    ServiceCalls<AdminServiceDefinition, Options> &
    ServiceCalls<RecordServiceDefinition, Options>,
  "appendStream"
>;

type ServiceCalls<S extends { readonly methods: object }, Options> = {
  [M in keyof S["methods"]]: MethodCall<S["methods"][M], Options>;
};

type MethodCall<M, Options> = M extends {
  requestType: { decode(...args: never): infer Request };
  requestStream: infer IsRequestStream;
  responseType: { decode(...args: never): infer Response };
  responseStream: infer IsResponseStream;
}
  ? (
      request: IsRequestStream extends true
        ? Iterable<Input<Request>> | AsyncIterable<Input<Request>>
        : Input<Request>,
      options?: Options,
    ) => IsResponseStream extends true ? AsyncIterable<Response> : Promise<Response>
  : never;
