"""A program that kills itself in the fourth turn of a graph, before the model answers."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import graphs

from parley.adapters.langgraph import ParleySaver

model = graphs.model


def dying_model(state: Any) -> dict[str, Any]:
    """Answer, or die."""
    if len(state["messages"]) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return model(state)


graphs.model = dying_model
graph = graphs.chat_graph(ParleySaver(sys.argv[1]))
for turn in range(4):
    graph.invoke(
        {"messages": [("user", f"turn {turn}")]}, graphs.thread("dying"), durability="sync"
    )
