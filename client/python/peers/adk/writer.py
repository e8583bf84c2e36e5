"""A program that appends events that change the state, and prints the number of each stored one.

Arguments: the address, the application, the name of the writer, the number of events. It loads the
session again when another writer was faster.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions

from parley.adapters.adk import ParleySessionService

if TYPE_CHECKING:
    from google.adk.sessions import Session


def next_event(session: Session, writer: str) -> Event:
    """Return an event that counts itself in all scopes."""
    count = session.state.get(f"{writer}", 0) + 1
    delta = {
        writer: count,
        f"user:{writer}": count,
        f"app:{writer}": count,
        f"key{count % 7}": [writer, count],
    }
    return Event(author="user", id=f"{writer}-{count}", actions=EventActions(state_delta=delta))


async def main(address: str, app: str, writer: str, number: int) -> None:
    """Append the events."""
    async with ParleySessionService(address) as service:
        ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "s"}
        session = None
        done = 0
        while done < number:
            session = session or await service.get_session(**ids)
            assert session is not None
            try:
                event = await service.append_event(session, next_event(session, writer))
            except StaleSessionError:
                session = None
                continue
            done += 1
            print(event.id, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
