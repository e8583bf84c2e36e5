"""The guarantees of the session service beside ADK's contract."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from parley import (
    AppendMessagesRequest,
    AsyncClient,
    Client,
    DeleteConversationRequest,
    GetConversationRequest,
    ListMessagesRequest,
    ListMessagesResponse,
    Message,
    Retention,
    Role,
)
from parley.adapters import conversation_id
from parley.adapters.adk import ParleySessionService

if TYPE_CHECKING:
    from google.adk.sessions import Session

pytestmark = pytest.mark.anyio

ODD_IDS = [
    "user@example.com",
    "app/1",
    "a/b/c",
    "%2F",
    "..",
    ".",
    "müller 😀",
    "line\nbreak\u2028\x00",
    " padded",
    "x" * 300,
    "x" * 301,
    "ü" * 1100,
    "key:with:colons",
    "",
]


async def load(service: ParleySessionService, session: Session, **config: Any) -> Session:
    """Return a session as it is stored."""
    found = await service.get_session(
        app_name=session.app_name,
        user_id=session.user_id,
        session_id=session.id,
        config=GetSessionConfig(**config),
    )
    assert found is not None
    return found


async def test_odd_ids(parley: ParleySessionService, app: str) -> None:
    """Applications, users and sessions with any ids are kept apart, and come back as they were."""
    for id_ in ODD_IDS:
        for ids in ((app, id_, "s"), (app, "u", id_), (app + id_, "u", "s2")):
            state = {"ids": list(ids), "user:u": id_, "app:a": ids[0]}
            session = await parley.create_session(
                app_name=ids[0], user_id=ids[1], session_id=ids[2], state=state
            )
            assert session.id == ids[2].strip() or not ids[2]
            await parley.append_event(session, Event(author="user"))
    for id_ in ODD_IDS:
        listed = (await parley.list_sessions(app_name=app, user_id=id_)).sessions
        assert [(s.user_id, s.state["ids"], s.state["user:u"]) for s in listed] == [
            (id_, [app, id_, "s"], id_)
        ]
        assert await load(parley, listed[0], num_recent_events=0) == listed[0]
        # The application with the empty suffix also has the sessions of the other loops.
        listed = (await parley.list_sessions(app_name=app + id_, user_id="u")).sessions
        found = next(s for s in listed if s.id == "s2")
        assert found.state["app:a"] == app + id_
    everything = (await parley.list_sessions(app_name=app)).sessions
    assert len(everything) == 2 * len(ODD_IDS) + 1


async def test_1001_sessions(parley: ParleySessionService, app: str) -> None:
    """More sessions than the server keeps without a retention are all there, in order."""
    limit = asyncio.Semaphore(16)

    async def create(i: int) -> None:
        async with limit:
            session = await parley.create_session(
                app_name=app, user_id="u", session_id=f"s{i}", state={"i": i}
            )
            await parley.append_event(session, Event(author="user", timestamp=10_000 - i))

    await asyncio.gather(*map(create, range(1001)))
    listed = (await parley.list_sessions(app_name=app, user_id="u")).sessions
    assert [s.state["i"] for s in listed] == list(range(1000, -1, -1))


async def test_1500_events(address: str, app: str) -> None:
    """A long session keeps all events in order, and the newest are read alone."""
    async with Recorder(address) as client:
        service = ParleySessionService(client)
        session = await service.create_session(app_name=app, user_id="u")
        for i in range(1500):
            content = types.Content(role="user", parts=[types.Part(text=f"message {i}")])
            actions = EventActions(state_delta={"i": i})
            await service.append_event(
                session, Event(author="user", content=content, actions=actions, timestamp=i + 1)
            )
        found = await load(service, session)
        assert found == session
        assert [event.timestamp for event in found.events] == [i + 1 for i in range(1500)]
        client.pages.clear()
        found = await load(service, session, num_recent_events=20)
        assert found.events == session.events[-20:]
        assert found.state == {"i": 1499}
        assert client.pages == [20]
        found = await load(service, session, num_recent_events=1200)
        assert found.events == session.events[-1200:]
        found = await load(service, session, after_timestamp=101.0)
        assert found.events == session.events[100:]
        client.pages.clear()
        assert (await load(service, session, num_recent_events=0)).events == []
        assert client.pages == []


class Recorder(AsyncClient):
    """A client that records how many messages it received in each page."""

    def __init__(self, target: str) -> None:
        """Connect to a server."""
        super().__init__(target)
        self.pages: list[int] = []

    async def list_messages(
        self, request: ListMessagesRequest, **options: Any
    ) -> ListMessagesResponse:
        """Record the number of messages of the page."""
        page = await super().list_messages(request, **options)
        self.pages.append(len(page.messages))
        return page


@pytest.mark.parametrize("size", [32 << 10, 300_000, 3_500_000, 9_000_000])
async def test_large_event_comes_back(parley: ParleySessionService, app: str, size: int) -> None:
    """An event larger than a message, a record or a request is stored with its state."""
    session = await parley.create_session(app_name=app, user_id="u")
    image = types.Part.from_bytes(data=b"\x89" * (size * 3 // 4), mime_type="image/png")
    content = types.Content(role="user", parts=[types.Part(text="look"), image])
    actions = EventActions(state_delta={"size": size, "app:text": "x" * 1000})
    event = Event(author="user", content=content, actions=actions)
    await parley.append_event(session, event)
    await parley.append_event(session, Event(author="user"))
    found = await load(parley, session)
    assert found == session
    assert found.events[0] == event
    assert found.state["size"] == size


async def test_missing_record_of_event_is_an_error(
    parley: ParleySessionService, app: str, address: str
) -> None:
    """An event whose record was deleted by another program is not left out without an error."""
    session = await parley.create_session(app_name=app, user_id="u", session_id="s")
    await parley.append_event(session, Event(author="user", custom_metadata={"x": "y" * 50_000}))
    with Client(address) as client:
        records = client.records(f"{app}/u/s")
        [key] = [record.key for record in records.list("adk/event/")]
        records.delete(key)
    with pytest.raises(ValueError, match="a record of an event"):
        await load(parley, session)
    assert (await load(parley, session, num_recent_events=0)).events == []


async def test_append_without_reply_is_stored_once(parley: ParleySessionService, app: str) -> None:
    """An append is repeated after its reply was lost, also with state that has changed since."""
    session = await parley.create_session(app_name=app, user_id="u")
    other = await parley.create_session(app_name=app, user_id="u")
    event = Event(author="user", actions=EventActions(state_delta={"k": 1, "app:k": 1}))
    before = session.model_copy(deep=True)
    await parley.append_event(session, event)
    await parley.append_event(before, event)
    assert before == session
    before = other.model_copy(deep=True)
    await parley.append_event(other, event)
    await parley.append_event(
        session, Event(author="user", actions=EventActions(state_delta={"app:k": 2}))
    )
    await parley.append_event(before, event)
    await parley.append_event(before, Event(author="user"))
    found = await load(parley, before)
    assert len(found.events) == 2
    assert found.state == {"k": 1, "app:k": 2}


async def test_repeated_append_after_other_writer_is_stale(
    parley: ParleySessionService, app: str
) -> None:
    """A repeated append succeeds, and the session is stale if another writer has appended since."""
    session = await parley.create_session(app_name=app, user_id="u")
    before = session.model_copy(deep=True)
    event = Event(author="user")
    await parley.append_event(session, event)
    await parley.append_event(session, Event(author="user"))
    await parley.append_event(before, event)
    with pytest.raises(StaleSessionError):
        await parley.append_event(before, Event(author="user"))
    assert len((await load(parley, session)).events) == 2


async def test_messages_of_other_programs_are_no_events(
    parley: ParleySessionService, app: str, address: str
) -> None:
    """Messages that others append to the conversation change no session and make none stale."""
    session = await parley.create_session(app_name=app, user_id="u", session_id="s")
    with Client(address) as client:
        for i in range(3):
            await parley.append_event(session, Event(author="user", timestamp=i + 1))
            note = Message(role=Role.ROLE_ASSISTANT, agent="other", content="a note")
            request = AppendMessagesRequest(conversation_id=f"{app}/u/s", messages=[note] * 5)
            client.append_messages(request)
    assert (await load(parley, session)).events == session.events
    found = await load(parley, session, num_recent_events=2)
    assert [event.timestamp for event in found.events] == [2, 3]


async def test_messages_of_other_programs_cost_no_call_each(app: str, address: str) -> None:
    """The newest events are found in few calls, also after many messages of others."""

    class CountingClient(AsyncClient):
        count = 0

        async def list_messages(self, *args: Any, **options: Any) -> ListMessagesResponse:
            self.count += 1
            return await super().list_messages(*args, **options)

    async with CountingClient(address) as client:
        service = ParleySessionService(client)
        session = await service.create_session(app_name=app, user_id="u", session_id="s")
        await service.append_event(session, Event(author="user"))
        note = Message(role=Role.ROLE_ASSISTANT, agent="other", content="a note")
        request = AppendMessagesRequest(conversation_id=f"{app}/u/s", messages=[note] * 100)
        await client.append_messages(request)
        found = await load(service, session, num_recent_events=1)
        assert found.events == session.events
        assert client.count == 2


async def test_state_that_another_program_wrote(
    parley: ParleySessionService, app: str, address: str
) -> None:
    """A state that another program wrote alone is the state of the session."""
    session = await parley.create_session(app_name=app, user_id="u", session_id="s", state={"k": 1})
    with Client(address) as client:
        client.records(f"{app}/u/s").put_json("adk/state", {"k": 2})
    assert (await load(parley, session)).state == {"k": 2}
    await parley.append_event(session, Event(author="user"))
    assert (await load(parley, session)).state == {"k": 2}


@pytest.mark.parametrize(("appends", "size"), [(300, 1), (8, 3_145_600)])
async def test_events_and_state_are_of_one_instant(
    parley: ParleySessionService, app: str, appends: int, size: int
) -> None:
    """While others append, the state is that of the newest event, also if it has several pages."""
    session = await parley.create_session(app_name=app, user_id="u")

    async def append() -> None:
        for i in range(appends):
            actions = EventActions(state_delta={"i": i, "text": "x" * size})
            await parley.append_event(session, Event(author="user", actions=actions))

    async def read() -> None:
        while not task.done():
            found = await load(parley, session, num_recent_events=1)
            got = [event.actions.state_delta["i"] for event in found.events]
            assert got == ([found.state["i"]] if "i" in found.state else [])

    task = asyncio.create_task(append())
    await asyncio.gather(*(read() for _ in range(3)))
    await task


async def test_other_conversation_with_the_id_is_not_used(
    parley: ParleySessionService, app: str, address: str
) -> None:
    """A conversation that is no session is neither found nor changed."""
    id_ = conversation_id(app, "u", "s")
    note = Message(role=Role.ROLE_USER, content="a note")
    with Client(address) as client:
        client.append_messages(AppendMessagesRequest(conversation_id=id_, messages=[note]))
        ids: dict[str, Any] = {"app_name": app, "user_id": "u", "session_id": "s"}
        assert await parley.get_session(**ids) is None
        with pytest.raises(Exception, match="already exists"):
            await parley.create_session(**ids)
        page = client.list_messages(ListMessagesRequest(conversation_id=id_))
        assert [message.content for message in page.messages] == ["a note"]
        client.delete_conversation(DeleteConversationRequest(conversation_id=id_))


async def test_retention(address: str, app: str) -> None:
    """Sessions are kept without limits, unless the caller passes another retention."""
    want = [
        (None, Retention(keep_all=True, no_expiry=True, no_eviction=True)),
        (Retention(max_messages=2), Retention(max_messages=2)),
    ]
    for i, (given, stored) in enumerate(want):
        async with ParleySessionService(address, retention=given) as service:
            session = await service.create_session(app_name=app, user_id="u", session_id=f"s{i}")
            for _ in range(3):
                await service.append_event(session, Event(author="user"))
            assert len((await load(service, session)).events) == (2 if given else 3)
        with Client(address) as client:
            request = GetConversationRequest(conversation_id=f"{app}/u/s{i}")
            got = client.get_conversation(request).conversation.retention
        for name in ("keep_all", "no_expiry", "no_eviction"):
            assert getattr(got, name) == getattr(stored, name)


async def test_out_of_order_timestamps(parley: ParleySessionService, app: str) -> None:
    """Events stay in the order of their appends, and after_timestamp finds them all."""
    session = await parley.create_session(app_name=app, user_id="u")
    for timestamp in (5.0, 4.0, 6.0, 3.0):
        await parley.append_event(session, Event(author="user", timestamp=timestamp))
    found = await load(parley, session)
    assert [event.timestamp for event in found.events] == [5, 4, 6, 3]
    found = await load(parley, session, after_timestamp=5.0)
    assert [event.timestamp for event in found.events] == [5, 6]


async def test_text_that_is_not_unicode(parley: ParleySessionService, app: str) -> None:
    """Lone surrogates and long names in an event do not fail the append."""
    session = await parley.create_session(app_name=app, user_id="u")
    content = types.Content(role="model", parts=[types.Part(text="\ud800 text")])
    event = Event(
        id="i" * 300,
        author="a" * 200,
        content=content,
        actions=EventActions(state_delta={"k": "\udfff"}),
    )
    await parley.append_event(session, event)
    found = await load(parley, session)
    assert found.events == [event]
    assert found.state == {"k": "\udfff"}


def test_two_event_loops(address: str, app: str) -> None:
    """One service works in several event loops at the same time, and after each other."""
    service = ParleySessionService(address)

    async def use(user: str) -> None:
        session = await service.create_session(app_name=app, user_id=user)
        for _ in range(20):
            await service.append_event(session, Event(author="user"))
        assert len((await load(service, session)).events) == 20

    async def both() -> None:
        await asyncio.gather(use("c"), use("d"))

    errors = list[BaseException]()

    def run(user: str) -> None:
        try:
            asyncio.run(use(user))
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(user,)) for user in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    asyncio.run(both())
    listed = asyncio.run(service.list_sessions(app_name=app))
    assert sorted(s.user_id for s in listed.sessions) == ["a", "b", "c", "d"]
    asyncio.run(service.close())


async def test_sync_client_is_refused(address: str, app: str) -> None:
    """A sync client raises TypeError: all methods are async."""
    with Client(address) as client:
        service = ParleySessionService(client)
        with pytest.raises(TypeError, match=r"parley\.AsyncClient"):
            await service.create_session(app_name=app, user_id="u")


def test_readable_text(address: str, app: str) -> None:
    """Calls, results, files and code are short texts in the message, and complete in the event."""
    parts = [
        types.Part(text="a thought", thought=True),
        types.Part(text="hello"),
        types.Part(function_call=types.FunctionCall(name="find", args={"q": "x" * 5000})),
        types.Part(function_response=types.FunctionResponse(name="find", response={"n": 1})),
        types.Part.from_bytes(data=b"123", mime_type="image/png"),
        types.Part.from_uri(file_uri="gs://bucket/file", mime_type="text/plain"),
    ]
    event = Event(author="agent", content=types.Content(role="model", parts=parts))

    async def append() -> None:
        async with ParleySessionService(address) as service:
            session = await service.create_session(app_name=app, user_id="u", session_id="s")
            await service.append_event(session, event)
            assert (await load(service, session)).events == [event]

    asyncio.run(append())
    with Client(address) as client:
        page = client.list_messages(ListMessagesRequest(conversation_id=f"{app}/u/s"))
    [message] = page.messages
    lines = message.content.split("\n")
    assert lines[0] == "hello"
    assert lines[1].startswith('calls find({"q": "xxx')
    assert lines[1].endswith("x…")
    assert lines[2:] == [
        'find returned {"n": 1}',
        "[image/png, 3 bytes]",
        "[text/plain gs://bucket/file]",
    ]
    assert (message.agent, message.role) == ("agent", Role.ROLE_ASSISTANT)
