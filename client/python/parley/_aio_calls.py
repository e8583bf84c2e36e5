"""The calls of the asyncio client that are one call of gRPC's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc

from parley._aio_stream import AsyncStream
from parley._course import OneCall
from parley._error import Error, from_rpc
from parley._options import CallOptions, for_grpc, with_request_id

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

Q = TypeVar("Q", bound="Message")
R = TypeVar("R")


class AsyncCalls:
    """Every call that is not gone on with after a break, under its name in Python's spelling.

    Each takes the request of the contract and, as keyword arguments, the :class:`CallOptions`;
    each returns the reply of the contract or raises :class:`parley.Error`. What the fields
    mean, and their limits, is in the docstrings of the requests and replies.
    """

    def __init__(self, connections: Connections) -> None:
        """Call through these connections."""
        self._connections = connections

    async def create_conversation(
        self, request: CreateConversationRequest, **options: Unpack[CallOptions]
    ) -> CreateConversationResponse:
        """Make an empty conversation. A retry with the same request_id finds it."""
        return await self._unary(self._conversations.CreateConversation, request, options)

    async def load_conversation(
        self, request: LoadConversationRequest, **options: Unpack[CallOptions]
    ) -> LoadConversationResponse:
        """Return a conversation with its newest messages; make it first when it does not exist."""
        return await self._unary(self._conversations.LoadConversation, request, options)

    async def get_conversation(
        self, request: GetConversationRequest, **options: Unpack[CallOptions]
    ) -> GetConversationResponse:
        """Return the header of a conversation."""
        return await self._unary(self._conversations.GetConversation, request, options)

    async def update_conversation(
        self, request: UpdateConversationRequest, **options: Unpack[CallOptions]
    ) -> UpdateConversationResponse:
        """Change the fields of a conversation that update_mask names. Sent once."""
        return await self._unary(self._conversations.UpdateConversation, request, options)

    async def list_conversations(
        self, request: ListConversationsRequest, **options: Unpack[CallOptions]
    ) -> ListConversationsResponse:
        """Return a page of the live conversations."""
        return await self._unary(self._conversations.ListConversations, request, options)

    async def delete_conversation(
        self, request: DeleteConversationRequest, **options: Unpack[CallOptions]
    ) -> DeleteConversationResponse:
        """Remove a conversation and its messages; a running turn is cancelled. Sent once."""
        return await self._unary(self._conversations.DeleteConversation, request, options)

    async def clear_conversation(
        self, request: ClearConversationRequest, **options: Unpack[CallOptions]
    ) -> ClearConversationResponse:
        """Remove messages and keep the conversation; sequences go on. Sent once."""
        return await self._unary(self._conversations.ClearConversation, request, options)

    async def purge_conversations(
        self, request: PurgeConversationsRequest, **options: Unpack[CallOptions]
    ) -> PurgeConversationsResponse:
        """Remove conversations that have been inactive for a time. Sent once."""
        return await self._unary(self._conversations.PurgeConversations, request, options)

    async def fork_conversation(
        self, request: ForkConversationRequest, **options: Unpack[CallOptions]
    ) -> ForkConversationResponse:
        """Copy a conversation, up to a message, into a new one."""
        return await self._unary(self._conversations.ForkConversation, request, options)

    async def append_messages(
        self, request: AppendMessagesRequest, **options: Unpack[CallOptions]
    ) -> AppendMessagesResponse:
        """Add messages in one atomic step, also while a turn runs."""
        return await self._unary(self._conversations.AppendMessages, request, options)

    async def list_messages(
        self, request: ListMessagesRequest, **options: Unpack[CallOptions]
    ) -> ListMessagesResponse:
        """Return a page of the kept messages, in either direction."""
        return await self._unary(self._conversations.ListMessages, request, options)

    async def get_context(
        self, request: GetContextRequest, **options: Unpack[CallOptions]
    ) -> GetContextResponse:
        """Return the system prompt and the history window for a model call."""
        return await self._unary(self._conversations.GetContext, request, options)

    async def get_routing_summary(
        self, request: GetRoutingSummaryRequest, **options: Unpack[CallOptions]
    ) -> GetRoutingSummaryResponse:
        """Return what a coordinator needs to route the next message.

        With wait_timeout it waits for news; a timeout of the call has to be longer than that.
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
        """Give an agent the routing lease of a conversation, or take it away. Sent once."""
        return await self._unary(self._conversations.SetActiveAgent, request, options)

    async def list_agents(
        self, request: ListAgentsRequest, **options: Unpack[CallOptions]
    ) -> ListAgentsResponse:
        """Return the agents that the server can call."""
        return await self._unary(self._conversations.ListAgents, request, options)

    async def get_turn(
        self, request: GetTurnRequest, **options: Unpack[CallOptions]
    ) -> GetTurnResponse:
        """Return the state of a turn."""
        return await self._unary(self._conversations.GetTurn, request, options)

    async def list_turns(
        self, request: ListTurnsRequest, **options: Unpack[CallOptions]
    ) -> ListTurnsResponse:
        """Return the newest turns of a conversation, newest first, 32 at most."""
        return await self._unary(self._conversations.ListTurns, request, options)

    async def cancel_turn(
        self, request: CancelTurnRequest, **options: Unpack[CallOptions]
    ) -> CancelTurnResponse:
        """Stop a running or queued turn; what had arrived is kept as an incomplete message."""
        return await self._unary(self._conversations.CancelTurn, request, options)

    def export_conversations(
        self, request: ExportConversationsRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[ExportConversationsResponse]:
        """Stream whole conversations out, the oldest first; a large one in several replies.

        A stream that breaks fails with UNAVAILABLE; it is not gone on with.
        """
        return self._stream(lambda: self._conversations.ExportConversations, request, options)

    async def import_conversations(
        self,
        requests: Iterable[ImportConversationsRequest] | AsyncIterable[ImportConversationsRequest],
        **options: Unpack[CallOptions],
    ) -> ImportConversationsResponse:
        """Take whole conversations in, as they were exported. Sent once.

        What requests itself raises ends the call and is raised as it is.
        """
        return await self._upload(self._conversations.ImportConversations, requests, options)

    async def list_interactions(
        self, request: ListInteractionsRequest, **options: Unpack[CallOptions]
    ) -> ListInteractionsResponse:
        """Return a page of one day of the log, of a recent span, or of one conversation."""
        return await self._unary(self._interactions.ListInteractions, request, options)

    async def search_interactions(
        self, request: SearchInteractionsRequest, **options: Unpack[CallOptions]
    ) -> SearchInteractionsResponse:
        """Return a page of the lines of the last days that have a text, newest first."""
        return await self._unary(self._interactions.SearchInteractions, request, options)

    async def delete_interactions(
        self, request: DeleteInteractionsRequest, **options: Unpack[CallOptions]
    ) -> DeleteInteractionsResponse:
        """Erase all lines of a conversation. It needs the admin role. Sent once."""
        return await self._unary(self._interactions.DeleteInteractions, request, options)

    async def get_stats(
        self, request: GetStatsRequest, **options: Unpack[CallOptions]
    ) -> GetStatsResponse:
        """Return counts of what the service holds, over all tenants. It needs the admin role."""
        return await self._unary(self._admin.GetStats, request, options)

    def backup_store(
        self, request: BackupStoreRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[BackupStoreResponse]:
        """Stream a consistent copy of the store. It needs the admin role.

        A stream that breaks fails with UNAVAILABLE; it is not gone on with.
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

    async def _unary(
        self, rpc: grpc.aio.UnaryUnaryMultiCallable[Q, R], request: Q, options: CallOptions
    ) -> R:
        with self._opening(), self._raising():
            return await rpc(with_request_id(request), **for_grpc(options))

    def _stream(
        self,
        rpc: Callable[[], grpc.aio.UnaryStreamMultiCallable[Q, R]],
        request: Q,
        options: CallOptions,
    ) -> AsyncStream[R]:
        def open_call(request: Q, timeout: float | None) -> AsyncCall:
            with self._opening():
                return rpc()(request, **for_grpc(options, timeout))

        return AsyncStream(OneCall(with_request_id(request)), open_call, options.get("timeout"))

    async def _upload(
        self,
        rpc: grpc.aio.StreamUnaryMultiCallable[Q, R],
        requests: Iterable[Q] | AsyncIterable[Q],
        options: CallOptions,
    ) -> R:
        with self._opening():
            call = rpc(**for_grpc(options))
        try:
            with self._raising():
                try:
                    async for request in each_of(requests):
                        await call.write(request)
                    await call.done_writing()
                except (grpc.RpcError, asyncio.InvalidStateError):
                    if not call.done():  # Else the server did not want the rest; the call says why.
                        raise
                return await call
        finally:
            call.cancel()  # Nothing, unless it is still under way.

    @contextmanager
    def _raising(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc(error) from error
        except asyncio.CancelledError:
            # gRPC raises this also where it was not the task that was cancelled but the call,
            # since the client was closed.
            if self._connections.is_closed() and not is_cancelled():
                raise Error(grpc.StatusCode.CANCELLED, "the client was closed") from None
            raise

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Make a call in the block; metadata may be code of the caller's that closes the client."""
        self._connections.check_open()
        try:
            yield
        except grpc.aio.UsageError:  # which gRPC raises for a channel that is closed
            self._connections.check_open()
            raise


async def each_of(requests: Iterable[Q] | AsyncIterable[Q]) -> AsyncIterator[Q]:
    """Yield what an iterable of either kind has."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


def is_cancelled() -> bool:
    """Tell whether somebody has cancelled the running task; Python 3.10 does not know."""
    task = asyncio.current_task()
    return sys.version_info >= (3, 11) and task is not None and task.cancelling() > 0
