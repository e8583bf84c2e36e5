"""A process that runs turns of an agent in a session, and prints the number of each after it."""

from __future__ import annotations

import asyncio
import sys

from agent_framework import Agent
from conftest import ScriptedClient

from parley.adapters.agent_framework import ParleyHistoryProvider


async def write(address: str, session_id: str, name: str, turns: int) -> None:
    """Run the turns."""
    history = ParleyHistoryProvider(address)
    agent = Agent(ScriptedClient(), context_providers=[history])
    session = agent.create_session(session_id=session_id)
    for number in range(turns):
        await agent.run(f"{name} {number}", session=session)
        print(number, flush=True)
    await history.aclose()


def main() -> None:
    """Run the turns. The last arguments are the address, session, name and number of turns."""
    address, session_id, name, turns = sys.argv[-4:]
    asyncio.run(write(address, session_id, name, int(turns)))
