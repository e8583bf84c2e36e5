"""A program that puts 50 checkpoints with a list that grows on a thread."""

from __future__ import annotations

import sys

from checkpoints import put, start

from parley.adapters.langgraph import ParleySaver

address, thread_id, name = sys.argv[1:]
with ParleySaver(address) as saver:
    config = start(thread_id)
    for i in range(50):
        items = [f"{name} {each}" for each in range(i + 1)]
        config = put(saver, config, {"items": items}, writer=name)
