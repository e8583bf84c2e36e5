"""Streams over connections that are cut and servers that are killed, with a real parleyd."""

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


BEFORE, BEHIND = ["Größer ", "als ", "gedacht"], [", ", "中 ", "😀", "."]
WHOLE = "".join(BEFORE + BEHIND)


def show_sync(address: str, name: str, request: Any, see: Callable[[list[Any]], bool]) -> list[Any]:
    """Show a stream of the sync client."""
    events = []
    with Client(address) as client, getattr(client, name)(request) as stream:
        for event in stream:
            events.append(event)
            if see(events):
                break
    return events


def show_asyncio(
    address: str, name: str, request: Any, see: Callable[[list[Any]], bool]
) -> list[Any]:
    """Show a stream of the asyncio client."""

    async def run() -> list[Any]:
        events = []
        async with AsyncClient(address) as client, getattr(client, name)(request) as stream:
            async for event in stream:
                events.append(event)
                if await asyncio.to_thread(see, events):
                    break
        return events

    return asyncio.run(run())


both = pytest.mark.parametrize(
    "show", [pytest.param(show_sync, id="sync"), pytest.param(show_asyncio, id="asyncio")]
)


def config_of(agent_address: str) -> str:
    """Configure parleyd with one agent, which is the default."""
    agents = f'agents: {{gated: {{kind: remote, address: "{agent_address}"}}}}'
    return f"default_agent: gated\n{agents}\n"


def check_whole(events: list[TurnEvent]) -> None:
    """Expect one unbroken stream of the whole answer."""
    assert [event.index for event in events] == list(range(1, len(events) + 1))
    assert text_of(events) == WHOLE
    assert not events[0].started.replayed
    finished = events[-1].finished
    assert finished.turn.state == TurnState.TURN_STATE_COMPLETED
    assert [message.content for message in finished.messages] == [WHOLE]
    assert sum(event.HasField("structured_data") for event in events) == 1


@both
def test_connection_cut_in_mid_answer(show: Any, tmp_path: Path) -> None:
    """The answer comes whole, and the turn is never seen to be asked for twice."""
    data = StructuredData(type="d")
    data.value.string_value = "v"
    agent = Gated([*BEFORE, data], BEHIND)
    with (
        running(agent) as agent_address,
        parleyd(tmp_path, config_of(agent_address)) as server,
        proxy_to(server.address) as proxy,
    ):

        def see(events: list[TurnEvent]) -> bool:
            if events[-1].HasField("structured_data"):
                proxy.cut()
                agent.open()
            return False

        events = show(proxy.address, "chat", ChatRequest(content="hi"), see)
        assert proxy.connections == 2
    check_whole(events)


@both
def test_connections_cut_anywhere(show: Any, server_address: str) -> None:
    """After so many bytes from the server, frames and headers cut through."""
    words = WHOLE * 20
    with proxy_to(server_address) as proxy:
        for count in range(10, 900, 55):
            proxy.cut()  # gRPC may have kept the connection of a client that is gone.
            before = proxy.connections
            proxy.limit(count, count + 200)
            request = ChatRequest(content=words, agent="echo")
            events = show(proxy.address, "chat", request, lambda _: False)
            assert proxy.connections - before >= 3
            assert text_of(events) == words, f"cut after {count} bytes"
            assert events[-1].finished.messages[0].content == words
            assert not events[0].started.replayed
            indexes = [event.index for event in events]
            assert indexes == sorted(set(indexes))


@both
def test_turn_resumed_through_a_cut(show: Any, tmp_path: Path) -> None:
    """A turn that another client has begun is shown from behind an index on."""
    data = StructuredData(type="d")
    data.value.string_value = "v"
    agent = Gated([*BEFORE, data], BEHIND)
    with (
        running(agent) as agent_address,
        parleyd(tmp_path, config_of(agent_address)) as server,
        proxy_to(server.address) as proxy,
        Client(server.address) as client,
    ):
        shown = []
        for event in client.chat(ChatRequest(conversation_id="c", content="hi")):
            shown.append(event)
            if text_of(shown) == BEFORE[0]:
                break

        def see(events: list[TurnEvent]) -> bool:
            if events[-1].HasField("structured_data"):
                proxy.cut()
                agent.open()
            return False

        request = ResumeTurnRequest(conversation_id="c", after_index=shown[-1].index)
        check_whole(shown + show(proxy.address, "resume_turn", request, see))


@both
def test_server_killed_in_mid_answer(show: Any, tmp_path: Path) -> None:
    """The stream goes on to the end of the turn, and no text comes twice."""
    agent = Gated(BEFORE, BEHIND)
    with (
        running(agent) as agent_address,
        parleyd(tmp_path, config_of(agent_address), store="bolt") as server,
    ):

        def see(events: list[TurnEvent]) -> bool:
            if text_of(events[:-1]) != text_of(events) == "".join(BEFORE):
                server.kill()
                server.start()
            return False

        events = show(server.address, "chat", ChatRequest(content="hi"), see)
    assert text_of(events) == "".join(BEFORE)
    finished = events[-1].finished
    assert finished.turn.state == TurnState.TURN_STATE_INTERRUPTED
    for message in finished.messages:  # A crash may cost some of what was shown.
        assert "".join(BEFORE).startswith(message.content)


@both
def test_watch_goes_on_behind_the_last_change(show: Any, tmp_path: Path) -> None:
    """A cut costs nothing; a restart of the server is told as a GAP, behind which all comes."""
    with (
        parleyd(tmp_path, store="bolt") as server,
        proxy_to(server.address) as proxy,
        Client(server.address) as client,
    ):

        def append(content: str) -> None:
            message = Message(role=Role.ROLE_USER, content=content)
            request = AppendMessagesRequest(conversation_id="c", messages=[message])
            client.append_messages(request)

        def see(changes: list[Any]) -> bool:
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

        changes = show(
            proxy.address,
            "watch_conversations",
            WatchConversationsRequest(conversation_ids=["c"]),
            see,
        )
    kinds = [ChangeKind.Name(change.kind).removeprefix("CHANGE_KIND_") for change in changes]
    contents = [change.message.content for change in changes if change.message.content]
    assert contents == ["one", "two", "three"]
    assert kinds.count("CREATED") == kinds.count("GAP") == 1
    assert kinds.index("GAP") > kinds.index("MESSAGE_APPENDED")
