"""Fixtures of the tests with LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from programs import parleyd

from parley import Client
from parley.adapters.langgraph import ParleySaver, ParleyStore

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a parleyd that the tests share, each with its own threads."""
    with parleyd(tmp_path_factory.mktemp("parleyd"), store="bolt") as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """Yield a client of that server."""
    with Client(address) as client:
        yield client


@pytest.fixture
def saver(address: str) -> Iterator[ParleySaver]:
    """Yield a saver of that server."""
    with ParleySaver(address) as saver:
        yield saver


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ParleyStore]:
    """Yield a store of a server of its own, because all stores of a server share their items."""
    with (
        parleyd(tmp_path_factory.mktemp("parleyd"), store="bolt") as server,
        ParleyStore(server.address) as store,
    ):
        yield store
