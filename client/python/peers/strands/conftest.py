"""Fixtures of the tests with Strands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from programs import parleyd
from strands.models.model import Model

from parley.adapters.strands import ParleySessionRepository

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path


class ScriptedModel(Model):
    """A model that answers each user message with "Heard: " and its text.

    It first calls a tool if the text begins with "double ", and then answers with its result.
    """

    def update_config(self, **model_config: Any) -> None:
        """Do nothing."""

    def get_config(self) -> Any:
        """Return no settings."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        """Yield the events of an answer."""
        content = messages[-1]["content"][0]
        reason = "end_turn"
        yield {"messageStart": {"role": "assistant"}}
        if "toolResult" in content:
            text = f"Result: {content['toolResult']['content'][0]['text']}"
            yield {"contentBlockDelta": {"delta": {"text": text}}}
        elif content["text"].startswith("double "):
            use = {"name": "double", "toolUseId": f"use {content['text']}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            argument = f'{{"number": {content["text"].split()[1]}}}'
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": argument}}}}
            reason = "tool_use"
        else:
            yield {"contentBlockDelta": {"delta": {"text": f"Heard: {content['text']}"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a parleyd that tests share."""
    folder = tmp_path_factory.mktemp("parleyd")
    with parleyd(folder, "", "--max-conversations=2000", store="bolt") as server:
        yield server.address


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a parleyd of this test."""
    folder = tmp_path / "server"
    folder.mkdir()
    with parleyd(folder, store="bolt") as server:
        yield server.address


@pytest.fixture
def repository(fresh: str) -> Iterator[ParleySessionRepository]:
    """Yield a repository of a server without sessions."""
    repository = ParleySessionRepository(fresh)
    yield repository
    repository.close()
