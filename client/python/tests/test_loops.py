"""One asyncio client in several event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import grpc
import pytest
from fake import HELLO, LIMIT, TURN, Hanging, reply, serving

from parley import AsyncClient, Error, WatchConversationsRequest

if TYPE_CHECKING:
    from parley import TurnEvent


async def finish(client: AsyncClient) -> list[TurnEvent]:
    """Return a whole turn."""
    return [event async for event in client.chat(HELLO)]


def test_one_loop_after_the_other() -> None:
    """The client may be made before any of them."""
    with serving(Chat=lambda *_: map(reply, TURN)) as address:
        client = AsyncClient(address)
        for _ in range(3):
            assert asyncio.run(finish(client)) == TURN


def test_the_end_of_a_loop_ends_its_streams(hanging: Hanging, address: str) -> None:
    """The server is notified, though the client is kept and the stream was not left."""
    client = AsyncClient(address)
    kept = client.chat(HELLO)

    async def begin() -> None:
        await anext(kept)

    asyncio.run(begin())
    hanging.wait_for_end()


def test_loops_at_the_same_time(hanging: Hanging, address: str) -> None:
    """The loops of two threads use it; one closes it, which ends the streams of both."""
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
        hanging.wait_for_end()
