"""Agents: what they yield, how they fail, how they are served."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from fake import Gated, running, text_of
from google.protobuf import struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from programs import parleyd

import parley
from parley import (
    Agent,
    AgentError,
    ChatRequest,
    Client,
    Error,
    Message,
    Native,
    Piece,
    RecordWrite,
    RespondRequest,
    RespondResponse,
    Role,
    StructuredData,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    TurnEvent,
    TurnProgress,
    TurnState,
    Usage,
)
from parley.v1.agent_service_pb2_grpc import AgentServiceStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ASK = RespondRequest(messages=[Message(role=Role.ROLE_USER, content="hi")], turn_id="t1")
LIMIT = 20.0  # seconds; only a test that fails takes so long
DATA = StructuredData(type="list", value=struct_pb2.Value(string_value="one"))


class Versatile(Agent):
    """Yields all types of pieces."""

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """See Agent."""
        yield TurnProgress(text="thinking")
        yield f"{len(request.messages)}: "
        yield DATA
        yield RespondResponse(reasoning="hm")
        yield ToolCallDelta(id="1", name="look", arguments="{")
        yield ToolCall(id="1", name="look")
        yield Usage(model="m", output_tokens=7)
        yield Native(type="form", value=b"\xff")
        yield ToolResult(call_id="1", content="found")
        yield RecordWrite(key="state", value=b"1")
        yield "done"
        yield RespondResponse(summary="did it")


class Failing(Agent):
    """Yields a word and fails."""

    def __init__(self, failure: BaseException | None) -> None:
        """Make an agent that raises failure or, if it is None, yields an invalid piece."""
        self._failure = failure

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """See Agent."""
        del request
        yield "well"
        if self._failure:
            raise self._failure
        yield 7  # type: ignore[misc]


def pieces_of(address: str, request: RespondRequest = ASK) -> list[RespondResponse]:
    """Return the complete answer of an agent."""
    with grpc.insecure_channel(address) as channel:
        return list(AgentServiceStub(channel).Respond(request))


def failure_of(agent: Agent, request: RespondRequest = ASK) -> tuple[grpc.StatusCode, str]:
    """Return the status with which an agent fails."""
    with running(agent) as address, pytest.raises(grpc.RpcError) as failure:
        pieces_of(address, request)
    return failure.value.code(), failure.value.details() or ""


def test_pieces() -> None:
    """Each type becomes the piece that it is."""
    with running(Versatile()) as address:
        kinds = [piece.WhichOneof("piece") for piece in pieces_of(address)]
    assert kinds == [
        "progress",
        "text",
        "structured_data",
        "reasoning",
        "tool_call_delta",
        "tool_call",
        "usage",
        "native",
        "tool_result",
        "record",
        "text",
        "summary",
    ]


def test_agent_error(caplog: pytest.LogCaptureFixture) -> None:
    """The status has the code and message of the AgentError; the log has no traceback."""
    error = AgentError(grpc.StatusCode.UNAVAILABLE, "the shop is closed")
    assert failure_of(Failing(error)) == (error.code, error.message)
    (record,) = [record for record in caplog.records if record.name == "parley.agent"]
    assert record.levelno == logging.WARNING
    assert "turn t1: UNAVAILABLE: the shop is closed" in record.getMessage()
    assert not record.exc_info


@pytest.mark.parametrize(
    ("failure", "name"),
    [
        (KeyError("s3cret"), "KeyError"),
        (Error(grpc.StatusCode.NOT_FOUND, "s3cret"), "Error"),  # of a call of its own
        (None, "TypeError"),
    ],
)
def test_fails(failure: Exception | None, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The status contains only the type of the exception; the log contains all of it."""
    code, details = failure_of(Failing(failure))
    assert (code, details) == (
        grpc.StatusCode.INTERNAL,
        f"the agent failed with {name}; see its log",
    )
    (record,) = [record for record in caplog.records if record.name == "parley.agent"]
    assert "t1" in record.getMessage()
    assert record.exc_info
    assert record.exc_info[0]
    assert record.exc_info[0].__name__ == name


class FailingCall(Agent):
    """Raises in respond itself, which is no generator."""

    def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """See Agent."""
        raise KeyError("s3cret", request.turn_id)


class FailingClose(Agent):
    """Raises when its generator is closed."""

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """See Agent."""
        try:
            yield request  # type: ignore[misc]
        finally:
            raise KeyError("s3cret")


@pytest.mark.parametrize("agent", [FailingCall(), FailingClose()], ids=["in respond", "in aclose"])
def test_fails_outside_of_the_generator(agent: Agent) -> None:
    """The text of such an exception is not shown to users either."""
    text = "the agent failed with KeyError; see its log"
    assert failure_of(agent) == (grpc.StatusCode.INTERNAL, text)


def test_refuses_a_request_without_messages() -> None:
    """The agent is not called for such a request."""
    code, details = failure_of(Versatile(), RespondRequest())
    assert (code, "messages is empty" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_a_cancelled_answer_is_closed() -> None:
    """The generator of the agent is closed at once."""
    agent = Gated(["well"], [])
    with running(agent) as address, grpc.insecure_channel(address) as channel:
        answer = AgentServiceStub(channel).Respond(ASK)
        assert next(answer).text == "well"
        answer.cancel()
        assert agent.closed.wait(LIMIT)


def test_an_answer_is_closed_before_its_status_is_sent() -> None:
    """It is also closed if the server fails on a piece that the agent has just yielded."""
    closed = []

    class InvalidPiece(Agent):
        async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
            try:
                yield request  # type: ignore[misc]
            finally:
                await asyncio.sleep(0.01)  # like closing a connection
                closed.append(request.turn_id)

    with running(InvalidPiece()) as address:
        with pytest.raises(grpc.RpcError):
            pieces_of(address)
        assert closed == ["t1"]


def test_stop_waits_for_running_answers() -> None:
    """A running answer may end within the grace. Health reports NOT_SERVING before."""
    agent = Gated(["well"], [" done"])

    async def run() -> None:
        async with agent.serving(grace=LIMIT) as server:
            channel = grpc.aio.insecure_channel(server.address)
            health: Any = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service="parley.v1.AgentService"))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            answer: Any = AgentServiceStub(channel).Respond(ASK)
            assert (await answer.read()).text == "well"
            ending = asyncio.create_task(server.__aexit__(None, None, None))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF, "the stop did not end the health watch"
            agent.open()
            assert (await answer.read()).text == " done"
            await ending
            await channel.close()

    asyncio.run(run())


def test_stop_cancels_answers_after_the_grace() -> None:
    """The status says what to do, and the generator of the agent is closed."""
    agent = Gated(["well"], [])

    async def run() -> None:
        server = await agent.serving(grace=0.05).__aenter__()
        async with grpc.aio.insecure_channel(server.address) as channel:
            answer: Any = AgentServiceStub(channel).Respond(ASK)
            assert (await answer.read()).text == "well"
            await server.__aexit__(None, None, None)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await answer.read()
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            text = "the agent was stopped before its answer was complete; try again"
            assert raised.value.details() == text
            assert agent.closed.is_set()

    asyncio.run(run())


def test_health() -> None:
    """The health service knows the agent service and the server, and no other service."""

    async def run() -> None:
        async with (
            Versatile().serving(grace=LIMIT) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", "parley.v1.AgentService"):
                reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
            other = health_pb2.HealthCheckRequest(service="other")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await health.Check(other)
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
            state = await health.Watch(other).read()
            assert state.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

    asyncio.run(run())


@pytest.mark.parametrize("address", ["", "7002", "localhost", "localhost:", "localhost:http"])
def test_refuses_an_invalid_address(address: str) -> None:
    """The error says which addresses are valid."""
    with pytest.raises(ValueError, match="want HOST:PORT or unix:PATH"):
        Versatile().serving(address)


def test_refuses_an_address_in_use() -> None:
    """Two agents do not share a port."""
    with (
        running(Versatile()) as address,
        pytest.raises(OSError, match=f"cannot listen on {address}"),
    ):
        Versatile().serve(address)


def test_serves_at_a_path(tmp_path: Path) -> None:
    """The address may be a Unix socket."""

    async def run() -> None:
        async with Versatile().serving(f"unix:{tmp_path}/agent") as server:
            assert await asyncio.to_thread(pieces_of, server.address)

    asyncio.run(run())


def test_answers_through_parleyd(tmp_path: Path) -> None:
    """The pieces of an agent become the messages of the conversation."""
    with running(Versatile()) as good, running(Failing(KeyError("s3cret"))) as bad:
        agents = {"good": good, "bad": bad}
        lines = [f'  {name}: {{kind: remote, address: "{at}"}}' for name, at in agents.items()]
        config = "\n".join(["agents:", *lines, ""])
        with parleyd(tmp_path, config) as server, Client(server.address) as client:
            events = list(client.chat(ChatRequest(content="hi", agent="good")))
            assert text_of(events) == "1: done"
            first, tool, last = events[-1].finished.messages
            assert first.structured_data[0] == DATA
            assert [call.name for call in first.tool_calls] == ["look"]
            assert tool.tool_result.content == "found"
            assert (last.content, last.summary) == ("done", "did it")
            notes = [event.progress.text for event in events if event.HasField("progress")]
            assert "thinking" in notes

            events = list(client.chat(ChatRequest(content="hi", agent="bad")))
            turn = events[-1].finished.turn
            assert turn.state == TurnState.TURN_STATE_FAILED
            assert turn.error.reason == "AGENT_FAILED"
            assert "the agent failed with KeyError; see its log" in turn.error.message
            assert "s3cret" not in turn.error.message


def test_parleyd_cancels_an_answer(tmp_path: Path) -> None:
    """CancelTurn reaches the agent."""
    agent = Gated(["well"], [])
    with running(agent) as address:
        config = f'agents:\n  gated: {{kind: remote, address: "{address}"}}\n'
        with parleyd(tmp_path, config) as server, Client(server.address) as client:
            events: list[TurnEvent] = []
            request = ChatRequest(conversation_id="c", content="hi", agent="gated")
            for event in client.chat(request):
                events.append(event)
                if event.HasField("text_delta"):
                    client.cancel_turn(
                        parley.CancelTurnRequest(conversation_id="c", turn_id=event.turn_id)
                    )
            assert events[-1].finished.turn.state == TurnState.TURN_STATE_CANCELLED
            assert agent.closed.wait(LIMIT)
