"""The calls of the sync client that are one gRPC call each."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from parley._error import Error, from_rpc
from parley._options import CallOptions, explain_size, with_request_id
from parley._records import Records, Scope, scope_of
from parley._resumption import SingleCall
from parley._sign_in import SignIn, SyncAttempts
from parley._stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.message import Message
    from typing_extensions import Unpack

    from parley._stream import Call
    from parley.v1.admin_service_pb2 import (
        BackupStoreRequest,
        BackupStoreResponse,
        GetStatsRequest,
        GetStatsResponse,
    )
    from parley.v1.admin_service_pb2_grpc import AdminServiceStub
    from parley.v1.conversation_service_pb2 import (
        AppendMessagesRequest,
        AppendMessagesResponse,
        BatchGetRoutingSummariesRequest,
        BatchGetRoutingSummariesResponse,
        CancelTurnRequest,
        CancelTurnResponse,
        ClearConversationRequest,
        ClearConversationResponse,
        CreateConversationRequest,
        CreateConversationResponse,
        DeleteConversationRequest,
        DeleteConversationResponse,
        ExportConversationsRequest,
        ExportConversationsResponse,
        ForkConversationRequest,
        ForkConversationResponse,
        GetContextRequest,
        GetContextResponse,
        GetConversationRequest,
        GetConversationResponse,
        GetRoutingSummaryRequest,
        GetRoutingSummaryResponse,
        GetTurnRequest,
        GetTurnResponse,
        ImportConversationsRequest,
        ImportConversationsResponse,
        ListAgentsRequest,
        ListAgentsResponse,
        ListConversationsRequest,
        ListConversationsResponse,
        ListMessagesRequest,
        ListMessagesResponse,
        ListTurnsRequest,
        ListTurnsResponse,
        LoadConversationRequest,
        LoadConversationResponse,
        PurgeConversationsRequest,
        PurgeConversationsResponse,
        SetActiveAgentRequest,
        SetActiveAgentResponse,
        UpdateConversationRequest,
        UpdateConversationResponse,
    )
    from parley.v1.conversation_service_pb2_grpc import ConversationServiceStub
    from parley.v1.interaction_log_service_pb2 import (
        DeleteInteractionsRequest,
        DeleteInteractionsResponse,
        ListInteractionsRequest,
        ListInteractionsResponse,
        SearchInteractionsRequest,
        SearchInteractionsResponse,
    )
    from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceStub
    from parley.v1.record_service_pb2 import (
        GetRecordsRequest,
        GetRecordsResponse,
        ListRecordsRequest,
        ListRecordsResponse,
        WriteRecordsRequest,
        WriteRecordsResponse,
    )
    from parley.v1.record_service_pb2_grpc import RecordServiceStub

Q = TypeVar("Q", bound="Message")
R = TypeVar("R")


class Calls:
    """All calls that do not resume after a broken connection. The methods have Python's spelling.

    Each method takes a request of the API and, as keyword arguments, the :class:`CallOptions`.
    It returns the reply of the API or raises :class:`parley.Error`. The docstrings of the requests
    and replies explain the fields and their limits.
    """

    def __init__(
        self,
        conversations: ConversationServiceStub,
        interactions: InteractionLogServiceStub,
        admin: AdminServiceStub,
        records: RecordServiceStub,
        sign_in: SignIn,
    ) -> None:
        """Make calls with these stubs."""
        self._sign_in = sign_in
        self._conversations = conversations
        self._interactions = interactions
        self._admin = admin
        self._records = records
        self._closed = False

    def create_conversation(
        self, request: CreateConversationRequest, **options: Unpack[CallOptions]
    ) -> CreateConversationResponse:
        """Create an empty conversation. A retry with the same request_id returns that one."""
        return self._unary(self._conversations.CreateConversation, request, options)

    def load_conversation(
        self, request: LoadConversationRequest, **options: Unpack[CallOptions]
    ) -> LoadConversationResponse:
        """Return a conversation with its newest messages; create it if it does not exist."""
        return self._unary(self._conversations.LoadConversation, request, options)

    def get_conversation(
        self, request: GetConversationRequest, **options: Unpack[CallOptions]
    ) -> GetConversationResponse:
        """Return the header of a conversation."""
        return self._unary(self._conversations.GetConversation, request, options)

    def update_conversation(
        self, request: UpdateConversationRequest, **options: Unpack[CallOptions]
    ) -> UpdateConversationResponse:
        """Change the fields of a conversation that update_mask names. Never retried."""
        return self._unary(self._conversations.UpdateConversation, request, options)

    def list_conversations(
        self, request: ListConversationsRequest, **options: Unpack[CallOptions]
    ) -> ListConversationsResponse:
        """Return a page of the live conversations."""
        return self._unary(self._conversations.ListConversations, request, options)

    def delete_conversation(
        self, request: DeleteConversationRequest, **options: Unpack[CallOptions]
    ) -> DeleteConversationResponse:
        """Delete a conversation and its messages; cancel its running turn. Never retried."""
        return self._unary(self._conversations.DeleteConversation, request, options)

    def clear_conversation(
        self, request: ClearConversationRequest, **options: Unpack[CallOptions]
    ) -> ClearConversationResponse:
        """Remove messages and keep the conversation. Sequences continue.

        To remove single messages, set sequences and also ``after_sequence=2**31 - 1``. Without it,
        an empty sequences removes all messages.
        """
        return self._unary(self._conversations.ClearConversation, request, options)

    def purge_conversations(
        self, request: PurgeConversationsRequest, **options: Unpack[CallOptions]
    ) -> PurgeConversationsResponse:
        """Delete conversations that have been inactive for a time. Never retried."""
        return self._unary(self._conversations.PurgeConversations, request, options)

    def fork_conversation(
        self, request: ForkConversationRequest, **options: Unpack[CallOptions]
    ) -> ForkConversationResponse:
        """Copy a conversation, up to a message, into a new one."""
        return self._unary(self._conversations.ForkConversation, request, options)

    def append_messages(
        self, request: AppendMessagesRequest, **options: Unpack[CallOptions]
    ) -> AppendMessagesResponse:
        """Append messages in one commit. It also works while a turn runs."""
        return self._unary(self._conversations.AppendMessages, request, options)

    def list_messages(
        self, request: ListMessagesRequest, **options: Unpack[CallOptions]
    ) -> ListMessagesResponse:
        """Return a page of the stored messages, in either direction."""
        return self._unary(self._conversations.ListMessages, request, options)

    def get_context(
        self, request: GetContextRequest, **options: Unpack[CallOptions]
    ) -> GetContextResponse:
        """Return the system prompt and the window of messages for a model call."""
        return self._unary(self._conversations.GetContext, request, options)

    def get_routing_summary(
        self, request: GetRoutingSummaryRequest, **options: Unpack[CallOptions]
    ) -> GetRoutingSummaryResponse:
        """Return what a coordinator needs to route the next message.

        With wait_timeout it waits for a change; the timeout of the call must be longer than that.
        """
        return self._unary(self._conversations.GetRoutingSummary, request, options)

    def batch_get_routing_summaries(
        self, request: BatchGetRoutingSummariesRequest, **options: Unpack[CallOptions]
    ) -> BatchGetRoutingSummariesResponse:
        """Return the summaries of up to 100 conversations."""
        return self._unary(self._conversations.BatchGetRoutingSummaries, request, options)

    def set_active_agent(
        self, request: SetActiveAgentRequest, **options: Unpack[CallOptions]
    ) -> SetActiveAgentResponse:
        """Set or remove the active agent of a conversation and its lease. Never retried."""
        return self._unary(self._conversations.SetActiveAgent, request, options)

    def list_agents(
        self, request: ListAgentsRequest, **options: Unpack[CallOptions]
    ) -> ListAgentsResponse:
        """Return the agents that the server can call."""
        return self._unary(self._conversations.ListAgents, request, options)

    def get_turn(self, request: GetTurnRequest, **options: Unpack[CallOptions]) -> GetTurnResponse:
        """Return a turn by its id."""
        return self._unary(self._conversations.GetTurn, request, options)

    def list_turns(
        self, request: ListTurnsRequest, **options: Unpack[CallOptions]
    ) -> ListTurnsResponse:
        """Return a page of the turns of a conversation, or of the tenant, newest first."""
        return self._unary(self._conversations.ListTurns, request, options)

    def cancel_turn(
        self, request: CancelTurnRequest, **options: Unpack[CallOptions]
    ) -> CancelTurnResponse:
        """Cancel a running or queued turn; store the received text as an incomplete message."""
        return self._unary(self._conversations.CancelTurn, request, options)

    def export_conversations(
        self, request: ExportConversationsRequest, **options: Unpack[CallOptions]
    ) -> Stream[ExportConversationsResponse]:
        """Stream complete conversations, the oldest first; a large one takes several replies.

        If the connection breaks, the stream fails with UNAVAILABLE. It does not resume.
        """
        return self._stream(self._conversations.ExportConversations, request, options)

    def import_conversations(
        self, requests: Iterable[ImportConversationsRequest], **options: Unpack[CallOptions]
    ) -> ImportConversationsResponse:
        """Store complete conversations, as they were exported. Never retried.

        An exception of the iterable requests ends the call and is raised unchanged.
        """
        return self._upload(self._conversations.ImportConversations, requests, options)

    def records(self, conversation_id: str) -> Records:
        """Return the records of a conversation. It makes no call.

        Raises:
            ValueError: The id is empty.

        """
        return Records(self, scope_of(conversation_id))

    def tenant_records(self) -> Records:
        """Return the records of the tenant. It makes no call."""
        return Records(self, Scope(""))

    def write_records(
        self, request: WriteRecordsRequest, **options: Unpack[CallOptions]
    ) -> WriteRecordsResponse:
        """Write and delete records in one commit. See :meth:`Records.write`."""
        return self._unary(self._records.WriteRecords, request, options)

    def get_records(
        self, request: GetRecordsRequest, **options: Unpack[CallOptions]
    ) -> GetRecordsResponse:
        """Return up to 100 records by their keys, all as they are at one instant.

        The reply names in omitted_keys those for which it had no space.
        """
        return self._unary(self._records.GetRecords, request, options)

    def list_records(
        self, request: ListRecordsRequest, **options: Unpack[CallOptions]
    ) -> ListRecordsResponse:
        """Return a page of records in the order of their keys. See :meth:`Records.list`."""
        return self._unary(self._records.ListRecords, request, options)

    def list_interactions(
        self, request: ListInteractionsRequest, **options: Unpack[CallOptions]
    ) -> ListInteractionsResponse:
        """Return a page of log entries of one day, of a recent span, or of one conversation."""
        return self._unary(self._interactions.ListInteractions, request, options)

    def search_interactions(
        self, request: SearchInteractionsRequest, **options: Unpack[CallOptions]
    ) -> SearchInteractionsResponse:
        """Return a page of log entries of the last days that contain a text, newest first."""
        return self._unary(self._interactions.SearchInteractions, request, options)

    def delete_interactions(
        self, request: DeleteInteractionsRequest, **options: Unpack[CallOptions]
    ) -> DeleteInteractionsResponse:
        """Erase all log entries of a conversation. Needs the admin role. Never retried."""
        return self._unary(self._interactions.DeleteInteractions, request, options)

    def get_stats(
        self, request: GetStatsRequest, **options: Unpack[CallOptions]
    ) -> GetStatsResponse:
        """Return how much the server stores: for all tenants, or for that of the caller.

        Needs the admin role.
        """
        return self._unary(self._admin.GetStats, request, options)

    def backup_store(
        self, request: BackupStoreRequest, **options: Unpack[CallOptions]
    ) -> Stream[BackupStoreResponse]:
        """Stream a consistent copy of the store. Needs the admin role.

        If the connection breaks, the stream fails with UNAVAILABLE. It does not resume.
        """
        return self._stream(self._admin.BackupStore, request, options)

    def _unary(
        self, rpc: grpc.UnaryUnaryMultiCallable[Q, R], request: Q, options: CallOptions
    ) -> R:
        request = with_request_id(request)
        attempts = SyncAttempts(self._sign_in, options)
        deadline = attempts.deadline()
        while True:
            self._check_open()
            arguments = attempts.arguments(deadline)
            try:
                with self._raising_if_closed():
                    return rpc(request, **arguments)
            except grpc.RpcError as cause:
                error = explain_size(from_rpc(cause), request)
            if not attempts.replace(error):
                raise error

    def _stream(
        self, rpc: grpc.UnaryStreamMultiCallable[Q, R], request: Q, options: CallOptions
    ) -> Stream[R]:
        def open_call(request: Q, arguments: dict[str, Any]) -> Call:
            with self._raising_if_closed():
                return rpc(request, **arguments)

        attempts = SyncAttempts(self._sign_in, options)
        return Stream(SingleCall(with_request_id(request)), open_call, attempts)

    def _upload(
        self, rpc: grpc.StreamUnaryMultiCallable[Q, R], requests: Iterable[Q], options: CallOptions
    ) -> R:
        failures: list[BaseException] = []

        def recorded_requests() -> Iterator[Q]:
            # gRPC runs this in another thread and does not report its exception.
            try:
                yield from requests
            except BaseException as error:
                failures.append(error)
                raise

        self._check_open()
        attempts = SyncAttempts(self._sign_in, options)
        arguments = attempts.arguments(attempts.deadline())
        with self._raising_if_closed():
            try:
                return rpc(recorded_requests(), **arguments)
            except grpc.RpcError as error:
                if not failures:
                    raise from_rpc(error) from error
        raise failures[0]  # after the block, because it may be any exception

    @contextmanager
    def _raising_if_closed(self) -> Iterator[None]:
        """Raise CANCELLED if the client is closed before or in the block.

        Another thread may close it in the block.
        """
        self._check_open()
        try:
            yield
        except ValueError:  # gRPC raises it for a closed channel.
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise Error(grpc.StatusCode.CANCELLED, "the client is closed")
