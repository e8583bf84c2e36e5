"""Fixtures of the tests with ADK."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from backends import open_service
from programs import parleyd

from parley.adapters.adk import ParleySessionService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from google.adk.sessions import BaseSessionService


@pytest.fixture
def anyio_backend() -> str:
    """Run the async tests with asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a parleyd that the tests share, each with its own application."""
    folder = tmp_path_factory.mktemp("parleyd")
    # Sessions are not evicted, so that the default of 1000 would refuse the next one.
    with parleyd(folder, "", "--max-conversations=20000", store="bolt") as server:
        yield server.address


@pytest.fixture
def app() -> str:
    """Return the name of an application that no other test uses."""
    return f"app-{uuid.uuid4()}"


@pytest.fixture
async def parley(address: str) -> AsyncIterator[ParleySessionService]:
    """Yield a session service of Parley."""
    async with ParleySessionService(address) as service:
        yield service


@pytest.fixture(params=["memory", "database", "sqlite", "parley"])
async def service(
    request: pytest.FixtureRequest, address: str, tmp_path: Path
) -> AsyncIterator[BaseSessionService]:
    """Yield each of the session services."""
    async for service in open_service(request.param, address, tmp_path):
        yield service


@pytest.fixture(params=["database", "parley"])
async def guarded(
    request: pytest.FixtureRequest, address: str, tmp_path: Path
) -> AsyncIterator[BaseSessionService]:
    """Yield each of the session services that find stale sessions."""
    async for service in open_service(request.param, address, tmp_path):
        yield service
