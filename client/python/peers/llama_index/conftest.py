"""Fixtures of the tests with LlamaIndex."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from llama_index.core.storage.chat_store import SimpleChatStore
from programs import parleyd

from parley.adapters.llama_index import ParleyChatStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class AsyncStore:
    """The async methods of a store under the names of the sync ones, each in a new event loop."""

    def __init__(self, store: ParleyChatStore) -> None:
        """Use this store."""
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method that waits."""
        method = getattr(self._store, "async_add_message" if name == "add_message" else f"a{name}")
        return lambda *args, **kwargs: asyncio.run(method(*args, **kwargs))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a parleyd that tests share, each with its own keys."""
    folder = tmp_path_factory.mktemp("parleyd")
    with parleyd(folder, "", "--max-conversations=2000", store="bolt") as server:
        yield server.address


@pytest.fixture
def parley_store(shared: str) -> Iterator[ParleyChatStore]:
    """Yield a store of that server without any key."""
    store = ParleyChatStore(shared)
    for key in store.get_keys():
        store.delete_messages(key)
    yield store
    store.close()


@pytest.fixture(params=["simple", "sync", "async"])
def store(request: pytest.FixtureRequest) -> Any:
    """Return LlamaIndex' own store, and both forms of this one."""
    if request.param == "simple":
        return SimpleChatStore()
    parley_store = request.getfixturevalue("parley_store")
    return parley_store if request.param == "sync" else AsyncStore(parley_store)
