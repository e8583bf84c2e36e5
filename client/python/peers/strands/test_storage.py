"""The contract of storages, by the documentation of Strands' interface, and its guarantees.

The tests of behaviour that both have also run with LocalFileStorage.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ScriptedModel
from programs import parleyd
from strands import Agent
from strands.session import SnapshotSessionManager
from strands.storage import LocalFileStorage, Storage
from strands.types.exceptions import StorageError

from parley import Client
from parley.adapters.strands import ParleyStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return the test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture(params=["file", "tenant", "conversation"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a storage of files, and both scopes of this one."""
    if request.param == "file":
        return LocalFileStorage(str(tmp_path / "files"))
    conversation = "files" if request.param == "conversation" else None
    return ParleyStorage(request.getfixturevalue("fresh"), conversation=conversation)


@in_a_loop
async def test_values(storage: Any) -> None:
    assert isinstance(storage, Storage)
    assert await storage.read("a/b") is None
    assert await storage.list("") == []
    await storage.delete("a/b")
    for key in ("b", "a/c", "a/b"):
        await storage.write(key, key.encode())
    await storage.write("a/b", b"\x00\xff")
    assert await storage.read("a/b") == b"\x00\xff"
    assert await storage.list("") == ["a/b", "a/c", "b"]
    assert await storage.list("a/") == ["a/b", "a/c"]
    assert await storage.list("a/b") == ["a/b"]
    await storage.delete("a/b")
    assert await storage.read("a/b") is None
    assert await storage.list("a/") == ["a/c"]
    await storage.write("empty", b"")
    assert await storage.read("empty") == b""
    with pytest.raises(StorageError):
        await storage.write("", b"x")


@in_a_loop
async def test_search(storage: Any) -> None:
    await storage.write("notes/1", b"Zustand keeps state")
    await storage.write("notes/2", b"nothing of that")
    assert [result.key for result in await storage.search("zustand")] == ["notes/1"]


@in_a_loop
async def test_large_values(storage: Any, fresh: str) -> None:
    for size in (3 << 20, (3 << 20) + 1, 9_000_000, 10):
        value = os.urandom(size)
        await storage.write("large", value)
        assert await storage.read("large") == value
    await storage.write("large", os.urandom(9_000_000))
    await storage.delete("large")
    assert await storage.read("large") is None
    with Client(fresh) as client:  # No piece is left.
        assert not list(client.tenant_records().list())


@in_a_loop
async def test_a_value_whose_part_was_deleted_is_an_error(fresh: str) -> None:
    storage = ParleyStorage(fresh)
    await storage.write("large", b"x" * 5_000_000)
    with Client(fresh) as client:
        records = client.tenant_records()
        part = next(records.list("strands/piece/", keys_only=True))
        records.delete(part.key)
    with pytest.raises(StorageError, match="missing"):
        await asyncio.wait_for(storage.read("large"), 30)
    await storage.write("large", b"small")
    assert await storage.read("large") == b"small"


@in_a_loop
async def test_odd_keys(fresh: str) -> None:
    storage = ParleyStorage(fresh)
    keys = ["..", "a\nb", "a b ", " a", "%", "%25", "é/\u2028", "\\", "a//b", "k" * 490]
    for key in keys:
        await storage.write(key, key.encode())
    for key in keys:
        assert await storage.read(key) == key.encode()
        assert key in await storage.list(key)
        assert key in await storage.list(key[:1])
    assert await storage.list("") == sorted(keys)
    with pytest.raises(StorageError, match="failed"):
        await storage.write("k" * 600, b"x")
    await storage.aclose()


@in_a_loop
async def test_prefixes_are_apart(fresh: str) -> None:
    one, two = ParleyStorage(fresh, prefix="one/"), ParleyStorage(fresh, prefix="two/")
    await one.write("a", b"1")
    assert await two.read("a") is None
    assert await two.list("") == []
    await one.aclose()
    await two.aclose()


@in_a_loop
async def test_1500_keys(fresh: str) -> None:
    storage = ParleyStorage(fresh)
    keys = [f"{number:04}" for number in range(1500)]
    for start in range(0, 1500, 50):
        some = keys[start : start + 50]
        await asyncio.gather(*(storage.write(key, key.encode()) for key in some))
    assert await storage.list("") == keys
    await storage.aclose()


def test_writers_leave_one_complete_value(fresh: str) -> None:
    """Two event loops replace a large value; each reader gets one of the values completely."""
    storage = ParleyStorage(fresh)

    def write(byte: bytes) -> None:
        async def each() -> None:
            for _ in range(4):
                await storage.write("both", byte * 4_000_000)
                value = await storage.read("both")
                assert value in (b"a" * 4_000_000, b"b" * 4_000_000)

        asyncio.run(each())

    threads = [threading.Thread(target=write, args=(byte,)) for byte in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Client(fresh) as client:
        assert len(list(client.tenant_records().list(keys_only=True))) == 1 + 2


def test_a_snapshot_session_survives_a_kill(tmp_path: Path) -> None:
    """An agent continues with its messages after kill -9 of the server."""
    with parleyd(tmp_path, store="bolt") as server:
        for number in range(3):
            storage = ParleyStorage(server.address, conversation="agent")
            manager = SnapshotSessionManager("s", storage=storage)
            agent = Agent(
                ScriptedModel(), agent_id="a", session_manager=manager, callback_handler=None
            )
            assert len(agent.messages) == 2 * number
            agent(f"text {number}")
            server.kill()
            server.start()
