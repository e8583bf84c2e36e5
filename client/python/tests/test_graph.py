"""The graph of graph.py loses no checkpoint when the server is killed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from graph import PREFIX, TURNS, begin, key_of, run_turn, states
from programs import parleyd

from parley import Client, GetContextRequest, ListMessagesRequest, json_value

if TYPE_CHECKING:
    from pathlib import Path


def test_300_turns(tmp_path: Path) -> None:
    """After a restart all checkpoints are there, in order, and the graph continues."""
    wanted = states(TURNS + 1)
    assert min(len(state["notes"]) for state in wanted) == 2000
    with parleyd(tmp_path, store="bolt") as server:
        with Client(server.address) as client:
            begin(client, "graph")
            for _ in range(TURNS):
                run_turn(client, "graph")
        server.kill()
        server.start()
        with Client(server.address) as client:
            records = client.records("graph")
            stored = list(records.list(PREFIX))
            assert [record.key for record in stored] == [
                key_of(turn) for turn in range(1, TURNS + 1)
            ]
            assert [json_value(record) for record in stored] == wanted[:TURNS]
            assert list(records.list(PREFIX, descending=True)) == stored[::-1]
            assert all(a.revision < b.revision for a, b in pairwise(stored))
            history = client.list_messages(
                ListMessagesRequest(conversation_id="graph", page_size=1000, ascending=True)
            ).messages
            assert [message.content for message in history[1::2]] == [
                state["before"] for state in wanted[:TURNS]
            ]
            run_turn(client, "graph")
            context = client.get_context(
                GetContextRequest(conversation_id="graph", record_prefixes=[key_of(TURNS + 1)])
            )
            assert context.messages[-1].content == wanted[TURNS]["before"]
            assert [json_value(record) for record in context.records] == wanted[TURNS:]
