"""The session services that the tests compare: those of ADK, and Parley."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.adk.sessions import BaseSessionService, InMemorySessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from parley.adapters.adk import ParleySessionService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def open_service(name: str, address: str, folder: Path) -> AsyncIterator[BaseSessionService]:
    """Yield a session service, and close it."""
    if name == "memory":
        yield InMemorySessionService()
    elif name == "sqlite":
        yield SqliteSessionService(str(folder / "sessions.db"))
    elif name == "database":
        async with DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/sessions.db") as database:
            yield database
    else:
        async with ParleySessionService(address) as parley:
            yield parley
