"""What a graph costs with ParleySaver, compared with LangGraph's savers for PostgreSQL and SQLite.

The graph has a scripted model that answers with 2 KB. Three graphs take turns, one for each saver,
and each turn is timed alone. All three commit each checkpoint to the disk. PostgreSQL is a server
of its own in a temporary folder, from /usr/lib/postgresql or the folder in PGBIN.

    PARLEYD=../../bin/parleyd .peers/langgraph/bin/python peers/langgraph/bench.py
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from graphs import chat_graph, thread
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from programs import parleyd

from parley.adapters.langgraph import ParleySaver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.checkpoint.base import BaseCheckpointSaver

TURNS = 100
ROUNDS = 5  # or fewer, within the time
MAX_SECONDS = 55.0  # for all rounds


def programs_of_postgres() -> Path:
    """Return the folder of the newest PostgreSQL of this machine."""
    if folder := os.environ.get("PGBIN"):
        return Path(folder)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name)
    if not found:
        sys.exit("bench.py: install postgresql, or set PGBIN to the folder of its programs")
    return found[-1]


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL with its default settings until the block ends; yield how to connect."""
    programs = programs_of_postgres()
    account: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL does not run as root.
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    initialize = [str(programs / "initdb"), "--auth=trust", "--username=bench", f"--pgdata={data}"]
    subprocess.run(initialize, check=True, stdout=subprocess.DEVNULL, cwd=folder, **account)
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder],
        stderr=subprocess.DEVNULL,
        cwd=folder,
        **account,
    )
    try:
        ready = [str(programs / "pg_isready"), "--host=127.0.0.1", f"--port={port}"]
        while subprocess.run(ready, stdout=subprocess.DEVNULL, check=False).returncode:
            if server.poll() is not None:
                sys.exit("bench.py: postgres ended before it served")
            time.sleep(0.05)
        yield f"postgresql://bench@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def savers() -> Iterator[dict[str, BaseCheckpointSaver[str]]]:
    """Yield a saver of each kind, with servers of their own on the same disk."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder)
        folder.chmod(0o755)
        for name in ("parley", "postgres"):
            (folder / name).mkdir()
        server = stack.enter_context(parleyd(folder / "parley", store="bolt"))
        address = stack.enter_context(postgres(folder / "postgres"))
        in_postgres = stack.enter_context(PostgresSaver.from_conn_string(address))
        in_postgres.setup()
        in_sqlite = stack.enter_context(SqliteSaver.from_conn_string(str(folder / "sqlite.db")))
        yield {
            "parley": stack.enter_context(ParleySaver(server.address)),
            "postgres": in_postgres,
            "sqlite": in_sqlite,
        }


def main() -> None:
    """Print the time of the graphs and the ratios."""
    if not os.environ.get("PARLEYD"):
        sys.exit("bench.py: set PARLEYD to the path of a parleyd")
    times: dict[str, list[float]] = {}
    with savers() as all_savers:
        graphs = {name: chat_graph(saver) for name, saver in all_savers.items()}
        began = time.perf_counter()
        for number in range(1, ROUNDS + 1):
            for turn in range(TURNS):
                # Each saver is first in a third of the turns.
                names = list(graphs)
                for name in names[turn % 3 :] + names[: turn % 3]:
                    started = time.perf_counter()
                    graphs[name].invoke(
                        {"messages": [("user", f"turn {turn}")]}, thread(f"graph {number}")
                    )
                    times.setdefault(name, []).append(1000 * (time.perf_counter() - started))
            elapsed = time.perf_counter() - began
            if elapsed + elapsed / number > MAX_SECONDS:
                break
    print(f"{number} graphs of {TURNS} turns with each saver")
    for name, each in times.items():
        print(f"{name}: {sum(each) / number:.0f} ms for a graph")
    for name in ("postgres", "sqlite"):
        ratio = sum(times["parley"]) / sum(times[name])
        turns = [ours / theirs for ours, theirs in zip(times["parley"], times[name], strict=True)]
        low, _, high = statistics.quantiles(turns, n=4)
        print(f"parley / {name}: {ratio:.2f} (half of the turns {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
