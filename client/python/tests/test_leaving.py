"""How a reader leaves a stream: it ends at once, and nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from fake import HELLO, LIMIT, Hanging, wait_for_watchdogs

from parley import (
    AsyncClient,
    Client,
    ExportConversationsRequest,
    WatchConversationsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def leave_loop(client: Client) -> None:
    """Break."""
    for _ in client.chat(HELLO):
        break


def leave_block(client: Client) -> None:
    """Leave a with block."""
    with client.chat(HELLO) as events:
        next(events)


def leave_by_error(client: Client) -> None:
    """Raise."""
    with suppress(ZeroDivisionError):
        for event in client.watch_conversations(WatchConversationsRequest()):
            raise ZeroDivisionError(event)


def leave_export(client: Client) -> None:
    """Break out of a stream that is one call."""
    for _ in client.export_conversations(ExportConversationsRequest()):
        break


def close_stream(client: Client) -> None:
    """Close, and loop on."""
    events = client.chat(HELLO)
    next(events)
    events.close()
    assert list(events) == []


@pytest.mark.parametrize(
    "leave", [leave_loop, leave_block, leave_by_error, leave_export, close_stream]
)
def test_leaving_ends_the_stream(
    hanging: Hanging, address: str, leave: Callable[[Client], None]
) -> None:
    """The server hears of it at once, without the garbage collector, and no thread is left."""
    gc.disable()
    try:
        with Client(address) as client:
            leave(client)
            hanging.wait_for_end()
    finally:
        gc.enable()
    wait_for_watchdogs()


async def leave_async_loop(client: AsyncClient) -> None:
    """Break."""
    async for _ in client.chat(HELLO):
        break


async def leave_async_block(client: AsyncClient) -> None:
    """Leave an async with block."""
    async with client.watch_conversations(WatchConversationsRequest()) as changes:
        await anext(changes)


async def leave_async_export(client: AsyncClient) -> None:
    """Break out of a stream that is one call."""
    async for _ in client.export_conversations(ExportConversationsRequest()):
        break


async def aclose_stream(client: AsyncClient) -> None:
    """Close, and loop on."""
    events = client.chat(HELLO)
    await anext(events)
    await events.aclose()
    assert [event async for event in events] == []


async def cancel_task(client: AsyncClient) -> None:
    """Cancel the task that loops."""
    begun = asyncio.Event()

    async def loop() -> None:
        async for _ in client.chat(HELLO):
            begun.set()

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def run_out_of_time(client: AsyncClient) -> None:
    """Give up waiting for an event."""
    events = client.chat(HELLO)
    await anext(events)
    await anext(events)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(events), 0.01)


@pytest.mark.parametrize(
    "leave",
    [
        leave_async_loop,
        leave_async_block,
        leave_async_export,
        aclose_stream,
        cancel_task,
        run_out_of_time,
    ],
)
def test_leaving_ends_the_async_stream(hanging: Hanging, address: str, leave: Any) -> None:
    """The server hears of it while the loop runs on, and no task is left."""

    async def run() -> None:
        async with AsyncClient(address) as client:
            before = asyncio.all_tasks()
            await leave(client)
            await asyncio.to_thread(hanging.wait_for_end)
            if ending := asyncio.all_tasks() - before:  # gRPC's own
                _, left = await asyncio.wait(ending, timeout=LIMIT)
                assert not left

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_another_thread_may_close_a_stream(hanging: Hanging, address: str) -> None:
    """The loop ends without an error."""
    shown, begun = [], threading.Event()
    with Client(address) as client:
        changes = client.watch_conversations(WatchConversationsRequest())

        def watch() -> None:
            for change in changes:
                shown.append(change.cursor)
                begun.set()

        thread = threading.Thread(target=watch)
        thread.start()
        assert begun.wait(LIMIT)
        changes.close()
        thread.join(LIMIT)
        hanging.wait_for_end()
    assert shown == ["1"]
    assert not thread.is_alive()


def test_another_task_may_close_a_stream(hanging: Hanging, address: str) -> None:
    """The loop ends without an error."""

    async def run() -> None:
        async with AsyncClient(address) as client:
            events, begun = client.chat(HELLO), asyncio.Event()

            async def loop() -> int:
                count = 0
                async for _ in events:
                    count += 1
                    begun.set()
                return count

            task = asyncio.create_task(loop())
            await begun.wait()
            await events.aclose()
            assert await task <= 2
            await asyncio.to_thread(hanging.wait_for_end)

    asyncio.run(run())
