"""A real agent of ADK, run by its Runner over Parley."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scripted import runner, turn

from parley import AsyncClient, ListMessagesRequest, Role

if TYPE_CHECKING:
    from parley.adapters.adk import ParleySessionService

pytestmark = pytest.mark.anyio

TURNS = 300


@pytest.mark.long
async def test_agent_of_300_turns(parley: ParleySessionService, app: str, address: str) -> None:
    """Nothing is lost, the order is that of the turns, and the state is that of all turns."""
    await parley.create_session(app_name=app, user_id="ada", session_id="s")
    run = runner(parley, app)
    want = []
    for i in range(TURNS):
        events = await turn(run, "ada", "s", f"message {i}")
        want += ["user"] + [event.id for event in events]
        assert events[-1].content is not None
    found = await parley.get_session(app_name=app, user_id="ada", session_id="s")
    assert found is not None
    got = ["user" if event.author == "user" else event.id for event in found.events]
    assert got == want
    texts = [
        part.text
        for event in found.events
        for part in (event.content.parts if event.content else None) or []
        if part.text
    ]
    assert texts == [
        text for i in range(TURNS) for text in (f"message {i}", f"The total is {i + 1}.")
    ]
    answer = f"The total is {TURNS}."
    state = {"total": TURNS, "user:total": TURNS, "app:total": TURNS, "answer": answer}
    assert {key: found.state[key] for key in state} == state
    assert "temp:seen" not in found.state
    async with AsyncClient(address) as client:
        request = ListMessagesRequest(conversation_id=f"{app}/ada/s", page_size=4)
        page = await client.list_messages(request)
    assert [(m.role, m.agent, m.content) for m in reversed(page.messages)] == [
        (Role.ROLE_USER, "", f"message {TURNS - 1}"),
        (Role.ROLE_ASSISTANT, "adder", 'calls add({"number": 1})'),
        (Role.ROLE_ASSISTANT, "adder", f'add returned {{"total": {TURNS}}}'),
        (Role.ROLE_ASSISTANT, "adder", answer),
    ]
