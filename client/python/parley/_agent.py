"""The base class of agents, and the server of an agent."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2_grpc

from parley._health import Health
from parley._options import MAX_MESSAGE_BYTES
from parley.v1.agent_service_pb2 import DESCRIPTOR, RespondRequest, RespondResponse
from parley.v1.agent_service_pb2_grpc import (
    AgentServiceServicer,
    add_AgentServiceServicer_to_server,
)
from parley.v1.message_pb2 import Native, StructuredData, ToolCall, ToolResult, Usage
from parley.v1.record_pb2 import RecordWrite
from parley.v1.turn_pb2 import ToolCallDelta, TurnProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from typing_extensions import Self

logger = logging.getLogger("parley.agent")

SERVICE = DESCRIPTOR.services_by_name["AgentService"].full_name
STOP_GRACE = 10.0  # seconds
CLOSING_TIME = 1.0  # seconds that cancelled answers may take to end

Piece: TypeAlias = (
    str
    | StructuredData
    | ToolCall
    | ToolCallDelta
    | ToolResult
    | Usage
    | Native
    | RecordWrite
    | TurnProgress
    | RespondResponse
)
"""A piece of an answer, which an agent yields: text as str, or one of the other types. Pieces
without a type of their own (reasoning, summary, finish_reason, next_agent) are fields of
RespondResponse. Records are written in the same commit as the answer, if the turn completes or
ends as INPUT_REQUIRED."""


class Agent(ABC):
    """The base class of agents. Override :meth:`respond`, then call :meth:`serve`.

    A complete agent::

        class Parrot(parley.Agent):
            async def respond(self, request):
                for word in request.messages[-1].content.split():
                    yield word + " "

        Parrot().serve("127.0.0.1:7002")

    One agent answers many conversations at once, with one call of respond for each answer. The
    request contains the conversation, so an agent needs no state and may restart at any time.
    """

    @abstractmethod
    def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """Answer the last message of request.messages. Write it as an async generator.

        Each piece is sent as soon as it is yielded. The answer is complete when the generator
        ends. If Parley cancels the answer, because it took too long or the user cancelled the
        turn, the current await raises asyncio.CancelledError.

        All answers share one event loop. If respond blocks, for example in time.sleep or a sync
        client, all answers stop. Use await or asyncio.to_thread instead.

        If respond raises an exception, the turn fails, and the pieces that were sent before are
        stored as an incomplete message. The user sees the message of an :class:`AgentError`. Of
        any other exception, such as a :class:`parley.Error` of the agent's own calls, the user
        sees only the type, because the text may not be for users. The log (logging,
        "parley.agent") contains the complete exception.
        """
        raise NotImplementedError

    def serve(
        self,
        address: str,
        *,
        grace: float = STOP_GRACE,
        credentials: grpc.ServerCredentials | None = None,
        on_start: Callable[[str], object] | None = None,
    ) -> None:
        """Serve the agent and the gRPC health service until SIGINT or SIGTERM, then return.

        It runs its own event loop and handles the signals, so call it on the main thread. It works
        on Unix only, because on Windows asyncio handles no signals. On Windows use :meth:`serving`.

        Args:
            address: "HOST:PORT" or "unix:PATH". With port 0 the system chooses a free port.
            grace: Seconds that running answers have to end after the signal. Answers that take
                longer fail with UNAVAILABLE.
            credentials: The credentials for TLS. If None, the agent serves plaintext: use
                a loopback address or a trusted network.
            on_start: It is called once the agent serves, with the address and its actual port.

        Raises:
            OSError: Listening on the address failed.
            ValueError: The address is not valid.

        """
        asyncio.run(self._serve(address, grace, credentials, on_start))

    def serving(
        self,
        address: str = "127.0.0.1:0",
        *,
        grace: float = STOP_GRACE,
        credentials: grpc.ServerCredentials | None = None,
    ) -> AgentServer:
        """Return a server of the agent for ``async with``, for example in a test.

        The agent serves until the end of the block. The address of the server has the actual port.
        The parameters are those of :meth:`serve`.
        """
        return AgentServer(self, address, grace, credentials)

    async def _serve(
        self,
        address: str,
        grace: float,
        credentials: grpc.ServerCredentials | None,
        on_start: Callable[[str], object] | None,
    ) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        async with self.serving(address, grace=grace, credentials=credentials) as server:
            for number in signals:
                loop.add_signal_handler(number, stop.set)
            try:
                if on_start:
                    on_start(server.address)
                await stop.wait()
                logger.info("agent stopping: running answers have %g s", grace)
            finally:
                for number in signals:  # A second signal ends the program.
                    loop.remove_signal_handler(number)


class AgentError(Exception):
    """The reason why :meth:`Agent.respond` has no answer, as a text for the user.

    For example ``AgentError(grpc.StatusCode.UNAVAILABLE, "the shop is closed")``.
    """

    code: grpc.StatusCode
    """The gRPC code. UNAVAILABLE and RESOURCE_EXHAUSTED mean that a retry may help."""
    message: str
    """The text for the user."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        """Make an error; the parameters are its attributes. The code must not be OK."""
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        """Return code and message in one line."""
        return f"{self.code.name}: {self.message}"


class AgentServer:
    """A server of one agent. :meth:`Agent.serving` returns it. It is an async context manager."""

    address: str
    """The address of the server. Once it serves, the port is the actual one."""

    def __init__(
        self,
        agent: Agent,
        address: str,
        grace: float,
        credentials: grpc.ServerCredentials | None,
    ) -> None:
        """Make a server; only Agent.serving does so."""
        # gRPC would parse an invalid address as a host name and choose a port.
        if not re.fullmatch(r"unix:.+|.+:\d{1,5}", address):
            raise ValueError(f"address is {address!r}, want HOST:PORT or unix:PATH")
        self.address = address
        self._agent = agent
        self._grace = grace
        self._credentials = credentials

    async def __aenter__(self) -> Self:
        """Start the server."""
        self._health = Health(SERVICE)
        self._servicer = Servicer(self._agent)
        self._server = grpc.aio.server(
            options=[
                # By default two gRPC servers may listen on one port. Two agents that were started
                # on one port by mistake would then each receive some of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ]
        )
        add_AgentServiceServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            if self._credentials:
                port = self._server.add_secure_port(self.address, self._credentials)
            else:
                port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self.address}: {error}") from error
        await self._server.start()
        if not self.address.startswith("unix:"):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        logger.info("agent serving %s at %s", SERVICE, self.address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server: accept no new calls, and cancel running ones after the grace."""
        self._health.stop()
        # The servicer cancels answers with a text for the user. gRPC ends those that ignore the
        # cancellation, without such a text.
        stopping = asyncio.ensure_future(self._server.stop(self._grace + CLOSING_TIME))
        await self._servicer.finish(self._grace)
        await stopping


class Servicer(AgentServiceServicer):
    """AgentService, implemented by an agent."""

    def __init__(self, agent: Agent) -> None:
        """Serve this agent."""
        self._agent = agent
        self._running: set[asyncio.Task[Any]] = set()
        self._grace_over = False  # The grace after the stop has passed.

    async def Respond(  # type: ignore[override] # gRPC also accepts a coroutine that writes
        self,
        request: RespondRequest,
        context: grpc.aio.ServicerContext[RespondRequest, RespondResponse],
    ) -> None:
        """Send the pieces of the answer as the agent yields them.

        Respond writes them instead of yielding them. So the generator of the agent is closed when
        Respond ends, and not later by the garbage collector.
        """
        if not request.messages:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "messages is empty; it must end with the message to answer",
            )
        if self._grace_over:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent is stopping; try again")
        task = asyncio.current_task()
        assert task  # noqa: S101 - gRPC runs each call as a task
        self._running.add(task)
        try:
            failure = await self._answer(request, context)
        except asyncio.CancelledError:
            if not self._grace_over or context.cancelled():
                raise
            logger.warning("turn %s: answer cancelled by the stop", request.turn_id)
            failure = AgentError(
                grpc.StatusCode.UNAVAILABLE,
                "the agent was stopped before its answer was complete; try again",
            )
        finally:
            self._running.discard(task)
        if failure:
            await context.abort(failure.code, failure.message)

    async def _answer(
        self,
        request: RespondRequest,
        context: grpc.aio.ServicerContext[RespondRequest, RespondResponse],
    ) -> AgentError | None:
        """Write the answer. Return the error for the user if the answer fails."""
        try:
            answer = self._agent.respond(request)
            try:
                async for piece in answer:
                    await context.write(to_response(piece))
            finally:
                if isinstance(answer, AsyncGenerator):
                    await answer.aclose()
        except AgentError as error:
            logger.warning("turn %s: %s", request.turn_id, error, exc_info=error.__cause__)
            return error
        except Exception as error:
            logger.exception("turn %s: respond failed", request.turn_id)
            text = f"the agent failed with {type(error).__name__}; see its log"
            return AgentError(grpc.StatusCode.INTERNAL, text)
        return None

    async def finish(self, grace: float) -> None:
        """Wait this many seconds for running answers, then cancel the rest."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=grace)
        self._grace_over = True
        for task in self._running:
            task.cancel()


def to_response(piece: Piece) -> RespondResponse:
    """Return a piece as a message of the API."""
    match piece:
        case RespondResponse():
            return piece
        case str():
            return RespondResponse(text=piece)
        case StructuredData():
            return RespondResponse(structured_data=piece)
        case ToolCall():
            return RespondResponse(tool_call=piece)
        case ToolCallDelta():
            return RespondResponse(tool_call_delta=piece)
        case ToolResult():
            return RespondResponse(tool_result=piece)
        case Usage():
            return RespondResponse(usage=piece)
        case Native():
            return RespondResponse(native=piece)
        case RecordWrite():
            return RespondResponse(record=piece)
        case TurnProgress():
            return RespondResponse(progress=piece)
        case _:
            raise TypeError(f"respond yielded a {type(piece).__name__}, want a Piece")
