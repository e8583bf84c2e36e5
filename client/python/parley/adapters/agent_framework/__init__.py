"""Microsoft Agent Framework: history of messages, sessions and checkpoints of workflows in Parley.

- :class:`ParleyHistoryProvider` takes the place of FileHistoryProvider,
- :class:`ParleySessionStore` that of FileSessionStore,
- :class:`ParleyCheckpointStorage` that of FileCheckpointStorage.

Start at :class:`ParleyHistoryProvider`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.adapters.agent_framework._checkpoints import ParleyCheckpointStorage
from parley.adapters.agent_framework._history import ParleyHistoryProvider

if TYPE_CHECKING:
    from parley.adapters.agent_framework._sessions import ParleySessionStore

__all__ = ["ParleyCheckpointStorage", "ParleyHistoryProvider", "ParleySessionStore"]


def __getattr__(name: str) -> object:
    """Import ParleySessionStore when it is first used.

    The framework warns that its SessionStore is experimental as soon as there is a subclass of it.
    Programs that use only the other classes get no warning.
    """
    if name == "ParleySessionStore":
        from parley.adapters.agent_framework._sessions import ParleySessionStore

        return ParleySessionStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
