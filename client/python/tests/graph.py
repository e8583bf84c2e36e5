"""A graph that keeps its state in records, as the checkpointer of an agent framework does.

Each turn appends its messages and a checkpoint of 2 KB in one commit. As a program, it prints what
the last of 300 turns costs, compared with the tenth:

    PARLEYD=../../bin/parleyd .venv/bin/python tests/graph.py
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from programs import parleyd

from parley import (
    AppendMessagesRequest,
    Client,
    Conversation,
    LoadConversationRequest,
    Message,
    Retention,
    Role,
    json_value,
    json_write,
)

TURNS = 300
PREFIX = "checkpoint/"
START = {"turn": 0, "before": "", "notes": ""}

GRAPHS = 10  # that the program runs
WINDOW = 10  # turns that the program compares: those around the tenth, and the last ones


def next_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state after one more turn. It depends on all of the state before."""
    before = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    notes = hashlib.shake_256(before.digest()).hexdigest(1000)
    return {"turn": state["turn"] + 1, "before": before.hexdigest(), "notes": notes}


def states(turns: int) -> list[dict[str, Any]]:
    """Return the states after each of the first turns."""
    found, state = [], dict[str, Any](START)
    for _ in range(turns):
        state = next_state(state)
        found.append(state)
    return found


def key_of(turn: int) -> str:
    """Return the key of a checkpoint. The keys are in the order of the turns."""
    return f"{PREFIX}{turn:06}"


def begin(client: Client, conversation: str) -> None:
    """Create a conversation that keeps all messages."""
    kept = Retention(keep_all=True, no_expiry=True)
    request = LoadConversationRequest(
        conversation_id=conversation, create_with=Conversation(retention=kept)
    )
    client.load_conversation(request)


def run_turn(client: Client, conversation: str) -> None:
    """Execute the turn after the newest checkpoint: read that, then append messages and the next.

    Two programs that execute the same turn do not both succeed, because the checkpoint must not
    exist.
    """
    checkpoints = client.records(conversation).list(PREFIX, descending=True, page_size=1)
    newest = next(checkpoints, None)
    state = next_state(json_value(newest) if newest else START)
    messages = [
        Message(role=Role.ROLE_USER, content=f"turn {state['turn']}"),
        Message(role=Role.ROLE_ASSISTANT, content=state["before"]),
    ]
    checkpoint = json_write(key_of(state["turn"]), state, if_revision=0)
    client.append_messages(
        AppendMessagesRequest(conversation_id=conversation, messages=messages, records=[checkpoint])
    )


def main() -> None:
    """Print the times and their ratio."""
    if not os.environ.get("PARLEYD"):
        sys.exit("graph.py: set PARLEYD to the path of a parleyd")
    tenth: list[float] = []
    last: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        parleyd(Path(folder), store="bolt") as server,
        Client(server.address) as client,
    ):
        for graph in range(GRAPHS):
            times = []
            begin(client, f"graph {graph}")
            for _ in range(TURNS):
                started = time.perf_counter()
                run_turn(client, f"graph {graph}")
                times.append(1000 * (time.perf_counter() - started))
            tenth += times[9 - WINDOW // 2 : 9 + WINDOW // 2]
            last += times[-WINDOW:]
    early, late = statistics.median(tenth), statistics.median(last)
    print(f"turn 10: {early:.2f} ms, turn {TURNS}: {late:.2f} ms, ratio {late / early:.2f}")
    print(f"medians of {len(last)} turns: {GRAPHS} graphs, {WINDOW} turns of each")


if __name__ == "__main__":
    main()
