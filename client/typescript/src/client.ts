import { connectivityState } from "@grpc/grpc-js";
import {
  type CallOptions,
  Channel,
  ChannelCredentials,
  type ChannelOptions,
  type CompatServiceDefinition,
  createClientFactory,
  type Client as RawStub,
} from "nice-grpc";
import { errorDetailsClientMiddleware } from "nice-grpc-error-details";

import { Calls } from "./calls.js";
import { Follower } from "./follow.js";
import {
  AdminServiceDefinition,
  type AppendMessagesRequest,
  type AppendMessagesResponse,
  type BackupStoreRequest,
  type BackupStoreResponse,
  type BatchGetRoutingSummariesRequest,
  type BatchGetRoutingSummariesResponse,
  type CancelTurnRequest,
  type CancelTurnResponse,
  ChatRequest,
  type ClearConversationRequest,
  type ClearConversationResponse,
  type ConversationChange,
  ConversationServiceDefinition,
  type CreateConversationRequest,
  type CreateConversationResponse,
  type DeleteConversationRequest,
  type DeleteConversationResponse,
  type DeleteInteractionsRequest,
  type DeleteInteractionsResponse,
  type ExportConversationsRequest,
  type ExportConversationsResponse,
  type ForkConversationRequest,
  type ForkConversationResponse,
  type GetContextRequest,
  type GetContextResponse,
  type GetConversationRequest,
  type GetConversationResponse,
  type GetRoutingSummaryRequest,
  type GetRoutingSummaryResponse,
  type GetStatsRequest,
  type GetStatsResponse,
  type GetTurnRequest,
  type GetTurnResponse,
  type ImportConversationsRequest,
  type ImportConversationsResponse,
  InteractionLogServiceDefinition,
  type ListAgentsRequest,
  type ListAgentsResponse,
  type ListConversationsRequest,
  type ListConversationsResponse,
  type ListInteractionsRequest,
  type ListInteractionsResponse,
  type ListMessagesRequest,
  type ListMessagesResponse,
  type ListTurnsRequest,
  type ListTurnsResponse,
  type LoadConversationRequest,
  type LoadConversationResponse,
  type PurgeConversationsRequest,
  type PurgeConversationsResponse,
  ResumeTurnRequest,
  type SearchInteractionsRequest,
  type SearchInteractionsResponse,
  type SetActiveAgentRequest,
  type SetActiveAgentResponse,
  type TurnEvent,
  type UpdateConversationRequest,
  type UpdateConversationResponse,
  WatchConversationsRequest,
} from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";
import type { Line } from "./patience.js";
import { copied } from "./request.js";
import { serviceConfig } from "./retry.js";
import type { Service } from "./services.js";
import { restartable } from "./stream.js";
import { isLocal } from "./target.js";
import { unbroken } from "./unbroken.js";
import { Watcher } from "./watch.js";

/** The same as the server's, so that whatever it sends can be read. */
const maxMessageBytes = 4 << 20;
/**
 * gRPC sends a call again only while it remembers it whole, framing included; its own default of
 * 1 MiB is less than a batch of messages may have.
 */
const maxRetryBytes = maxMessageBytes + (64 << 10);

/** The calls of a service, which take an Input: they make it whole before it is sent. */
type Stub<S extends Service & CompatServiceDefinition> = {
  [M in keyof S["methods"] & keyof RawStub<S>]: (
    request: Requests<S["methods"][M]>,
    options?: CallOptions,
  ) => RawStub<S>[M] extends (...args: never) => infer Result ? Result : never;
};

/** What a method of a service is called with. */
type Requests<M> = M extends { requestType: { decode(...args: never): infer T }; requestStream: infer S }
  ? S extends true
    ? Iterable<Input<T>> | AsyncIterable<Input<T>>
    : Input<T>
  : never;

/** How a {@link Client} connects. */
export interface ClientOptions {
  /**
   * The security of the connection. Left out: plaintext when the target is a loopback address,
   * localhost or a Unix socket, and else TLS with the certificates that Node trusts.
   */
  readonly credentials?: ChannelCredentials;
  /** Options of the gRPC channel, which replace this package's: another keepalive, other retries. */
  readonly channelOptions?: ChannelOptions;
}

/**
 * A connection to one Parley server; one is enough for a program.
 *
 * Ask an agent with {@link chat}, which streams the answer, and come back to one with
 * {@link resumeTurn}; see what happens to conversations as it does with {@link watchConversations}.
 * None of them minds a connection that breaks or a server that restarts meanwhile. Every other
 * method is one call.
 *
 * These things hold for every call:
 *
 * - Messages are plain objects, in both directions. What is left out of a request has its default.
 * - It fails with a {@link ParleyError}, or with the reason of `options.signal` once that has ended it:
 *   an AbortError, a TimeoutError. A request that cannot be sent, such as one with 1.5 for an integer,
 *   is an INVALID_ARGUMENT.
 * - An empty `requestId` is filled with a random UUID, on a copy of the request. The server does the
 *   work of a requestId once, so a call that carries one may be sent again. A program that repeats a
 *   call itself, say after its own restart, sets the requestId itself, to the same value each time.
 * - Calls that only read, and calls that carry a requestId, are sent up to five times within about
 *   1.5 s while the server is UNAVAILABLE: a quick restart goes unnoticed. The others (update, delete,
 *   clear, purge, lease, import) are sent once.
 */
export class Client {
  readonly #channel: Channel;
  readonly #calls = new Calls();
  readonly #readiness: Readiness;
  readonly #conversations: Stub<ConversationServiceDefinition>;
  readonly #interactions: Stub<InteractionLogServiceDefinition>;
  readonly #admin: Stub<AdminServiceDefinition>;

  /**
   * Makes a client of the server at target: `"host:port"`, `"unix:PATH"`, or any other target that
   * gRPC can resolve. It does not connect yet: where there is no server, the first call fails with
   * UNAVAILABLE. Call {@link close} when done.
   *
   * Messages may have 4 MiB in either direction. A connection that has been silent for 30 s is
   * checked, and given up after another 10 s.
   */
  constructor(target: string, options: ClientOptions = {}) {
    const local = isLocal(target);
    const credentials =
      options.credentials ?? (local ? ChannelCredentials.createInsecure() : ChannelCredentials.createSsl());
    this.#channel = new Channel(target, credentials, {
      "grpc.primary_user_agent": "parley-client",
      "grpc.service_config": JSON.stringify(serviceConfig()),
      "grpc.service_config_disable_resolution": 1,
      "grpc.max_receive_message_length": maxMessageBytes,
      "grpc.max_send_message_length": maxMessageBytes,
      "grpc.per_rpc_retry_buffer_size": maxRetryBytes,
      // The server cuts off clients that ask more often than every 10 s.
      "grpc.keepalive_time_ms": 30_000,
      "grpc.keepalive_timeout_ms": 10_000,
      "grpc.keepalive_permit_without_calls": 1,
      // Connect anew as quickly as calls are retried: they would else all fail on the connection
      // that a restart broke.
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 5000,
      "grpc.min_reconnect_backoff_ms": 10_000, // For one attempt, whatever its name says.
      // Else close would leave the connection to other clients of the same server.
      "grpc.use_local_subchannel_pool": 1,
      ...(local ? { "grpc.enable_http_proxy": 0 } : {}),
      ...options.channelOptions,
    });
    this.#readiness = new Readiness(this.#channel);
    const stubs = createClientFactory().use(errorDetailsClientMiddleware).use(this.#calls.middleware());
    const stub = <S extends Service & CompatServiceDefinition>(service: S) =>
      stubs.create(service, this.#channel) as unknown as Stub<S>;
    this.#conversations = stub(ConversationServiceDefinition);
    this.#interactions = stub(InteractionLogServiceDefinition);
    this.#admin = stub(AdminServiceDefinition);
  }

  /**
   * Ends the connection; calls that are under way fail with CANCELLED, and so do later ones. Turns
   * that they began go on at the server, unless they asked for ON_DISCONNECT_CANCEL.
   */
  close(): void {
    this.#calls.close();
    this.#channel.close();
  }

  /** The same as {@link close}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** Makes an empty conversation. */
  createConversation(
    request: Input<CreateConversationRequest>,
    options?: CallOptions,
  ): Promise<CreateConversationResponse> {
    return this.#conversations.createConversation(request, options);
  }

  /** Returns a conversation with its newest messages, and makes it first when it does not exist. */
  loadConversation(
    request: Input<LoadConversationRequest>,
    options?: CallOptions,
  ): Promise<LoadConversationResponse> {
    return this.#conversations.loadConversation(request, options);
  }

  /** Returns the header of a conversation. */
  getConversation(
    request: Input<GetConversationRequest>,
    options?: CallOptions,
  ): Promise<GetConversationResponse> {
    return this.#conversations.getConversation(request, options);
  }

  /** Changes the fields named in the mask. */
  updateConversation(
    request: Input<UpdateConversationRequest>,
    options?: CallOptions,
  ): Promise<UpdateConversationResponse> {
    return this.#conversations.updateConversation(request, options);
  }

  /** Pages through live conversations. */
  listConversations(
    request: Input<ListConversationsRequest>,
    options?: CallOptions,
  ): Promise<ListConversationsResponse> {
    return this.#conversations.listConversations(request, options);
  }

  /** Removes a conversation and its messages; a running turn is cancelled. */
  deleteConversation(
    request: Input<DeleteConversationRequest>,
    options?: CallOptions,
  ): Promise<DeleteConversationResponse> {
    return this.#conversations.deleteConversation(request, options);
  }

  /** Removes messages and keeps the conversation; sequences go on. */
  clearConversation(
    request: Input<ClearConversationRequest>,
    options?: CallOptions,
  ): Promise<ClearConversationResponse> {
    return this.#conversations.clearConversation(request, options);
  }

  /** Removes conversations that have been inactive for a time. */
  purgeConversations(
    request: Input<PurgeConversationsRequest>,
    options?: CallOptions,
  ): Promise<PurgeConversationsResponse> {
    return this.#conversations.purgeConversations(request, options);
  }

  /** Copies a conversation up to a message into a new one; the messages keep their sequences. */
  forkConversation(
    request: Input<ForkConversationRequest>,
    options?: CallOptions,
  ): Promise<ForkConversationResponse> {
    return this.#conversations.forkConversation(request, options);
  }

  /** Adds messages in one atomic step, also while a turn runs. */
  appendMessages(
    request: Input<AppendMessagesRequest>,
    options?: CallOptions,
  ): Promise<AppendMessagesResponse> {
    return this.#conversations.appendMessages(request, options);
  }

  /** Pages through the kept messages in either direction. */
  listMessages(request: Input<ListMessagesRequest>, options?: CallOptions): Promise<ListMessagesResponse> {
    return this.#conversations.listMessages(request, options);
  }

  /** Returns the system prompt and the history window for a model call. */
  getContext(request: Input<GetContextRequest>, options?: CallOptions): Promise<GetContextResponse> {
    return this.#conversations.getContext(request, options);
  }

  /** Returns what a coordinator needs to route the next message. */
  getRoutingSummary(
    request: Input<GetRoutingSummaryRequest>,
    options?: CallOptions,
  ): Promise<GetRoutingSummaryResponse> {
    return this.#conversations.getRoutingSummary(request, options);
  }

  /** Returns the summaries of up to 100 conversations. */
  batchGetRoutingSummaries(
    request: Input<BatchGetRoutingSummariesRequest>,
    options?: CallOptions,
  ): Promise<BatchGetRoutingSummariesResponse> {
    return this.#conversations.batchGetRoutingSummaries(request, options);
  }

  /** Gives an agent the routing lease of a conversation, or takes it away. */
  setActiveAgent(
    request: Input<SetActiveAgentRequest>,
    options?: CallOptions,
  ): Promise<SetActiveAgentResponse> {
    return this.#conversations.setActiveAgent(request, options);
  }

  /** Returns the agents that this server can call. */
  listAgents(request: Input<ListAgentsRequest> = {}, options?: CallOptions): Promise<ListAgentsResponse> {
    return this.#conversations.listAgents(request, options);
  }

  /**
   * Sends the request when it is iterated over and yields the events of the turn as they come: queued
   * while it waits for others, started once the user's message is durable, then the pieces of the
   * answer, and last finished once the answer is durable. Whatever became of the turn, failed
   * included, is in finished; it is not an error.
   *
   * What the caller sees is one unbroken stream: where the connection breaks, or the server restarts,
   * it is asked again and goes on where it was. Indexes rise, nothing comes twice, no text is missing
   * or doubled. It helps to know that:
   *
   * - Where the server no longer has the events one by one, the text comes in larger pieces, indexes
   *   are left out, and so may be notes of progress and messages that the history has dropped.
   * - A crash of the server may cost up to a second of text that was shown already. The messages in
   *   finished are what is kept.
   * - Who waits in a queue and loses the connection may have to line up again: before started, the
   *   turnId may change, and the indexes begin at 1 again.
   * - With ON_DISCONNECT_CANCEL a break stops the turn, and that is what finished says.
   * - started.replayed is never set when requestId was empty and the stream is iterated over for the
   *   first time: the turn is a new one then. With an id of the caller's own it may only mean that it
   *   was asked for twice.
   *
   * It throws once, at the end: the call was refused; the turn is gone (NOT_FOUND); the signal has
   * ended, with its reason; no server was there at first (UNAVAILABLE, after about 1.5 s); or there has
   * been nothing new for a minute, though it was asked again and again, with the status of the last
   * attempt, UNKNOWN where the server ends streams without finished. Time that the loop's body takes
   * does not count. The options go with each attempt.
   *
   * Leaving the loop, or the end of the signal, ends the stream at once. The turn goes on at the
   * server unless request.onDisconnect is ON_DISCONNECT_CANCEL. To iterate again is to ask again with
   * the same requestId: the same turn, never a second one.
   */
  chat(request: Input<ChatRequest>, options: CallOptions = {}): AsyncIterable<TurnEvent> {
    const copy = copied(ChatRequest, request);
    let ownID = !request?.requestId;
    return restartable(this.#calls, options.signal, (signal) => {
      const follower = Follower.chat(this.#attempts(options), copy(), ownID);
      ownID = false;
      return unbroken(follower, this.#readiness, signal);
    });
  }

  /**
   * Yields the events of a turn behind request.afterIndex, whether it runs or has ended, as one
   * unbroken stream; all that {@link chat} says of that holds here too. It yields nothing when
   * afterIndex is that of the last event. An empty turnId is the turn that runs, else the newest, when
   * the first event comes.
   *
   * From 0 it works as long as the turn is kept. From elsewhere it may end with OUT_OF_RANGE,
   * EVENTS_GONE: the events are no longer kept one by one, and how much of a message's text the caller
   * has is not known here. Then show the turn from 0 anew, or cut its text with the help of
   * TextDelta.offset.
   */
  resumeTurn(request: Input<ResumeTurnRequest>, options: CallOptions = {}): AsyncIterable<TurnEvent> {
    const copy = copied(ResumeTurnRequest, request);
    return restartable(this.#calls, options.signal, (signal) => {
      return unbroken(Follower.resume(this.#attempts(options), copy()), this.#readiness, signal);
    });
  }

  /** Returns the state of a turn. */
  getTurn(request: Input<GetTurnRequest>, options?: CallOptions): Promise<GetTurnResponse> {
    return this.#conversations.getTurn(request, options);
  }

  /** Returns the newest turns of a conversation, newest first, 32 at most. */
  listTurns(request: Input<ListTurnsRequest>, options?: CallOptions): Promise<ListTurnsResponse> {
    return this.#conversations.listTurns(request, options);
  }

  /**
   * Stops a running or queued turn; what had arrived is kept as an incomplete message. On a turn that
   * has ended it only returns it. Of a turn that was queued nothing is stored: it is known for 10
   * minutes, in that server, and so is its requestId.
   */
  cancelTurn(request: Input<CancelTurnRequest>, options?: CallOptions): Promise<CancelTurnResponse> {
    return this.#conversations.cancelTurn(request, options);
  }

  /**
   * Watches as the request says when it is iterated over and yields the changes as they are committed,
   * behind request.cursor, else from now on. It does not end by itself: leaving the loop, or the end of
   * the signal, ends the stream at once. To iterate again is to begin again with the request.
   *
   * What the caller sees is one stream: where the connection breaks, or the server restarts, it is
   * asked again and goes on behind the last change, so that nothing is missing and nothing comes
   * twice. It helps to know that:
   *
   * - A HEARTBEAT is handed on like the rest. The first one says that the watch stands, with
   *   request.deleteAfterDisconnect in force; then one comes after every 15 s of silence, and one more
   *   each time that the stream has been opened anew. The cursor of each change, heartbeats included,
   *   is where another watch can go on, say after the caller's restart.
   * - A GAP says that changes are missing: the server no longer has them, has restarted, or the caller
   *   has taken too long for what came before. Read the state anew, then go on; what is committed after
   *   the GAP comes behind it, so nothing falls between.
   * - Events of turns have no place in that order: of those that fall into a break none come. Their
   *   index and offset tell, and {@link resumeTurn} has the whole turn.
   * - To the server a break is a disconnect: session memory that is to outlive one needs a
   *   deleteAfterDisconnect of some seconds. Two minutes outlive any that is gone on with.
   *
   * It throws once, at the end: the watch was refused; the signal has ended, with its reason; no server
   * was there at first (UNAVAILABLE, after about 1.5 s); or the server has not answered for a minute,
   * though it was asked again and again, with the status of the last attempt, UNKNOWN where it ends
   * each stream without a word. Over its limit of watchers (TOO_MANY_WATCHERS) a server refuses a new
   * watch; one that it had let in before tries for that minute, since its own broken stream may still
   * be counted. Time that the loop's body takes does not count. The options go with each attempt.
   */
  watchConversations(
    request: Input<WatchConversationsRequest> = {},
    options: CallOptions = {},
  ): AsyncIterable<ConversationChange> {
    const copy = copied(WatchConversationsRequest, request);
    return restartable(this.#calls, options.signal, (signal) => {
      return unbroken(new Watcher(this.#attempts(options), copy()), this.#readiness, signal);
    });
  }

  /**
   * Streams whole conversations out, the oldest first, each as it is when its turn comes, up to the one
   * that is the newest at the start. What has gone by then is left out. Where some are damaged in the
   * store all others are sent, then it fails with DATA_LOSS and their ids. A stream that breaks is not
   * gone on with; leaving the loop ends it.
   */
  exportConversations(
    request: Input<ExportConversationsRequest>,
    options?: CallOptions,
  ): AsyncIterable<ExportConversationsResponse> {
    return this.#conversations.exportConversations(request, options);
  }

  /**
   * Takes whole conversations in, with their ids, sequences and times, and evicts nothing. What the
   * iterable throws ends the import and is thrown on as it is.
   */
  importConversations(
    request: Iterable<Input<ImportConversationsRequest>> | AsyncIterable<Input<ImportConversationsRequest>>,
    options?: CallOptions,
  ): Promise<ImportConversationsResponse> {
    return this.#conversations.importConversations(request, options);
  }

  /** Reads one day, a recent span, or one conversation of the log. */
  listInteractions(
    request: Input<ListInteractionsRequest>,
    options?: CallOptions,
  ): Promise<ListInteractionsResponse> {
    return this.#interactions.listInteractions(request, options);
  }

  /** Finds a text in the last days of the log, newest first. */
  searchInteractions(
    request: Input<SearchInteractionsRequest>,
    options?: CallOptions,
  ): Promise<SearchInteractionsResponse> {
    return this.#interactions.searchInteractions(request, options);
  }

  /** Erases all lines of a conversation from the log, on every day. It needs the admin role. */
  deleteInteractions(
    request: Input<DeleteInteractionsRequest>,
    options?: CallOptions,
  ): Promise<DeleteInteractionsResponse> {
    return this.#interactions.deleteInteractions(request, options);
  }

  /** Counts what the service holds, over all tenants. It needs the admin role. */
  getStats(request: Input<GetStatsRequest> = {}, options?: CallOptions): Promise<GetStatsResponse> {
    return this.#admin.getStats(request, options);
  }

  /**
   * Streams a consistent copy of the store, taken while it serves. It needs the admin role. A stream
   * that breaks is not gone on with; leaving the loop ends it.
   */
  backupStore(
    request: Input<BackupStoreRequest> = {},
    options?: CallOptions,
  ): AsyncIterable<BackupStoreResponse> {
    return this.#admin.backupStore(request, options);
  }

  /** The streams of which unbroken ones are made; each attempt has these options. */
  #attempts(
    options: CallOptions,
  ): Pick<Stub<ConversationServiceDefinition>, "chat" | "resumeTurn" | "watchConversations"> {
    const stub = this.#conversations;
    return {
      chat: (request, { signal } = {}) => stub.chat(request, { ...options, signal: signal! }),
      resumeTurn: (request, { signal } = {}) => stub.resumeTurn(request, { ...options, signal: signal! }),
      watchConversations: (request, { signal } = {}) =>
        stub.watchConversations(request, { ...options, signal: signal! }),
    };
  }
}

/** Tells when a channel is connected. */
class Readiness implements Line {
  readonly #channel: Channel;
  readonly #listeners = new Set<() => void>();

  constructor(channel: Channel) {
    this.#channel = channel;
    this.#watch();
  }

  onReady(listener: () => void): () => void {
    if (this.#channel.getConnectivityState(false) === connectivityState.READY) {
      listener();
      return () => {};
    }
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Waits for one change of the channel's state after the other, until it is closed. */
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
