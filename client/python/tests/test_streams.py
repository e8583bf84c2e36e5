"""How streams begin, wait and end, with a fake server."""

from __future__ import annotations

import asyncio
import socket
import threading
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
    WatchConversationsRequest,
    _retry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "asyncio"])


def test_a_stream_begins_with_its_loop(hanging: Hanging, address: str) -> None:
    """A stream without a loop makes no call."""
    with Client(address) as client:
        client.chat(HELLO).close()
        next(client.chat(HELLO))
        hanging.wait_for_cancel()
    assert hanging.begun.acquire(timeout=LIMIT)
    assert not hanging.begun.acquire(blocking=False)


def test_closing_the_client_ends_its_streams(hanging: Hanging, address: str) -> None:
    """They fail with CANCELLED, and so do later calls."""
    client = Client(address)
    events = client.chat(HELLO)
    next(events)
    next(events)
    client.close()
    with pytest.raises(Error) as raised:
        next(events)
    assert raised.value.code is grpc.StatusCode.CANCELLED
    hanging.wait_for_cancel()
    for late in (
        lambda: next(client.chat(HELLO)),
        lambda: client.get_conversation(GetConversationRequest(conversation_id="c")),
        lambda: next(client.export_conversations(ExportConversationsRequest())),
        lambda: client.import_conversations([]),
    ):
        with pytest.raises(Error, match="CANCELLED: the client is closed"):
            late()


@both
def test_a_host_without_an_address(*, asynchronous: bool) -> None:
    """The stream fails once gRPC has given up."""
    begin = time.monotonic()
    error = failure_of("parley.invalid:50051", asynchronous=asynchronous)
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert "nothing new" not in error.message
    assert time.monotonic() - begin < LIMIT


@both
def test_a_listener_that_never_answers(*, asynchronous: bool) -> None:
    """It does not count as a server: a connection needs bytes from both sides."""
    begin = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = failure_of(
            f"127.0.0.1:{silent.getsockname()[1]}",
            # How long gRPC waits for the first bytes.
            options=[("grpc.min_reconnect_backoff_ms", 200)],
            asynchronous=asynchronous,
        )
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert "nothing new" not in error.message
    assert time.monotonic() - begin < LIMIT


@both
def test_a_connection_that_breaks_before_all_events(*, asynchronous: bool) -> None:
    """The server was reached, so the stream retries."""
    ids = []

    def chat(request: Any, context: Any) -> Iterator[ChatResponse]:
        ids.append(request.request_id)
        if len(ids) < 3:
            fail(context, grpc.StatusCode.INTERNAL)
        yield from map(reply, TURN)

    async def run(address: str) -> list[TurnEvent]:
        async with AsyncClient(address) as client:
            return [event async for event in client.chat(HELLO)]

    with serving(Chat=chat) as address:
        if asynchronous:
            assert asyncio.run(run(address)) == TURN
        else:
            with Client(address) as client:
                assert list(client.chat(HELLO)) == TURN
    assert len(ids) == 3
    assert len(set(ids)) == 1


@both
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("X-Who", "me", "'X-Who': the name may contain only a-z"),
        ("x-who", "me\n", "'x-who': the value may contain only printable ASCII"),
        ("x-bin", "me", "'x-bin': the value of a -bin header must be bytes"),
    ],
)
def test_invalid_metadata(
    address: str, key: str, value: str, text: str, *, asynchronous: bool
) -> None:
    """The error is INVALID_ARGUMENT."""
    error = failure_of(address, asynchronous=asynchronous, metadata=[(key, value)])
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert text in error.message


def failure_of(
    address: str, *, asynchronous: bool, options: Sequence[tuple[str, Any]] = (), **given: Any
) -> Error:
    """Return the error of a chat."""

    async def fail_async() -> None:
        async with AsyncClient(address, plaintext=True, options=options) as client:
            await anext(client.chat(HELLO, **given))

    def chat() -> None:
        if asynchronous:
            asyncio.run(fail_async())
        else:
            with Client(address, plaintext=True, options=options) as client:
                next(client.chat(HELLO, **given))

    with pytest.raises(Error) as raised:
        chat()
    return raised.value


class Closing(list[tuple[str, str]]):
    """Metadata that closes a client when it is read, as another thread might."""

    def __init__(self, client: Client) -> None:
        """Make metadata that closes this client."""
        super().__init__([("x-who", "me")])
        self._client = client

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Close it."""
        self._client.close()
        return super().__iter__()


@pytest.mark.parametrize(
    "call",
    [
        lambda client, given: next(client.chat(HELLO, **given)),
        lambda client, given: next(
            client.watch_conversations(WatchConversationsRequest(), **given)
        ),
        lambda client, given: client.get_conversation(GetConversationRequest(), **given),
        lambda client, given: next(
            client.export_conversations(ExportConversationsRequest(), **given)
        ),
        lambda client, given: client.import_conversations([], **given),
    ],
    ids=["chat", "watch", "unary", "export", "import"],
)
def test_closing_the_client_while_a_call_begins(address: str, call: Any) -> None:
    """The call raises an Error, as if the client had been closed before."""
    client = Client(address)
    with pytest.raises(Error, match="CANCELLED: the client is closed"):
        call(client, {"metadata": Closing(client)})


def test_closing_the_client_ends_its_calls(hanging: Hanging, address: str) -> None:
    """They fail with CANCELLED in their threads."""
    client = Client(address)
    errors: list[BaseException] = []

    def get() -> None:
        try:
            client.get_conversation(GetConversationRequest(conversation_id="c"))
        except BaseException as error:  # noqa: BLE001 - the test checks it
            errors.append(error)

    threads = [threading.Thread(target=get) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert hanging.begun.acquire(timeout=LIMIT)
    client.close()
    for thread in threads:
        thread.join(LIMIT)
    assert [type(error) for error in errors] == [Error] * 3
    assert {error.code for error in errors if isinstance(error, Error)} == {
        grpc.StatusCode.CANCELLED
    }


def test_closing_the_async_client_ends_its_calls(hanging: Hanging, address: str) -> None:
    """They raise Error with CANCELLED, because their tasks were not cancelled."""

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


def test_cancelling_the_task_of_a_call(hanging: Hanging, address: str) -> None:
    """The call raises asyncio.CancelledError."""

    async def run() -> None:
        async with AsyncClient(address) as client:
            get = client.get_conversation(GetConversationRequest(conversation_id="c"))
            task = asyncio.create_task(get)
            await asyncio.to_thread(hanging.begun.acquire, timeout=LIMIT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(hanging.wait_for_cancel)

    asyncio.run(run())


def test_timeout_of_a_stream(address: str) -> None:
    """It limits the loop."""
    with Client(address) as client:
        events = client.chat(HELLO, timeout=2)
        assert [next(events).index, next(events).index] == [1, 2]
        with pytest.raises(Error) as raised:
            next(events)
        assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert list(events) == []


def test_timeout_of_an_async_stream(address: str) -> None:
    """It limits the loop."""

    async def run() -> None:
        async with AsyncClient(address) as client:
            with pytest.raises(Error) as raised:
                async for _ in client.chat(HELLO, timeout=2):
                    pass
            assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(run())


def test_timeout_between_two_attempts() -> None:
    """The timeout also applies to the wait for the next attempt."""

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


class SilentChat:
    """Handlers of which Chat becomes silent, although the connection works."""

    def chat(self, _: Any, context: Any) -> Iterator[ChatResponse]:
        """Answer Chat."""
        yield from map(reply, TURN[:2])
        hang(context)

    def resume(self, request: ResumeTurnRequest, _: Any) -> Iterator[ResumeTurnResponse]:
        """Answer ResumeTurn."""
        for event in TURN[request.after_index :]:
            yield ResumeTurnResponse(event=event)


def test_a_silent_stream_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is silent for too long counts as broken, in both clients."""
    monkeypatch.setattr(_retry, "MAX_SILENCE", 1.0)
    handlers = SilentChat()

    async def run(address: str) -> list[TurnEvent]:
        async with AsyncClient(address) as client:
            return [event async for event in client.chat(HELLO)]

    with serving(Chat=handlers.chat, ResumeTurn=handlers.resume) as address:
        with Client(address) as client:
            assert list(client.chat(HELLO)) == TURN
        assert asyncio.run(run(address)) == TURN
    wait_for_watchdogs()


def test_the_readers_time_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream does not count as silent while the reader does not read."""
    monkeypatch.setattr(_retry, "MAX_SILENCE", 1.0)
    calls = []

    def chat(request: Any, _: Any) -> Iterator[ChatResponse]:
        calls.append(request)
        yield from map(reply, TURN)

    with serving(Chat=chat) as address, Client(address) as client:
        received = []
        for event in client.chat(HELLO):
            received.append(event)
            if len(received) == 2:
                time.sleep(1.2)  # longer than the limit
    assert text_of(received) == "hello there"
    assert len(calls) == 1
