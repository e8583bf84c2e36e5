"""Appenders: with a real server, and with a fake one that breaks streams."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import pytest
from fake import LIMIT, fail, hang, serving, wait_for_watchdogs
from google.rpc.status_pb2 import Status
from proxy import proxy_to

from parley import (
    Appender,
    AppendMessagesRequest,
    AppendMessagesResponse,
    AppendStreamRequest,
    AppendStreamResponse,
    AsyncAppender,
    AsyncClient,
    Client,
    Conversation,
    CreateConversationRequest,
    Error,
    ListMessagesRequest,
    Message,
    Retention,
    Role,
    _retry,
)
from parley._append_queue import Append, AppendQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

Handler = Any  # a handler of AppendStream: it takes the requests and the context


class Driver(Protocol):
    """An appender of either client, used by a thread. The end of the block closes its client."""

    client: Client | AsyncClient
    appender: Appender | AsyncAppender

    def append(self, request: AppendMessagesRequest) -> Future[AppendMessagesResponse]:
        """Call append of the appender."""
        ...

    def flush(self) -> None:
        """Call flush of the appender."""
        ...

    def close(self) -> None:
        """Call close of the appender."""
        ...

    def close_client(self) -> None:
        """Close the client."""
        ...

    def __enter__(self) -> Self:
        """Begin the block."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close the client and check that nothing of it still runs."""
        ...


class SyncDriver:
    """An appender of the sync client."""

    def __init__(self, address: str, call_options: dict[str, Any], **settings: Any) -> None:
        """Make a client with these settings, and an appender with these options."""
        self.client = Client(address, **settings)
        self.appender = self.client.appender(**call_options)
        self.append: Callable[..., Any] = self.appender.append
        self.flush, self.close = self.appender.flush, self.appender.close
        self.close_client = self.client.close

    def __enter__(self) -> Self:
        """See Driver."""
        return self

    def __exit__(self, *_: object) -> None:
        """See Driver."""
        self.client.close()
        wait_for_watchdogs()


class AsyncDriver:
    """An appender of the asyncio client. Its event loop runs in a thread."""

    def __init__(self, address: str, call_options: dict[str, Any], **settings: Any) -> None:
        """Make a client with these settings, and an appender with these options."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.client = AsyncClient(address, **settings)
        self.appender = self._run(self._make(call_options))

    async def _make(self, options: dict[str, Any]) -> AsyncAppender:
        return self.client.appender(**options)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def append(self, request: AppendMessagesRequest) -> Future[AppendMessagesResponse]:
        """See Driver."""
        future = self._run(self.appender.append(request))

        async def reply() -> AppendMessagesResponse:
            return await future  # type: ignore[no-any-return]

        return asyncio.run_coroutine_threadsafe(reply(), self._loop)

    def flush(self) -> None:
        """See Driver."""
        self._run(self.appender.flush())

    def close(self) -> None:
        """See Driver."""
        self._run(self.appender.close())

    def close_client(self) -> None:
        """See Driver."""
        self._run(self.client.close())

    def __enter__(self) -> Self:
        """See Driver."""
        return self

    def __exit__(self, *_: object) -> None:
        """See Driver."""
        self._run(self.client.close())
        left = self._run(self._tasks())
        self._run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert not left

    async def _tasks(self) -> list[str]:
        """Return the tasks that still run. It awaits those that have been cancelled."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return [repr(task) for task in tasks if "parley" in repr(task) and not await ends(task)]


async def ends(task: asyncio.Task[Any]) -> bool:
    """Report whether a task ends. asyncio.wait does not cancel it."""
    await asyncio.wait({task}, timeout=LIMIT)
    return task.done()


@pytest.fixture(params=[SyncDriver, AsyncDriver], ids=["sync", "asyncio"])
def driver(request: pytest.FixtureRequest) -> Callable[..., Driver]:
    """Return a function that makes an appender for the server at an address."""

    def make(address: str, settings: dict[str, Any] | None = None, **options: Any) -> Driver:
        made: Driver = request.param(address, options, **(settings or {}))
        return made

    return make


def hello(conversation: str = "c", content: str = "hello", id: str = "") -> AppendMessagesRequest:  # noqa: A002
    """Return a request with one message."""
    message = Message(role=Role.ROLE_USER, content=content)
    return AppendMessagesRequest(conversation_id=conversation, messages=[message], request_id=id)


def create(address: str, *conversations: str) -> None:
    """Create conversations that keep more messages than the default."""
    with Client(address) as client:
        for name in conversations:
            conversation = Conversation(id=name, retention=Retention(max_messages=200))
            client.create_conversation(CreateConversationRequest(conversation=conversation))


def contents(address: str, conversation: str) -> list[str]:
    """Return the messages of a conversation, the oldest first."""
    with Client(address) as client:
        request = ListMessagesRequest(conversation_id=conversation, page_size=1000)
        return [message.content for message in client.list_messages(request).messages][::-1]


def test_a_refused_request_between_others(
    driver: Callable[..., Driver], server_address: str, request: pytest.FixtureRequest
) -> None:
    """It raises what append_messages raises, and all others are stored in order."""
    conversation = f"refused-{request.node.callspec.id}"
    create(server_address, conversation)
    with driver(server_address) as appender, Client(server_address) as client:
        first = [appender.append(hello(conversation, str(number))) for number in range(20)]
        refused = appender.append(hello("no blank at the end "))
        large = appender.append(hello(conversation, "x" * (4 << 20)))
        last = [appender.append(hello(conversation, str(number))) for number in range(20, 40)]
        appender.flush()
        assert all(future.done() for future in first + last)
        for future, refusal in (
            (refused, hello("no blank at the end ")),
            (large, hello(content="x" * (4 << 20))),
        ):
            with pytest.raises(Error) as of_call:
                client.append_messages(refusal)
            with pytest.raises(Error) as raised:
                future.result()
            for name in ("code", "reason", "metadata", "field_violations", "retry_delay"):
                assert getattr(raised.value, name) == getattr(of_call.value, name)
        sequences = [future.result().appended[0].sequence for future in first + last]
        assert sequences == list(range(1, 41))
        appender.close()
        with pytest.raises(Error, match="FAILED_PRECONDITION: the appender is closed"):
            appender.append(hello())
    assert contents(server_address, conversation) == [str(number) for number in range(40)]


def test_random_cuts(
    driver: Callable[..., Driver],
    server_address: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fifty broken connections: each message is stored once, and in order."""
    monkeypatch.setattr(_retry, "FIRST_DELAY", 0.001)
    dice = random.Random(7)  # noqa: S311 - not a secret
    prefix = f"cut-{request.node.callspec.id}-"
    sent: dict[str, list[str]] = {f"{prefix}{number}": [] for number in range(16)}
    create(server_address, *sent)
    futures: list[Future[AppendMessagesResponse]] = []
    with proxy_to(server_address) as proxy, driver(proxy.address) as appender:

        def append(count: int) -> None:
            for _ in range(count):
                conversation = dice.choice(list(sent))
                content = str(len(sent[conversation]))
                sent[conversation].append(content)
                futures.append(appender.append(hello(conversation, content)))

        for _ in range(50):
            append(dice.randint(1, 12))
            futures[-1].result(LIMIT)  # There is a connection.
            append(dice.randint(1, 12))
            if dice.random() < 0.3:
                proxy.limit(dice.randint(1, 600))
            proxy.cut()
        appender.close()
        assert proxy.connections > 50
    assert all(future.exception() is None for future in futures)
    for conversation, expected in sent.items():
        assert contents(server_address, conversation) == expected


class Streams:
    """Handlers of AppendStream, one for each stream in order. They record the requests."""

    def __init__(self, *handlers: Handler) -> None:
        """Use the last handler for all later streams."""
        self._handlers = handlers
        self.received: list[list[AppendStreamRequest]] = []
        self.metadata: list[dict[str, Any]] = []

    def __call__(
        self, requests: Iterator[AppendStreamRequest], context: Any
    ) -> Iterator[AppendStreamResponse]:
        """Answer a stream."""
        received: list[AppendStreamRequest] = []
        self.received.append(received)
        self.metadata.append(dict(context.invocation_metadata()))

        def recorded() -> Iterator[AppendStreamRequest]:
            for request in requests:
                received.append(request)
                yield request

        handler = self._handlers[min(len(self.received), len(self._handlers)) - 1]
        yield from handler(recorded(), context)

    def contents(self) -> list[list[str]]:
        """Return the messages of each stream."""
        return [[request.append.messages[0].content for request in s] for s in self.received]


def answered(request: AppendStreamRequest) -> AppendStreamResponse:
    """Return the reply to a request; it has the id of the request."""
    reply = AppendStreamResponse()
    reply.response.appended.add(id=request.append.request_id)
    return reply


def refused(code: grpc.StatusCode) -> AppendStreamResponse:
    """Return the error of a request."""
    return AppendStreamResponse(error=Status(code=code.value[0], message="refused"))


def answer(requests: Iterator[AppendStreamRequest], _: Any) -> Iterator[AppendStreamResponse]:
    """Answer each request."""
    yield from map(answered, requests)


def answer_one(*then: Any) -> Handler:
    """Return a handler that waits for three requests, answers the first, and sends more replies.

    A status with its reason ends the stream. It ends normally without one.
    """

    def handler(requests: Iterator[AppendStreamRequest], context: Any) -> Iterator[Any]:
        first = next(requests)
        next(requests)
        next(requests)
        yield answered(first)
        for reply in then:
            if isinstance(reply, tuple):
                fail(context, *reply)
            yield reply

    return handler


BREAKS = {
    "status": answer_one((grpc.StatusCode.INTERNAL,)),
    "end": answer_one(),
    "idle until now": answer_one((grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_SENDER")),
    "limit of streams": answer_one((grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_STREAMS")),
    "limit of requests": answer_one((grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_REQUESTS")),
    "unavailable reply": answer_one(
        refused(grpc.StatusCode.UNAVAILABLE), refused(grpc.StatusCode.NOT_FOUND)
    ),
}


@pytest.mark.parametrize("break_", BREAKS.values(), ids=list(BREAKS))
def test_requests_without_a_reply_are_sent_again(
    driver: Callable[..., Driver], break_: Handler
) -> None:
    """They have the same request_ids and order, and new requests follow them."""
    streams = Streams(break_, answer)
    with serving(AppendStream=streams) as address, driver(address) as appender:
        futures = [appender.append(hello(content=text, id=text)) for text in "abc"]
        futures[0].result(LIMIT)
        futures.append(appender.append(hello(content="d")))
        appender.close()
        ids = [future.result().appended[0].id for future in futures]
    assert ids[:3] == ["a", "b", "c"]
    assert ids[3] == streams.received[-1][-1].append.request_id
    assert streams.contents()[-1] == ["b", "c", "d"]
    assert streams.contents()[0][:3] == ["a", "b", "c"]


def test_a_permanent_failure(driver: Callable[..., Driver]) -> None:
    """It reaches all requests without a reply, and all later calls."""
    streams = Streams(answer_one((grpc.StatusCode.PERMISSION_DENIED,)))
    with serving(AppendStream=streams) as address, driver(address) as appender:
        futures = [appender.append(hello(content=text)) for text in "abc"]
        assert futures[0].result(LIMIT)
        later = lambda: appender.append(hello())  # noqa: E731
        for call in (futures[1].result, futures[2].result, later, appender.flush, appender.close):
            with pytest.raises(Error, match="PERMISSION_DENIED: error of a proxy"):
                call()


def test_a_server_without_the_call(driver: Callable[..., Driver]) -> None:
    """The error says what to do."""
    with serving() as address, driver(address) as appender:
        future = appender.append(hello())
        with pytest.raises(Error, match=r"UNIMPLEMENTED: the server has no AppendStream: update"):
            future.result(LIMIT)


def test_no_server(driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    """The appender fails after five attempts to reach one."""
    monkeypatch.setattr(_retry, "FIRST_DELAY", 0.001)
    with driver("127.0.0.1:1") as appender:
        future = appender.append(hello())
        with pytest.raises(Error, match="UNAVAILABLE") as raised:
            future.result(LIMIT)
        assert "nothing new" not in raised.value.message


def test_a_server_that_is_late(driver: Callable[..., Driver]) -> None:
    """The appender makes five attempts. gRPC does not, because it may lose requests then."""

    def refuse(_: Any, context: Any) -> Iterator[AppendStreamResponse]:
        fail(context, grpc.StatusCode.UNAVAILABLE)
        yield AppendStreamResponse()

    streams = Streams(refuse, refuse, refuse, refuse, answer)
    with serving(AppendStream=streams) as address, driver(address) as appender:
        appender.append(hello()).result(LIMIT)
        appender.close()
    assert len(streams.received) == 5
    assert all("grpc-previous-rpc-attempts" not in metadata for metadata in streams.metadata)


def test_close_waits_for_replies(driver: Callable[..., Driver]) -> None:
    """It says that no request follows, so a server may wait for that."""

    def answer_at_end(requests: Any, _: Any) -> Iterator[AppendStreamResponse]:
        yield from map(answered, list(requests))

    with serving(AppendStream=Streams(answer_at_end)) as address, driver(address) as appender:
        futures = [appender.append(hello()) for _ in range(5)]
        appender.close()
        assert all(future.done() for future in futures)
        appender.close()


def hang_after(count: int) -> tuple[Handler, threading.Event]:
    """Return a handler that never answers, and the event that it has received some requests."""
    begun = threading.Event()

    def handler(requests: Iterator[Any], context: Any) -> Iterator[AppendStreamResponse]:
        for _ in range(count):
            next(requests)
        begun.set()
        hang(context)
        yield from ()

    return handler, begun


def test_closing_the_client(driver: Callable[..., Driver]) -> None:
    """The requests under way fail with CANCELLED, and so does a thread that waits for space."""
    handler, begun = hang_after(16)
    with serving(AppendStream=Streams(handler)) as address, driver(address) as appender:
        futures = [appender.append(hello()) for _ in range(16)]
        waiting: Future[Any] = Future()

        def append() -> None:
            try:
                appender.append(hello())
            except Error as error:
                waiting.set_result(error)

        thread = threading.Thread(target=append)
        thread.start()
        assert begun.wait(LIMIT)
        appender.close_client()
        for future in futures:
            with pytest.raises(Error, match="CANCELLED"):
                future.result(LIMIT)
        assert "CANCELLED" in str(waiting.result(LIMIT))
        thread.join()


def test_a_cancelled_close() -> None:
    """The requests under way fail with CANCELLED."""
    handler, begun = hang_after(1)

    async def run(address: str) -> None:
        async with AsyncClient(address) as client:
            appender = client.appender()
            future = await appender.append(hello())
            closing = asyncio.create_task(appender.close())
            await asyncio.to_thread(begun.wait, LIMIT)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(Error, match="CANCELLED: the appender was closed"):
                await future
            for task in asyncio.all_tasks() - {asyncio.current_task()}:  # of gRPC
                assert await ends(task)

    with serving(AppendStream=Streams(handler)) as address:
        asyncio.run(run(address))


def test_an_interrupted_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests under way fail with CANCELLED."""
    handler, begun = hang_after(1)

    def interrupt(_: Appender) -> None:
        assert begun.wait(LIMIT)
        raise KeyboardInterrupt

    with serving(AppendStream=Streams(handler)) as address, Client(address) as client:
        appender = client.appender()
        future = appender.append(hello())
        monkeypatch.setattr(Appender, "flush", interrupt)
        with pytest.raises(KeyboardInterrupt):
            appender.close()
        with pytest.raises(Error, match="CANCELLED: the appender was closed"):
            future.result(LIMIT)
        wait_for_watchdogs()


def test_a_silent_stream(driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as broken while a request is without a reply, and not while there is none."""
    monkeypatch.setattr(_retry, "MAX_SILENCE", 0.2)

    def answer_once(requests: Iterator[Any], context: Any) -> Iterator[AppendStreamResponse]:
        yield answered(next(requests))
        hang(context)

    streams = Streams(hang_after(1)[0], answer_once, answer)
    with serving(AppendStream=streams) as address, driver(address) as appender:
        appender.append(hello(content="a")).result(LIMIT)  # on the second stream
        appender.append(hello(content="b")).result(LIMIT)  # on the third one
        appender.close()
    assert streams.contents()[1:] == [["a"], ["b"]]


def test_idle_breaks_are_no_errors(driver: Callable[..., Driver]) -> None:
    """The next request opens another stream."""

    def answer_once(requests: Iterator[Any], context: Any) -> Iterator[AppendStreamResponse]:
        yield answered(next(requests))
        fail(context, grpc.StatusCode.PERMISSION_DENIED)

    streams = Streams(answer_once, answer_once, answer)
    with serving(AppendStream=streams) as address, driver(address) as appender:
        for text in "ab":
            appender.append(hello(content=text)).result(LIMIT)
            wait_for_end_of_stream(appender)
        appender.append(hello(content="c"))
        appender.close()
    assert streams.contents() == [["a"], ["b"], ["c"]]


def wait_for_end_of_stream(appender: Driver) -> None:
    """Wait until the appender has noticed that the server has ended the stream."""
    deadline = time.monotonic() + LIMIT
    while appender.appender._call:
        assert time.monotonic() < deadline, "the stream has not ended"
        time.sleep(0.001)


def test_another_token(driver: Callable[..., Driver]) -> None:
    """If the server refuses the token, the appender continues with another one."""
    tokens = iter(["old", "new"])
    refuse = answer_one((grpc.StatusCode.UNAUTHENTICATED,))
    streams = Streams(refuse, answer)
    settings = {"token": lambda: next(tokens)}
    with serving(AppendStream=streams) as address, driver(address, settings) as appender:
        futures = [appender.append(hello(content=text)) for text in "abc"]
        appender.close()
        assert all(future.result() for future in futures)
    assert [m["authorization"] for m in streams.metadata] == ["Bearer old", "Bearer new"]
    assert streams.contents()[1] == ["b", "c"]


def test_a_callback_may_append() -> None:
    """But it must not wait, because only its thread receives replies."""
    with serving(AppendStream=Streams(answer)) as address, Client(address) as client:
        appender = client.appender()
        futures: list[Future[AppendMessagesResponse]] = []
        errors: Future[list[RuntimeError]] = Future()

        def callback(_: Future[AppendMessagesResponse]) -> None:
            raised: list[RuntimeError] = []
            for wait in (fill, appender.flush, appender.close):
                with pytest.raises(RuntimeError, match="must not wait") as error:
                    wait()
                raised.append(error.value)
            errors.set_result(raised)

        def fill() -> None:
            while True:
                futures.append(appender.append(hello()))

        appender.append(hello()).add_done_callback(callback)
        errors.result(LIMIT)
        appender.close()
        assert len(futures) == 16
        assert all(future.result() for future in futures)
    wait_for_watchdogs()


@pytest.mark.parametrize(
    ("queued", "size", "conversation", "fits"),
    [
        ([], 5 << 20, "c", True),
        ([("c", 1)] * 15, 1, "c", True),
        ([("c", 1)] * 16, 1, "c", False),
        ([("c", 1)] * 16, 1, "d", True),
        ([(str(number), 1) for number in range(1023)], 1, "c", True),
        ([(str(number), 1) for number in range(1024)], 1, "c", False),
        ([("c", 3 << 20)], 1 << 20, "d", True),
        ([("c", 3 << 20)], (1 << 20) + 1, "d", False),
    ],
)
def test_limits(queued: list[tuple[str, int]], size: int, conversation: str, *, fits: bool) -> None:
    """What is under way is limited in number, in bytes, and for each conversation."""
    queue: AppendQueue[None] = AppendQueue()

    def append(conversation: str, size: int) -> Append[None]:
        return Append(AppendStreamRequest(append=hello(conversation)), size, None)

    for entry in queued:
        queue.add(append(*entry))
    assert queue.has_space(append(conversation, size)) is fits
    for _ in queued:
        queue.next_unsent()
        queue.take_answered()
    assert queue.has_space(append(conversation, size))
    assert not len(queue)
