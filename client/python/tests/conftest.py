"""Fixtures that several test files use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake import Hanging, serving
from programs import parleyd, shop_agent

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def agent_address() -> Iterator[str]:
    """Give the address of one running example agent; it keeps nothing, so all tests share it."""
    with shop_agent() as (_, address):
        yield address


@pytest.fixture(scope="session")
def server_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a parleyd that tests share, each with conversations of its own."""
    with parleyd(tmp_path_factory.mktemp("parleyd")) as server:
        yield server.address


@pytest.fixture
def hanging() -> Hanging:
    """Give what the server at address answers with."""
    return Hanging()


@pytest.fixture
def address(hanging: Hanging) -> Iterator[str]:
    """Give the address of a server that begins answers and then hangs."""
    with serving(
        Chat=hanging.chat,
        WatchConversations=hanging.watch,
        ExportConversations=hanging.export,
        GetConversation=hanging.get,
    ) as address:
        yield address
