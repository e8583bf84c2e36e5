"""Fixtures of the tests: a parleyd with an agent and the OpenAI API."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from facade import Facade, facade

import parley

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from parley import Piece


class Weather(parley.Agent):
    """An agent that asks for the weather, and repeats everything else."""

    def __init__(self) -> None:
        """Make the agent."""
        self.released = threading.Event()

    async def respond(self, request: parley.RespondRequest) -> AsyncIterator[Piece]:
        """Answer the last message."""
        last = request.messages[-1]
        if last.content == "weather":
            yield "I ask. "
            yield parley.ToolCall(id="c1", name="weather", arguments='{"city": "K\u00f6ln"}')
        elif last.content == "slow":
            yield "Once upon"
            await asyncio.to_thread(self.released.wait)
            yield " a time."
        else:
            yield f"re: {last.content or last.tool_result.content}"


@pytest.fixture
def agent() -> Weather:
    """Return the agent of the server."""
    return Weather()


@pytest.fixture
def server(agent: Weather, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facade]:
    """Yield a parleyd with a file whose agent "own" is the one of the test."""
    serving = threading.Event()
    address = ""
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        nonlocal address
        async with agent.serving("127.0.0.1:0") as running:
            address = running.address
            serving.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    serving.wait()
    config = f'agents: {{own: {{kind: remote, address: "{address}"}}}}\n'
    try:
        with facade(tmp_path_factory.mktemp("parleyd"), config) as running:
            yield running
    finally:
        agent.released.set()
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
