"""The graphs that the tests and the benchmark run. Their model is scripted."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

ANSWER_BYTES = 2000


def answer_to(question: str) -> str:
    """Return the answer of the model: 2 KB that depend on the question."""
    return hashlib.shake_256(question.encode()).hexdigest(ANSWER_BYTES // 2)


def model(state: MessagesState) -> dict[str, Any]:
    """Answer the last message."""
    return {"messages": [AIMessage(answer_to(str(state["messages"][-1].content)))]}


def approval(state: MessagesState) -> dict[str, Any]:
    """Ask a person, and answer with what that person says."""
    decision = interrupt({"question": state["messages"][-1].content})
    return {"messages": [AIMessage(f"decided: {decision}")]}


def chat_graph(saver: BaseCheckpointSaver[str], store: BaseStore | None = None) -> Any:
    """Return a graph that answers each message."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver, store=store)


def approval_graph(saver: BaseCheckpointSaver[str]) -> Any:
    """Return a graph that answers each message, and then waits for a person."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("approval", approval)
    builder.add_edge(START, "model")
    builder.add_edge("model", "approval")
    builder.add_edge("approval", END)
    return builder.compile(checkpointer=saver)


def extended(value: list[str], writes: Sequence[list[str]]) -> list[str]:
    """Return a list with more items."""
    return [*value, *(item for write in writes for item in write)]


class DeltaState(TypedDict):
    """A state of which checkpoints contain a snapshot only now and then."""

    items: Annotated[list[str], DeltaChannel(extended, snapshot_frequency=5)]


def delta_graph(saver: BaseCheckpointSaver[str]) -> Any:
    """Return a graph whose value is in the writes to many checkpoints."""
    builder = StateGraph(DeltaState)
    builder.add_node("count", lambda state: {"items": [str(len(state["items"]))]})
    builder.add_edge(START, "count")
    return builder.compile(checkpointer=saver)


def thread(thread_id: str) -> RunnableConfig:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id}}
