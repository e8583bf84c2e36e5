import { randomUUID } from "node:crypto";

import { connectivityState } from "@grpc/grpc-js";
import {
  type CallOptions,
  Channel,
  ClientError,
  type ClientMiddleware,
  type ClientMiddlewareCall,
  type CompatServiceDefinition,
  createClientFactory,
  Metadata,
} from "nice-grpc";
import { errorDetailsClientMiddleware } from "nice-grpc-error-details";

import type { Prepared } from "./append-queue.js";
import { Calls, type Responses } from "./calls.js";
import { ParleyError } from "./errors.js";
import {
  AdminServiceDefinition,
  AppendMessagesRequest,
  type AppendMessagesResponse,
  AppendStreamRequest,
  type AppendStreamResponse,
  ChatRequest,
  ConversationServiceDefinition,
  InteractionLogServiceDefinition,
  RecordServiceDefinition,
  ResumeTurnRequest,
  WatchConversationsRequest,
} from "./gen/index.parley.v1.js";
import { fromClientError, fromStatus } from "./grpc-errors.js";
import type { Input } from "./input.js";
import { type ClientOptions, connectionSettings } from "./options.js";
import {
  CallerError,
  complete,
  completeEach,
  explainSize,
  invalidRequest,
  type MessageType,
  maxMessageBytes,
  tooLarge,
} from "./request.js";
import { serviceConfig } from "./service-config.js";
import { methods } from "./services.js";
import { isLocal } from "./target.js";
import type { ResumableRequests, Stub, Transport } from "./transport.js";

/**
 * The size of the buffer in which gRPC keeps a call, framing included, to send it again. gRPC's
 * default of 1 MiB is smaller than the largest batch of messages.
 */
const maxRetryBytes = maxMessageBytes + (64 << 10);

const resumableTypes: { readonly [M in keyof ResumableRequests]: MessageType<ResumableRequests[M]> } = {
  chat: ChatRequest,
  resumeTurn: ResumeTurnRequest,
  watchConversations: WatchConversationsRequest,
};

/** All calls, as nice-grpc makes them. */
type AllCalls = Stub<CallOptions> & {
  appendStream(
    requests: AsyncIterable<AppendStreamRequest>,
    options: CallOptions,
  ): AsyncIterable<AppendStreamResponse>;
};

/** Calls a server over gRPC. */
export class GrpcTransport implements Transport<CallOptions> {
  readonly calls: Calls;
  readonly stub: AllCalls;
  readonly #channel: Channel;
  readonly #listeners = new Set<() => void>();

  constructor(target: string, options: ClientOptions) {
    const { signIn, credentials } = connectionSettings(target, options, process.env);
    this.calls = new Calls(signIn);
    this.#channel = new Channel(target, credentials, {
      "grpc.primary_user_agent": "parley-client",
      "grpc.service_config": JSON.stringify(serviceConfig()),
      "grpc.service_config_disable_resolution": 1,
      "grpc.max_receive_message_length": maxMessageBytes,
      "grpc.max_send_message_length": maxMessageBytes,
      "grpc.per_rpc_retry_buffer_size": maxRetryBytes,
      // The server closes connections of clients that ping more often than every 10 s.
      "grpc.keepalive_time_ms": 30_000,
      "grpc.keepalive_timeout_ms": 10_000,
      "grpc.keepalive_permit_without_calls": 1,
      // Reconnect as quickly as calls are retried. Otherwise all retries would fail on the connection
      // that a restart broke, or after an outage that took longer than they do.
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 1000,
      "grpc.min_reconnect_backoff_ms": 10_000, // It limits one connection attempt, despite its name.
      // Otherwise clients of one server would share a connection, and close would not close it.
      "grpc.use_local_subchannel_pool": 1,
      ...(isLocal(target) ? { "grpc.enable_http_proxy": 0 } : {}),
      ...options.channelOptions,
    });
    this.#watch();
    const factory = createClientFactory().use(errorDetailsClientMiddleware).use(middleware(this.calls));
    const create = (service: CompatServiceDefinition) => factory.create(service, this.#channel);
    this.stub = Object.assign(
      {},
      create(ConversationServiceDefinition),
      create(InteractionLogServiceDefinition),
      create(AdminServiceDefinition),
      create(RecordServiceDefinition),
    ) as unknown as AllCalls;
  }

  complete<M extends keyof ResumableRequests>(method: M, request: unknown): ResumableRequests[M] {
    return complete(resumableTypes[method], request, randomUUID);
  }

  prepareAppend(request: Input<AppendMessagesRequest>): Prepared {
    return prepareAppend(request);
  }

  async *appendStream(
    requests: AsyncIterable<AppendStreamRequest>,
    options: CallOptions,
  ): AsyncGenerator<AppendMessagesResponse | ParleyError> {
    for await (const { result } of this.stub.appendStream(requests, options)) {
      if (result?.$case === "response") {
        yield result.value;
      } else {
        yield result
          ? fromStatus(result.value)
          : new ParleyError("INTERNAL", "the server sent a reply without a result");
      }
    }
  }

  close(): void {
    this.calls.close();
    this.#channel.close();
  }

  onReady(listener: () => void): () => void {
    if (this.#channel.getConnectivityState(false) === connectivityState.READY) {
      listener();
      return () => {};
    }
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Waits for the next change of the channel's state, again and again until it is closed. */
  #watch(): void {
    const state = this.#channel.getConnectivityState(false);
    if (state === connectivityState.READY) {
      const listeners = [...this.#listeners];
      this.#listeners.clear();
      for (const listener of listeners) {
        listener();
      }
    }
    if (state !== connectivityState.SHUTDOWN) {
      this.#channel.watchConnectivityState(state, Infinity, () => this.#watch());
    }
  }
}

/** Copies a request of an appender. */
export function prepareAppend(input: Input<AppendMessagesRequest>): Prepared {
  const append = complete(AppendMessagesRequest, input, randomUUID);
  const request = { append };
  const size = AppendStreamRequest.encode(request).finish().length;
  if (size > maxMessageBytes) {
    throw tooLarge(size);
  }
  return { request, size, conversationId: append.conversationId };
}

/**
 * Returns the middleware of every call. It runs before gRPC's retries: it makes complete copies of
 * the requests, once for all attempts, signs in, and converts errors to ParleyErrors.
 */
function middleware(calls: Calls): ClientMiddleware {
  return async function* middleware<Request, Response>(
    call: ClientMiddlewareCall<Request, Response>,
    options: CallOptions,
  ) {
    const { requestType, isResumable } = methods.get(call.method.path)!;
    const start = () => {
      const given = metadataOf(options);
      // The requests of an appender are complete.
      const single = call.requestStream ? undefined : complete(requestType, call.request, randomUUID);
      const request =
        single ?? (isResumable ? call.request : completeEach(requestType, call.request, randomUUID));
      return {
        isSet: (key: string) => given.has(key),
        async *attempt(
          signal: AbortSignal,
          added: readonly (readonly [string, string])[],
        ): Responses<Response> {
          const metadata = Metadata([...given]);
          for (const [key, value] of added) {
            metadata.set(key, value);
          }
          try {
            const responses = call.next(request as typeof call.request, { ...options, signal, metadata });
            return yield* responses as Responses<Response>;
          } catch (error) {
            const shown = toCallerError(error);
            throw single ? explainSize(shown, requestType, single) : shown;
          }
        },
        mayRepeat: isResumable || !call.requestStream,
        mayResume: isResumable,
      };
    };
    return yield* calls.run(start, options.signal);
  };
}

/** Copies the metadata of a call. gRPC would not report a kind that is not valid as a fault of the caller. */
function metadataOf(options: CallOptions): Metadata {
  try {
    return Metadata([...(options.metadata ?? [])]);
  } catch (error) {
    throw invalidRequest((error as Error).message, error);
  }
}

/** Converts an error of nice-grpc. */
function toCallerError(error: unknown): unknown {
  if (error instanceof CallerError || error instanceof ParleyError) {
    return error;
  }
  // Any other error is that of invalid metadata, which gRPC rejects before it sends anything.
  return error instanceof ClientError
    ? fromClientError(error)
    : invalidRequest((error as Error).message, error);
}
