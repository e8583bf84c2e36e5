"""The example agent behind a real parleyd, whose path is in the variable PARLEYD."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import json_format
from programs import parleyd

from parley.v1.conversation_service_pb2 import ChatRequest, LoadConversationRequest
from parley.v1.conversation_service_pb2_grpc import ConversationServiceStub
from parley.v1.message_pb2 import (
    MESSAGE_STATUS_COMPLETE,
    MESSAGE_STATUS_INCOMPLETE,
    ROLE_ASSISTANT,
    Message,
)
from parley.v1.turn_pb2 import TURN_STATE_COMPLETED, TURN_STATE_FAILED, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRICE = {"name": "Sugar", "cents": 50}
TURNS = [
    (
        "create three products",
        "Created Flour, Sugar and Salt.",
        "created three products",
        [{"name": "Flour"}, {"name": "Sugar"}, {"name": "Salt"}],
    ),
    (
        "Sugar costs 50 cents",
        "Sugar costs 50 cents.",
        "set a price",
        [{"name": "Flour"}, PRICE, {"name": "Salt"}],
    ),
    (
        "the second one is sold out",
        "Sugar is sold out.",
        "marked a product as sold out",
        [{"name": "Flour"}, PRICE | {"sold_out": True}, {"name": "Salt"}],
    ),
]


@pytest.fixture
def parley(agent_address: str, tmp_path: Path) -> Iterator[ConversationServiceStub]:
    """Connect to a server that knows the agent as "shop"."""
    binary = os.environ.get("PARLEYD")
    if not binary:
        pytest.skip("PARLEYD is not set to the path of a parleyd")
    config = f'agents:\n  shop: {{kind: remote, address: "{agent_address}"}}\n'
    with (
        parleyd(binary, tmp_path, config) as address,
        grpc.insecure_channel(address) as channel,
    ):
        yield ConversationServiceStub(channel)


def chat(parley: ConversationServiceStub, content: str) -> tuple[str, Turn]:
    """Say something to the shop; return the streamed text and the turn as it ended."""
    request = ChatRequest(conversation_id="demo", agent="shop", content=content)
    text = ""
    for reply in parley.Chat(request):
        text += reply.event.text_delta.text
    assert reply.event.HasField("finished"), "the stream's last event is not finished"
    return text, reply.event.finished.turn


def answers(parley: ConversationServiceStub) -> list[Message]:
    """Return the agent's messages as they are stored."""
    stored = parley.LoadConversation(LoadConversationRequest(conversation_id="demo")).messages
    return [message for message in stored if message.role == ROLE_ASSISTANT]


def data_of(message: Message) -> list[tuple[str, Any]]:
    """Return the structured data of a message in plain Python."""
    return [(data.type, json_format.MessageToDict(data.value)) for data in message.structured_data]


def test_three_turns(parley: ConversationServiceStub) -> None:
    """The agent resolves "the second one" from what Parley has kept of its own answers."""
    for content, text, _, _ in TURNS:
        said, turn = chat(parley, content)
        assert (said, turn.state) == (text, TURN_STATE_COMPLETED)
    stored = answers(parley)
    assert [(m.content, m.summary, data_of(m)) for m in stored] == [
        (text, summary, [("product_list", products)]) for _, text, summary, products in TURNS
    ]
    assert {(m.agent, m.status) for m in stored} == {("shop", MESSAGE_STATUS_COMPLETE)}


def test_failing_turn(parley: ConversationServiceStub) -> None:
    """What the agent had said is kept, and the turn has the agent's own reason."""
    said, turn = chat(parley, "fail")
    assert (said, turn.state) == ("This will ", TURN_STATE_FAILED)
    assert turn.error.reason == "AGENT_FAILED"
    assert "the shop is closed" in turn.error.message
    assert [(m.content, m.status) for m in answers(parley)] == [
        ("This will ", MESSAGE_STATUS_INCOMPLETE)
    ]
