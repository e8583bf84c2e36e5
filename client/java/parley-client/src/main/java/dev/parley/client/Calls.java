package dev.parley.client;

import dev.parley.v1.AdminServiceGrpc;
import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.AppendMessagesResponse;
import dev.parley.v1.BackupStoreRequest;
import dev.parley.v1.BackupStoreResponse;
import dev.parley.v1.BatchGetRoutingSummariesRequest;
import dev.parley.v1.BatchGetRoutingSummariesResponse;
import dev.parley.v1.CancelTurnRequest;
import dev.parley.v1.CancelTurnResponse;
import dev.parley.v1.ClearConversationRequest;
import dev.parley.v1.ClearConversationResponse;
import dev.parley.v1.ConversationServiceGrpc;
import dev.parley.v1.CreateConversationRequest;
import dev.parley.v1.CreateConversationResponse;
import dev.parley.v1.DeleteConversationRequest;
import dev.parley.v1.DeleteConversationResponse;
import dev.parley.v1.DeleteInteractionsRequest;
import dev.parley.v1.DeleteInteractionsResponse;
import dev.parley.v1.ExportConversationsRequest;
import dev.parley.v1.ExportConversationsResponse;
import dev.parley.v1.ForkConversationRequest;
import dev.parley.v1.ForkConversationResponse;
import dev.parley.v1.GetContextRequest;
import dev.parley.v1.GetContextResponse;
import dev.parley.v1.GetConversationRequest;
import dev.parley.v1.GetConversationResponse;
import dev.parley.v1.GetRecordsRequest;
import dev.parley.v1.GetRecordsResponse;
import dev.parley.v1.GetRoutingSummaryRequest;
import dev.parley.v1.GetRoutingSummaryResponse;
import dev.parley.v1.GetStatsRequest;
import dev.parley.v1.GetStatsResponse;
import dev.parley.v1.GetTurnRequest;
import dev.parley.v1.GetTurnResponse;
import dev.parley.v1.InteractionLogServiceGrpc;
import dev.parley.v1.ListAgentsRequest;
import dev.parley.v1.ListAgentsResponse;
import dev.parley.v1.ListConversationsRequest;
import dev.parley.v1.ListConversationsResponse;
import dev.parley.v1.ListInteractionsRequest;
import dev.parley.v1.ListInteractionsResponse;
import dev.parley.v1.ListMessagesRequest;
import dev.parley.v1.ListMessagesResponse;
import dev.parley.v1.ListRecordsRequest;
import dev.parley.v1.ListRecordsResponse;
import dev.parley.v1.ListTurnsRequest;
import dev.parley.v1.ListTurnsResponse;
import dev.parley.v1.LoadConversationRequest;
import dev.parley.v1.LoadConversationResponse;
import dev.parley.v1.PurgeConversationsRequest;
import dev.parley.v1.PurgeConversationsResponse;
import dev.parley.v1.RecordServiceGrpc;
import dev.parley.v1.SearchInteractionsRequest;
import dev.parley.v1.SearchInteractionsResponse;
import dev.parley.v1.SetActiveAgentRequest;
import dev.parley.v1.SetActiveAgentResponse;
import dev.parley.v1.UpdateConversationRequest;
import dev.parley.v1.UpdateConversationResponse;
import dev.parley.v1.WriteRecordsRequest;
import dev.parley.v1.WriteRecordsResponse;

/**
 * The calls of a client that do not resume after a broken connection. Each takes a request of the API and returns its
 * reply, or throws {@link ParleyException}. The protos explain the fields and their limits.
 */
public abstract class Calls {
    final Transport transport;

    Calls(Transport transport) {
        this.transport = transport;
    }

    /** Creates an empty conversation. A retry with the same request_id returns that one. */
    public CreateConversationResponse createConversation(CreateConversationRequest request) {
        return transport.unary(ConversationServiceGrpc.getCreateConversationMethod(), request);
    }

    /** Returns a conversation with its newest messages; creates it if it does not exist. */
    public LoadConversationResponse loadConversation(LoadConversationRequest request) {
        return transport.unary(ConversationServiceGrpc.getLoadConversationMethod(), request);
    }

    /** Returns the header of a conversation. */
    public GetConversationResponse getConversation(GetConversationRequest request) {
        return transport.unary(ConversationServiceGrpc.getGetConversationMethod(), request);
    }

    /** Changes the fields of a conversation that update_mask names. Never sent again. */
    public UpdateConversationResponse updateConversation(UpdateConversationRequest request) {
        return transport.unary(ConversationServiceGrpc.getUpdateConversationMethod(), request);
    }

    /** Returns a page of the live conversations. */
    public ListConversationsResponse listConversations(ListConversationsRequest request) {
        return transport.unary(ConversationServiceGrpc.getListConversationsMethod(), request);
    }

    /** Deletes a conversation and its messages; cancels its running turn. Never sent again. */
    public DeleteConversationResponse deleteConversation(DeleteConversationRequest request) {
        return transport.unary(ConversationServiceGrpc.getDeleteConversationMethod(), request);
    }

    /**
     * Removes messages and keeps the conversation. Sequences continue.
     *
     * <p>To remove single messages, set sequences and also after_sequence to Integer.MAX_VALUE. Without it, an empty
     * list of sequences removes all messages.
     */
    public ClearConversationResponse clearConversation(ClearConversationRequest request) {
        return transport.unary(ConversationServiceGrpc.getClearConversationMethod(), request);
    }

    /** Deletes conversations that have been inactive for a time. Never sent again. */
    public PurgeConversationsResponse purgeConversations(PurgeConversationsRequest request) {
        return transport.unary(ConversationServiceGrpc.getPurgeConversationsMethod(), request);
    }

    /** Copies a conversation, up to a message, into a new one. */
    public ForkConversationResponse forkConversation(ForkConversationRequest request) {
        return transport.unary(ConversationServiceGrpc.getForkConversationMethod(), request);
    }

    /** Appends messages in one commit. It also works while a turn runs. */
    public AppendMessagesResponse appendMessages(AppendMessagesRequest request) {
        return transport.unary(ConversationServiceGrpc.getAppendMessagesMethod(), request);
    }

    /** Returns a page of the stored messages, in either direction. */
    public ListMessagesResponse listMessages(ListMessagesRequest request) {
        return transport.unary(ConversationServiceGrpc.getListMessagesMethod(), request);
    }

    /** Returns the system prompt and the window of messages for a model call. */
    public GetContextResponse getContext(GetContextRequest request) {
        return transport.unary(ConversationServiceGrpc.getGetContextMethod(), request);
    }

    /**
     * Returns what a coordinator needs to route the next message.
     *
     * <p>With wait_timeout it waits for a change; the timeout of the call must be longer than that.
     */
    public GetRoutingSummaryResponse getRoutingSummary(GetRoutingSummaryRequest request) {
        return transport.unary(ConversationServiceGrpc.getGetRoutingSummaryMethod(), request);
    }

    /** Returns the summaries of up to 100 conversations. */
    public BatchGetRoutingSummariesResponse batchGetRoutingSummaries(BatchGetRoutingSummariesRequest request) {
        return transport.unary(ConversationServiceGrpc.getBatchGetRoutingSummariesMethod(), request);
    }

    /** Sets or removes the active agent of a conversation and its lease. Never sent again. */
    public SetActiveAgentResponse setActiveAgent(SetActiveAgentRequest request) {
        return transport.unary(ConversationServiceGrpc.getSetActiveAgentMethod(), request);
    }

    /** Returns the agents that the server can call. */
    public ListAgentsResponse listAgents(ListAgentsRequest request) {
        return transport.unary(ConversationServiceGrpc.getListAgentsMethod(), request);
    }

    /** Returns a turn by its id. */
    public GetTurnResponse getTurn(GetTurnRequest request) {
        return transport.unary(ConversationServiceGrpc.getGetTurnMethod(), request);
    }

    /** Returns a page of the turns of a conversation, or of the tenant, newest first. */
    public ListTurnsResponse listTurns(ListTurnsRequest request) {
        return transport.unary(ConversationServiceGrpc.getListTurnsMethod(), request);
    }

    /** Cancels a running or queued turn; stores the received text as an incomplete message. */
    public CancelTurnResponse cancelTurn(CancelTurnRequest request) {
        return transport.unary(ConversationServiceGrpc.getCancelTurnMethod(), request);
    }

    /**
     * Streams complete conversations, the oldest first; a large one takes several replies.
     *
     * <p>If the connection breaks, the stream fails with UNAVAILABLE. It does not resume.
     */
    public ParleyStream<ExportConversationsResponse> exportConversations(ExportConversationsRequest request) {
        return new ParleyStream<>(transport, new SingleCall<>(
                ConversationServiceGrpc.getExportConversationsMethod(), request));
    }

    /** Writes and deletes records in one commit. */
    public WriteRecordsResponse writeRecords(WriteRecordsRequest request) {
        return transport.unary(RecordServiceGrpc.getWriteRecordsMethod(), request);
    }

    /**
     * Returns up to 100 records by their keys, all as they are at one instant.
     *
     * <p>The reply names in omitted_keys those for which it had no space.
     */
    public GetRecordsResponse getRecords(GetRecordsRequest request) {
        return transport.unary(RecordServiceGrpc.getGetRecordsMethod(), request);
    }

    /** Returns a page of records in the order of their keys. */
    public ListRecordsResponse listRecords(ListRecordsRequest request) {
        return transport.unary(RecordServiceGrpc.getListRecordsMethod(), request);
    }

    /** Returns a page of log entries of one day, of a recent span, or of one conversation. */
    public ListInteractionsResponse listInteractions(ListInteractionsRequest request) {
        return transport.unary(InteractionLogServiceGrpc.getListInteractionsMethod(), request);
    }

    /** Returns a page of log entries of the last days that contain a text, newest first. */
    public SearchInteractionsResponse searchInteractions(SearchInteractionsRequest request) {
        return transport.unary(InteractionLogServiceGrpc.getSearchInteractionsMethod(), request);
    }

    /** Erases all log entries of a conversation. Needs the admin role. Never sent again. */
    public DeleteInteractionsResponse deleteInteractions(DeleteInteractionsRequest request) {
        return transport.unary(InteractionLogServiceGrpc.getDeleteInteractionsMethod(), request);
    }

    /** Returns how much the server stores: for all tenants, or for that of the caller. Needs the admin role. */
    public GetStatsResponse getStats(GetStatsRequest request) {
        return transport.unary(AdminServiceGrpc.getGetStatsMethod(), request);
    }

    /**
     * Streams a consistent copy of the store. Needs the admin role.
     *
     * <p>If the connection breaks, the stream fails with UNAVAILABLE. It does not resume.
     */
    public ParleyStream<BackupStoreResponse> backupStore(BackupStoreRequest request) {
        return new ParleyStream<>(transport, new SingleCall<>(AdminServiceGrpc.getBackupStoreMethod(), request));
    }
}
