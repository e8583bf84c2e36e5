"""How streams begin, wait and end, with a server that says what a test wants."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fake import (
    HELLO,
    LIMIT,
    TURN,
    Hanging,
    fail,
    hang,
    reply,
    serving,
    text_of,
    wait_for_watchdogs,
)

from parley import (
    AsyncClient,
    ChatResponse,
    Client,
    Error,
    ExportConversationsRequest,
    GetConversationRequest,
    ResumeTurnRequest,
    ResumeTurnResponse,
    TurnEvent,
    _patience,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_stream_begins_with_its_loop(hanging: Hanging, address: str) -> None:
    """One that nobody loops over asks nothing."""
    with Client(address) as client:
        client.chat(HELLO).close()
        next(client.chat(HELLO))
        hanging.wait_for_end()
    assert hanging.begun.acquire(timeout=LIMIT)
    assert not hanging.begun.acquire(blocking=False)


def test_closing_the_client_ends_its_streams(hanging: Hanging, address: str) -> None:
    """They fail with CANCELLED, and so does whatever is asked later."""
    client = Client(address)
    events = client.chat(HELLO)
    next(events)
    next(events)
    client.close()
    with pytest.raises(Error) as raised:
        next(events)
    assert raised.value.code is grpc.StatusCode.CANCELLED
    hanging.wait_for_end()
    for late in (
        lambda: next(client.chat(HELLO)),
        lambda: client.get_conversation(GetConversationRequest(conversation_id="c")),
        lambda: next(client.export_conversations(ExportConversationsRequest())),
        lambda: client.import_conversations([]),
    ):
        with pytest.raises(Error, match="CANCELLED: the client is closed"):
            late()


def test_closing_the_async_client_ends_its_calls(hanging: Hanging, address: str) -> None:
    """They fail with CANCELLED: their tasks were not cancelled."""

    async def run() -> None:
        client = AsyncClient(address)
        events = client.chat(HELLO)
        await anext(events)
        get = GetConversationRequest(conversation_id="c")
        calls = [
            asyncio.create_task(client.get_conversation(get)),
            asyncio.ensure_future(anext_of(events)),
        ]
        for _ in range(2):
            await asyncio.to_thread(hanging.begun.acquire, timeout=LIMIT)
        await asyncio.sleep(0)
        await client.close()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, Error), result
            assert result.code is grpc.StatusCode.CANCELLED
        with pytest.raises(Error, match="CANCELLED: the client is closed"):
            await client.get_conversation(get)

    async def anext_of(events: Any) -> None:
        async for _ in events:
            pass

    asyncio.run(run())


def test_a_cancelled_call_stays_cancelled(hanging: Hanging, address: str) -> None:
    """CancelledError is asyncio's own."""

    async def run() -> None:
        async with AsyncClient(address) as client:
            get = client.get_conversation(GetConversationRequest(conversation_id="c"))
            task = asyncio.create_task(get)
            await asyncio.to_thread(hanging.begun.acquire, timeout=LIMIT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(hanging.wait_for_end)

    asyncio.run(run())


def test_timeout_of_a_stream(address: str) -> None:
    """It bounds the loop as a whole."""
    with Client(address) as client:
        events = client.chat(HELLO, timeout=0.3)
        assert [next(events).index, next(events).index] == [1, 2]
        with pytest.raises(Error) as raised:
            next(events)
        assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert list(events) == []


def test_timeout_of_an_async_stream(address: str) -> None:
    """It bounds the loop as a whole."""

    async def run() -> None:
        async with AsyncClient(address) as client:
            with pytest.raises(Error) as raised:
                async for _ in client.chat(HELLO, timeout=0.3):
                    pass
            assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(run())


def test_timeout_between_two_asks() -> None:
    """It is noticed also while there is no call."""

    def chat(_: Any, context: Any) -> Iterator[ChatResponse]:
        yield reply(TURN[0])
        fail(context, grpc.StatusCode.UNAVAILABLE)

    def resume(_: Any, context: Any) -> Iterator[ResumeTurnResponse]:
        fail(context, grpc.StatusCode.INTERNAL)
        yield ResumeTurnResponse()

    with serving(Chat=chat, ResumeTurn=resume) as address, Client(address) as client:
        begin = time.monotonic()
        with pytest.raises(Error) as raised:
            list(client.chat(HELLO, timeout=0.5))
        assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - begin >= 0.5


class Forgotten:
    """Something in between forgets the first stream; the connection is well."""

    def chat(self, _: Any, context: Any) -> Iterator[ChatResponse]:
        """Answer Chat."""
        yield from map(reply, TURN[:2])
        hang(context)

    def resume(self, request: ResumeTurnRequest, _: Any) -> Iterator[ResumeTurnResponse]:
        """Answer ResumeTurn."""
        for event in TURN[request.after_index :]:
            yield ResumeTurnResponse(event=event)


def test_a_silent_stream_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence that lasts too long is a break, for both clients."""
    monkeypatch.setattr(_patience, "MAX_SILENCE", 0.3)
    forgotten = Forgotten()

    async def run(address: str) -> list[TurnEvent]:
        async with AsyncClient(address) as client:
            return [event async for event in client.chat(HELLO)]

    with serving(Chat=forgotten.chat, ResumeTurn=forgotten.resume) as address:
        with Client(address) as client:
            assert list(client.chat(HELLO)) == TURN
        assert asyncio.run(run(address)) == TURN
    wait_for_watchdogs()


def test_the_readers_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is not silent while nobody listens."""
    monkeypatch.setattr(_patience, "MAX_SILENCE", 0.2)
    calls = []

    def chat(request: Any, _: Any) -> Iterator[ChatResponse]:
        calls.append(request)
        yield from map(reply, TURN)

    with serving(Chat=chat) as address, Client(address) as client:
        shown = []
        for event in client.chat(HELLO):
            shown.append(event)
            time.sleep(0.25)  # longer than the limit
    assert text_of(shown) == "hello there"
    assert len(calls) == 1
