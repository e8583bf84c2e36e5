"""The calls of the asyncio client that are one gRPC call each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from parley._aio_records import AsyncRecords
from parley._aio_status import ServerStatus
from parley._aio_stream import AsyncStream
from parley._error import Error, from_rpc
from parley._options import CallOptions, explain_size, with_request_id
from parley._records import Scope, scope_of
from parley._resumption import SingleCall
from parley._sign_in import AsyncAttempts, SignIn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from google.protobuf.message import Message
    from typing_extensions import Unpack

    from parley._aio_connection import Connections
    from parley._aio_stream import AsyncCall
    from parley.v1.admin_service_pb2 import (
        BackupStoreRequest,
        BackupStoreResponse,
        GetStatsRequest,
        GetStatsResponse,
    )
    from parley.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
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
    from parley.v1.conversation_service_pb2_grpc import ConversationServiceAsyncStub
    from parley.v1.interaction_log_service_pb2 import (
        DeleteInteractionsRequest,
        DeleteInteractionsResponse,
        ListInteractionsRequest,
        ListInteractionsResponse,
        SearchInteractionsRequest,
        SearchInteractionsResponse,
    )
    from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceAsyncStub
    from parley.v1.record_service_pb2 import (
        GetRecordsRequest,
        GetRecordsResponse,
        ListRecordsRequest,
        ListRecordsResponse,
        WriteRecordsRequest,
        WriteRecordsResponse,
    )
    from parley.v1.record_service_pb2_grpc import RecordServiceAsyncStub

Q = TypeVar("Q", bound="Message")
R = TypeVar("R")


class AsyncCalls:
    """All calls that do not resume after a broken connection. The methods have Python's spelling.

    Each method takes a request of the API and, as keyword arguments, the :class:`CallOptions`.
    It returns the reply of the API or raises :class:`parley.Error`. The docstrings of the requests
    and replies explain the fields and their limits.
    """

    def __init__(self, connections: Connections, sign_in: SignIn) -> None:
        """Make calls on these connections."""
        self._connections = connections
        self._sign_in = sign_in

    async def create_conversation(
        self, request: CreateConversationRequest, **options: Unpack[CallOptions]
    ) -> CreateConversationResponse:
        """Create an empty conversation. A retry with the same request_id returns that one."""
        return await self._unary(self._conversations.CreateConversation, request, options)

    async def load_conversation(
        self, request: LoadConversationRequest, **options: Unpack[CallOptions]
    ) -> LoadConversationResponse:
        """Return a conversation with its newest messages; create it if it does not exist."""
        return await self._unary(self._conversations.LoadConversation, request, options)

    async def get_conversation(
        self, request: GetConversationRequest, **options: Unpack[CallOptions]
    ) -> GetConversationResponse:
        """Return the header of a conversation."""
        return await self._unary(self._conversations.GetConversation, request, options)

    async def update_conversation(
        self, request: UpdateConversationRequest, **options: Unpack[CallOptions]
    ) -> UpdateConversationResponse:
        """Change the fields of a conversation that update_mask names. Never retried."""
        return await self._unary(self._conversations.UpdateConversation, request, options)

    async def list_conversations(
        self, request: ListConversationsRequest, **options: Unpack[CallOptions]
    ) -> ListConversationsResponse:
        """Return a page of the live conversations."""
        return await self._unary(self._conversations.ListConversations, request, options)

    async def delete_conversation(
        self, request: DeleteConversationRequest, **options: Unpack[CallOptions]
    ) -> DeleteConversationResponse:
        """Delete a conversation and its messages; cancel its running turn. Never retried."""
        return await self._unary(self._conversations.DeleteConversation, request, options)

    async def clear_conversation(
        self, request: ClearConversationRequest, **options: Unpack[CallOptions]
    ) -> ClearConversationResponse:
        """Remove messages and keep the conversation. Sequences continue."""
        return await self._unary(self._conversations.ClearConversation, request, options)

    async def purge_conversations(
        self, request: PurgeConversationsRequest, **options: Unpack[CallOptions]
    ) -> PurgeConversationsResponse:
        """Delete conversations that have been inactive for a time. Never retried."""
        return await self._unary(self._conversations.PurgeConversations, request, options)

    async def fork_conversation(
        self, request: ForkConversationRequest, **options: Unpack[CallOptions]
    ) -> ForkConversationResponse:
        """Copy a conversation, up to a message, into a new one."""
        return await self._unary(self._conversations.ForkConversation, request, options)

    async def append_messages(
        self, request: AppendMessagesRequest, **options: Unpack[CallOptions]
    ) -> AppendMessagesResponse:
        """Append messages in one commit. It also works while a turn runs."""
        return await self._unary(self._conversations.AppendMessages, request, options)

    async def list_messages(
        self, request: ListMessagesRequest, **options: Unpack[CallOptions]
    ) -> ListMessagesResponse:
        """Return a page of the stored messages, in either direction."""
        return await self._unary(self._conversations.ListMessages, request, options)

    async def get_context(
        self, request: GetContextRequest, **options: Unpack[CallOptions]
    ) -> GetContextResponse:
        """Return the system prompt and the window of messages for a model call."""
        return await self._unary(self._conversations.GetContext, request, options)

    async def get_routing_summary(
        self, request: GetRoutingSummaryRequest, **options: Unpack[CallOptions]
    ) -> GetRoutingSummaryResponse:
        """Return what a coordinator needs to route the next message.

        With wait_timeout it waits for a change; the timeout of the call must be longer than that.
        """
        return await self._unary(self._conversations.GetRoutingSummary, request, options)

    async def batch_get_routing_summaries(
        self, request: BatchGetRoutingSummariesRequest, **options: Unpack[CallOptions]
    ) -> BatchGetRoutingSummariesResponse:
        """Return the summaries of up to 100 conversations."""
        return await self._unary(self._conversations.BatchGetRoutingSummaries, request, options)

    async def set_active_agent(
        self, request: SetActiveAgentRequest, **options: Unpack[CallOptions]
    ) -> SetActiveAgentResponse:
        """Set or remove the active agent of a conversation and its lease. Never retried."""
        return await self._unary(self._conversations.SetActiveAgent, request, options)

    async def list_agents(
        self, request: ListAgentsRequest, **options: Unpack[CallOptions]
    ) -> ListAgentsResponse:
        """Return the agents that the server can call."""
        return await self._unary(self._conversations.ListAgents, request, options)

    async def get_turn(
        self, request: GetTurnRequest, **options: Unpack[CallOptions]
    ) -> GetTurnResponse:
        """Return a turn by its id."""
        return await self._unary(self._conversations.GetTurn, request, options)

    async def list_turns(
        self, request: ListTurnsRequest, **options: Unpack[CallOptions]
    ) -> ListTurnsResponse:
        """Return a page of the turns of a conversation, or of the tenant, newest first."""
        return await self._unary(self._conversations.ListTurns, request, options)

    async def cancel_turn(
        self, request: CancelTurnRequest, **options: Unpack[CallOptions]
    ) -> CancelTurnResponse:
        """Cancel a running or queued turn; store the received text as an incomplete message."""
        return await self._unary(self._conversations.CancelTurn, request, options)

    def export_conversations(
        self, request: ExportConversationsRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[ExportConversationsResponse]:
        """Stream complete conversations, the oldest first; a large one takes several replies.

        If the connection breaks, the stream fails with UNAVAILABLE. It does not resume.
        """
        return self._stream(lambda: self._conversations.ExportConversations, request, options)

    async def import_conversations(
        self,
        requests: Iterable[ImportConversationsRequest] | AsyncIterable[ImportConversationsRequest],
        **options: Unpack[CallOptions],
    ) -> ImportConversationsResponse:
        """Store complete conversations, as they were exported. Never retried.

        An exception of the iterable requests ends the call and is raised unchanged.
        """
        return await self._upload(self._conversations.ImportConversations, requests, options)

    def records(self, conversation_id: str) -> AsyncRecords:
        """Return the records of a conversation. It makes no call.

        Raises:
            ValueError: The id is empty.

        """
        return AsyncRecords(self, scope_of(conversation_id))

    def tenant_records(self) -> AsyncRecords:
        """Return the records of the tenant. It makes no call."""
        return AsyncRecords(self, Scope(""))

    async def write_records(
        self, request: WriteRecordsRequest, **options: Unpack[CallOptions]
    ) -> WriteRecordsResponse:
        """Write and delete records in one commit. See :meth:`AsyncRecords.write`."""
        return await self._unary(self._records.WriteRecords, request, options)

    async def get_records(
        self, request: GetRecordsRequest, **options: Unpack[CallOptions]
    ) -> GetRecordsResponse:
        """Return up to 100 records by their keys, all as they are at one instant.

        The reply names in omitted_keys those for which it had no space.
        """
        return await self._unary(self._records.GetRecords, request, options)

    async def list_records(
        self, request: ListRecordsRequest, **options: Unpack[CallOptions]
    ) -> ListRecordsResponse:
        """Return a page of records in the order of their keys. See :meth:`AsyncRecords.list`."""
        return await self._unary(self._records.ListRecords, request, options)

    async def list_interactions(
        self, request: ListInteractionsRequest, **options: Unpack[CallOptions]
    ) -> ListInteractionsResponse:
        """Return a page of log entries of one day, of a recent span, or of one conversation."""
        return await self._unary(self._interactions.ListInteractions, request, options)

    async def search_interactions(
        self, request: SearchInteractionsRequest, **options: Unpack[CallOptions]
    ) -> SearchInteractionsResponse:
        """Return a page of log entries of the last days that contain a text, newest first."""
        return await self._unary(self._interactions.SearchInteractions, request, options)

    async def delete_interactions(
        self, request: DeleteInteractionsRequest, **options: Unpack[CallOptions]
    ) -> DeleteInteractionsResponse:
        """Erase all log entries of a conversation. Needs the admin role. Never retried."""
        return await self._unary(self._interactions.DeleteInteractions, request, options)

    async def get_stats(
        self, request: GetStatsRequest, **options: Unpack[CallOptions]
    ) -> GetStatsResponse:
        """Return how much the server stores: for all tenants, or for that of the caller.

        Needs the admin role.
        """
        return await self._unary(self._admin.GetStats, request, options)

    def backup_store(
        self, request: BackupStoreRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[BackupStoreResponse]:
        """Stream a consistent copy of the store. Needs the admin role.

        If the connection breaks, the stream fails with UNAVAILABLE. It does not resume.
        """
        return self._stream(lambda: self._admin.BackupStore, request, options)

    @property
    def _conversations(self) -> ConversationServiceAsyncStub:
        return self._connections.get().conversations

    @property
    def _interactions(self) -> InteractionLogServiceAsyncStub:
        return self._connections.get().interactions

    @property
    def _admin(self) -> AdminServiceAsyncStub:
        return self._connections.get().admin

    @property
    def _records(self) -> RecordServiceAsyncStub:
        return self._connections.get().records

    async def _unary(
        self, rpc: grpc.aio.UnaryUnaryMultiCallable[Q, R], request: Q, options: CallOptions
    ) -> R:
        request = with_request_id(request)
        attempts = AsyncAttempts(self._sign_in, options)
        deadline = attempts.deadline()
        while True:
            arguments = await attempts.arguments(deadline)
            try:
                with self._raising_if_closed(), self._converting_errors():
                    return await rpc(request, **arguments)
            except Error as error:
                if not await attempts.replace(error, deadline):
                    raise explain_size(error, request) from error.__cause__

    def _stream(
        self,
        rpc: Callable[[], grpc.aio.UnaryStreamMultiCallable[Q, R]],
        request: Q,
        options: CallOptions,
    ) -> AsyncStream[R]:
        def open_call(request: Q, arguments: dict[str, Any]) -> AsyncCall:
            with self._raising_if_closed():
                return rpc()(request, **arguments)

        attempts = AsyncAttempts(self._sign_in, options)
        return AsyncStream(SingleCall(with_request_id(request)), open_call, attempts)

    async def _upload(
        self,
        rpc: grpc.aio.StreamUnaryMultiCallable[Q, R],
        requests: Iterable[Q] | AsyncIterable[Q],
        options: CallOptions,
    ) -> R:
        attempts = AsyncAttempts(self._sign_in, options)
        arguments = await attempts.arguments(attempts.deadline())
        with self._raising_if_closed():
            call = rpc(**arguments)
        server_status = ServerStatus(call)
        try:
            with self._converting_errors():
                try:
                    async for request in each_of(requests):
                        await call.write(request)
                    await call.done_writing()
                except grpc.aio.AioRpcError as error:
                    if not call.done():
                        raise
                    status = await server_status.after(error)
                    if status.code() is not grpc.StatusCode.OK:
                        raise status from None
                except asyncio.InvalidStateError:
                    if not call.done():
                        raise
                # If the server has ended the call early, its status says why.
                return await call
        finally:
            call.cancel()  # It does nothing if the call has ended.

    @contextmanager
    def _converting_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc(error) from error
        except asyncio.CancelledError:
            # gRPC also raises this if close has cancelled the call. In that case nothing has
            # cancelled the task.
            if self._connections.is_closed() and not is_cancelled():
                raise Error(grpc.StatusCode.CANCELLED, "the client was closed") from None
            raise

    @contextmanager
    def _raising_if_closed(self) -> Iterator[None]:
        """Raise CANCELLED if the client is closed before or in the block.

        The block may run code of the caller, the iterator of the metadata.
        """
        self._connections.check_open()
        try:
            yield
        except grpc.aio.UsageError:  # gRPC raises it for a closed channel.
            self._connections.check_open()
            raise


async def each_of(requests: Iterable[Q] | AsyncIterable[Q]) -> AsyncIterator[Q]:
    """Yield the requests of an iterable of either kind."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


def is_cancelled() -> bool:
    """Report whether the running task was cancelled. On Python 3.10 it returns False."""
    task = asyncio.current_task()
    return sys.version_info >= (3, 11) and task is not None and task.cancelling() > 0
