"""What sessions cost, compared with Strands' sessions in files.

Each round times ten calls of each repository one after the other, and the order changes from round
to round. FileSessionManager writes a file for each message and does not sync it to the disk;
parleyd does. So "file, synced" also syncs the file.

    PARLEYD=../../bin/parleyd .peers/strands/bin/python peers/strands/bench.py
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from programs import parleyd
from strands.session import FileSessionManager, RepositorySessionManager
from strands.types.session import SessionAgent, SessionMessage

from parley.adapters.strands import ParleySessionRepository

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 40
CALLS = 10  # of each repository in a round


class SyncedFiles(FileSessionManager):
    """Sessions in files that are on the disk when a call returns."""

    def _write_file(self, path: str, data: dict[str, Any]) -> None:
        super()._write_file(path, data)
        for name in (path, str(Path(path).parent)):
            file = os.open(name, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def message(number: int) -> SessionMessage:
    """Return a message of 200 bytes."""
    content: Any = [{"text": "x" * 200}]
    return SessionMessage(message={"role": "user", "content": content}, message_id=number)


def measure(repositories: dict[str, Any]) -> None:
    """Print the medians and the ratios for adding a message and for reading the newest 20."""
    times: dict[str, dict[str, list[float]]] = {"add": {}, "newest 20": {}}

    def timed(what: str, name: str, call: Callable[[int], object]) -> None:
        each = []
        for i in range(CALLS):
            start = time.perf_counter()
            call(i)
            each.append(1000 * (time.perf_counter() - start))
        times[what].setdefault(name, []).append(statistics.median(each))

    for repository in repositories.values():
        for agent in ("read", "add"):
            repository.create_agent(
                "s", SessionAgent(agent_id=agent, state={}, conversation_manager_state={})
            )
        for number in range(100):
            repository.create_message("s", "read", message(number))
    names = list(repositories)
    for first in range(0, ROUNDS * CALLS, CALLS):
        names = names[1:] + names[:1]
        ones = [message(first + i) for i in range(CALLS)]
        for name in names:
            r = repositories[name]
            timed("add", name, lambda i, r=r, ones=ones: r.create_message("s", "add", ones[i]))  # type: ignore[misc]
        for name in names:
            r = repositories[name]
            timed("newest 20", name, lambda _, r=r: r.list_messages("s", "read", offset=80))  # type: ignore[misc]
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
    """Run all in a temporary folder, whose file system both use."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with parleyd(folder, store="bolt") as server:
            parley = ParleySessionRepository(server.address)
            RepositorySessionManager("s", parley)
            files = FileSessionManager("s", storage_dir=str(folder / "files"))
            synced = SyncedFiles("s", storage_dir=str(folder / "synced"))
            measure({"parley": parley, "file": files, "file, synced": synced})
            parley.close()


if __name__ == "__main__":
    main()
