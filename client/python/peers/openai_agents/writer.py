"""A process that adds batches to a session: writer.py ADDRESS SESSION NAME BATCHES SIZE.

It prints a line after each batch. The items say the name of the writer, the batch and the item.
"""

from __future__ import annotations

import asyncio
import sys

from parley.adapters.openai_agents import ParleySession


async def write(address: str, session_id: str, name: str, batches: int, size: int) -> None:
    """Add the batches."""
    session = ParleySession(session_id, address)
    for batch in range(batches):
        await session.add_items(
            [{"role": "user", "content": f"{name}/{batch}/{item}"} for item in range(size)]
        )
        print(batch, flush=True)
    await session.aclose()


if __name__ == "__main__":
    target, session_id, name, batches, size = sys.argv[1:]
    asyncio.run(write(target, session_id, name, int(batches), int(size)))
