"""Checkpoints that the tests make without a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import empty_checkpoint

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple


def start(thread_id: str, ns: str = "") -> RunnableConfig:
    """Return the config for the first checkpoint of a thread."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}}


def put(
    saver: BaseCheckpointSaver[str], config: RunnableConfig, values: dict[str, Any], **metadata: Any
) -> RunnableConfig:
    """Put a checkpoint in which all these channels are new; return its config."""
    checkpoint = empty_checkpoint()
    versions = {channel: saver.get_next_version(None, None) for channel in values}
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict(versions)
    return saver.put(config, checkpoint, metadata, dict(versions))  # type: ignore[arg-type]


def get(saver: BaseCheckpointSaver[str], config: RunnableConfig) -> CheckpointTuple:
    """Return a checkpoint that must exist."""
    found = saver.get_tuple(config)
    assert found
    return found


def values_of(saver: BaseCheckpointSaver[str], config: RunnableConfig) -> dict[str, Any]:
    """Return the channels of a checkpoint that must exist."""
    return get(saver, config).checkpoint["channel_values"]
