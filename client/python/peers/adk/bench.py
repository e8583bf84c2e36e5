"""Compare the speed of sessions in Parley with ADK's DatabaseSessionService on a file of SQLite.

    PARLEYD=bin/parleyd python bench.py

It needs the packages of requirements.txt and takes 10 to 40 s. Both services hold a session of 200
events of about 1 KB. The steps of the services alternate, so that both have the same load of the
machine. It prints the medians of both, and the median of the ratios of pairs of steps with the
quartiles.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from google.adk.events import Event, EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.genai import types

from parley.adapters.adk import ParleySessionService

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from programs import parleyd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.adk.sessions import BaseSessionService, Session

PAIRS = 120
NEWEST = GetSessionConfig(num_recent_events=20)


def new_event(number: int, *, state: bool) -> Event:
    """Return an event of about 1 KB, with a change of the session's state or without."""
    content = types.Content(role="user", parts=[types.Part(text="word " * 150)])
    delta = {"number": number} if state else {}
    return Event(author="user", content=content, actions=EventActions(state_delta=delta))


async def timed(step: Awaitable[object]) -> float:
    """Return the milliseconds that a step takes."""
    start = time.perf_counter()
    await step
    return (time.perf_counter() - start) * 1000


async def compare(
    name: str,
    services: tuple[BaseSessionService, BaseSessionService],
    sessions: list[Session],
    step: Callable[[BaseSessionService, Session, int], Awaitable[object]],
) -> None:
    """Print how long a step takes with each service, Parley first."""
    times: list[tuple[float, float]] = []
    for i in range(PAIRS):
        pair = {}
        # Each service is the first of every second pair.
        for k in (0, 1) if i % 2 else (1, 0):
            pair[k] = await timed(step(services[k], sessions[k], i))
        times.append((pair[0], pair[1]))
    ours, theirs = zip(*times, strict=True)
    low, middle, high = statistics.quantiles([a / b for a, b in times], n=4)
    print(
        f"{name}: Parley {statistics.median(ours):.2f} ms, SQLite {statistics.median(theirs):.2f}"
        f" ms, ratio {middle:.2f} (quartiles {low:.2f} to {high:.2f})"
    )


async def main(address: str, folder: Path) -> None:
    """Run all comparisons."""
    url = f"sqlite+aiosqlite:///{folder}/sessions.db"
    async with ParleySessionService(address) as parley, DatabaseSessionService(url) as database:
        services = (parley, database)
        sessions = [await s.create_session(app_name="app", user_id="u") for s in services]
        for i in range(200):
            for service, session in zip(services, sessions, strict=True):
                await service.append_event(session, new_event(i, state=True))

        async def append(service: BaseSessionService, session: Session, i: int) -> None:
            await service.append_event(session, new_event(i, state=False))

        async def append_with_state(service: BaseSessionService, session: Session, i: int) -> None:
            await service.append_event(session, new_event(i, state=True))

        async def newest(service: BaseSessionService, session: Session, i: int) -> None:
            del i
            found = await service.get_session(
                app_name="app", user_id="u", session_id=session.id, config=NEWEST
            )
            assert found is not None
            assert len(found.events) == 20

        await compare("append one event", services, sessions, append)
        await compare("append one event with state", services, sessions, append_with_state)
        await compare("get the newest 20 events", services, sessions, newest)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, parleyd(Path(name), store="bolt") as server:
        asyncio.run(main(server.address, Path(name)))
