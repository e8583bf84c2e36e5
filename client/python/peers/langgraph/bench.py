"""What a graph costs with ParleySaver, compared with LangGraph's savers for PostgreSQL and SQLite.

The graph has a scripted model that answers with 2 KB. Three graphs take turns, one for each saver,
and each turn is timed alone. All three commit each checkpoint to the disk. PostgreSQL is a server
of its own in a temporary folder, from /usr/lib/postgresql or the folder in PGBIN.

    PARLEYD=../../bin/parleyd .peers/langgraph/bin/python peers/langgraph/bench.py
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from graphs import chat_graph, thread
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from postgres import postgres
from programs import parleyd

from parley.adapters.langgraph import ParleySaver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.checkpoint.base import BaseCheckpointSaver

TURNS = 100
ROUNDS = 5  # or fewer, within the time
MAX_SECONDS = 55.0  # for all rounds


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
        in_postgres = stack.enter_context(PostgresSaver.from_conn_string(f"postgresql://{address}"))
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
