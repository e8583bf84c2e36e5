"""The asyncio client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from parley._aio_appender import AsyncAppender, AsyncBidiCall
from parley._aio_calls import AsyncCalls
from parley._aio_connection import Connections
from parley._aio_stream import AsyncCall, AsyncStream
from parley._append_queue import FIRST_ATTEMPTS
from parley._connectivity import AsyncConnectivity
from parley._options import CallOptions, channel_options
from parley._resumption import Follower, Watcher
from parley._retry import Retry
from parley._sign_in import AsyncAttempts, SignIn
from parley._tls import channel_credentials
from parley.v1.conversation_service_pb2 import (
    ChatRequest,
    ConversationChange,
    ResumeTurnRequest,
    WatchConversationsRequest,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from parley.v1.turn_pb2 import TurnEvent


class AsyncClient(AsyncCalls):
    """A connection to one Parley server, for asyncio.

    It has the methods and guarantees of :class:`parley.Client`, with ``await`` and ``async for``.
    Create it anywhere and use it in any event loop. Each event loop has its own connection: the
    first call in the loop opens it, and the end of the loop closes it. A stream belongs to the
    event loop of its first step. If the task of a call is cancelled, the call ends at once and
    raises asyncio.CancelledError.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        plaintext: bool | None = None,
        token: str | Callable[[], str | Awaitable[str]] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tenant: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        options: Sequence[tuple[str, Any]] = (),
        compression: grpc.Compression | None = None,
    ) -> None:
        """Make a client of the server at target. Call :meth:`close` when it is no longer needed.

        Args:
            target: "host:port", "unix:PATH", or any other target that gRPC can resolve.
            credentials: See Client.
            plaintext: See Client.
            token: The token to sign in with, or a function that returns it or an awaitable of it.
                The client calls the function for each attempt of each call, in the event loop of
                the call, so it must not block. The rest is as with Client.
            token_file: See Client.
            tenant: See Client.
            ca_file: See Client.
            cert_file: See Client.
            key_file: See Client.
            options: gRPC channel options, applied after the defaults; they override them.
            compression: The compression of the requests.

        The environment and the exceptions are those of :class:`parley.Client`.

        """
        sign_in = SignIn(token, token_file, tenant)
        credentials = channel_credentials(
            target, credentials, plaintext, ca_file, cert_file, key_file
        )
        settings = channel_options(target, options)

        def dial() -> grpc.aio.Channel:
            if credentials:
                return grpc.aio.secure_channel(target, credentials, settings, compression)
            return grpc.aio.insecure_channel(target, settings, compression)

        super().__init__(Connections(dial), sign_in)

    async def close(self) -> None:
        """Close all connections. Calls in progress fail with CANCELLED.

        Each event loop closes its own connection: the running loop before this method returns, a
        loop in another thread soon after, and a stopped loop when it runs again. If a loop was
        closed without ``loop.shutdown_asyncgens()``, its calls do not end. asyncio.run calls that
        function.

        The turns that the calls started continue on the server, unless their requests set
        ON_DISCONNECT_CANCEL.
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
        """Send a user's message and stream the events of the turn.

        It has the guarantees and limits of :meth:`parley.Client.chat`.
        """
        return self._turn(request, options)

    def resume_turn(
        self, request: ResumeTurnRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[TurnEvent]:
        """Stream the events of a turn after request.after_index.

        It has the guarantees and limits of :meth:`parley.Client.resume_turn`.
        """
        return self._turn(request, options)

    def watch_conversations(
        self, request: WatchConversationsRequest, **options: Unpack[CallOptions]
    ) -> AsyncStream[ConversationChange]:
        """Stream the changes of conversations as they are committed.

        It has the guarantees and limits of :meth:`parley.Client.watch_conversations`.
        """
        connectivity = AsyncConnectivity()

        def open_call(request: WatchConversationsRequest, arguments: dict[str, Any]) -> AsyncCall:
            with self._raising_if_closed():
                call = self._conversations.WatchConversations(request, **arguments)
                connectivity.open(self._connections.get().channel)
                return call

        retry = Retry(connectivity, wait_for_ready=bool(options.get("wait_for_ready")))
        resumption = Watcher(request, retry)
        return AsyncStream(resumption, open_call, AsyncAttempts(self._sign_in, options))

    def appender(self, **options: Unpack[CallOptions]) -> AsyncAppender:
        """Return an appender, which appends messages over one stream, many at the same time.

        It has the guarantees and limits of :meth:`parley.Client.appender`. Close each appender: it
        has a task. ``await`` of its append waits only for space, and returns the future of the
        reply.
        """
        connectivity = AsyncConnectivity()

        def open_call(arguments: dict[str, Any]) -> AsyncBidiCall:
            with self._raising_if_closed():
                call: AsyncBidiCall = self._conversations.AppendStream(**arguments)
                connectivity.open(self._connections.get().channel)
                return call

        waits = bool(options.get("wait_for_ready"))
        retry = Retry(connectivity, wait_for_ready=waits, first_attempts=FIRST_ATTEMPTS)
        attempts = AsyncAttempts(self._sign_in, options)
        return AsyncAppender(open_call, attempts, retry, self._connections.check_open)

    def _turn(
        self, request: ChatRequest | ResumeTurnRequest, options: CallOptions
    ) -> AsyncStream[TurnEvent]:
        connectivity = AsyncConnectivity()

        def open_call(
            request: ChatRequest | ResumeTurnRequest, arguments: dict[str, Any]
        ) -> AsyncCall:
            with self._raising_if_closed():
                if isinstance(request, ChatRequest):
                    call: AsyncCall = self._conversations.Chat(request, **arguments)
                else:
                    call = self._conversations.ResumeTurn(request, **arguments)
                connectivity.open(self._connections.get().channel)
                return call

        retry = Retry(connectivity, wait_for_ready=bool(options.get("wait_for_ready")))
        resumption = Follower(request, retry)
        return AsyncStream(resumption, open_call, AsyncAttempts(self._sign_in, options))
