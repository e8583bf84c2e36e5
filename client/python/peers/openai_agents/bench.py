"""Compare ParleySession with the SDK's own durable sessions: add one item, get the newest 20.

bench.py needs PARLEYD and PostgreSQL, and takes two minutes. It starts a parleyd with a file, and
PostgreSQL as tests/postgres.py says. Each round times some calls of each session one after the
other, and the order changes from round to round. All write to the same disk, and all acknowledge
an item only when it is there.

    PARLEYD=../../bin/parleyd .peers/openai_agents/bin/python peers/openai_agents/bench.py
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from agents import SQLiteSession
from agents.extensions.memory import (
    AdvancedSQLiteSession,
    AsyncSQLiteSession,
    SQLAlchemySession,
)
from postgres import postgres
from programs import parleyd

from parley.adapters.openai_agents import ParleySession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agents.memory import Session

    Operation = Callable[[Session], Awaitable[Any]]

ITEM: Any = {"role": "user", "content": "Which libraries keep state? " * 10}
FILLED = 500  # items before the first round
CALLS = 20  # of each session in a round
SECONDS = 50  # for each operation


async def timed(operation: Operation, session: Session) -> float:
    """Return the median time of some calls, in milliseconds."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        await operation(session)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


async def compare(what: str, operation: Operation, sessions: dict[str, Session]) -> None:
    """Print the times of an operation, and the ratios of the first session to the others."""
    rounds: dict[str, list[float]] = {name: [] for name in sessions}
    names = list(sessions)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        names = names[1:] + names[:1]
        for name in names:
            rounds[name].append(await timed(operation, sessions[name]))
    ours = rounds["parley"]
    print(f"{what}: parley {statistics.median(ours):.2f} ms, {len(ours)} rounds")
    for name, theirs in rounds.items():
        if theirs is not ours:
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(
                f"  {name} {statistics.median(theirs):.2f} ms; {middle:.2f}"
                f" (half of the rounds {low:.2f} to {high:.2f})"
            )


async def main(server: str, database: str, folder: Path) -> None:
    """Compare both operations."""
    files = f"sqlite+aiosqlite:///{folder}/sqlalchemy.db"
    parley = ParleySession("bench", server)
    sqlite = SQLiteSession("bench", folder / "sqlite.db")
    asyncio_sqlite = AsyncSQLiteSession("bench", folder / "async.db")
    advanced = AdvancedSQLiteSession(
        session_id="bench", db_path=folder / "advanced.db", create_tables=True
    )
    alchemy = [
        SQLAlchemySession.from_url("bench", url=url, create_tables=True)
        for url in (files, f"postgresql+asyncpg://{database}")
    ]
    sessions: dict[str, Session] = {
        "parley": parley,
        "SQLiteSession": sqlite,
        "AsyncSQLiteSession": asyncio_sqlite,
        "AdvancedSQLiteSession": advanced,
        "SQLAlchemySession, SQLite": alchemy[0],
        "SQLAlchemySession, PostgreSQL": alchemy[1],
    }
    for session in sessions.values():
        await session.add_items([ITEM] * FILLED)
    await compare("add one item", lambda session: session.add_items([ITEM]), sessions)
    await compare("get the newest 20", lambda session: session.get_items(20), sessions)
    await parley.aclose()
    await asyncio_sqlite.close()
    for each in alchemy:
        await each.engine.dispose()
    sqlite.close()
    advanced.close()


if __name__ == "__main__":
    if "PARLEYD" not in os.environ:
        raise SystemExit("bench.py: set PARLEYD to the path of a parleyd")
    with ExitStack() as stack:
        temporary = Path(tempfile.mkdtemp())  # TMPDIR chooses the disk.
        stack.callback(shutil.rmtree, temporary)
        temporary.chmod(0o755)
        for part in ("parley", "postgres"):
            (temporary / part).mkdir()
        parley_server = stack.enter_context(parleyd(temporary / "parley", store="bolt"))
        postgres_server = stack.enter_context(postgres(temporary / "postgres"))
        asyncio.run(main(parley_server.address, postgres_server, temporary))
