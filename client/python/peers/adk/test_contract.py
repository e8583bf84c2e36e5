"""What ADK's own tests require of each session service, with ADK's services as the judges.

The tests are retold from tests/unittests/sessions of google/adk-python, which are in no package.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from backends import open_service
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

if TYPE_CHECKING:
    from pathlib import Path

    from google.adk.sessions import BaseSessionService

pytestmark = pytest.mark.anyio


def changing(delta: dict[str, Any], **fields: Any) -> Event:
    """Return an event that changes the state."""
    return Event(author="user", actions=EventActions(state_delta=delta), **fields)


async def load(
    service: BaseSessionService, session: Session, config: GetSessionConfig | None = None
) -> Session:
    """Return a session as it is stored."""
    found = await service.get_session(
        app_name=session.app_name, user_id=session.user_id, session_id=session.id, config=config
    )
    assert found is not None
    return found


async def test_missing_session_is_none(service: BaseSessionService, app: str) -> None:
    """A session that was never created is None."""
    assert await service.get_session(app_name=app, user_id="u", session_id="123") is None


async def test_create_get_delete(service: BaseSessionService, app: str) -> None:
    """A created session is returned as it was created, until it is deleted."""
    session = await service.create_session(app_name=app, user_id="u", state={"key": "value"})
    assert (session.app_name, session.user_id, session.state) == (app, "u", {"key": "value"})
    assert session.id
    assert session.last_update_time > 0
    assert await load(service, session) == session
    ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": session.id}
    await service.delete_session(**ids)
    assert await service.get_session(**ids) is None
    await service.delete_session(**ids)


async def test_existing_id_is_refused(service: BaseSessionService, app: str) -> None:
    """A second session with the same id raises AlreadyExistsError and changes nothing."""
    ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "s"}
    session = await service.create_session(**ids, state={"a": 1})
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ids, state={"a": 2, "app:b": 3})
    assert (await load(service, session)).state == {"a": 1}


async def test_concurrent_create_has_one_winner(service: BaseSessionService, app: str) -> None:
    """Of several calls that create one session, one succeeds."""
    results = await asyncio.gather(
        *(service.create_session(app_name=app, user_id="u", session_id="s") for _ in range(5)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, Session) for result in results) == 1
    assert sum(isinstance(result, BaseException) for result in results) == 4


async def test_list_sessions_of_user(service: BaseSessionService, app: str) -> None:
    """A list has the sessions of the user with their states, and no others."""
    for i in range(5):
        await service.create_session(
            app_name=app, user_id="u", session_id=f"s{i}", state={"key": f"s{i}"}
        )
    await service.create_session(app_name=app, user_id="other", session_id="s")
    await service.create_session(app_name=app + "2", user_id="u", session_id="s")
    listed = (await service.list_sessions(app_name=app, user_id="u")).sessions
    assert {s.id: s.state for s in listed} == {f"s{i}": {"key": f"s{i}"} for i in range(5)}
    assert all(not s.events for s in listed)


async def test_list_sessions_of_all_users(service: BaseSessionService, app: str) -> None:
    """A list without a user has all sessions of the application, with the state of each user."""
    for user, id_ in (("u1", "a"), ("u1", "b"), ("u2", "a")):
        await service.create_session(
            app_name=app, user_id=user, session_id=id_, state={"k": id_, "user:name": user}
        )
    listed = (await service.list_sessions(app_name=app)).sessions
    assert {(s.user_id, s.id): s.state for s in listed} == {
        (user, id_): {"k": id_, "user:name": user}
        for user, id_ in (("u1", "a"), ("u1", "b"), ("u2", "a"))
    }


async def test_list_of_unknown_app_is_empty(service: BaseSessionService, app: str) -> None:
    """An application without sessions has an empty list."""
    assert (await service.list_sessions(app_name=app)).sessions == []
    assert (await service.list_sessions(app_name=app, user_id="u")).sessions == []


async def test_list_sessions_oldest_update_first(service: BaseSessionService, app: str) -> None:
    """The last session is the one with the newest event."""
    sessions = [
        await service.create_session(app_name=app, user_id="u", session_id=f"s{i}")
        for i in range(3)
    ]
    start = sessions[-1].last_update_time
    for offset, i in enumerate((1, 2, 0), 1):
        await service.append_event(sessions[i], Event(author="user", timestamp=start + offset))
    listed = (await service.list_sessions(app_name=app, user_id="u")).sessions
    assert [s.id for s in listed] == ["s1", "s2", "s0"]


async def test_app_state_is_shared_by_users(service: BaseSessionService, app: str) -> None:
    """State with the prefix app: is that of all sessions of the application."""
    first = await service.create_session(
        app_name=app, user_id="u1", session_id="s1", state={"app:k1": "v1"}
    )
    await service.append_event(first, changing({"app:k2": "v2"}))
    second = await service.create_session(app_name=app, user_id="u2", session_id="s2")
    assert second.state == {"app:k1": "v1", "app:k2": "v2"}
    assert (await load(service, first)).state == second.state
    assert (await service.create_session(app_name=app + "2", user_id="u")).state == {}


async def test_user_state_is_shared_by_sessions(service: BaseSessionService, app: str) -> None:
    """State with the prefix user: is that of all sessions of the user."""
    first = await service.create_session(
        app_name=app, user_id="u1", session_id="s1", state={"user:k1": "v1"}
    )
    await service.append_event(first, changing({"user:k2": "v2"}))
    second = await service.create_session(app_name=app, user_id="u1", session_id="s2")
    assert second.state == {"user:k1": "v1", "user:k2": "v2"}
    assert (await service.create_session(app_name=app, user_id="u2")).state == {}


async def test_session_state_is_not_shared(service: BaseSessionService, app: str) -> None:
    """State without a prefix is that of the session."""
    first = await service.create_session(
        app_name=app, user_id="u1", session_id="s1", state={"k1": "v1"}
    )
    await service.append_event(first, changing({"k2": "v2"}))
    assert (await load(service, first)).state == {"k1": "v1", "k2": "v2"}
    assert (await service.create_session(app_name=app, user_id="u1")).state == {}


async def test_state_is_merged_by_key(service: BaseSessionService, app: str) -> None:
    """A delta replaces the values of its keys only, also with None."""
    session = await service.create_session(
        app_name=app, user_id="u", state={"a": 1, "b": {"x": 1}, "c": 1}
    )
    await service.append_event(session, changing({"b": {"y": 2}, "c": None}))
    assert (await load(service, session)).state == {"a": 1, "b": {"y": 2}, "c": None}


async def test_shared_state_is_replaced_by_key(service: BaseSessionService, app: str) -> None:
    """A dict in the state of the application is replaced, and None in that of a user is kept."""
    session = await service.create_session(
        app_name=app, user_id="u", state={"app:cfg": {"a": 1, "b": 2}, "user:pref": "dark"}
    )
    await service.append_event(session, changing({"app:cfg": {"a": 3}, "user:pref": None}))
    want = {"app:cfg": {"a": 3}, "user:pref": None}
    assert session.state == want
    assert (await service.create_session(app_name=app, user_id="u")).state == want


async def test_booleans_stay_booleans(service: BaseSessionService, app: str) -> None:
    """A change of another key does not change the type of a value."""
    session = await service.create_session(app_name=app, user_id="u", state={"flag": False})
    await service.append_event(session, changing({"new": True}))
    state = (await load(service, session)).state
    assert (state["flag"], state["new"]) == (False, True)
    assert {type(value) for value in state.values()} == {bool}


async def test_temp_state_is_not_stored(service: BaseSessionService, app: str) -> None:
    """State with the prefix temp: is in the session object, and in nothing that is stored."""
    session = await service.create_session(app_name=app, user_id="u", state={"temp:first": 1})
    event = changing({"temp:k1": "v1", "k": "v2"})
    await service.append_event(session, event)
    assert (session.state.get("temp:k1"), session.state.get("k")) == ("v1", "v2")
    assert event.actions.state_delta == {"k": "v2"}
    stored = await load(service, session)
    assert stored.state == {"k": "v2"}
    assert stored.events[0].actions.state_delta == {"k": "v2"}


async def test_same_id_of_other_user(service: BaseSessionService, app: str) -> None:
    """Sessions of two users with the same id are different sessions."""
    first = await service.create_session(app_name=app, user_id="u1", session_id="s")
    await service.append_event(first, Event(author="user"))
    second = await service.create_session(app_name=app, user_id="u2", session_id="s")
    found = await load(service, second)
    assert (found.user_id, found.events) == ("u2", [])


async def test_bytes_come_back(service: BaseSessionService, app: str) -> None:
    """Bytes inside an event are the same after they were stored."""
    content = types.Content(
        role="user", parts=[types.Part.from_bytes(data=b"\x00\xffimage", mime_type="image/png")]
    )
    grounding = types.GroundingMetadata(
        search_entry_point=types.SearchEntryPoint(sdk_blob=b"test_blob")
    )
    session = await service.create_session(app_name=app, user_id="u")
    event = Event(author="user", content=content, grounding_metadata=grounding)
    await service.append_event(session, event)
    [stored] = (await load(service, session)).events
    assert (stored.content, stored.grounding_metadata) == (content, grounding)


async def test_complete_event_comes_back(service: BaseSessionService, app: str) -> None:
    """All fields of an event are the same after they were stored."""
    session = await service.create_session(app_name=app, user_id="u")
    event = Event(
        invocation_id="invocation",
        author="user",
        branch="root.child",
        content=types.Content(role="user", parts=[types.Part(text="text")]),
        turn_complete=True,
        partial=False,
        actions=EventActions(artifact_delta={"file": 0}, transfer_to_agent="agent", escalate=True),
        long_running_tool_ids={"tool1"},
        error_code="error_code",
        error_message="error_message",
        interrupted=True,
        grounding_metadata=types.GroundingMetadata(web_search_queries=["query1"]),
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1, candidates_token_count=1, total_token_count=2
        ),
        citation_metadata=types.CitationMetadata(),
        custom_metadata={"float": 1.0, "big": 2**60, "text": "ü\u2028"},
        timestamp=1700000000.123,
        input_transcription=types.Transcription(text="input", finished=True),
        output_transcription=types.Transcription(text="output", finished=True),
    )
    await service.append_event(session, event)
    stored = await load(service, session)
    assert stored == session
    assert stored.events == [event]
    metadata = stored.events[0].custom_metadata
    assert metadata is not None
    assert isinstance(metadata["float"], float)


async def test_tool_confirmations_come_back(service: BaseSessionService, app: str) -> None:
    """The confirmations that an event requests are the same after they were stored."""
    session = await service.create_session(app_name=app, user_id="u")
    confirmation = ToolConfirmation(hint="sure?", confirmed=False, payload={"id": "album_1"})
    actions = EventActions(requested_tool_confirmations={"call_1": confirmation})
    await service.append_event(session, Event(author="user", actions=actions))
    [stored] = (await load(service, session)).events
    assert stored.actions.requested_tool_confirmations == {"call_1": confirmation}


async def test_timestamps_are_exact(service: BaseSessionService, app: str) -> None:
    """Timestamps in an hour that a local clock repeats come back as they were."""
    session = await service.create_session(app_name=app, user_id="u")
    timestamps = [1730613600.0, 1730615400.0]
    for timestamp in timestamps:
        await service.append_event(session, Event(author="user", timestamp=timestamp))
    assert [event.timestamp for event in (await load(service, session)).events] == timestamps


@pytest.mark.parametrize("name", ["memory", "parley"])
async def test_event_is_delivered_again(name: str, address: str, tmp_path: Path, app: str) -> None:
    """An equal event is stored once; another event with the same id is stored, too."""
    async for service in open_service(name, address, tmp_path):
        session = await service.create_session(app_name=app, user_id="u")
        event = changing({"k": 1}, id="same")
        for again in (event, event, event.model_copy(deep=True)):
            await service.append_event(session, again)
        assert [e.id for e in (await load(service, session)).events] == ["same"]
        await service.append_event(session, Event(author="agent", id="same"))
        assert [e.author for e in (await load(service, session)).events] == ["user", "agent"]


async def test_update_time_is_that_of_newest_event(service: BaseSessionService, app: str) -> None:
    """last_update_time becomes the timestamp of the event, in the object and in the store."""
    session = await service.create_session(app_name=app, user_id="u")
    timestamp = session.last_update_time + 10
    await service.append_event(session, Event(author="user", timestamp=timestamp))
    assert session.last_update_time == pytest.approx(timestamp, abs=1e-6)
    assert (await load(service, session)).last_update_time == pytest.approx(timestamp, abs=1e-6)


async def test_get_session_config(service: BaseSessionService, app: str) -> None:
    """num_recent_events and after_timestamp select events."""
    session = await service.create_session(app_name=app, user_id="u")
    for i in range(1, 6):
        await service.append_event(session, Event(author="user", timestamp=i))
    for config, want in (
        (None, [1, 2, 3, 4, 5]),
        (GetSessionConfig(num_recent_events=0), []),
        (GetSessionConfig(num_recent_events=3), [3, 4, 5]),
        (GetSessionConfig(num_recent_events=9), [1, 2, 3, 4, 5]),
        (GetSessionConfig(after_timestamp=4.0), [4, 5]),
        (GetSessionConfig(after_timestamp=50.0), []),
        (GetSessionConfig(after_timestamp=4.0, num_recent_events=3), [4, 5]),
        (GetSessionConfig(after_timestamp=2.0, num_recent_events=2), [4, 5]),
        (GetSessionConfig(after_timestamp=4.0, num_recent_events=0), []),
    ):
        found = await load(service, session, config)
        assert [event.timestamp for event in found.events] == want, config


async def test_partial_events_are_not_stored(service: BaseSessionService, app: str) -> None:
    """A partial event is neither in the session nor in the store."""
    session = await service.create_session(app_name=app, user_id="u")
    event = changing({"k": 1}, partial=True)
    assert await service.append_event(session, event) is event
    assert session.events == []
    stored = await load(service, session)
    assert (stored.events, stored.state) == ([], {})


async def test_append_to_missing_session(service: BaseSessionService, app: str) -> None:
    """An append to a session that does not exist raises SessionNotFoundError."""
    ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "s"}
    session = await service.create_session(**ids)
    await service.delete_session(**ids)
    for event in (Event(author="user"), changing({"k": 1, "app:k": 1})):
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event)
    assert await service.get_session(**ids) is None
    never = Session(id="never", app_name=app, user_id="u")
    with pytest.raises(SessionNotFoundError):
        await service.append_event(never, Event(author="user"))


async def test_recreated_session_is_empty(service: BaseSessionService, app: str) -> None:
    """A session that is deleted and created again has no old event and no old session state."""
    ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "s"}
    session = await service.create_session(**ids, state={"k": 1, "user:name": "Ada"})
    await service.append_event(session, changing({"l": 2}))
    await service.delete_session(**ids)
    again = await service.create_session(**ids)
    assert (again.events, again.state) == ([], {"user:name": "Ada"})
    assert await load(service, again) == again


async def test_padded_id_is_normalized(service: BaseSessionService, app: str) -> None:
    """Spaces around the id of a session do not matter."""
    if isinstance(service, DatabaseSessionService):
        pytest.skip("ADK records this as a divergence of DatabaseSessionService")
    session = await service.create_session(app_name=app, user_id="u", session_id=" s ")
    assert session.id == "s"
    with pytest.raises(AlreadyExistsError):
        await service.create_session(app_name=app, user_id="u", session_id="s  ")
    ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "  s "}
    assert await service.get_session(**ids) == session
    await service.delete_session(**ids)
    assert await service.get_session(**ids) is None
    assert (await service.create_session(app_name=app, user_id="u", session_id=" ")).id.strip()


async def test_get_user_state(service: BaseSessionService, app: str) -> None:
    """get_user_state returns the newest state of the user, of this application, without prefix."""
    assert await service.get_user_state(app_name=app, user_id="u1") == {}
    session = await service.create_session(app_name=app, user_id="u1", state={"user:n": 1})
    await service.append_event(session, changing({"user:profile": {"name": "Ada"}, "k": 1}))
    await service.append_event(session, changing({"user:n": 2}))
    want = {"n": 2, "profile": {"name": "Ada"}}
    assert await service.get_user_state(app_name=app, user_id="u1") == want
    assert await service.get_user_state(app_name=app, user_id="u2") == {}
    assert await service.get_user_state(app_name=app + "2", user_id="u1") == {}


async def test_values_without_json_form(service: BaseSessionService, app: str) -> None:
    """A value that has no JSON form does not fail the append."""
    session = await service.create_session(app_name=app, user_id="u")
    await service.append_event(session, changing({"function": len, "k": 1}))
    assert (await load(service, session)).state["k"] == 1


async def test_flush(service: BaseSessionService, app: str) -> None:
    """A call of flush is accepted."""
    await service.create_session(app_name=app, user_id="u")
    await service.flush()


async def test_stale_session_is_refused(guarded: BaseSessionService, app: str) -> None:
    """An append to a session that has changed raises StaleSessionError and stores nothing."""
    original = await guarded.create_session(app_name=app, user_id="u")
    start = original.last_update_time
    await guarded.append_event(original, changing({"k1": 1}, timestamp=start + 1))
    updated = await load(guarded, original)
    await guarded.append_event(updated, changing({"k2": 2}, timestamp=start + 2))
    with pytest.raises(StaleSessionError, match="modified in storage"):
        await guarded.append_event(original, changing({"k3": 3}, timestamp=start + 3))
    assert len(original.events) == 1
    assert "k3" not in original.state
    stored = await load(guarded, original)
    assert stored.state == {"k1": 1, "k2": 2}
    assert len(stored.events) == 2


async def test_one_of_two_concurrent_appends_wins(guarded: BaseSessionService, app: str) -> None:
    """Of two appends to copies of a session, one is stored and one is stale."""
    session = await guarded.create_session(app_name=app, user_id="u")
    for i in range(8):
        latest = await load(guarded, session)
        start = latest.last_update_time + 10
        results = await asyncio.gather(
            *(
                guarded.append_event(
                    latest.model_copy(deep=True),
                    changing({f"k{i}-{writer}": 1}, timestamp=start + writer),
                )
                for writer in range(2)
            ),
            return_exceptions=True,
        )
        assert sorted(type(r) is StaleSessionError for r in results) == [False, True]
    stored = await load(guarded, session)
    assert len(stored.events) == len(stored.state) == 8


async def test_concurrent_appends_to_one_object(guarded: BaseSessionService, app: str) -> None:
    """Parallel branches append to one session object, and all events are stored."""
    session = await guarded.create_session(app_name=app, user_id="u")
    events = [changing({f"k{i}": i}) for i in range(10)]
    await asyncio.gather(*(guarded.append_event(session, event) for event in events))
    stored = await load(guarded, session)
    assert {event.id for event in stored.events} == {event.id for event in events}
    assert stored.state == {f"k{i}": i for i in range(10)}


async def test_update_time_may_drift(guarded: BaseSessionService, app: str) -> None:
    """A session whose last_update_time was rounded is not stale."""
    session = await guarded.create_session(app_name=app, user_id="u")
    start = session.last_update_time
    await guarded.append_event(session, Event(author="user", timestamp=start + 10))
    session.last_update_time -= 0.0001
    await guarded.append_event(session, Event(author="user", timestamp=start + 20))
    assert len((await load(guarded, session)).events) == 2


async def test_current_session_without_marker(guarded: BaseSessionService, app: str) -> None:
    """A session object that another program made is accepted if its last event is the newest."""
    session = await guarded.create_session(app_name=app, user_id="u")
    start = session.last_update_time
    await guarded.append_event(session, Event(author="user", timestamp=start + 10))
    stale = session.model_copy(deep=True)
    session._storage_update_marker = None
    session.last_update_time -= 0.0001
    await guarded.append_event(session, Event(author="user", timestamp=start + 20))
    assert len((await load(guarded, session)).events) == 2
    stale._storage_update_marker = None
    with pytest.raises(StaleSessionError):
        await guarded.append_event(stale, Event(author="user", timestamp=start + 30))


async def test_append_to_recreated_session_is_stale(guarded: BaseSessionService, app: str) -> None:
    """A session object of before a deletion is stale, though there is a session with its id."""
    ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "s"}
    old = await guarded.create_session(**ids)
    await guarded.delete_session(**ids)
    await guarded.create_session(**ids)
    with pytest.raises(StaleSessionError):
        await guarded.append_event(old, Event(author="user"))
    found = await guarded.get_session(**ids)
    assert found is not None
    assert found.events == []
