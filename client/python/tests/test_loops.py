"""One asyncio client in several event loops."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fake import HELLO, LIMIT, TURN, Hanging, reply, serving

from parley import AsyncClient, Error, WatchConversationsRequest
from parley._aio_connection import Connections

if TYPE_CHECKING:
    from parley import TurnEvent

ROUNDS = 100  # of a race; each order of its steps occurs in many of them


async def finish(client: AsyncClient) -> list[TurnEvent]:
    """Return the events of a complete turn."""
    return [event async for event in client.chat(HELLO)]


def test_one_loop_after_the_other() -> None:
    """A client can be made before its event loops."""
    with serving(Chat=lambda *_: map(reply, TURN)) as address:
        client = AsyncClient(address)
        for _ in range(3):
            assert asyncio.run(finish(client)) == TURN


def test_the_end_of_a_loop_ends_its_streams(hanging: Hanging, address: str) -> None:
    """The server sees the cancellation although client and stream are still open."""
    client = AsyncClient(address)
    kept = client.chat(HELLO)

    async def begin() -> None:
        await anext(kept)

    asyncio.run(begin())
    hanging.wait_for_cancel()


def test_closing_ends_the_streams_of_a_loop_that_is_stopped(hanging: Hanging, address: str) -> None:
    """The loop ends them when it runs again, here to close the client again."""
    client, loop = AsyncClient(address), asyncio.new_event_loop()
    kept = client.chat(HELLO)

    async def begin() -> None:
        await anext(kept)

    loop.run_until_complete(begin())
    asyncio.run(client.close())
    loop.run_until_complete(client.close())
    loop.close()
    hanging.wait_for_cancel()


def test_a_closed_client_makes_no_connection() -> None:
    """A call may find the client open before another thread closes it."""

    def dial() -> grpc.aio.Channel:
        pytest.fail("dial was called after close")

    connections = Connections(dial)
    asyncio.run(connections.close())

    async def get() -> None:
        with pytest.raises(Error, match="CANCELLED: the client is closed"):
            connections.get()

    asyncio.run(get())


def test_closing_during_the_first_call_of_a_loop() -> None:
    """If another thread closes the client during dial, the new connection is closed, too."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(ROUNDS):
            asyncio.run(close_while_dialing())
    finally:
        sys.setswitchinterval(interval)


async def close_while_dialing() -> None:
    """Wait until the channel is closed that dial makes while another thread closes the client."""
    closing, closed = threading.Event(), asyncio.Event()

    class Channel:
        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: None  # the methods that the stubs use

        async def close(self) -> None:
            closed.set()

    def dial() -> Any:
        thread.start()
        assert closing.wait(LIMIT)
        return Channel()

    def close() -> None:
        closing.set()
        asyncio.run(connections.close())

    thread = threading.Thread(target=close)
    connections = Connections(dial)
    connections.get()
    await asyncio.to_thread(thread.join, LIMIT)
    assert not thread.is_alive()
    await asyncio.wait_for(closed.wait(), LIMIT)


def test_loops_at_the_same_time(hanging: Hanging, address: str) -> None:
    """When one of two threads closes the client, the streams of both loops end."""
    client = AsyncClient(address)
    begun = threading.Semaphore(0)
    errors: list[BaseException] = []

    async def watch() -> None:
        async for _ in client.watch_conversations(WatchConversationsRequest()):
            begun.release()

    def other() -> None:
        try:
            asyncio.run(watch())
        except Error as error:
            errors.append(error)

    async def close() -> None:
        watching = asyncio.create_task(watch())
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=LIMIT)
        await client.close()
        with pytest.raises(Error, match="CANCELLED"):
            await watching

    thread = threading.Thread(target=other)
    thread.start()
    asyncio.run(close())
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert [error.code for error in errors if isinstance(error, Error)] == [
        grpc.StatusCode.CANCELLED
    ]
    for _ in range(2):
        hanging.wait_for_cancel()
