"""When a reader leaves a stream, the stream ends at once and leaves no thread or task."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fake import HELLO, LIMIT, TURN, Hanging, fail, reply, serving, wait_for_watchdogs

from parley import (
    AsyncClient,
    Client,
    ExportConversationsRequest,
    WatchConversationsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parley import ChatResponse


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
    """Break out of a stream that does not resume."""
    for _ in client.export_conversations(ExportConversationsRequest()):
        break


def close_stream(client: Client) -> None:
    """Close, then continue the loop."""
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
    """The call is cancelled at once, without the garbage collector, and no thread remains."""
    gc.disable()
    try:
        with Client(address) as client:
            leave(client)
            hanging.wait_for_cancel()
    finally:
        gc.enable()
    wait_for_watchdogs()


def test_leaving_ends_a_resumed_stream(hanging: Hanging) -> None:
    """The error of its first call does not keep it, although it was raised in the loop."""

    def chat(_: Any, context: Any) -> Iterator[ChatResponse]:
        yield reply(TURN[0])
        fail(context, grpc.StatusCode.UNAVAILABLE)

    gc.disable()
    try:
        with serving(Chat=chat, ResumeTurn=hanging.resume) as address, Client(address) as client:
            for event in client.chat(HELLO):
                if event == TURN[1]:
                    break
            hanging.wait_for_cancel()
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
    """Break out of a stream that does not resume."""
    async for _ in client.export_conversations(ExportConversationsRequest()):
        break


async def aclose_stream(client: AsyncClient) -> None:
    """Close, then continue the loop."""
    events = client.chat(HELLO)
    await anext(events)
    await events.aclose()
    assert [event async for event in events] == []


async def cancel_task(client: AsyncClient) -> None:
    """Cancel the task of the loop."""
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


async def time_out(client: AsyncClient) -> None:
    """Cancel the wait for an event after a timeout."""
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
        time_out,
    ],
)
def test_leaving_ends_the_async_stream(hanging: Hanging, address: str, leave: Any) -> None:
    """The call is cancelled while the event loop runs, and no task remains."""

    async def run() -> None:
        async with AsyncClient(address) as client:
            before = asyncio.all_tasks()
            await leave(client)
            await asyncio.to_thread(hanging.wait_for_cancel)
            if ending := asyncio.all_tasks() - before:  # tasks of gRPC
                _, running = await asyncio.wait(ending, timeout=LIMIT)
                assert not running

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_another_thread_may_close_a_stream(hanging: Hanging, address: str) -> None:
    """The loop ends without an error."""
    cursors, begun = [], threading.Event()
    with Client(address) as client:
        changes = client.watch_conversations(WatchConversationsRequest())

        def watch() -> None:
            for change in changes:
                cursors.append(change.cursor)
                begun.set()

        thread = threading.Thread(target=watch)
        thread.start()
        assert begun.wait(LIMIT)
        changes.close()
        thread.join(LIMIT)
        hanging.wait_for_cancel()
    assert cursors == ["1"]
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
            await asyncio.to_thread(hanging.wait_for_cancel)

    asyncio.run(run())
