"""A fake server and fake agents that a test controls."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from parley import (
    Agent,
    AppendMessagesResponse,
    AppendStreamResponse,
    ChangeKind,
    ChatRequest,
    ChatResponse,
    Conversation,
    ConversationChange,
    ExportConversationsResponse,
    ResumeTurnResponse,
    TextDelta,
    TurnEvent,
    TurnFinished,
    TurnStarted,
    WatchConversationsResponse,
)
from parley.v1 import conversation_service_pb2_grpc, record_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from parley import Piece, RespondRequest


SERVICES: list[tuple[type, Callable[[Any, grpc.Server], None]]] = [
    (
        conversation_service_pb2_grpc.ConversationServiceServicer,
        conversation_service_pb2_grpc.add_ConversationServiceServicer_to_server,
    ),
    (
        record_service_pb2_grpc.RecordServiceServicer,
        record_service_pb2_grpc.add_RecordServiceServicer_to_server,
    ),
]


@contextmanager
def serving(*, workers: int | None = None, **handlers: Callable[[Any, Any], Any]) -> Iterator[str]:
    """Serve these methods of ConversationService and RecordService; yield the address.

    The parameter workers is the number of threads; None means the default of Python. At the end of
    the block all running calls are cancelled.
    """
    with futures.ThreadPoolExecutor(workers) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        for service, add in SERVICES:
            own = {n: staticmethod(h) for n, h in handlers.items() if hasattr(service, n)}
            servicer = type("Fake", (service,), own)
            servicer.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
            add(servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def fail(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str = "") -> NoReturn:
    """End a call as a Parley server does or, without a reason, as a proxy does."""
    if reason:
        detail = any_pb2.Any()
        detail.Pack(ErrorInfo(reason=reason, domain="parley"))
        status = Status(code=code.value[0], message=reason.lower(), details=[detail])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, reason.lower() or "error of a proxy")


def hang(context: grpc.ServicerContext) -> None:
    """Wait until the client cancels the call."""
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()


def numbered(*events: TurnEvent, turn: str = "t") -> list[TurnEvent]:
    """Set the indexes of events and the offsets of texts, as a server does."""
    offset = 0
    for index, event in enumerate(events, start=1):
        event.turn_id, event.index = turn, index
        if event.HasField("text_delta"):
            event.text_delta.offset = offset
            offset += len(event.text_delta.text.encode())
        elif event.HasField("answer_started") or event.HasField("tool_result"):
            offset = 0
    return list(events)


def text_of(events: Sequence[TurnEvent]) -> str:
    """Return the text of all text deltas."""
    return "".join(event.text_delta.text for event in events)


class Gated(Agent):
    """An agent that yields some pieces, and the rest after a test has opened the gate.

    It runs in another thread, see :func:`running`.
    """

    def __init__(self, before: Sequence[Piece], after: Sequence[Piece]) -> None:
        """Make an agent that yields these pieces before and after the gate."""
        self._before, self._after = before, after
        self._gate = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.called = threading.Event()
        self.closed = threading.Event()

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """See Agent."""
        del request
        self.loop = asyncio.get_running_loop()
        self.called.set()
        try:
            for piece in self._before:
                yield piece
            await self._gate.wait()
            for piece in self._after:
                yield piece
        finally:
            self.closed.set()

    def open(self) -> None:
        """Open the gate. Any thread may call it after respond has begun."""
        assert self.loop
        self.loop.call_soon_threadsafe(self._gate.set)


@contextmanager
def running(agent: Agent) -> Iterator[str]:
    """Serve an agent in a thread until the block ends; yield its address."""
    address: futures.Future[str] = futures.Future()
    stop: futures.Future[Callable[[], object]] = futures.Future()

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        async with agent.serving(grace=0) as server:
            address.set_result(server.address)
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield address.result()
    finally:
        stop.result()()
        thread.join()


HELLO = ChatRequest(content="hello")
LIMIT = 20.0  # seconds; only a failing test takes so long
TURN = numbered(
    TurnEvent(started=TurnStarted(conversation=Conversation(id="c"))),
    TurnEvent(text_delta=TextDelta(text="hello ")),
    TurnEvent(text_delta=TextDelta(text="there")),
    TurnEvent(finished=TurnFinished()),
)


def reply(event: TurnEvent) -> ChatResponse:
    """Return an event as Chat sends it."""
    return ChatResponse(event=event)


class Hanging:
    """Handlers that begin an answer and then hang. They record which calls the client cancels."""

    def __init__(self) -> None:
        """Start without calls."""
        self.begun, self.cancelled = threading.Semaphore(0), threading.Semaphore(0)

    def chat(self, _: ChatRequest, context: Any) -> Iterator[ChatResponse]:
        """Answer Chat."""
        self._begin(context)
        yield from map(reply, TURN[:2])
        hang(context)

    def resume(self, _: Any, context: Any) -> Iterator[ResumeTurnResponse]:
        """Answer ResumeTurn after the first event."""
        self._begin(context)
        yield ResumeTurnResponse(event=TURN[1])
        hang(context)

    def watch(self, _: Any, context: Any) -> Iterator[WatchConversationsResponse]:
        """Answer WatchConversations."""
        self._begin(context)
        yield WatchConversationsResponse(
            change=ConversationChange(kind=ChangeKind.CHANGE_KIND_HEARTBEAT, cursor="1")
        )
        hang(context)

    def append(self, requests: Any, context: Any) -> Iterator[AppendStreamResponse]:
        """Answer the first request of AppendStream."""
        self._begin(context)
        next(requests)
        yield AppendStreamResponse(response=AppendMessagesResponse())
        hang(context)

    def export(self, _: Any, context: Any) -> Iterator[ExportConversationsResponse]:
        """Answer ExportConversations."""
        self._begin(context)
        yield ExportConversationsResponse()
        hang(context)

    def get(self, _: Any, context: Any) -> None:
        """Never answer GetConversation."""
        self._begin(context)
        hang(context)

    def _begin(self, context: Any) -> None:
        # gRPC does not resume a generator whose call was cancelled at its yield.
        context.add_callback(self.cancelled.release)
        self.begun.release()

    def wait_for_cancel(self) -> None:
        """Wait until a client has cancelled a call."""
        assert self.cancelled.acquire(timeout=LIMIT), "the client has not cancelled the call"


def wait_for_watchdogs() -> None:
    """Wait until all threads of streams have ended."""
    for thread in threading.enumerate():
        if thread.name == "parley":
            thread.join(LIMIT)
            assert not thread.is_alive(), f"thread {thread} of a stream still runs"
