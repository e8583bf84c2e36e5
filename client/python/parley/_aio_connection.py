"""The connections of an asyncio client: one for each event loop that uses it."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from parley.v1.admin_service_pb2_grpc import AdminServiceStub
from parley.v1.conversation_service_pb2_grpc import ConversationServiceStub
from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceStub

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import grpc

    from parley.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from parley.v1.conversation_service_pb2_grpc import ConversationServiceAsyncStub
    from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceAsyncStub


class Connection:
    """A channel of one event loop, and its stubs."""

    def __init__(self, channel: grpc.aio.Channel, end: AsyncGenerator[None, None]) -> None:
        """Call through this channel; closing the generator closes it."""
        self.channel = channel
        self.conversations: ConversationServiceAsyncStub = ConversationServiceStub(channel)
        self.interactions: InteractionLogServiceAsyncStub = InteractionLogServiceStub(channel)
        self.admin: AdminServiceAsyncStub = AdminServiceStub(channel)
        self._end = end

    async def close(self) -> None:
        """Close the channel; its own event loop must do it."""
        await self._end.aclose()


class Connections:
    """The connections of one client, by their event loops, which may run in several threads."""

    def __init__(self, dial: Callable[[], grpc.aio.Channel]) -> None:
        """Begin without a connection; dial makes a channel of the running loop."""
        self._dial = dial
        self._by_loop: dict[asyncio.AbstractEventLoop, Connection] = {}

    def get(self) -> Connection:
        """Return the connection of the running loop; make it if there is none."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            for other in tuple(self._by_loop):
                if other.is_closed():  # Without shutdown_asyncgens.
                    self.forget(other)
            channel = self._dial()
            end = close_with_loop(channel, loop, weakref.ref(self))
            with suppress(StopIteration):  # It has come to its yield.
                end.__anext__().send(None)
            self._by_loop[loop] = Connection(channel, end)
        return self._by_loop[loop]

    def forget(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        """Remove the connection of a loop, and return it."""
        return self._by_loop.pop(loop, None)

    async def close(self) -> None:
        """Close all connections. Other loops that still run close theirs soon after."""
        here = asyncio.get_running_loop()
        for loop in tuple(self._by_loop):
            connection = self.forget(loop)
            if connection and loop is here:
                await connection.close()
            elif connection and loop.is_running():
                asyncio.run_coroutine_threadsafe(connection.close(), loop)


async def close_with_loop(
    channel: grpc.aio.Channel,
    loop: asyncio.AbstractEventLoop,
    connections: weakref.ref[Connections],
) -> AsyncGenerator[None, None]:
    """Yield once, and close the channel when the loop ends.

    At its end asyncio.run closes the async generators that have begun in its loop. A loop has no
    other way to tell anybody of its end.
    """
    try:
        yield
    finally:
        if owner := connections():
            owner.forget(loop)
        await channel.close()
