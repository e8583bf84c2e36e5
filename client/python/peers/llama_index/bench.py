"""What the store costs, compared with LlamaIndex' store for SQLite.

One run, in which both take turns for each call. SQLAlchemyChatStore commits each message to the
disk, and so does parleyd. The key has 20 messages of 200 bytes, as many as a chat reads.

    PARLEYD=../../bin/parleyd .peers/llama_index/bin/python peers/llama_index/bench.py
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from programs import parleyd

from parley.adapters.llama_index import ParleyChatStore

ROUNDS = 300
GROUPS = 5  # of rounds, for the spread


async def measure(address: str, file: Path) -> None:
    """Print the medians and their ratio for adding a message and for reading 20."""
    sqlite = SQLAlchemyChatStore("chat", f"sqlite+aiosqlite:///{file}")
    ours = ParleyChatStore(address)
    message = ChatMessage(role="user", content="x" * 200)
    times: dict[str, tuple[list[float], list[float]]] = {"add": ([], []), "get 20": ([], [])}

    async def timed(into: list[float], call: Any) -> None:
        start = time.perf_counter()
        await call
        into.append(time.perf_counter() - start)

    for i in range(20):
        await sqlite.add_message("read", message)
        await ours.async_add_message("read", message)
        if i == 0:
            await sqlite.get_messages("read")
    for i in range(ROUNDS):
        key = f"add {i % 10}"
        await timed(times["add"][0], ours.async_add_message(key, message))
        await timed(times["add"][1], sqlite.add_message(key, message))
        await timed(times["get 20"][0], ours.aget_messages("read"))
        await timed(times["get 20"][1], sqlite.get_messages("read"))
    size = ROUNDS // GROUPS
    for name, (our_times, their_times) in times.items():
        ratios = sorted(
            statistics.median(our_times[i : i + size])
            / statistics.median(their_times[i : i + size])
            for i in range(0, ROUNDS, size)
        )
        a, b = (1000 * statistics.median(each) for each in (our_times, their_times))
        ratio, least, most = statistics.median(ratios), ratios[0], ratios[-1]
        print(f"{name}: {a:.2f} ms, SQLite {b:.2f} ms; {ratio:.2f} ({least:.2f} to {most:.2f})")
    await ours.aclose()


def main() -> None:
    """Run both in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with parleyd(folder, store="bolt") as server:
            asyncio.run(measure(server.address, folder / "chat.db"))


if __name__ == "__main__":
    main()
