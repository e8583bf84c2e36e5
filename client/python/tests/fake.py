"""A server that says what a test wants, and agents that wait for a test."""

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
    ChangeKind,
    ChatRequest,
    ChatResponse,
    Conversation,
    ConversationChange,
    ExportConversationsResponse,
    TextDelta,
    TurnEvent,
    TurnFinished,
    TurnStarted,
    WatchConversationsResponse,
)
from parley.v1 import conversation_service_pb2_grpc as services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from parley import Piece, RespondRequest


@contextmanager
def serving(*, workers: int | None = None, **handlers: Callable[[Any, Any], Any]) -> Iterator[str]:
    """Serve these methods of ConversationService, by their names; give the address.

    workers is the number of threads that answer; unset is the default of Python.

    At the end of the block every call that is left is cancelled.
    """
    service = services.ConversationServiceServicer
    servicer = type("Fake", (service,), {n: staticmethod(h) for n, h in handlers.items()})
    servicer.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    with futures.ThreadPoolExecutor(workers) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        services.add_ConversationServiceServicer_to_server(servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def fail(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str = "") -> NoReturn:
    """End a call as a Parley server does, or, without a reason, as something in between."""
    if reason:
        detail = any_pb2.Any()
        detail.Pack(ErrorInfo(reason=reason, domain="parley"))
        status = Status(code=code.value[0], message=reason.lower(), details=[detail])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, reason.lower() or "something in between")


def hang(context: grpc.ServicerContext) -> None:
    """Wait until the client ends the call."""
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()


def numbered(*events: TurnEvent, turn: str = "t") -> list[TurnEvent]:
    """Give events their indexes, and texts their offsets, as a server does."""
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
    """Return the text that events show."""
    return "".join(event.text_delta.text for event in events)


class Gated(Agent):
    """Says some pieces, and the rest once a test opens the gate.

    It is served by a thread of its own, see :func:`running`.
    """

    def __init__(self, before: Sequence[Piece], behind: Sequence[Piece]) -> None:
        """Say these before and behind the gate."""
        self._before, self._behind = before, behind
        self._gate = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.asked = threading.Event()
        self.left = threading.Event()

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """See Agent."""
        del request
        self.loop = asyncio.get_running_loop()
        self.asked.set()
        try:
            for piece in self._before:
                yield piece
            await self._gate.wait()
            for piece in self._behind:
                yield piece
        finally:
            self.left.set()

    def open(self) -> None:
        """Let it go on; from any thread, once it has been asked."""
        assert self.loop
        self.loop.call_soon_threadsafe(self._gate.set)


@contextmanager
def running(agent: Agent) -> Iterator[str]:
    """Serve an agent in a thread until the block ends; give its address."""
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
LIMIT = 20.0  # seconds; only a test that fails takes so long
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
    """Begins each answer, says no more, and notes which calls the client has ended."""

    def __init__(self) -> None:
        """Begin with no call."""
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)

    def chat(self, _: ChatRequest, context: Any) -> Iterator[ChatResponse]:
        """Answer Chat."""
        self._begin(context)
        yield from map(reply, TURN[:2])
        hang(context)

    def watch(self, _: Any, context: Any) -> Iterator[WatchConversationsResponse]:
        """Answer WatchConversations."""
        self._begin(context)
        yield WatchConversationsResponse(
            change=ConversationChange(kind=ChangeKind.CHANGE_KIND_HEARTBEAT, cursor="1")
        )
        hang(context)

    def export(self, _: Any, context: Any) -> Iterator[ExportConversationsResponse]:
        """Answer ExportConversations."""
        self._begin(context)
        yield ExportConversationsResponse()
        hang(context)

    def get(self, _: Any, context: Any) -> None:
        """Answer GetConversation, never."""
        self._begin(context)
        hang(context)

    def _begin(self, context: Any) -> None:
        # gRPC does not come back to a handler whose call was ended while it had yielded.
        context.add_callback(self.ended.release)
        self.begun.release()

    def wait_for_end(self) -> None:
        """Wait until a client has ended a call."""
        assert self.ended.acquire(timeout=LIMIT), "the call goes on"


def wait_for_watchdogs() -> None:
    """Wait until no thread of a stream is left."""
    for thread in threading.enumerate():
        if thread.name == "parley":
            thread.join(LIMIT)
            assert not thread.is_alive(), "a stream has left its thread behind"
