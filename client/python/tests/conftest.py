"""Fixtures for several test files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake import Hanging, serving
from programs import parleyd, shop_agent

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def agent_address() -> Iterator[str]:
    """Yield the address of the example agent. It has no state, so all tests share it."""
    with shop_agent() as (_, address):
        yield address


@pytest.fixture(scope="session")
def server_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a parleyd that the tests share, each with its own conversations."""
    with parleyd(tmp_path_factory.mktemp("parleyd")) as server:
        yield server.address


@pytest.fixture
def hanging() -> Hanging:
    """Return the handlers of the server at address."""
    return Hanging()


@pytest.fixture
def address(hanging: Hanging) -> Iterator[str]:
    """Yield the address of a server that begins answers and then hangs."""
    with serving(
        Chat=hanging.chat,
        WatchConversations=hanging.watch,
        ExportConversations=hanging.export,
        GetConversation=hanging.get,
    ) as address:
        yield address
