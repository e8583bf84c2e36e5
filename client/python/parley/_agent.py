"""Agents: what answers Chat, and how it is served."""

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
from parley.v1.message_pb2 import StructuredData, ToolCall, ToolResult, Usage
from parley.v1.turn_pb2 import TurnProgress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from typing_extensions import Self

logger = logging.getLogger("parley.agent")

SERVICE = DESCRIPTOR.services_by_name["AgentService"].full_name
STOP_GRACE = 10.0  # seconds
CLOSING_TIME = 1.0  # seconds that answers that are cut off may take to end

Piece: TypeAlias = (
    str | StructuredData | ToolCall | ToolResult | Usage | TurnProgress | RespondResponse
)
"""What an agent yields: text, or one of the other pieces of an answer; RespondResponse has those
that have no type of their own (summary, finish_reason, next_agent)."""


class Agent(ABC):
    """Answers Chat. Derive from it, write :meth:`respond`, and :meth:`serve` it.

    A whole one::

        class Parrot(parley.Agent):
            async def respond(self, request):
                for word in request.messages[-1].content.split():
                    yield word + " "

        Parrot().serve("127.0.0.1:7002")

    One agent answers many conversations at once, each call on its own; what it knows of one
    comes with the request, so it needs no memory and may be restarted at any time.
    """

    @abstractmethod
    def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """Answer what request.messages ends with; write it as an async generator.

        Each piece is sent as soon as it is yielded, and the answer is whole when the generator
        ends. When Parley gives the answer up, because its time is over or the user has
        cancelled, whatever is awaited ends with asyncio.CancelledError.

        All answers share one event loop: a respond that blocks, say in time.sleep or a sync
        client, stalls all of them. Await instead, or use asyncio.to_thread.

        An :class:`AgentError` that it raises fails the turn, and its message is shown to the
        user. So does any other exception, :class:`parley.Error` of the agent's own calls
        included, of which only the type is shown, since its text may hold what is not for
        users; the log (logging, "parley.agent") has it whole. What was sent before is kept as
        incomplete.
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
        """Serve the agent, and gRPC health, until SIGINT or SIGTERM; then return.

        It runs an event loop of its own and handles the signals, so call it on the main thread.
        It is for Unix: on Windows asyncio handles no signals; there use :meth:`serving`.

        Args:
            address: "HOST:PORT" or "unix:PATH"; port 0 picks one.
            grace: Seconds that answers under way have at a stop before they are cut off, with
                UNAVAILABLE.
            credentials: For TLS. Unset is plaintext: keep to loopback or a network you trust.
            on_start: Called once it serves, with the address, its real port filled in.

        Raises:
            OSError: The address cannot be listened on.
            ValueError: It is no address.

        """
        asyncio.run(self._serve(address, grace, credentials, on_start))

    def serving(
        self,
        address: str = "127.0.0.1:0",
        *,
        grace: float = STOP_GRACE,
        credentials: grpc.ServerCredentials | None = None,
    ) -> AgentServer:
        """Return a server of the agent for ``async with``, say in a test.

        The block gets the server, whose address has the real port; the agent serves until its
        end. The parameters are those of :meth:`serve`.
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
                logger.info("stopping: answers under way have %g s", grace)
            finally:
                for number in signals:  # A second one ends the program.
                    loop.remove_signal_handler(number)


class AgentError(Exception):
    """Raised by :meth:`Agent.respond`: why there is no answer, in words that the user may read.

    For instance ``AgentError(grpc.StatusCode.UNAVAILABLE, "the shop is closed")``.
    """

    code: grpc.StatusCode
    """The gRPC code. After UNAVAILABLE and RESOURCE_EXHAUSTED the user is told that asking again
    may help."""
    message: str
    """For the user."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        """Make an error; the parameters are its attributes. The code is not OK."""
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        """Give code and message in one line."""
        return f"{self.code.name}: {self.message}"


class AgentServer:
    """A server of one agent, from :meth:`Agent.serving`; an async context manager."""

    address: str
    """Where it serves, once it does: the port is the real one."""

    def __init__(
        self,
        agent: Agent,
        address: str,
        grace: float,
        credentials: grpc.ServerCredentials | None,
    ) -> None:
        """Agent.serving makes it."""
        # gRPC would take what is no address for a host and choose a port.
        if not re.fullmatch(r"unix:.+|.+:\d{1,5}", address):
            raise ValueError(f"{address!r} is neither HOST:PORT nor unix:PATH")
        self.address = address
        self._agent = agent
        self._grace = grace
        self._credentials = credentials

    async def __aenter__(self) -> Self:
        """Start to serve."""
        self._health = Health(SERVICE)
        self._servicer = Servicer(self._agent)
        self._server = grpc.aio.server(
            options=[
                # By default gRPC shares a port with whoever else asks for it to be shared: two
                # agents started by mistake on one port would take turns.
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
        logger.info("%s is served at %s", SERVICE, self.address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop: take no more calls, and cut off those that the grace is not enough for."""
        self._health.stop()
        # gRPC would cut answers off with a text of its own; it does for those that do not heed
        # their cancellation.
        stopping = asyncio.ensure_future(self._server.stop(self._grace + CLOSING_TIME))
        await self._servicer.finish(self._grace)
        await stopping


class Servicer(AgentServiceServicer):
    """AgentService over an agent."""

    def __init__(self, agent: Agent) -> None:
        """Have this agent answer."""
        self._agent = agent
        self._answering: set[asyncio.Task[Any]] = set()
        self._cut = False  # The grace of a stop is over.

    async def Respond(  # type: ignore[override] # gRPC also takes a coroutine that writes
        self,
        request: RespondRequest,
        context: grpc.aio.ServicerContext[RespondRequest, RespondResponse],
    ) -> None:
        """Send the pieces of the answer as they come.

        It writes them instead of yielding, so that the answer is closed when this ends and not
        when the garbage collector finds it.
        """
        if not request.messages:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "messages is empty: there is nothing to answer"
            )
        if self._cut:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent is stopping; ask again")
        answering = asyncio.current_task()
        assert answering  # noqa: S101 - gRPC runs each call as a task
        self._answering.add(answering)
        try:
            failure = await self._answer(request, context)
        except asyncio.CancelledError:
            if not self._cut or context.cancelled():
                raise
            logger.warning("turn %s: cut off by the stop", request.turn_id)
            failure = AgentError(
                grpc.StatusCode.UNAVAILABLE,
                "the agent was stopped before its answer was whole; ask again",
            )
        finally:
            self._answering.discard(answering)
        if failure:
            await context.abort(failure.code, failure.message)

    async def _answer(
        self,
        request: RespondRequest,
        context: grpc.aio.ServicerContext[RespondRequest, RespondResponse],
    ) -> AgentError | None:
        """Write the answer; return what the user is told where it fails."""
        try:
            answer = self._agent.respond(request)
            try:
                async for piece in answer:
                    await context.write(response(piece))
            finally:
                if isinstance(answer, AsyncGenerator):
                    await answer.aclose()
        except AgentError as error:
            logger.warning("turn %s: %s", request.turn_id, error, exc_info=error.__cause__)
            return error
        except Exception as error:
            logger.exception("turn %s: the agent has failed", request.turn_id)
            text = f"it failed with {type(error).__name__}; its log says more"
            return AgentError(grpc.StatusCode.INTERNAL, text)
        return None

    async def finish(self, grace: float) -> None:
        """Give the answers under way so many seconds, and cut off those that take longer."""
        if self._answering:
            await asyncio.wait(set(self._answering), timeout=grace)
        self._cut = True
        for answering in self._answering:
            answering.cancel()


def response(piece: Piece) -> RespondResponse:
    """Return a piece as the contract has it."""
    match piece:
        case RespondResponse():
            return piece
        case str():
            return RespondResponse(text=piece)
        case StructuredData():
            return RespondResponse(structured_data=piece)
        case ToolCall():
            return RespondResponse(tool_call=piece)
        case ToolResult():
            return RespondResponse(tool_result=piece)
        case Usage():
            return RespondResponse(usage=piece)
        case TurnProgress():
            return RespondResponse(progress=piece)
        case _:
            raise TypeError(f"respond yielded a {type(piece).__name__}, which is no piece")
