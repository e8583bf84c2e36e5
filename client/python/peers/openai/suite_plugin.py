"""A pytest plugin that runs the SDK's own tests with OpenAIConversationsSession for SQLiteSession.

It starts a parleyd with a file, and replaces ``agents.SQLiteSession`` before the tests import it.
Module suite has the rules of deselected.txt and ``--expect``.

OpenAI adds ids and defaults to items, and the tests compare with items that have none. So the
session of the tests checks each item that it reads, and then returns it as it was added.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agents
import agents.extensions.memory.advanced_sqlite_session  # it subclasses the SDK's own class
import agents.memory
import suite
from agents.memory import OpenAIConversationsSession
from facade import facade
from openai import AsyncOpenAI, OpenAI

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent

resources = ExitStack()
created: set[str] = set()
"""The tests that made a session."""
added: dict[str, Any] = {}
"""The items as they were added, by the id that the server gave them."""
conversations: dict[tuple[str, ...], str] = {}
"""The ids of the conversations of sessions."""
creating = threading.Lock()


def completed(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item with the defaults that OpenAI adds."""
    whole = dict(json.loads(json.dumps(item)))
    kind = whole.get("type")
    if "role" in whole and kind in (None, "message"):
        whole["type"] = "message"
        if isinstance(whole.get("content"), str):
            part = {"type": "input_text", "text": whole["content"]}
            if whole["role"] == "assistant":
                part = {"type": "output_text", "text": whole["content"]}
                part |= {"annotations": [], "logprobs": []}
            whole["content"] = [part]
    elif kind not in ("function_call", "function_call_output"):
        return whole
    if whole.get("status") is None:
        whole["status"] = "completed"
    return whole


def check(item: dict[str, Any], got: dict[str, Any]) -> None:
    """Check that the server returns an item as it was added, with an id and the defaults."""
    want = completed(item)
    if not want.get("id"):
        want["id"] = got["id"]
    assert got == want


class Items:
    """The items of the client, whose create keeps what was added."""

    def __init__(self, items: Any) -> None:
        """Wrap the items of a client."""
        self._items = items

    def __getattr__(self, name: str) -> Any:
        """Return what the client has."""
        return getattr(self._items, name)

    async def create(self, conversation_id: str, items: list[Any]) -> Any:
        """Create items and check what the server returns."""
        reply = await self._items.with_raw_response.create(conversation_id, items=items)
        for item, got in zip(items, json.loads(reply.text)["data"], strict=True):
            check(item, got)
            added[got["id"]] = json.loads(json.dumps(item))
        return reply.parse()


class SQLiteSession(OpenAIConversationsSession):
    """An OpenAIConversationsSession with the arguments of SQLiteSession."""

    url = ""

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
        self._key = (file, sessions_table, messages_table, session_id)
        self._loops: dict[Any, dict[str, Any]] = {}
        super().__init__(
            openai_client=AsyncOpenAI(base_url=self.url, api_key="any"),
            session_settings=session_settings,
        )
        self._name = session_id
        self.db_path = db_path
        created.add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])

    @property
    def session_id(self) -> str:
        """The id that the test has chosen."""
        return self._name

    @session_id.setter
    def session_id(self, value: str) -> None:
        self._name = value

    async def _get_session_id(self) -> str:
        with creating:
            if self._key not in conversations:
                with OpenAI(base_url=self.url, api_key="any") as client:
                    conversations[self._key] = client.conversations.create(items=[]).id
            self._session_id = conversations[self._key]
        return self._session_id

    async def clear_session(self) -> None:
        """Delete the conversation."""
        await self._get_session_id()
        conversations.pop(self._key, None)
        await super().clear_session()

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items as they were added."""
        return [as_added(item) for item in await super().get_items(limit)]

    async def pop_item(self) -> Any:
        """Return the item as it was added."""
        item = await super().pop_item()
        return None if item is None else as_added(item)

    def close(self) -> None:
        """Do nothing: sessions of OpenAI have nothing to close."""


def as_added(item: Any) -> Any:
    """Return an item as it was added, if it was added by :class:`Items`."""
    if item["id"] not in added:
        return item
    check(added[item["id"]], item)
    return added[item["id"]]


def of_loop(name: str, make: Any) -> property:
    """Return an attribute that each event loop has for itself, as the tests use several."""

    def read(session: SQLiteSession) -> Any:
        values = session._loops.setdefault(asyncio.get_running_loop(), {})
        if name not in values:
            values[name] = make()
        return values[name]

    return property(read, lambda _session, _value: None)


def make_client() -> AsyncOpenAI:
    """Return a client that checks the items it creates."""
    client = AsyncOpenAI(base_url=SQLiteSession.url, api_key="any")
    client.conversations.__dict__["items"] = Items(client.conversations.items)
    return client


SQLiteSession._openai_client = of_loop("client", make_client)  # type: ignore[assignment]
SQLiteSession._mutation_lock = of_loop("mutation", asyncio.Lock)  # type: ignore[assignment]
SQLiteSession._session_id_lock = of_loop("session", asyncio.Lock)  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the results."""
    suite.add_option(parser)


def pytest_configure() -> None:
    """Start the server and replace the class."""
    folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
    SQLiteSession.url = resources.enter_context(facade(folder)).url
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
