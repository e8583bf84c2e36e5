"""A pytest plugin that runs the SDK's own tests with ParleySession in place of SQLiteSession.

It starts a parleyd with a file, and replaces ``agents.SQLiteSession`` before the tests import it.
Module suite has the rules of deselected.txt and ``--expect``.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agents
import agents.extensions.memory.advanced_sqlite_session  # it subclasses the SDK's own class
import agents.memory
import suite
from programs import parleyd

from parley.adapters import conversation_id
from parley.adapters.openai_agents import ParleySession

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent

resources = ExitStack()
created: set[str] = set()
"""The tests that made a session."""


class SQLiteSession(ParleySession):
    """A ParleySession with the arguments of SQLiteSession: a file is a part of the id."""

    address = ""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: Any = None,
    ) -> None:
        """Use the conversation of this session in this file, or a new one in memory."""
        memory = str(db_path) == ":memory:"
        file = str(uuid.uuid4()) if memory else str(Path(db_path).resolve())
        super().__init__(
            conversation_id(file, sessions_table, messages_table, session_id),
            self.address,
            session_settings=session_settings,
        )
        self.session_id = session_id
        self.db_path = db_path
        created.add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the results."""
    suite.add_option(parser)


def pytest_configure() -> None:
    """Start the server and replace the class."""
    folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
    SQLiteSession.address = resources.enter_context(parleyd(folder, store="bolt")).address
    agents.SQLiteSession = agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc,assignment]


def pytest_unconfigure() -> None:
    """Stop the server."""
    resources.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of deselected.txt."""
    suite.mark_deselected(items, HERE)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Compare the results with the option."""
    suite.compare_results(terminalreporter, config, len(created))
