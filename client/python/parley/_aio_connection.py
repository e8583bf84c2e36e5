"""Connections of an asyncio client: one for each event loop that uses it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from parley._error import Error
from parley.v1.admin_service_pb2_grpc import AdminServiceStub
from parley.v1.conversation_service_pb2_grpc import ConversationServiceStub
from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceStub
from parley.v1.record_service_pb2_grpc import RecordServiceStub

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from parley.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from parley.v1.conversation_service_pb2_grpc import ConversationServiceAsyncStub
    from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceAsyncStub
    from parley.v1.record_service_pb2_grpc import RecordServiceAsyncStub


class Connection:
    """A channel of one event loop, and its stubs."""

    def __init__(self, channel: grpc.aio.Channel, end: AsyncGenerator[None, None]) -> None:
        """Make the stubs of this channel. Closing the generator end closes the channel."""
        self.channel = channel
        self.conversations: ConversationServiceAsyncStub = ConversationServiceStub(channel)
        self.interactions: InteractionLogServiceAsyncStub = InteractionLogServiceStub(channel)
        self.admin: AdminServiceAsyncStub = AdminServiceStub(channel)
        self.records: RecordServiceAsyncStub = RecordServiceStub(channel)
        self._end = end

    def end(self) -> asyncio.Future[None]:
        """Close the channel. Call it only in the event loop of the channel."""
        return asyncio.ensure_future(self._end.aclose())


class Connections:
    """The connections of one client, by event loop. The loops may run in several threads."""

    def __init__(self, dial: Callable[[], grpc.aio.Channel]) -> None:
        """Start without a connection. The function dial makes a channel for the running loop."""
        self._dial = dial
        self._lock = threading.RLock()  # guards the fields below; garbage collection may run inside
        self._by_loop: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._closed = False

    def get(self) -> Connection:
        """Return the connection of the running loop; open it if there is none."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self.check_open()
            connection = self._by_loop.get(loop)
            if connection is None:
                for other in tuple(self._by_loop):
                    if other.is_closed():  # It was closed without shutdown_asyncgens.
                        self.forget(other)
                channel = self._dial()
                end = close_with_loop(channel, loop, weakref.ref(self))
                with suppress(StopIteration):  # It has reached its yield.
                    end.__anext__().send(None)
                connection = self._by_loop[loop] = Connection(channel, end)
            return connection

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove the connection of a loop, if it has one."""
        with self._lock:
            self._by_loop.pop(loop, None)

    async def close(self) -> None:
        """Close all connections, those of other loops when these loops run. Open no new ones."""
        with self._lock:
            self._closed = True
            connections, self._by_loop = self._by_loop, {}
        here = connections.pop(asyncio.get_running_loop(), None)
        for loop, connection in connections.items():
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(connection.end)
        if here:
            await here.end()

    def is_closed(self) -> bool:
        """Report whether close has been called."""
        with self._lock:
            return self._closed

    def check_open(self) -> None:
        """Raise CANCELLED if close has been called."""
        if self.is_closed():
            raise Error(grpc.StatusCode.CANCELLED, "the client is closed")


async def close_with_loop(
    channel: grpc.aio.Channel,
    loop: asyncio.AbstractEventLoop,
    connections: weakref.ref[Connections],
) -> AsyncGenerator[None, None]:
    """Yield once and close the channel when the loop ends.

    asyncio.run closes the async generators of its loop before the loop ends. A loop reports its
    end in no other way.
    """
    try:
        yield
    finally:
        if owner := connections():
            owner.forget(loop)
        await channel.close()
