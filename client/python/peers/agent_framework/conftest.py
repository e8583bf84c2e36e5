"""Fixtures of the tests with Microsoft Agent Framework."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    CheckpointStorage,
    Content,
    FileCheckpointStorage,
    FileHistoryProvider,
    FileSessionStore,
    FunctionInvocationLayer,
    HistoryProvider,
    InMemoryCheckpointStorage,
    Message,
    SessionStore,
)
from programs import parleyd

from parley.adapters.agent_framework import (
    ParleyCheckpointStorage,
    ParleyHistoryProvider,
    ParleySessionStore,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path


class ScriptedClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """A model that answers each user message with "Heard: ", its text and how many it got.

    It first calls a tool if the text begins with "double ", and then answers with its result.
    """

    async def _inner_get_response(
        self, *, messages: Sequence[Message], **_: Any
    ) -> ChatResponse[Any]:
        last = messages[-1]
        if last.role == "tool":
            return answer(Content.from_text(f"Result: {last.contents[0].result}"))
        if last.text.startswith("double "):
            number = {"number": float(last.text.split()[1])}
            return answer(
                Content.from_function_call(f"call {last.text}", "double", arguments=number)
            )
        return answer(Content.from_text(f"Heard: {last.text} ({len(messages)})"))


def answer(content: Content) -> ChatResponse[Any]:
    """Return a response with one content."""
    return ChatResponse(messages=[Message("assistant", [content])])


def run(*steps: Awaitable[Any]) -> Any:
    """Run steps one after the other in a new event loop; return the result of the last."""

    async def each() -> Any:
        result = None
        for step in steps:
            result = await step
        return result

    return asyncio.run(each())


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a parleyd that tests share, each with its own ids."""
    folder = tmp_path_factory.mktemp("parleyd")
    with parleyd(folder, "", "--max-conversations=3000", store="bolt") as server:
        yield server.address


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a parleyd of this test."""
    folder = tmp_path / "server"
    folder.mkdir()
    with parleyd(folder, store="bolt") as server:
        yield server.address


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Yield a function that returns its argument and closes it after the test."""
    stack = contextlib.AsyncExitStack()

    def keep(closable: Any) -> Any:
        stack.push_async_callback(closable.aclose)
        return closable

    yield keep
    asyncio.run(stack.aclose())


@pytest.fixture(params=["file", "parley"])
def history(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Any], Any]
) -> Callable[..., HistoryProvider]:
    """Return a function that makes a provider: the framework's own for files, and this one."""
    if request.param == "file":
        return lambda **options: FileHistoryProvider(tmp_path / "history", **options)
    address = request.getfixturevalue("fresh")
    return lambda **options: opened(ParleyHistoryProvider(address, **options))


@pytest.fixture(params=["memory", "file", "parley"])
def sessions(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Any], Any]
) -> SessionStore:
    """Return the framework's own stores, and this one."""
    if request.param == "memory":
        return SessionStore()
    return durable_sessions_of(request, tmp_path, opened)


@pytest.fixture(params=["file", "parley"])
def durable_sessions(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Any], Any]
) -> SessionStore:
    """Return the framework's own store for files, and this one."""
    return durable_sessions_of(request, tmp_path, opened)


def durable_sessions_of(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Any], Any]
) -> SessionStore:
    """Return the store that a fixture asks for."""
    if request.param == "file":
        return FileSessionStore(tmp_path / "sessions")
    store: SessionStore = opened(ParleySessionStore(request.getfixturevalue("fresh")))
    return store


@pytest.fixture(params=["memory", "file", "parley"])
def checkpoints(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Any], Any]
) -> CheckpointStorage:
    """Return the framework's own storages, and this one."""
    if request.param == "memory":
        return InMemoryCheckpointStorage()
    return durable_checkpoints_of(request, tmp_path, opened)


@pytest.fixture(params=["file", "parley"])
def durable_checkpoints(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Any], Any]
) -> CheckpointStorage:
    """Return the framework's own storage for files, and this one."""
    return durable_checkpoints_of(request, tmp_path, opened)


def durable_checkpoints_of(
    request: pytest.FixtureRequest, tmp_path: Path, opened: Callable[[Any], Any]
) -> CheckpointStorage:
    """Return the storage that a fixture asks for."""
    if request.param == "file":
        return FileCheckpointStorage(tmp_path / "checkpoints")
    storage: CheckpointStorage = opened(ParleyCheckpointStorage(request.getfixturevalue("fresh")))
    return storage
