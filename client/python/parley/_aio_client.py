"""The asyncio client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from parley._aio_calls import AsyncCalls
from parley._aio_connection import Connections
from parley._aio_stream import AsyncCall, AsyncStream
from parley._course import TurnCourse, WatchCourse
from parley._line import AsyncLine
from parley._options import CallOptions, channel_options, for_grpc, is_local
from parley._patience import Patience
from parley.v1.conversation_service_pb2 import (
    ChatRequest,
    ConversationChange,
    ResumeTurnRequest,
    WatchConversationsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from parley.v1.turn_pb2 import TurnEvent


class AsyncClient(AsyncCalls):
    """A connection to one Parley server, for asyncio.

    It is :class:`parley.Client` with ``await`` and ``async for``: the same methods with the same
    promises. It may be made anywhere, and used in any event loop: each loop has a connection of
    its own, which the first call in the loop opens and the end of the loop closes. A stream
    belongs to the loop of its first step. A call whose task is cancelled ends at once, with
    asyncio.CancelledError as usual.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        plaintext: bool | None = None,
        options: Sequence[tuple[str, Any]] = (),
        compression: grpc.Compression | None = None,
    ) -> None:
        """Make a client of the server at target; see :meth:`close`.

        Args:
            target: "host:port", "unix:PATH", or any other target that gRPC can resolve.
            credentials: For TLS; the system's certificates unless set.
            plaintext: Whether to do without TLS. Unless set, a target on this machine (a
                loopback address, localhost or a Unix socket) is spoken to in plaintext if there
                are no credentials, and any other with TLS.
            options: More options of the channel, as gRPC knows them; they replace the defaults.
            compression: How to compress what is sent.

        """
        if plaintext is None:
            plaintext = credentials is None and is_local(target)
        settings = channel_options(target, options)

        def dial() -> grpc.aio.Channel:
            if plaintext:
                return grpc.aio.insecure_channel(target, settings, compression)
            secure = credentials or grpc.ssl_channel_credentials()
            return grpc.aio.secure_channel(target, secure, settings, compression)

        super().__init__(Connections(dial))

    async def close(self) -> None:
        """Close all connections; running calls fail with CANCELLED.

        Each event loop ends its own connection: the running loop before this method returns, a
        loop of another thread soon after, and a loop that is stopped when it runs again. The
        calls of a loop that was closed without ``loop.shutdown_asyncgens()`` do not end;
        asyncio.run runs it.

        Turns that they began go on at the server, unless they asked for ON_DISCONNECT_CANCEL.
        """
        await self._connections.close()

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.close()

    def chat(self, request: ChatRequest, **options: Unpack[CallOptions]) -> AsyncStream[TurnEvent]:
        """Say something and stream the events of the turn as they come.

        It keeps each promise of :meth:`parley.Client.chat`.
        """
        return self._turn(request, options)

    def resume_turn(
        self, request: ResumeTurnRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[TurnEvent]:
        """Stream the events of a turn behind request.after_index, whether it runs or has ended.

        It keeps each promise of :meth:`parley.Client.resume_turn`.
        """
        return self._turn(request, options)

    def watch_conversations(
        self, request: WatchConversationsRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[ConversationChange]:
        """Stream changes as they are committed, behind request.cursor, else from now on.

        It keeps each promise of :meth:`parley.Client.watch_conversations`.
        """
        line = AsyncLine()

        def open_call(request: WatchConversationsRequest, timeout: float | None) -> AsyncCall:
            with self._opening():
                each = for_grpc(options, timeout)
                call = self._conversations.WatchConversations(request, **each)
                line.open(self._connections.get().channel)
                return call

        patience = Patience(line, wait_for_ready=bool(options.get("wait_for_ready")))
        course = WatchCourse(request, patience)
        return AsyncStream(course, open_call, options.get("timeout"))

    def _turn(
        self, request: ChatRequest | ResumeTurnRequest, options: CallOptions
    ) -> AsyncStream[TurnEvent]:
        line = AsyncLine()

        def open_call(request: ChatRequest | ResumeTurnRequest, timeout: float | None) -> AsyncCall:
            with self._opening():
                each = for_grpc(options, timeout)
                if isinstance(request, ChatRequest):
                    call: AsyncCall = self._conversations.Chat(request, **each)
                else:
                    call = self._conversations.ResumeTurn(request, **each)
                line.open(self._connections.get().channel)
                return call

        patience = Patience(line, wait_for_ready=bool(options.get("wait_for_ready")))
        course = TurnCourse(request, patience)
        return AsyncStream(course, open_call, options.get("timeout"))
