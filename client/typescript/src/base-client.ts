/// <reference lib="esnext.disposable" preserve="true" />

import { Appender } from "./appender.js";
import { Follower, type Turns } from "./follow.js";
import type {
  AppendMessagesRequest,
  AppendMessagesResponse,
  BackupStoreRequest,
  BackupStoreResponse,
  BatchGetRoutingSummariesRequest,
  BatchGetRoutingSummariesResponse,
  CancelTurnRequest,
  CancelTurnResponse,
  ChatRequest,
  ClearConversationRequest,
  ClearConversationResponse,
  ConversationChange,
  CreateConversationRequest,
  CreateConversationResponse,
  DeleteConversationRequest,
  DeleteConversationResponse,
  DeleteInteractionsRequest,
  DeleteInteractionsResponse,
  ExportConversationsRequest,
  ExportConversationsResponse,
  ForkConversationRequest,
  ForkConversationResponse,
  GetContextRequest,
  GetContextResponse,
  GetConversationRequest,
  GetConversationResponse,
  GetRecordsRequest,
  GetRecordsResponse,
  GetRoutingSummaryRequest,
  GetRoutingSummaryResponse,
  GetStatsRequest,
  GetStatsResponse,
  GetTurnRequest,
  GetTurnResponse,
  ImportConversationsRequest,
  ImportConversationsResponse,
  ListAgentsRequest,
  ListAgentsResponse,
  ListConversationsRequest,
  ListConversationsResponse,
  ListInteractionsRequest,
  ListInteractionsResponse,
  ListMessagesRequest,
  ListMessagesResponse,
  ListRecordsRequest,
  ListRecordsResponse,
  ListTurnsRequest,
  ListTurnsResponse,
  LoadConversationRequest,
  LoadConversationResponse,
  PurgeConversationsRequest,
  PurgeConversationsResponse,
  ResumeTurnRequest,
  SearchInteractionsRequest,
  SearchInteractionsResponse,
  SetActiveAgentRequest,
  SetActiveAgentResponse,
  TurnEvent,
  UpdateConversationRequest,
  UpdateConversationResponse,
  WatchConversationsRequest,
  WriteRecordsRequest,
  WriteRecordsResponse,
} from "./gen/index.parley.v1.js";
import type { Input } from "./input.js";
import { Records } from "./records.js";
import { deferred, invalidRequest } from "./request.js";
import { resumed } from "./resumption.js";
import { restartable } from "./stream.js";
import type { BaseCallOptions, Stub, Transport } from "./transport.js";
import { type Changes, Watcher } from "./watch.js";

/** The calls of a client, over any transport. The options are those of one call. */
export abstract class BaseClient<Options extends BaseCallOptions> {
  readonly #transport: Transport<Options>;
  readonly #stub: Stub<Options>;

  constructor(transport: Transport<Options>) {
    this.#transport = transport;
    this.#stub = transport.stub;
  }

  /**
   * Closes the connection. Calls in progress and later calls fail with CANCELLED. The turns that they
   * started continue on the server, unless their requests set ON_DISCONNECT_CANCEL.
   */
  close(): void {
    this.#transport.close();
  }

  /** Calls {@link close}, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** Creates an empty conversation. */
  createConversation(
    request: Input<CreateConversationRequest>,
    options?: Options,
  ): Promise<CreateConversationResponse> {
    return this.#stub.createConversation(request, options);
  }

  /** Returns a conversation with its newest messages. Creates it if it does not exist. */
  loadConversation(
    request: Input<LoadConversationRequest>,
    options?: Options,
  ): Promise<LoadConversationResponse> {
    return this.#stub.loadConversation(request, options);
  }

  /** Returns the header of a conversation. */
  getConversation(
    request: Input<GetConversationRequest>,
    options?: Options,
  ): Promise<GetConversationResponse> {
    return this.#stub.getConversation(request, options);
  }

  /** Changes the fields of a conversation that updateMask names. */
  updateConversation(
    request: Input<UpdateConversationRequest>,
    options?: Options,
  ): Promise<UpdateConversationResponse> {
    return this.#stub.updateConversation(request, options);
  }

  /** Returns a page of the live conversations. */
  listConversations(
    request: Input<ListConversationsRequest>,
    options?: Options,
  ): Promise<ListConversationsResponse> {
    return this.#stub.listConversations(request, options);
  }

  /** Deletes a conversation and its messages, and cancels its running turn. */
  deleteConversation(
    request: Input<DeleteConversationRequest>,
    options?: Options,
  ): Promise<DeleteConversationResponse> {
    return this.#stub.deleteConversation(request, options);
  }

  /**
   * Removes messages and keeps the conversation. Sequences continue. Throws INVALID_ARGUMENT if sequences is
   * empty and afterSequence is not set, because the server would then remove all messages: to do that, leave
   * out sequences.
   */
  async clearConversation(
    request: Input<ClearConversationRequest>,
    options?: Options,
  ): Promise<ClearConversationResponse> {
    if (request?.sequences?.length === 0 && request.afterSequence === undefined) {
      throw invalidRequest("sequences is empty; leave it out to remove all messages, or set afterSequence");
    }
    return await this.#stub.clearConversation(request, options);
  }

  /** Deletes conversations that have been inactive for a time. */
  purgeConversations(
    request: Input<PurgeConversationsRequest>,
    options?: Options,
  ): Promise<PurgeConversationsResponse> {
    return this.#stub.purgeConversations(request, options);
  }

  /** Copies a conversation, up to a message, into a new one. The messages keep their sequences. */
  forkConversation(
    request: Input<ForkConversationRequest>,
    options?: Options,
  ): Promise<ForkConversationResponse> {
    return this.#stub.forkConversation(request, options);
  }

  /** Appends messages in one commit. It also works while a turn runs. */
  appendMessages(request: Input<AppendMessagesRequest>, options?: Options): Promise<AppendMessagesResponse> {
    return this.#stub.appendMessages(request, options);
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
  appender(options?: Options): Appender {
    const transport = this.#transport;
    return new Appender({
      connection: transport,
      begin: () => transport.calls.begin(options?.signal),
      prepare: (request) => transport.prepareAppend(request),
      open: (requests, signal) => transport.appendStream(requests, withSignal(options, signal)),
    });
  }

  /** Returns a page of the stored messages, in either direction. */
  listMessages(request: Input<ListMessagesRequest>, options?: Options): Promise<ListMessagesResponse> {
    return this.#stub.listMessages(request, options);
  }

  /** Returns the system prompt and the window of messages for a model call. */
  getContext(request: Input<GetContextRequest>, options?: Options): Promise<GetContextResponse> {
    return this.#stub.getContext(request, options);
  }

  /** Returns what a coordinator needs to route the next message. */
  getRoutingSummary(
    request: Input<GetRoutingSummaryRequest>,
    options?: Options,
  ): Promise<GetRoutingSummaryResponse> {
    return this.#stub.getRoutingSummary(request, options);
  }

  /** Returns the summaries of up to 100 conversations. */
  batchGetRoutingSummaries(
    request: Input<BatchGetRoutingSummariesRequest>,
    options?: Options,
  ): Promise<BatchGetRoutingSummariesResponse> {
    return this.#stub.batchGetRoutingSummaries(request, options);
  }

  /** Sets or removes the active agent of a conversation and its lease. */
  setActiveAgent(request: Input<SetActiveAgentRequest>, options?: Options): Promise<SetActiveAgentResponse> {
    return this.#stub.setActiveAgent(request, options);
  }

  /** Returns the agents that the server can call. */
  listAgents(request: Input<ListAgentsRequest> = {}, options?: Options): Promise<ListAgentsResponse> {
    return this.#stub.listAgents(request, options);
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
   *   body takes does not count, nor does that for which the machine or the page is suspended.
   *
   * The options apply to each attempt.
   *
   * The stream ends at once when the caller leaves the loop or the signal aborts. The turn continues
   * on the server unless request.onDisconnect is ON_DISCONNECT_CANCEL. Another loop over the result
   * sends the same requestId, which returns the same turn and never starts a second one.
   */
  chat(request: Input<ChatRequest>, options?: Options): AsyncIterable<TurnEvent> {
    const copy = deferred(() => this.#transport.complete("chat", request));
    let generatedID = !request?.requestId;
    return restartable(this.#transport.calls, options?.signal, (signal) => {
      const follower = Follower.chat(this.#attempts(options), copy(), generatedID);
      generatedID = false;
      return resumed(follower, this.#transport, signal);
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
  resumeTurn(request: Input<ResumeTurnRequest>, options?: Options): AsyncIterable<TurnEvent> {
    const copy = deferred(() => this.#transport.complete("resumeTurn", request));
    return restartable(this.#transport.calls, options?.signal, (signal) => {
      return resumed(Follower.resume(this.#attempts(options), copy()), this.#transport, signal);
    });
  }

  /** Returns a turn by its id. */
  getTurn(request: Input<GetTurnRequest>, options?: Options): Promise<GetTurnResponse> {
    return this.#stub.getTurn(request, options);
  }

  /** Returns a page of the turns of a conversation, or of the tenant, newest first. */
  listTurns(request: Input<ListTurnsRequest>, options?: Options): Promise<ListTurnsResponse> {
    return this.#stub.listTurns(request, options);
  }

  /**
   * Cancels a running or queued turn. The text that had arrived is stored as an incomplete message. If
   * the turn has ended, the call only returns it. A queued turn is not stored: its server remembers it
   * and its requestId for 10 minutes.
   */
  cancelTurn(request: Input<CancelTurnRequest>, options?: Options): Promise<CancelTurnResponse> {
    return this.#stub.cancelTurn(request, options);
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
   *   loop's body takes does not count, nor does that for which the machine or the page is suspended.
   *
   * At its limit of watchers the server refuses a new watch (TOO_MANY_WATCHERS). A watch that the
   * server accepted before retries for that minute, because the server may still count its broken
   * stream. The options apply to each attempt.
   */
  watchConversations(
    request: Input<WatchConversationsRequest> = {},
    options?: Options,
  ): AsyncIterable<ConversationChange> {
    const copy = deferred(() => this.#transport.complete("watchConversations", request));
    return restartable(this.#transport.calls, options?.signal, (signal) => {
      return resumed(new Watcher(this.#attempts(options), copy()), this.#transport, signal);
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
    options?: Options,
  ): AsyncIterable<ExportConversationsResponse> {
    return this.#stub.exportConversations(request, options);
  }

  /**
   * Stores complete conversations, with their ids, sequences and times. It evicts no conversation. An
   * error of the iterable ends the import and is thrown unchanged.
   */
  importConversations(
    request: Iterable<Input<ImportConversationsRequest>> | AsyncIterable<Input<ImportConversationsRequest>>,
    options?: Options,
  ): Promise<ImportConversationsResponse> {
    return this.#stub.importConversations(request, options);
  }

  /** Returns the records of a conversation. It makes no call. Throws INVALID_ARGUMENT if the id is empty. */
  records(conversationId: string): Records<Options> {
    if (!conversationId) {
      throw invalidRequest("conversationId is empty; tenantRecords has the records of the tenant");
    }
    return new Records(this, conversationId);
  }

  /** Returns the records of the tenant. It makes no call. */
  tenantRecords(): Records<Options> {
    return new Records(this, "");
  }

  /** Writes and deletes records in one commit. See {@link Records.write}. */
  writeRecords(request: Input<WriteRecordsRequest>, options?: Options): Promise<WriteRecordsResponse> {
    return this.#stub.writeRecords(request, options);
  }

  /**
   * Returns up to 100 records by their keys, all as they are at one instant. The reply names in omittedKeys those
   * for which it had no space.
   */
  getRecords(request: Input<GetRecordsRequest>, options?: Options): Promise<GetRecordsResponse> {
    return this.#stub.getRecords(request, options);
  }

  /** Returns a page of records in the order of their keys. See {@link Records.list}. */
  listRecords(request: Input<ListRecordsRequest>, options?: Options): Promise<ListRecordsResponse> {
    return this.#stub.listRecords(request, options);
  }

  /** Returns a page of log entries of one day, of a recent time span, or of one conversation. */
  listInteractions(
    request: Input<ListInteractionsRequest>,
    options?: Options,
  ): Promise<ListInteractionsResponse> {
    return this.#stub.listInteractions(request, options);
  }

  /** Returns a page of log entries of the last days that contain a text, newest first. */
  searchInteractions(
    request: Input<SearchInteractionsRequest>,
    options?: Options,
  ): Promise<SearchInteractionsResponse> {
    return this.#stub.searchInteractions(request, options);
  }

  /** Erases all log entries of a conversation, of every day. Needs the admin role. */
  deleteInteractions(
    request: Input<DeleteInteractionsRequest>,
    options?: Options,
  ): Promise<DeleteInteractionsResponse> {
    return this.#stub.deleteInteractions(request, options);
  }

  /** Returns how much the server stores: for all tenants, or for that of the caller. Needs the admin role. */
  getStats(request: Input<GetStatsRequest> = {}, options?: Options): Promise<GetStatsResponse> {
    return this.#stub.getStats(request, options);
  }

  /**
   * Streams a consistent copy of the store while the server runs. Needs the admin role. If the
   * connection breaks, the stream does not resume. Leaving the loop ends it.
   */
  backupStore(
    request: Input<BackupStoreRequest> = {},
    options?: Options,
  ): AsyncIterable<BackupStoreResponse> {
    return this.#stub.backupStore(request, options);
  }

  /** Returns the streaming calls with these options, for {@link resumed}. */
  #attempts(options: Options | undefined): Turns & Changes {
    const stub = this.#stub;
    return {
      chat: (request, { signal }) => stub.chat(request, withSignal(options, signal)),
      resumeTurn: (request, { signal }) => stub.resumeTurn(request, withSignal(options, signal)),
      watchConversations: (request, { signal }) =>
        stub.watchConversations(request, withSignal(options, signal)),
    };
  }
}

/** Returns the options of one attempt of a call. */
function withSignal<Options extends BaseCallOptions>(
  options: Options | undefined,
  signal: AbortSignal,
): Options {
  return { ...options, signal } as Options;
}
