"""Compare ParleySession with SQLiteSession on a file: add one item, get the newest 20.

bench.py needs PARLEYD, and takes half a minute. It starts a parleyd with a file. Each round times
both sessions one after the other, and the order changes from round to round. Both write to the
same disk and both acknowledge an item only when it is there.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents import SQLiteSession
from programs import parleyd

from parley.adapters.openai_agents import ParleySession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Operation = Callable[[], Awaitable[Any]]

ITEM: Any = {"role": "user", "content": "Which libraries keep state? " * 10}
FILLED = 500  # items before the first round
CALLS = 20  # of each session in a round
SECONDS = 12  # for each operation


async def timed(operation: Operation) -> float:
    """Return the median time of some calls, in milliseconds."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        await operation()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


async def compare(name: str, parley: Operation, sqlite: Operation) -> None:
    """Print the times of an operation and their ratio."""
    rounds: list[tuple[float, float]] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if len(rounds) % 2:
            second = await timed(sqlite)
            rounds.append((await timed(parley), second))
        else:
            first = await timed(parley)
            rounds.append((first, await timed(sqlite)))
    ratios = [ours / theirs for ours, theirs in rounds]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ours, theirs = (statistics.median(times) for times in zip(*rounds, strict=True))
    print(
        f"{name}: parley {ours:.2f} ms, sqlite {theirs:.2f} ms, ratio {middle:.2f}"
        f" (half of {len(rounds)} rounds in {low:.2f} to {high:.2f})"
    )


async def main(address: str, folder: Path) -> None:
    """Compare both operations."""
    parley = ParleySession("bench", address)
    sqlite = SQLiteSession("bench", folder / "sqlite.db")
    for session in (parley, sqlite):
        await session.add_items([ITEM] * FILLED)
    await compare(
        "add one item", lambda: parley.add_items([ITEM]), lambda: sqlite.add_items([ITEM])
    )
    await compare("get the newest 20", lambda: parley.get_items(20), lambda: sqlite.get_items(20))
    await parley.aclose()
    sqlite.close()


if __name__ == "__main__":
    # TMPDIR chooses the disk.
    with tempfile.TemporaryDirectory() as temporary:
        if "PARLEYD" not in os.environ:
            raise SystemExit("bench.py: set PARLEYD to the path of a parleyd")
        with parleyd(Path(temporary), store="bolt") as server:
            asyncio.run(main(server.address, Path(temporary)))
