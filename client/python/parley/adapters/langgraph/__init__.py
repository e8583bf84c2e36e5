"""LangGraph: a checkpointer and a store that keep their data in Parley.

:class:`ParleySaver` is a checkpointer: the state of a graph survives a restart, and the graph
resumes from any checkpoint. :class:`ParleyStore` is the long-term memory that threads share. Start
at :class:`ParleySaver`.
"""

from parley.adapters.langgraph._saver import ParleySaver
from parley.adapters.langgraph._store import ParleyStore

__all__ = ["ParleySaver", "ParleyStore"]
