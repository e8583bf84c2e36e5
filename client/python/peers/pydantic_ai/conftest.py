"""Fixtures of the tests with Pydantic AI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from programs import parleyd
from pydantic_ai.conversation_store import ConversationStore, InMemoryConversationStore
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from parley.adapters.pydantic_ai import ParleyConversationStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def script(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Answer "Heard: " and the last prompt, and how many messages there are."""
    part = messages[-1].parts[-1]
    assert isinstance(part, UserPromptPart)
    return ModelResponse(parts=[TextPart(f"Heard: {part.content} ({len(messages)})")])


MODEL = FunctionModel(script)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a parleyd of this test."""
    folder = tmp_path / "server"
    folder.mkdir()
    with parleyd(folder, store="bolt") as server:
        yield server.address


@pytest.fixture(params=["memory", "parley"])
def store(request: pytest.FixtureRequest) -> ConversationStore:
    """Return Pydantic AI's own store, and this one."""
    if request.param == "memory":
        return InMemoryConversationStore()
    return ParleyConversationStore(request.getfixturevalue("fresh"))
