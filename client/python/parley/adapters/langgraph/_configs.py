"""What the configs of LangGraph name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


def thread_of(config: RunnableConfig) -> tuple[str, str]:
    """Return the thread and the namespace of a config."""
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")


def config_of(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    """Return the config of a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": ns,
            "checkpoint_id": checkpoint_id,
        }
    }
