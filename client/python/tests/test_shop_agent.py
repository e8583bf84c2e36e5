"""The example agent, as a separate process, called over TCP."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import json_format, struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from programs import output_of, refusal, shop_agent

from parley.v1.agent_service_pb2 import RespondRequest, RespondResponse
from parley.v1.agent_service_pb2_grpc import AgentServiceStub
from parley.v1.message_pb2 import (
    ROLE_ASSISTANT,
    ROLE_USER,
    Message,
    StructuredData,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

CREATED: list[dict[str, Any]] = [{"name": "Flour"}, {"name": "Sugar"}, {"name": "Salt"}]
PRICED: list[dict[str, Any]] = [{"name": "Flour"}, {"name": "Sugar", "cents": 50}, {"name": "Salt"}]


@pytest.fixture
def channel(agent_address: str) -> Iterator[grpc.Channel]:
    """Connect to the agent."""
    with grpc.insecure_channel(agent_address) as channel:
        yield channel


def user(content: str) -> Message:
    """Return a message of the user."""
    return Message(role=ROLE_USER, content=content)


def listing(value: Any, kind: str = "product_list") -> Message:
    """Return an agent's message with a value as structured data."""
    data = StructuredData(type=kind, value=json_format.ParseDict(value, struct_pb2.Value()))
    return Message(role=ROLE_ASSISTANT, content="Done.", structured_data=[data])


def respond(channel: grpc.Channel, *messages: Message) -> list[RespondResponse]:
    """Return all pieces of the agent's answer."""
    return list(AgentServiceStub(channel).Respond(RespondRequest(messages=messages)))


def text_of(pieces: list[RespondResponse]) -> str:
    """Return the text of all pieces."""
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("history", "content", "text", "products", "summary"),
    [
        pytest.param(
            [],
            "create three products",
            "Created Flour, Sugar and Salt.",
            CREATED,
            "created three products",
            id="create",
        ),
        pytest.param(
            [],
            " Create three products.\n",
            "Created Flour, Sugar and Salt.",
            CREATED,
            "created three products",
            id="create, with a full stop",
        ),
        pytest.param(
            [listing(CREATED)],
            "Sugar costs 50 cents",
            "Sugar costs 50 cents.",
            PRICED,
            "set a price",
            id="price",
        ),
        pytest.param(
            [listing(CREATED)],
            " sUGAR COSTS 50 cents.\n",
            "Sugar costs 50 cents.",
            PRICED,
            "set a price",
            id="price, in another case",
        ),
        pytest.param(
            [listing(CREATED)],
            "Pepper costs 50 cents",
            "There is no product Pepper.",
            None,
            "did not find a product",
            id="price of an unknown product",
        ),
        pytest.param(
            [],
            "Sugar costs 50 cents",
            "There are no products yet.",
            None,
            "found no products",
            id="price without a list",
        ),
        pytest.param(
            [listing(PRICED), user("thanks"), listing(["a"], kind="library_list")],
            "the second one is sold out",
            "Sugar is sold out.",
            [CREATED[0], {"name": "Sugar", "cents": 50, "sold_out": True}, CREATED[2]],
            "marked a product as sold out",
            id="sold out, the list being older than the last answer",
        ),
        pytest.param(
            [listing(PRICED), listing(CREATED)],
            "The First one is sold out",
            "Flour is sold out.",
            [{"name": "Flour", "sold_out": True}, *CREATED[1:]],
            "marked a product as sold out",
            id="sold out, in the newest of two lists",
        ),
        pytest.param(
            [listing(CREATED[:2])],
            "the third one is sold out",
            "There is no third product.",
            None,
            "did not find a product",
            id="sold out after the end of the list",
        ),
        pytest.param(
            [],
            "the second one is sold out",
            "There are no products yet.",
            None,
            "found no products",
            id="sold out without a list",
        ),
        pytest.param(
            [listing(CREATED), listing("none"), listing([{"name": 7}]), listing({"name": "x"})],
            "the third one is sold out",
            "Salt is sold out.",
            [*CREATED[:2], {"name": "Salt", "sold_out": True}],
            "marked a product as sold out",
            id="data that is not a list of products is skipped",
        ),
        pytest.param(
            [user("hello"), listing(CREATED)],
            "how  are\nyou?",
            "You said: how  are\nyou?. I know 3 messages.",
            None,
            "repeated what was said",
            id="anything else",
        ),
    ],
)
def test_answers(
    channel: grpc.Channel,
    history: list[Message],
    content: str,
    text: str,
    products: list[dict[str, Any]] | None,
    summary: str,
) -> None:
    """Each sentence has its answer, which depends on the history."""
    pieces = respond(channel, *history, user(content))
    data = [piece.structured_data for piece in pieces if piece.HasField("structured_data")]
    values: list[Any] = [json_format.MessageToDict(d.value) for d in data]
    assert text_of(pieces) == text
    assert [d.type for d in data] == ["product_list"] * len(data)
    assert values == ([] if products is None else [products])
    assert [piece.summary for piece in pieces if piece.HasField("summary")] == [summary]


def test_streams_word_by_word(channel: grpc.Channel) -> None:
    """Each piece is a word with the white space after it. Data and summary are the last pieces."""
    pieces = respond(channel, user("create three products"))
    assert [piece.text or piece.WhichOneof("piece") for piece in pieces] == [
        "Created ",
        "Flour, ",
        "Sugar ",
        "and ",
        "Salt.",
        "structured_data",
        "summary",
    ]


def test_fails_on_purpose(channel: grpc.Channel) -> None:
    """The text before the error arrives."""
    answer = AgentServiceStub(channel).Respond(RespondRequest(messages=[user("fail")]))
    assert next(answer).text + next(answer).text == "This will "
    with pytest.raises(grpc.RpcError) as failure:
        next(answer)
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert failure.value.details() == "the shop is closed"


def test_slow_answer_can_be_cancelled(channel: grpc.Channel) -> None:
    """A slow answer ends when it is cancelled. The agent continues to serve."""
    answer = AgentServiceStub(channel).Respond(RespondRequest(messages=[user("slow")]))
    assert [next(answer).text for _ in range(3)] == ["tick "] * 3
    answer.cancel()
    with pytest.raises(grpc.RpcError) as failure:
        list(answer)
    assert failure.value.code() == grpc.StatusCode.CANCELLED
    assert text_of(respond(channel, user("hi"))) == "You said: hi. I know 1 messages."


def test_refuses_a_request_without_messages(channel: grpc.Channel) -> None:
    """The status is INVALID_ARGUMENT."""
    with pytest.raises(grpc.RpcError) as failure:
        respond(channel)
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("service", ["", "parley.v1.AgentService"])
def test_serves_health(channel: grpc.Channel, service: str) -> None:
    """The agent is healthy as a whole and by the name of its service."""
    stub: Any = health_pb2_grpc.HealthStub(channel)  # Its type stubs lack Check.
    reply = stub.Check(health_pb2.HealthCheckRequest(service=service))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_on_a_signal(number: signal.Signals) -> None:
    """Both signals end the process with exit code 0, even during an answer."""
    with shop_agent() as (process, address), grpc.insecure_channel(address) as channel:
        answer = AgentServiceStub(channel).Respond(RespondRequest(messages=[user("slow")]))
        assert next(answer).text == "tick "
        process.send_signal(number)
        assert process.wait() == 0
        assert output_of(process).read() == ""
        with pytest.raises(grpc.RpcError):
            list(answer)


def test_does_not_share_its_port(agent_address: str) -> None:
    """A second agent on the same port fails with an error."""
    code, errors = refusal("--address", agent_address)
    assert code == 1
    assert f"cannot listen on {agent_address}" in errors


@pytest.mark.parametrize("address", ["", "127.0.0.1", ":7002", "127.0.0.1:http", "127.0.0.1:65536"])
def test_refuses_an_invalid_address(address: str) -> None:
    """The message names the flag."""
    code, errors = refusal("--address", address)
    assert code == 2
    assert "--address" in errors
