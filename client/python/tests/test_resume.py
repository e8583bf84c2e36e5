"""Streams over broken connections and killed servers, with a real parleyd."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from fake import Gated, running, text_of
from programs import parleyd
from proxy import proxy_to

from parley import (
    AppendMessagesRequest,
    AsyncClient,
    ChangeKind,
    ChatRequest,
    Client,
    Message,
    ResumeTurnRequest,
    Role,
    StructuredData,
    TurnEvent,
    TurnState,
    WatchConversationsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


BEFORE, AFTER = ["Größer ", "als ", "gedacht"], [", ", "中 ", "😀", "."]
COMPLETE = "".join(BEFORE + AFTER)


def read_sync(
    address: str, name: str, request: Any, on_event: Callable[[list[Any]], bool]
) -> list[Any]:
    """Read a stream of the sync client until on_event returns True; return its events."""
    events = []
    with Client(address) as client, getattr(client, name)(request) as stream:
        for event in stream:
            events.append(event)
            if on_event(events):
                break
    return events


def read_asyncio(
    address: str, name: str, request: Any, on_event: Callable[[list[Any]], bool]
) -> list[Any]:
    """Read a stream of the asyncio client until on_event returns True; return its events."""

    async def run() -> list[Any]:
        events = []
        async with AsyncClient(address) as client, getattr(client, name)(request) as stream:
            async for event in stream:
                events.append(event)
                if await asyncio.to_thread(on_event, events):
                    break
        return events

    return asyncio.run(run())


both = pytest.mark.parametrize(
    "read", [pytest.param(read_sync, id="sync"), pytest.param(read_asyncio, id="asyncio")]
)


def config_of(agent_address: str) -> str:
    """Return a configuration with one agent, which is the default."""
    agents = f'agents: {{gated: {{kind: remote, address: "{agent_address}"}}}}'
    return f"default_agent: gated\n{agents}\n"


def check_complete(events: list[TurnEvent]) -> None:
    """Check that the events are one uninterrupted stream of the complete answer."""
    last = 0
    for event in events:
        # Several texts may have been merged into one, which has the last index.
        assert event.index == last + 1 or (event.index > last and event.HasField("text_delta"))
        last = event.index
    assert text_of(events) == COMPLETE
    assert not events[0].started.replayed
    finished = events[-1].finished
    assert finished.turn.state == TurnState.TURN_STATE_COMPLETED
    assert [message.content for message in finished.messages] == [COMPLETE]
    assert sum(event.HasField("structured_data") for event in events) == 1


@both
def test_connection_reset_during_an_answer(read: Any, tmp_path: Path) -> None:
    """The answer is complete, and started.replayed is not set."""
    data = StructuredData(type="d")
    data.value.string_value = "v"
    agent = Gated([*BEFORE, data], AFTER)
    with (
        running(agent) as agent_address,
        parleyd(tmp_path, config_of(agent_address)) as server,
        proxy_to(server.address) as proxy,
    ):

        def on_event(events: list[TurnEvent]) -> bool:
            if events[-1].HasField("structured_data"):
                proxy.cut()
                agent.open()
            return False

        events = read(proxy.address, "chat", ChatRequest(content="hi"), on_event)
        assert proxy.connections == 2
    check_complete(events)


@both
def test_connections_reset_at_any_byte(read: Any, server_address: str) -> None:
    """The reset may fall into a frame or a header."""
    content = COMPLETE * 20
    with proxy_to(server_address) as proxy:
        for count in range(10, 900, 55):
            proxy.cut()  # gRPC may still have the connection of a closed client.
            before = proxy.connections
            proxy.limit(count, count + 200)
            request = ChatRequest(content=content, agent="echo")
            events = read(proxy.address, "chat", request, lambda _: False)
            assert proxy.connections - before >= 3
            assert text_of(events) == content, f"reset after {count} bytes"
            assert events[-1].finished.messages[0].content == content
            assert not events[0].started.replayed
            indexes = [event.index for event in events]
            assert indexes == sorted(set(indexes))


@both
def test_resume_turn_over_a_reset(read: Any, tmp_path: Path) -> None:
    """The events of another client's turn are delivered after an index."""
    data = StructuredData(type="d")
    data.value.string_value = "v"
    agent = Gated([*BEFORE, data], AFTER)
    with (
        running(agent) as agent_address,
        parleyd(tmp_path, config_of(agent_address)) as server,
        proxy_to(server.address) as proxy,
        Client(server.address) as client,
    ):
        received = []
        for event in client.chat(ChatRequest(conversation_id="c", content="hi")):
            received.append(event)
            if text_of(received):
                break

        def on_event(events: list[TurnEvent]) -> bool:
            if events[-1].HasField("structured_data"):
                proxy.cut()
                agent.open()
            return False

        request = ResumeTurnRequest(conversation_id="c", after_index=received[-1].index)
        check_complete(received + read(proxy.address, "resume_turn", request, on_event))


@both
def test_server_killed_during_an_answer(read: Any, tmp_path: Path) -> None:
    """The stream continues to the end of the turn, and no text is doubled."""
    agent = Gated(BEFORE, AFTER)
    with (
        running(agent) as agent_address,
        parleyd(tmp_path, config_of(agent_address), store="bolt") as server,
    ):

        def on_event(events: list[TurnEvent]) -> bool:
            if text_of(events[:-1]) != text_of(events) == "".join(BEFORE):
                server.kill()
                server.start()
            return False

        events = read(server.address, "chat", ChatRequest(content="hi"), on_event)
    assert text_of(events) == "".join(BEFORE)
    finished = events[-1].finished
    assert finished.turn.state == TurnState.TURN_STATE_INTERRUPTED
    for message in finished.messages:  # A crash may lose some delivered text.
        assert "".join(BEFORE).startswith(message.content)


@both
def test_watch_resumes_after_the_last_change(read: Any, tmp_path: Path) -> None:
    """After a reset no change is missing. A restart of the server is reported as a GAP."""
    with (
        parleyd(tmp_path, store="bolt") as server,
        proxy_to(server.address) as proxy,
        Client(server.address) as client,
    ):

        def append(content: str) -> None:
            message = Message(role=Role.ROLE_USER, content=content)
            request = AppendMessagesRequest(conversation_id="c", messages=[message])
            client.append_messages(request)

        def on_event(changes: list[Any]) -> bool:
            match changes[-1].kind, changes[-1].message.content:
                case ChangeKind.CHANGE_KIND_HEARTBEAT, _ if len(changes) == 1:
                    append("one")
                case _, "one":
                    proxy.cut()
                    append("two")
                case _, "two":
                    server.kill()
                    server.start()
                case ChangeKind.CHANGE_KIND_GAP, _:
                    append("three")
                case _, "three":
                    return True
            return False

        changes = read(
            proxy.address,
            "watch_conversations",
            WatchConversationsRequest(conversation_ids=["c"]),
            on_event,
        )
    kinds = [ChangeKind.Name(change.kind).removeprefix("CHANGE_KIND_") for change in changes]
    contents = [change.message.content for change in changes if change.message.content]
    assert contents == ["one", "two", "three"]
    assert kinds.count("CREATED") == kinds.count("GAP") == 1
    assert kinds.index("GAP") > kinds.index("MESSAGE_APPENDED")
