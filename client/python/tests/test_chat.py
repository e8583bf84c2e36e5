"""The example agent with a real parleyd; the variable PARLEYD contains its path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake import text_of
from google.protobuf import json_format
from programs import parleyd

from parley import (
    ChatRequest,
    Client,
    LoadConversationRequest,
    Message,
    MessageStatus,
    Role,
    Turn,
    TurnState,
)

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
def client(agent_address: str, tmp_path: Path) -> Iterator[Client]:
    """Connect to a server whose agent "shop" is the example."""
    config = f'agents:\n  shop: {{kind: remote, address: "{agent_address}"}}\n'
    with parleyd(tmp_path, config) as server, Client(server.address) as client:
        yield client


def chat(client: Client, content: str) -> tuple[str, Turn]:
    """Send a message to the shop; return the streamed text and the final turn."""
    request = ChatRequest(conversation_id="demo", agent="shop", content=content)
    *events, end = client.chat(request)
    assert end.HasField("finished"), "the stream's last event is not finished"
    return text_of(events), end.finished.turn


def answers(client: Client) -> list[Message]:
    """Return the stored messages of the agent."""
    stored = client.load_conversation(LoadConversationRequest(conversation_id="demo")).messages
    return [message for message in stored if message.role == Role.ROLE_ASSISTANT]


def data_of(message: Message) -> list[tuple[str, Any]]:
    """Return the structured data of a message as Python values."""
    return [(data.type, json_format.MessageToDict(data.value)) for data in message.structured_data]


def test_three_turns(client: Client) -> None:
    """The agent resolves "the second one" from its own answers in the history."""
    for content, text, _, _ in TURNS:
        streamed, turn = chat(client, content)
        assert (streamed, turn.state) == (text, TurnState.TURN_STATE_COMPLETED)
    stored = answers(client)
    assert [(m.content, m.summary, data_of(m)) for m in stored] == [
        (text, summary, [("product_list", products)]) for _, text, summary, products in TURNS
    ]
    assert {(m.agent, m.status) for m in stored} == {
        ("shop", MessageStatus.MESSAGE_STATUS_COMPLETE)
    }


def test_failing_turn(client: Client) -> None:
    """The text before the failure is stored, and the turn has the agent's message."""
    streamed, turn = chat(client, "fail")
    assert (streamed, turn.state) == ("This will ", TurnState.TURN_STATE_FAILED)
    assert turn.error.reason == "AGENT_FAILED"
    assert "the shop is closed" in turn.error.message
    assert [(m.content, m.status) for m in answers(client)] == [
        ("This will ", MessageStatus.MESSAGE_STATUS_INCOMPLETE)
    ]
