"""What sessions cost, compared with Strands' sessions in files.

One run, in which both take turns for each call. FileSessionManager writes a file for each message
and does not sync it to the disk; parleyd does. So "file, synced" also syncs the file.

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

ROUNDS = 300
GROUPS = 5  # of rounds, for the spread


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

    def timed(what: str, name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        call()
        times[what].setdefault(name, []).append(time.perf_counter() - start)

    for repository in repositories.values():
        for agent in ("read", "add"):
            repository.create_agent(
                "s", SessionAgent(agent_id=agent, state={}, conversation_manager_state={})
            )
        for number in range(100):
            repository.create_message("s", "read", message(number))
    for number in range(ROUNDS):
        for name, repository in repositories.items():
            one = message(number)
            timed("add", name, lambda r=repository, m=one: r.create_message("s", "add", m))  # type: ignore[misc]
            timed("newest 20", name, lambda r=repository: r.list_messages("s", "read", offset=80))  # type: ignore[misc]
    size = ROUNDS // GROUPS
    for what, of in times.items():
        ours = of["parley"]
        print(f"{what}: {1000 * statistics.median(ours):.2f} ms")
        for name in ("file", "file, synced"):
            ratios = sorted(
                statistics.median(ours[i : i + size]) / statistics.median(of[name][i : i + size])
                for i in range(0, ROUNDS, size)
            )
            theirs, ratio = 1000 * statistics.median(of[name]), statistics.median(ratios)
            print(f"  {name} {theirs:.2f} ms; {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


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
