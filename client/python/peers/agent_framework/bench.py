"""What a history and checkpoints cost, compared with the framework's own ones in files.

Each round times some calls of each backend one after the other, and the order changes from round to
round. The framework does not sync its files to the disk; parleyd does. So "file, synced" also syncs
the file and its folder.

    PARLEYD=../../bin/parleyd .peers/agent_framework/bin/python peers/agent_framework/bench.py
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from agent_framework import (
    CheckpointStorage,
    FileCheckpointStorage,
    FileHistoryProvider,
    HistoryProvider,
    Message,
    WorkflowCheckpoint,
)
from programs import parleyd

from parley.adapters.agent_framework import ParleyCheckpointStorage, ParleyHistoryProvider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

ROUNDS = 30
CALLS = 10  # of each backend in a round
STORED = 100  # messages and checkpoints before the first round


class SyncedHistory(FileHistoryProvider):
    """Histories in files that are on the disk when a call returns."""

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], **kwargs: Any
    ) -> None:
        """Append messages, and sync the file."""
        await super().save_messages(session_id, messages, **kwargs)
        await asyncio.to_thread(sync, self._session_file_path(session_id))


class SyncedCheckpoints(FileCheckpointStorage):
    """Checkpoints in files that are on the disk when a call returns."""

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Write a checkpoint, and sync the file."""
        name = await super().save(checkpoint)
        await asyncio.to_thread(sync, self.storage_path / f"{name}.json")
        return name


def sync(path: Path) -> None:
    """Sync a file and its folder."""
    for each in (path, path.parent):
        file = os.open(each, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def message(number: int) -> Message:
    """Return a message of about 200 bytes."""
    return Message("user", [f"{number:06} " + "x" * 193])


def checkpoint(name: str) -> WorkflowCheckpoint:
    """Return a checkpoint of about 2 KB."""
    return WorkflowCheckpoint(name, "hash", state={"text": "x" * 1800, "steps": (1, 2, 3)})


async def newest(provider: HistoryProvider) -> list[Message]:
    """Return the newest 20 messages. The provider for files can only read all."""
    if isinstance(provider, ParleyHistoryProvider):
        return await provider.get_messages("read", limit=20)
    return (await provider.get_messages("read"))[-20:]


async def measure(backends: dict[str, tuple[HistoryProvider, CheckpointStorage]]) -> None:
    """Print the medians and the ratios of all calls."""
    times: dict[str, dict[str, list[float]]] = {}

    async def timed(what: str, name: str, call: Callable[[], Awaitable[object]]) -> None:
        each = []
        for _ in range(CALLS):
            start = time.perf_counter()
            await call()
            each.append(1000 * (time.perf_counter() - start))
        times.setdefault(what, {}).setdefault(name, []).append(statistics.median(each))

    for provider, storage in backends.values():
        for number in range(STORED):
            await provider.save_messages("read", [message(number)])
            await provider.save_messages("add", [message(number)])
            await storage.save(checkpoint("read"))
    names = list(backends)
    numbers = itertools.count(STORED)
    for _ in range(ROUNDS):
        names = names[1:] + names[:1]
        for name in names:
            provider, storage = backends[name]
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "add a message": lambda p=provider: p.save_messages(  # type: ignore[misc]
                    "add", [message(next(numbers))]
                ),
                "newest 20 messages of 100": lambda p=provider: newest(p),  # type: ignore[misc]
                "all messages of 100": lambda p=provider: p.get_messages("read"),  # type: ignore[misc]
                "save a checkpoint": lambda s=storage: s.save(checkpoint("save")),  # type: ignore[misc]
                "latest checkpoint": lambda s=storage: s.get_latest(workflow_name="read"),  # type: ignore[misc]
            }
            for what, call in calls.items():
                await timed(what, name, call)
    for what, of in times.items():
        print(f"{what}: {statistics.median(of['parley']):.2f} ms")
        for name in ("file", "file, synced"):
            ratios = [ours / theirs for ours, theirs in zip(of["parley"], of[name], strict=True)]
            low, ratio, high = statistics.quantiles(ratios, n=4)
            theirs = statistics.median(of[name])
            print(
                f"  {name} {theirs:.2f} ms; {ratio:.2f}"
                f" (half of the rounds {low:.2f} to {high:.2f})"
            )


def main() -> None:
    """Run all in a temporary folder, whose file system all use."""
    warnings.simplefilter("ignore")  # FileHistoryProvider is experimental.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with parleyd(folder, store="bolt") as server:
            backends: dict[str, tuple[HistoryProvider, CheckpointStorage]] = {
                "parley": (
                    ParleyHistoryProvider(server.address),
                    ParleyCheckpointStorage(server.address),
                ),
                "file": (
                    FileHistoryProvider(folder / "history"),
                    FileCheckpointStorage(folder / "checkpoints"),
                ),
                "file, synced": (
                    SyncedHistory(folder / "synced history"),
                    SyncedCheckpoints(folder / "synced checkpoints"),
                ),
            }
            asyncio.run(measure(backends))


if __name__ == "__main__":
    main()
