import { connectivityState } from "@grpc/grpc-js";
import {
  type CallOptions,
  Channel,
  type CompatServiceDefinition,
  createClientFactory,
  type Client as RawStub,
} from "nice-grpc";
import { errorDetailsClientMiddleware } from "nice-grpc-error-details";

import { Appender } from "./appender.js";
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
  type GetRecordsRequest,
  type GetRecordsResponse,
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
  type ListRecordsRequest,
  type ListRecordsResponse,
  type ListTurnsRequest,
  type ListTurnsResponse,
  type LoadConversationRequest,
  type LoadConversationResponse,
  type PurgeConversationsRequest,
  type PurgeConversationsResponse,
  RecordServiceDefinition,
  ResumeTurnRequest,
  type SearchInteractionsRequest,
  type SearchInteractionsResponse,
  type SetActiveAgentRequest,
  type SetActiveAgentResponse,
  type TurnEvent,
  type UpdateConversationRequest,
  type UpdateConversationResponse,
  WatchConversationsRequest,
  type WriteRecordsRequest,
  type WriteRecordsResponse,
} from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";
import { type ClientOptions, connectionSettings } from "./options.js";
import { Records } from "./records.js";
import { deferredCopy, invalidRequest, maxMessageBytes } from "./request.js";
import { resumed } from "./resumption.js";
import type { Connection } from "./retry.js";
import { serviceConfig } from "./service-config.js";
import type { Service } from "./services.js";
import { restartable } from "./stream.js";
import { isLocal } from "./target.js";
import { Watcher } from "./watch.js";

/**
 * The size of the buffer in which gRPC keeps a call, framing included, to send it again. gRPC's
 * default of 1 MiB is smaller than the largest batch of messages.
 */
const maxRetryBytes = maxMessageBytes + (64 << 10);

/** The calls of a service. They take an Input, which the middleware completes before it is sent. */
type Stub<S extends Service & CompatServiceDefinition> = {
  [M in keyof S["methods"] & keyof RawStub<S>]: (
    request: Requests<S["methods"][M]>,
    options?: CallOptions,
  ) => RawStub<S>[M] extends (...args: never) => infer Result ? Result : never;
};

/** The argument of a method of a service. */
type Requests<M> = M extends { requestType: { decode(...args: never): infer T }; requestStream: infer S }
  ? S extends true
    ? Iterable<Input<T>> | AsyncIterable<Input<T>>
    : Input<T>
  : never;

/**
 * A connection to one Parley server. A program needs only one.
 *
 * {@link appender} appends many messages over one stream. {@link records} and {@link tenantRecords} read and
 * write records.
 *
 * Three methods stream. {@link chat} sends a message to an agent and streams its answer.
 * {@link resumeTurn} streams a turn that has begun before. {@link watchConversations} streams the
 * changes of conversations. They reconnect and resume automatically if the connection breaks, the
 * server restarts, or the token expires and there is another one. Every other method is one call.
 *
 * These rules hold for all methods:
 *
 * - Messages are plain objects, in both directions. A missing field of a request has its default.
 * - A failed call throws a {@link ParleyError}, or the reason of `options.signal` if that has aborted:
 *   an AbortError, a TimeoutError. An invalid request, such as one with 1.5 for an integer, throws
 *   INVALID_ARGUMENT.
 * - If `requestId` is empty, the client sets it to a random UUID, on a copy of the request. The server
 *   executes a requestId once, so the client may send such a call again. A program that repeats a call
 *   itself, for example after its own restart, must set requestId itself, to the same value each time.
 * - Calls that only read, and calls with a requestId, are sent up to five times within about 1.5 s
 *   while the server is UNAVAILABLE. A quick restart of the server stays unnoticed. The other calls
 *   (update, delete, purge, lease, import) are sent once.
 * - If the server rejects the token of a call (UNAUTHENTICATED), the client reads the token file or calls
 *   the token function again. If the token has changed, it sends the call again, once. It does so for a
 *   stream also after the server has accepted it. Only an import is not sent again.
 */
export class Client {
  readonly #channel: Channel;
  readonly #calls: Calls;
  readonly #readiness: Readiness;
  readonly #conversations: Stub<ConversationServiceDefinition>;
  readonly #interactions: Stub<InteractionLogServiceDefinition>;
  readonly #admin: Stub<AdminServiceDefinition>;
  readonly #records: Stub<RecordServiceDefinition>;

  /**
   * Makes a client of the server at target: `"host:port"`, `"unix:PATH"`, or any other target that
   * gRPC can resolve. It does not connect yet. If there is no server, the first call fails with
   * UNAVAILABLE. Call {@link close} when the client is no longer needed.
   *
   * The limit of a message is 4 MiB in each direction. The client pings a connection that has been
   * silent for 30 s, and closes it if there is no answer within 10 s.
   *
   * The constructor reads the files with certificates. It throws an error if one cannot be used, or if
   * options contradict each other. The file with the token is read at the first call.
   */
  constructor(target: string, options: ClientOptions = {}) {
    const { signIn, credentials } = connectionSettings(target, options, process.env);
    this.#calls = new Calls(signIn);
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
    this.#readiness = new Readiness(this.#channel);
    const stubs = createClientFactory().use(errorDetailsClientMiddleware).use(this.#calls.middleware());
    const stub = <S extends Service & CompatServiceDefinition>(service: S) =>
      stubs.create(service, this.#channel) as unknown as Stub<S>;
    this.#conversations = stub(ConversationServiceDefinition);
    this.#interactions = stub(InteractionLogServiceDefinition);
    this.#admin = stub(AdminServiceDefinition);
    this.#records = stub(RecordServiceDefinition);
  }

  /**
   * Closes the connection. Calls in progress and later calls fail with CANCELLED. The turns that they
   * started continue on the server, unless their requests set ON_DISCONNECT_CANCEL.
   */
  close(): void {
    this.#calls.close();
    this.#channel.close();
  }

  /** Calls {@link close}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** Creates an empty conversation. */
  createConversation(
    request: Input<CreateConversationRequest>,
    options?: CallOptions,
  ): Promise<CreateConversationResponse> {
    return this.#conversations.createConversation(request, options);
  }

  /** Returns a conversation with its newest messages. Creates it if it does not exist. */
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

  /** Changes the fields of a conversation that updateMask names. */
  updateConversation(
    request: Input<UpdateConversationRequest>,
    options?: CallOptions,
  ): Promise<UpdateConversationResponse> {
    return this.#conversations.updateConversation(request, options);
  }

  /** Returns a page of the live conversations. */
  listConversations(
    request: Input<ListConversationsRequest>,
    options?: CallOptions,
  ): Promise<ListConversationsResponse> {
    return this.#conversations.listConversations(request, options);
  }

  /** Deletes a conversation and its messages, and cancels its running turn. */
  deleteConversation(
    request: Input<DeleteConversationRequest>,
    options?: CallOptions,
  ): Promise<DeleteConversationResponse> {
    return this.#conversations.deleteConversation(request, options);
  }

  /**
   * Removes messages and keeps the conversation. Sequences continue. Throws INVALID_ARGUMENT if sequences is
   * empty and afterSequence is not set, because the server would then remove all messages: to do that, leave
   * out sequences.
   */
  async clearConversation(
    request: Input<ClearConversationRequest>,
    options?: CallOptions,
  ): Promise<ClearConversationResponse> {
    if (request?.sequences?.length === 0 && request.afterSequence === undefined) {
      throw invalidRequest("sequences is empty; leave it out to remove all messages, or set afterSequence");
    }
    return await this.#conversations.clearConversation(request, options);
  }

  /** Deletes conversations that have been inactive for a time. */
  purgeConversations(
    request: Input<PurgeConversationsRequest>,
    options?: CallOptions,
  ): Promise<PurgeConversationsResponse> {
    return this.#conversations.purgeConversations(request, options);
  }

  /** Copies a conversation, up to a message, into a new one. The messages keep their sequences. */
  forkConversation(
    request: Input<ForkConversationRequest>,
    options?: CallOptions,
  ): Promise<ForkConversationResponse> {
    return this.#conversations.forkConversation(request, options);
  }

  /** Appends messages in one commit. It also works while a turn runs. */
  appendMessages(
    request: Input<AppendMessagesRequest>,
    options?: CallOptions,
  ): Promise<AppendMessagesResponse> {
    return this.#conversations.appendMessages(request, options);
  }

  /**
   * Returns an appender: it appends messages over one stream, which costs less than calls. Many requests are
   * under way at the same time. They are sent in the order of the calls of {@link Appender.append}. The
   * stream begins with the first request, and ends with {@link Appender.close}.
   *
   * If the connection breaks, the server restarts, or the token expires and there is another one, the
   * appender reconnects and sends the requests without a reply again, in their order and with the same
   * requestId. So each message is stored once, and the messages of a conversation in their order. A reply
   * with replayed may only mean that the appender sent the request twice.
   *
   * The server refuses single requests, for example one that is not valid. Only the promise of that request
   * is rejected; the others are not affected. The appender fails, and all promises without a reply are
   * rejected with its error, in these cases:
   *
   * - The server refused the stream, or the token expired and there is no other one (UNAUTHENTICATED).
   * - The token function threw an error.
   * - The signal has aborted; the error is its reason.
   * - The client is closed (CANCELLED).
   * - No server could be reached at first (UNAVAILABLE, after about 1.5 s).
   * - No reply arrived for one minute, although requests were under way and the appender kept retrying.
   *
   * The server may have stored the messages of such a request. To repeat it without storing them twice, set
   * requestId yourself. The options apply to each stream.
   */
  appender(options: CallOptions = {}): Appender {
    return new Appender({
      connection: this.#readiness,
      begin: () => this.#calls.begin(options.signal),
      open: (requests, signal) => this.#conversations.appendStream(requests, { ...options, signal }),
    });
  }

  /** Returns a page of the stored messages, in either direction. */
  listMessages(request: Input<ListMessagesRequest>, options?: CallOptions): Promise<ListMessagesResponse> {
    return this.#conversations.listMessages(request, options);
  }

  /** Returns the system prompt and the window of messages for a model call. */
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

  /** Sets or removes the active agent of a conversation and its lease. */
  setActiveAgent(
    request: Input<SetActiveAgentRequest>,
    options?: CallOptions,
  ): Promise<SetActiveAgentResponse> {
    return this.#conversations.setActiveAgent(request, options);
  }

  /** Returns the agents that the server can call. */
  listAgents(request: Input<ListAgentsRequest> = {}, options?: CallOptions): Promise<ListAgentsResponse> {
    return this.#conversations.listAgents(request, options);
  }

  /**
   * Sends a user's message and streams the events of the turn. It sends the request when the caller
   * loops over the result. The first events are queued, while the turn waits for other turns, and
   * started, once the user's message is durable. The pieces of the answer follow. The last event is
   * finished, once the answer is durable. Finished contains the turn's final state. A failed turn is
   * not an error.
   *
   * The caller sees one uninterrupted stream. If the connection breaks, the server restarts, or the token
   * expires and there is another one, the client reconnects and resumes after the last event. Indexes
   * increase, no event is repeated, and no text is missing or doubled. There are these limits:
   *
   * - If the server no longer has the single events, text and reasoning arrive in larger pieces. Some
   *   indexes are then left out, and so may be progress notes, deltas of tool calls, records and messages
   *   that the history has dropped.
   * - A crash of the server may lose up to one second of text that the caller has already received.
   *   The messages in finished are the stored ones.
   * - A turn that loses its connection while it is queued may lose its position in the queue. The
   *   turnId may then change before started, and the indexes begin at 1 again.
   * - With ON_DISCONNECT_CANCEL a broken connection or an expired token cancels the turn, and finished
   *   says so.
   * - If requestId is empty, started.replayed is never set in the first loop, because the turn is a
   *   new one. If the caller sets requestId, started.replayed may only mean that the client sent the
   *   request twice.
   *
   * The loop throws once, at the end. The causes are:
   *
   * - The server refused the call, or the token expired and there is no other one (UNAUTHENTICATED).
   * - The token function threw an error.
   * - The turn no longer exists (NOT_FOUND).
   * - The signal has aborted; the loop throws its reason.
   * - No server could be reached at first (UNAVAILABLE, after about 1.5 s).
   * - No new event arrived for one minute, although the client kept retrying. The error is that of the
   *   last attempt, or UNKNOWN if the server ends streams without finished. The time that the loop's
   *   body takes does not count.
   *
   * The options apply to each attempt.
   *
   * The stream ends at once when the caller leaves the loop or the signal aborts. The turn continues
   * on the server unless request.onDisconnect is ON_DISCONNECT_CANCEL. Another loop over the result
   * sends the same requestId, which returns the same turn and never starts a second one.
   */
  chat(request: Input<ChatRequest>, options: CallOptions = {}): AsyncIterable<TurnEvent> {
    const copy = deferredCopy(ChatRequest, request);
    let generatedID = !request?.requestId;
    return restartable(this.#calls, options.signal, (signal) => {
      const follower = Follower.chat(this.#attempts(options), copy(), generatedID);
      generatedID = false;
      return resumed(follower, this.#readiness, signal);
    });
  }

  /**
   * Streams the events of a turn after request.afterIndex as one uninterrupted stream. The turn may be
   * running or have ended. Everything that {@link chat} guarantees for its stream holds here too. The
   * stream is empty if afterIndex is the index of the last event. If turnId is empty, the turn is the
   * running one, or the newest one if none runs; it is chosen when the first event arrives.
   *
   * With afterIndex 0 it works as long as the server keeps the turn. With another afterIndex it may end
   * with OUT_OF_RANGE, EVENTS_GONE: the server no longer has the single events, and the client does not
   * know how much of a message the caller has. Then show the turn from index 0 again, or use the offsets
   * of deltas to cut what you have. After such a restart at the beginning, deltas of the arguments of a tool
   * call may repeat what the caller has; their offset says where each belongs.
   */
  resumeTurn(request: Input<ResumeTurnRequest>, options: CallOptions = {}): AsyncIterable<TurnEvent> {
    const copy = deferredCopy(ResumeTurnRequest, request);
    return restartable(this.#calls, options.signal, (signal) => {
      return resumed(Follower.resume(this.#attempts(options), copy()), this.#readiness, signal);
    });
  }

  /** Returns a turn by its id. */
  getTurn(request: Input<GetTurnRequest>, options?: CallOptions): Promise<GetTurnResponse> {
    return this.#conversations.getTurn(request, options);
  }

  /** Returns a page of the turns of a conversation, or of the tenant, newest first. */
  listTurns(request: Input<ListTurnsRequest>, options?: CallOptions): Promise<ListTurnsResponse> {
    return this.#conversations.listTurns(request, options);
  }

  /**
   * Cancels a running or queued turn. The text that had arrived is stored as an incomplete message. If
   * the turn has ended, the call only returns it. A queued turn is not stored: its server remembers it
   * and its requestId for 10 minutes.
   */
  cancelTurn(request: Input<CancelTurnRequest>, options?: CallOptions): Promise<CancelTurnResponse> {
    return this.#conversations.cancelTurn(request, options);
  }

  /**
   * Streams the changes of conversations as they are committed. It sends the request when the caller
   * loops over the result. The changes begin after request.cursor or, if it is empty, with the next
   * commit. The stream has no end of its own: it ends at once when the caller leaves the loop or the
   * signal aborts. Another loop over the result begins again with the request.
   *
   * The caller sees one stream. If the connection breaks, the server restarts, or the token expires and
   * there is another one, the client reconnects and resumes after the last change, so that no change is
   * missing and none is repeated. There are these limits:
   *
   * - The stream includes each HEARTBEAT. The first one confirms that the watch is active, with
   *   request.deleteAfterDisconnect in force. Another one follows after each 15 s without a change, and
   *   each time the stream is opened again. Every change, heartbeats included, has a cursor from which
   *   another watch can resume, for example after the caller restarts.
   * - A GAP means that changes are missing, because the server no longer has them, has restarted, or
   *   the caller was too slow to read earlier changes. Read the state again, then continue. Changes
   *   that are committed after the GAP follow it, so none is lost between.
   * - Events of turns are not part of that order. The events of turns during a break are lost. Index
   *   and offset of the later events show this, and {@link resumeTurn} returns the complete turn.
   * - For the server a break, also by an expired token, is a disconnect. An ephemeral conversation that
   *   must survive a break needs a deleteAfterDisconnect of some seconds. Two minutes are longer than
   *   any break after which the client resumes.
   *
   * The loop throws once, at the end. The causes are:
   *
   * - The server refused the watch, or the token expired and there is no other one (UNAUTHENTICATED).
   * - The token function threw an error.
   * - The signal has aborted; the loop throws its reason.
   * - No server could be reached at first (UNAVAILABLE, after about 1.5 s).
   * - The server sent nothing for one minute, although the client kept retrying. The error is that of
   *   the last attempt, or UNKNOWN if the server ends each stream without a message. The time that the
   *   loop's body takes does not count.
   *
   * At its limit of watchers the server refuses a new watch (TOO_MANY_WATCHERS). A watch that the
   * server accepted before retries for that minute, because the server may still count its broken
   * stream. The options apply to each attempt.
   */
  watchConversations(
    request: Input<WatchConversationsRequest> = {},
    options: CallOptions = {},
  ): AsyncIterable<ConversationChange> {
    const copy = deferredCopy(WatchConversationsRequest, request);
    return restartable(this.#calls, options.signal, (signal) => {
      return resumed(new Watcher(this.#attempts(options), copy()), this.#readiness, signal);
    });
  }

  /**
   * Streams complete conversations, the oldest first, up to the one that is the newest at the start.
   * Each has the state of the time when it is read. Conversations that are deleted before that are
   * left out. If some are damaged in the store, all others are sent, and then the stream fails with
   * DATA_LOSS and their ids. If the connection breaks, the stream does not resume. Leaving the loop
   * ends it.
   */
  exportConversations(
    request: Input<ExportConversationsRequest>,
    options?: CallOptions,
  ): AsyncIterable<ExportConversationsResponse> {
    return this.#conversations.exportConversations(request, options);
  }

  /**
   * Stores complete conversations, with their ids, sequences and times. It evicts no conversation. An
   * error of the iterable ends the import and is thrown unchanged.
   */
  importConversations(
    request: Iterable<Input<ImportConversationsRequest>> | AsyncIterable<Input<ImportConversationsRequest>>,
    options?: CallOptions,
  ): Promise<ImportConversationsResponse> {
    return this.#conversations.importConversations(request, options);
  }

  /** Returns the records of a conversation. It makes no call. Throws INVALID_ARGUMENT if the id is empty. */
  records(conversationId: string): Records {
    if (!conversationId) {
      throw invalidRequest("conversationId is empty; tenantRecords has the records of the tenant");
    }
    return new Records(this, conversationId);
  }

  /** Returns the records of the tenant. It makes no call. */
  tenantRecords(): Records {
    return new Records(this, "");
  }

  /** Writes and deletes records in one commit. See {@link Records.write}. */
  writeRecords(request: Input<WriteRecordsRequest>, options?: CallOptions): Promise<WriteRecordsResponse> {
    return this.#records.writeRecords(request, options);
  }

  /**
   * Returns up to 100 records by their keys, all as they are at one instant. The reply names in omittedKeys those
   * for which it had no space.
   */
  getRecords(request: Input<GetRecordsRequest>, options?: CallOptions): Promise<GetRecordsResponse> {
    return this.#records.getRecords(request, options);
  }

  /** Returns a page of records in the order of their keys. See {@link Records.list}. */
  listRecords(request: Input<ListRecordsRequest>, options?: CallOptions): Promise<ListRecordsResponse> {
    return this.#records.listRecords(request, options);
  }

  /** Returns a page of log entries of one day, of a recent time span, or of one conversation. */
  listInteractions(
    request: Input<ListInteractionsRequest>,
    options?: CallOptions,
  ): Promise<ListInteractionsResponse> {
    return this.#interactions.listInteractions(request, options);
  }

  /** Returns a page of log entries of the last days that contain a text, newest first. */
  searchInteractions(
    request: Input<SearchInteractionsRequest>,
    options?: CallOptions,
  ): Promise<SearchInteractionsResponse> {
    return this.#interactions.searchInteractions(request, options);
  }

  /** Erases all log entries of a conversation, of every day. Needs the admin role. */
  deleteInteractions(
    request: Input<DeleteInteractionsRequest>,
    options?: CallOptions,
  ): Promise<DeleteInteractionsResponse> {
    return this.#interactions.deleteInteractions(request, options);
  }

  /** Returns how much the server stores: for all tenants, or for that of the caller. Needs the admin role. */
  getStats(request: Input<GetStatsRequest> = {}, options?: CallOptions): Promise<GetStatsResponse> {
    return this.#admin.getStats(request, options);
  }

  /**
   * Streams a consistent copy of the store while the server runs. Needs the admin role. If the
   * connection breaks, the stream does not resume. Leaving the loop ends it.
   */
  backupStore(
    request: Input<BackupStoreRequest> = {},
    options?: CallOptions,
  ): AsyncIterable<BackupStoreResponse> {
    return this.#admin.backupStore(request, options);
  }

  /** Returns the streaming calls with these options, for {@link resumed}. */
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

/** Notifies listeners when a channel is connected. */
class Readiness implements Connection {
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
