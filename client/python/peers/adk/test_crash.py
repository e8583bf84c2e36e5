"""Crashes of the server and of the client, and several processes on one session."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.events import Event, EventActions
from programs import parleyd

from parley.adapters.adk import ParleySessionService

if TYPE_CHECKING:
    from google.adk.sessions import Session

pytestmark = pytest.mark.anyio

WRITER = Path(__file__).with_name("writer.py")


def start_writer(address: str, app: str, writer: str, number: int) -> subprocess.Popen[str]:
    """Start a process that appends this number of events."""
    arguments = [address, app, writer, str(number)]
    return subprocess.Popen(
        [sys.executable, str(WRITER), *arguments], stdout=subprocess.PIPE, text=True
    )


def fold(events: list[Event]) -> dict[str, Any]:
    """Return the state that the deltas of events result in."""
    state = dict[str, Any]()
    for event in events:
        state.update(event.actions.state_delta)
    return state


async def load(service: ParleySessionService, app: str) -> Session:
    """Return the session of the writers."""
    found = await service.get_session(app_name=app, user_id="u", session_id="s")
    assert found is not None
    return found


async def test_killed_client_leaves_event_and_state_together(
    parley: ParleySessionService, app: str, address: str
) -> None:
    """At whatever point the client is killed, the state is that of all stored events."""
    await parley.create_session(app_name=app, user_id="u", session_id="s")
    acknowledged = list[str]()
    chance = random.Random(24)  # noqa: S311 - not a secret
    for _ in range(4):
        with start_writer(address, app, "w", 10_000) as process:
            assert process.stdout
            for _ in range(chance.randint(5, 40)):
                acknowledged.append(process.stdout.readline().strip())
            # The process is inside a later append now, at a point that nothing here chooses.
            await asyncio.sleep(chance.random() / 100)
            process.kill()
            acknowledged += process.stdout.read().split()
        session = await load(parley, app)
        assert session.state == fold(session.events)
        ids = [event.id for event in session.events]
        wrong = [id_ for i, id_ in enumerate(ids, 1) if id_ != f"w-{i}"]
        assert wrong[:3] == []
        # The last event may be stored without an acknowledgement.
        assert len(ids) - len(acknowledged) in range(5)
        assert not set(acknowledged) - set(ids)
    user = await parley.get_user_state(app_name=app, user_id="u")
    assert user == {"w": len(ids)}


async def test_killed_server_loses_nothing(tmp_path: Path, app: str) -> None:
    """Appends continue when the server is killed and started again; all of them are stored once."""
    with parleyd(tmp_path, store="bolt") as server:
        async with ParleySessionService(server.address) as service:
            session = await service.create_session(app_name=app, user_id="u", session_id="s")
            appended = asyncio.Event()

            async def append() -> None:
                for i in range(400):
                    delta = {"n": i, "user:n": i, "app:n": i}
                    actions = EventActions(state_delta=delta)
                    await service.append_event(session, Event(author="user", actions=actions))
                    if i % 100 == 50:
                        appended.set()

            task = asyncio.create_task(append())
            for _ in range(4):
                await appended.wait()
                appended.clear()
                server.kill()
                server.start()
            await task
            found = await load(service, app)
            assert [event.actions.state_delta["n"] for event in found.events] == list(range(400))
            assert found.state == {"n": 399, "user:n": 399, "app:n": 399}
            assert found == session


async def test_two_processes_on_one_session(
    parley: ParleySessionService, app: str, address: str
) -> None:
    """Two processes that load again when they are stale store all their events."""
    await parley.create_session(app_name=app, user_id="u", session_id="s")
    with start_writer(address, app, "a", 60) as first, start_writer(address, app, "b", 60) as other:
        assert first.wait() == other.wait() == 0
    session = await load(parley, app)
    ids = [event.id for event in session.events]
    for writer in ("a", "b"):
        assert [id_ for id_ in ids if id_.startswith(writer)] == [
            f"{writer}-{i + 1}" for i in range(60)
        ]
    assert session.state == fold(session.events)


async def test_state_of_app_and_user_is_merged(
    parley: ParleySessionService, app: str, address: str
) -> None:
    """Sessions that change the state of one user at the same time lose no change of each other."""

    async def run(number: int) -> None:
        async with ParleySessionService(address) as service:
            session = await service.create_session(app_name=app, user_id="u")
            for i in range(20):
                delta = {f"app:{number}-{i}": i, f"user:{number}-{i}": i, "k": i}
                actions = EventActions(state_delta=delta)
                await service.append_event(session, Event(author="user", actions=actions))

    await asyncio.gather(*map(run, range(5)))
    want = {f"{number}-{i}": i for number in range(5) for i in range(20)}
    assert await parley.get_user_state(app_name=app, user_id="u") == want
    state = (await parley.create_session(app_name=app, user_id="other")).state
    assert state == {f"app:{key}": value for key, value in want.items()}
