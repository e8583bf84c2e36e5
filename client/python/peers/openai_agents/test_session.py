"""Tests of ParleySession with a real server and its file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, Runner, SessionSettings
from agents.memory import Session
from agents.testing import ScriptedModel
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from programs import Server, parleyd

import parley
from parley.adapters.openai_agents import ParleySession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

HERE = Path(__file__).parent

CALL: Any = {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"a": 1}'}
RESULT: Any = {"type": "function_call_output", "call_id": "c1", "output": "found"}


def user(text: str) -> Any:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def users(count: int, start: int = 0) -> list[Any]:
    """Return so many messages with the numbers from start on."""
    return [user(str(number)) for number in range(start, start + count)]


def messages_of(address: str, conversation_id: str) -> list[parley.Message]:
    """Return the messages of a conversation as other clients read them."""
    with parley.Client(address) as client:
        request = parley.ListMessagesRequest(
            conversation_id=conversation_id, ascending=True, page_size=1000
        )
        return list(client.list_messages(request).messages)


def record_count(address: str, conversation_id: str) -> int:
    """Return the number of records of a conversation."""
    with parley.Client(address) as client:
        request = parley.GetConversationRequest(conversation_id=conversation_id)
        return client.get_conversation(request).conversation.record_count


def compact(item: object) -> str:
    """Return an item as text that shows the order of keys and the kind of numbers."""
    return json.dumps(item)


def test_session_is_a_session(address: str) -> None:
    """A ParleySession has what the protocol of the SDK asks for."""
    assert isinstance(ParleySession("protocol", address), Session)


def test_items_come_back_as_they_were(address: str) -> None:
    """JSON comes back with its order of keys, floats, Unicode and nesting."""
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    items: list[Any] = [
        {
            "content": [{"type": "input_text", "text": "z\u00fc\U0001f600\u0000\u2028"}],
            "role": "user",
        },
        {"role": "assistant", "content": "a", "b": 1.0, "a": [1e300, -0.0, 2**70, None, True]},
        {"role": "user", "content": "half of a pair: \ud83d"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x", "deep": deep},
        {"type": "function_call", "call_id": "", "name": "", "arguments": "not JSON"},
        {"role": "user", "content": ""},
        {"unknown": {}},
    ]

    async def test() -> None:
        session = ParleySession("exact", address)
        await session.add_items(items)
        assert [compact(item) for item in await session.get_items()] == list(map(compact, items))
        await session.aclose()

    asyncio.run(test())


def test_item_that_is_not_json_is_refused_and_nothing_of_its_batch_is_added(address: str) -> None:
    """A batch is added completely or not at all."""

    async def test() -> None:
        session = ParleySession("refused", address)
        bad: Any = {"role": "user", "content": object()}
        with pytest.raises(TypeError):
            await session.add_items([user("good"), bad])
        assert await session.get_items() == []

    asyncio.run(test())


@pytest.mark.parametrize("batch", [7, 100, 101, 1500])
def test_1500_items_keep_their_order(address: str, batch: int) -> None:
    """1500 items, added in batches of any size, are read in their order."""

    async def test() -> None:
        session = ParleySession(f"1500 by {batch}", address)
        for start in range(0, 1500, batch):
            await session.add_items(users(min(batch, 1500 - start), start))
        assert await session.get_items() == users(1500)
        for limit in (1, 20, 60, 1001, 1499, 2000):
            assert await session.get_items(limit) == users(1500)[-limit:]

    asyncio.run(test())


class CountingClient(parley.AsyncClient):
    """A client that counts the messages that it reads."""

    count = 0

    async def list_messages(
        self, request: parley.ListMessagesRequest, **options: Unpack[parley.CallOptions]
    ) -> parley.ListMessagesResponse:
        """Count the messages of the page."""
        page = await super().list_messages(request, **options)
        self.count += len(page.messages)
        return page


def test_get_items_reads_only_the_items_of_the_limit(address: str) -> None:
    """The newest 20 items cost 20 messages, not all."""

    async def test() -> None:
        async with CountingClient(address) as client:
            session = ParleySession("limited", client)
            await session.add_items(users(90))
            assert await session.get_items(limit=20) == users(90)[-20:]
            assert client.count == 20

    asyncio.run(test())


def test_limit_of_the_call_the_settings_and_none(address: str) -> None:
    """The limit has the meaning that it has for SQLiteSession."""

    async def test() -> None:
        settings = SessionSettings(limit=2)
        session = ParleySession("settings", address, session_settings=settings)
        await session.add_items(users(5))
        assert await session.get_items() == users(5)[-2:]
        assert await session.get_items(3) == users(5)[-3:]
        assert await session.get_items(0) == []
        assert await session.get_items(-1) == users(5)
        assert await ParleySession("settings", address).get_items() == users(5)

    asyncio.run(test())


@pytest.mark.parametrize(
    "session_id",
    [
        "someone@example.com",
        "app/1",
        "a b",
        " b ",
        ".",
        "..",
        "100%",
        "t\u00e4g\n2",
        "\U0001f600",
        "x" * 400,
    ],
)
def test_odd_ids_have_their_own_sessions(address: str, session_id: str) -> None:
    """Any id works, and no two share a conversation."""

    async def test() -> None:
        session = ParleySession(session_id, address)
        other = ParleySession(session_id + "2", address)
        await session.add_items([user(session_id)])
        assert await other.get_items() == []
        assert await ParleySession(session_id, address).get_items() == [user(session_id)]
        assert session.session_id == session_id

    asyncio.run(test())


def test_kill_of_the_server_between_calls_loses_nothing(tmp_path: Path) -> None:
    """A server that is killed and started again has all items."""

    async def test(server: Server) -> None:
        session = ParleySession("killed", server.address)
        for round_number in range(3):
            await session.add_items([user(f"{round_number}"), CALL, RESULT])
            server.kill()
            await asyncio.to_thread(server.start)
        expected = [item for number in range(3) for item in (user(f"{number}"), CALL, RESULT)]
        assert await session.get_items() == expected
        await session.aclose()

    with parleyd(tmp_path, store="bolt") as server:
        server.kill()
        server.start()
        asyncio.run(test(server))


def writer(address: str, session_id: str, name: str, batches: int, size: int) -> Any:
    """Start a process that adds batches."""
    command = [sys.executable, str(HERE / "writer.py"), address, session_id, name]
    return subprocess.Popen([*command, str(batches), str(size)], stdout=subprocess.PIPE, text=True)


def batches_of(items: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Return the batches of the writers, with the numbers of their items, in their order."""
    split = [item["content"].rsplit("/", 1) for item in items]
    return [
        (batch, [int(number) for _, number in group])
        for batch, group in groupby(split, key=lambda parts: parts[0])
    ]


@pytest.mark.parametrize(("batches", "size"), [(40, 5), (4, 250)])
def test_batches_of_two_processes_are_kept_and_not_mixed(
    address: str, batches: int, size: int
) -> None:
    """Each batch is there once, complete, and in its writer's order."""
    session_id = f"processes {size}"
    processes = [writer(address, session_id, name, batches, size) for name in "ab"]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found = batches_of(asyncio.run(ParleySession(session_id, address).get_items()))
    assert sorted(found) == sorted(
        (f"{name}/{batch}", list(range(size))) for name in "ab" for batch in range(batches)
    )
    for name in "ab":
        own = [batch for batch, _ in found if batch.startswith(name)]
        assert own == [f"{name}/{batch}" for batch in range(batches)]


def test_kill_of_the_client_leaves_complete_batches(address: str) -> None:
    """What a killed process has added is there, and no part of a batch."""
    process = writer(address, "killed writer", "w", 100_000, 150)
    acknowledged = [next(process.stdout) for _ in range(5)]
    process.kill()
    process.communicate()
    found = batches_of(asyncio.run(ParleySession("killed writer", address).get_items()))
    assert len(found) >= len(acknowledged)
    assert found == [(f"w/{number}", list(range(150))) for number in range(len(found))]


def test_two_event_loops_share_a_session(address: str) -> None:
    """One session works in several event loops, also at the same time."""
    session = ParleySession("loops", address)
    asyncio.run(session.add_items([user("first")]))

    def run(name: str) -> None:
        asyncio.run(session.add_items([user(name)]))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("second", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items: list[Any] = asyncio.run(session.get_items())
    assert items[0] == user("first")
    assert sorted(item["content"] for item in items) == ["first", "second", "third"]
    session.close()


def image(number: int, size: int) -> Any:
    """Return a message with an image of so many bytes, as base64."""
    url = f"data:image/png;base64,{number:08}" + "A" * (size * 4 // 3)
    return {
        "role": "user",
        "content": [{"type": "input_image", "image_url": url, "detail": "auto"}],
    }


def test_20_images_of_300_kb_fit_in_a_session(address: str) -> None:
    """Large items do not count towards the size of a conversation."""
    images = [image(number, 300_000) for number in range(20)]

    async def test() -> None:
        session = ParleySession("images", address)
        for item in images[:10]:
            await session.add_items([item])
        await session.add_items(images[10:])  # in all 4 MB
        assert await session.get_items() == images
        assert await session.get_items(limit=2) == images[-2:]
        assert await session.pop_item() == images[-1]
        assert await session.get_items() == images[:-1]

    asyncio.run(test())
    assert [message.content for message in messages_of(address, "images")] == ["[image]"] * 19
    assert record_count(address, "images") == 19


def test_items_larger_than_a_request_are_one_commit_with_their_batch(address: str) -> None:
    """Items of any size are added, read, popped and cleared."""
    items = [user("before"), user("x" * 9_000_000), *users(120), user("y" * 5_000_000)]

    async def test() -> None:
        session = ParleySession("large", address)
        await session.add_items(items)
        assert await session.get_items() == items
        assert await session.pop_item() == items[-1]
        await session.clear_session()
        assert await session.get_items() == []

    asyncio.run(test())
    assert record_count(address, "large") == 0


def test_replacement_larger_than_a_request_is_one_commit(address: str) -> None:
    """A compaction and a pop that write more than a request takes replace the end once."""
    large = [user(letter * 1_500_000) for letter in "abcd"]

    async def test() -> None:
        session = ParleySession("large replacement", address)
        await session.add_items(users(2))
        snapshot = await session._get_compaction_snapshot(10)
        assert snapshot is not None
        assert await snapshot.replace_suffix(1, large)
        assert await session.get_items() == [*users(1), *large]
        assert record_count(address, "large replacement") == len(large)
        assert not await snapshot.replace_suffix(1, large)
        assert record_count(address, "large replacement") == len(large)
        await session.clear_session()
        # The three older items share a message, of which a pop writes two again.
        older = [user(letter * 2_500_000) for letter in "abc"]
        await session.add_items([*older, *users(197)])
        for _ in range(197):
            await session.pop_item()
        assert await session.pop_item() == older[-1]
        assert await session.get_items() == older[:-1]

    asyncio.run(test())


def test_clear_while_records_are_staged_leaves_no_item_without_its_records(address: str) -> None:
    """A clear and a large append do not break each other."""
    item = user("z" * 5_000_000)

    async def test() -> None:
        adding, clearing = (ParleySession("cleared while staged", address) for _ in range(2))
        await clearing.add_items(users(1))
        for clears in range(1, 5):
            add = asyncio.create_task(adding.add_items([item]))
            for _ in range(clears):
                await clearing.clear_session()
            await add
            assert await adding.get_items() in ([], [item])

    asyncio.run(test())


def test_pop_item_returns_the_newest_until_none_is_left(address: str) -> None:
    """Each item is popped, also a result without its call."""

    async def test() -> None:
        session = ParleySession("popped", address)
        assert await session.pop_item() is None
        items = [*users(120), CALL, RESULT, user("x" * 40_000)]
        await session.add_items(items)
        for item in reversed(items):
            assert await session.pop_item() == item
        assert await session.pop_item() is None
        await session.add_items([user("again")])
        assert await session.get_items() == [user("again")]

    asyncio.run(test())
    assert record_count(address, "popped") == 0


def test_concurrent_pops_never_return_the_same_item(address: str) -> None:
    """Four callers get 40 different items."""

    async def test() -> None:
        sessions = [ParleySession("raced", address) for _ in range(4)]
        await sessions[0].add_items(users(40))
        popped: list[Any] = []

        async def pop(session: ParleySession) -> None:
            for _ in range(10):
                popped.append(await session.pop_item())

        await asyncio.gather(*map(pop, sessions))
        assert sorted(int(item["content"]) for item in popped) == list(range(40))
        assert await sessions[0].get_items() == []

    asyncio.run(test())


def test_clear_removes_all_items_and_records(address: str) -> None:
    """A cleared session is empty and can be used again."""

    async def test() -> None:
        session = ParleySession("cleared", address)
        await session.clear_session()
        with pytest.raises(parley.Error, match="CONVERSATION_NOT_FOUND"):
            await asyncio.to_thread(record_count, address, "cleared")
        await session.add_items([image(number, 20_000) for number in range(120)])
        await session.add_items([CALL, RESULT])
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items([user("again")])
        assert await session.get_items() == [user("again")]

    asyncio.run(test())
    assert record_count(address, "cleared") == 0


def test_snapshot_replaces_the_end_in_one_commit(address: str) -> None:
    """The version rises by one."""

    async def test() -> None:
        session = ParleySession("compacted", address)
        await session.add_items(users(6))
        snapshot = await session._get_compaction_snapshot(4)
        assert snapshot is not None
        assert (snapshot.items, snapshot.complete) == (users(6)[-4:], False)
        version = (await asyncio.to_thread(header, address, "compacted")).version
        assert await snapshot.replace_suffix(1, [user("summary")])
        assert await session.get_items() == [*users(3), user("summary")]
        after = await asyncio.to_thread(header, address, "compacted")
        assert after.version == version + 1
        complete = await session._get_compaction_snapshot(10)
        assert complete is not None
        assert complete.complete
        assert await complete.replace_suffix(0, [])
        assert await session.get_items() == []

    asyncio.run(test())


def header(address: str, conversation_id: str) -> parley.Conversation:
    """Return the header of a conversation."""
    with parley.Client(address) as client:
        request = parley.GetConversationRequest(conversation_id=conversation_id)
        return client.get_conversation(request).conversation


@pytest.mark.parametrize("change", ["append", "pop", "clear", "same again"])
def test_snapshot_conflict_changes_nothing(address: str, change: str) -> None:
    """A change of the newest items in the meantime refuses the replacement."""

    async def test() -> None:
        session = ParleySession(f"conflict {change}", address)
        other = ParleySession(f"conflict {change}", address)
        await session.add_items(users(4))
        snapshot = await session._get_compaction_snapshot(3)
        assert snapshot is not None
        if change == "append":
            await other.add_items([user("newer")])
        elif change == "clear":
            await other.clear_session()
        else:
            item = await other.pop_item()
            if change == "same again":
                assert item is not None
                await other.add_items([item])
        before = await session.get_items()
        assert not await snapshot.replace_suffix(0, [user("summary")])
        assert await session.get_items() == before

    asyncio.run(test())


def test_change_that_is_no_item_is_no_conflict(address: str) -> None:
    """A new title does not refuse the replacement."""

    async def test() -> None:
        async with parley.AsyncClient(address) as client:
            session = ParleySession("renamed", client)
            await session.add_items(users(4))
            snapshot = await session._get_compaction_snapshot(3)
            assert snapshot is not None
            renamed = parley.Conversation(id="renamed", title="A title")
            await client.update_conversation(parley.UpdateConversationRequest(conversation=renamed))
            assert await snapshot.replace_suffix(0, [user("summary")])
            assert await session.get_items() == [user("0"), user("summary")]

    asyncio.run(test())


def test_snapshot_separates_a_call_from_its_result(address: str) -> None:
    """A replacement may remove a result and keep its call."""

    async def test() -> None:
        session = ParleySession("separated", address)
        await session.add_items([user("0"), CALL, user("1"), RESULT, user("2")])
        snapshot = await session._get_compaction_snapshot(2)
        assert snapshot is not None
        assert await snapshot.replace_suffix(0, [user("summary")])
        assert await session.get_items() == [user("0"), CALL, user("1"), user("summary")]

    asyncio.run(test())


def test_snapshot_starts_inside_a_long_batch(address: str) -> None:
    """A replacement may begin at an item that shares its message."""

    async def test() -> None:
        session = ParleySession("inside", address)
        await session.add_items(users(400))
        snapshot = await session._get_compaction_snapshot(345)
        assert snapshot is not None
        assert snapshot.items == users(400)[-345:]
        assert await snapshot.replace_suffix(1, [user("summary")])
        assert await session.get_items() == [*users(56), user("summary")]

    asyncio.run(test())


def test_subclass_that_transforms_items_has_no_snapshot(address: str) -> None:
    """The SDK then calls the methods of the subclass."""

    class Own(ParleySession):
        async def add_items(self, items: list[Any]) -> None:
            await super().add_items(items)

    async def test() -> None:
        session = Own("subclass", address)
        assert await session._get_compaction_snapshot(3) is None
        assert not await session._atomic_replace_items([])

    asyncio.run(test())


def test_atomic_replacement_removes_all_older_items(address: str) -> None:
    """A manual compaction leaves the new items alone, and their records."""

    async def test() -> None:
        session = ParleySession("replaced", address)
        await session.add_items([*users(3), image(0, 50_000)])
        assert await session._atomic_replace_items([user("x" * 50_000), *users(150)])
        assert await session.get_items() == [user("x" * 50_000), *users(150)]

    asyncio.run(test())
    assert record_count(address, "replaced") == 1


def test_cancelled_add_is_made_before_the_cancellation_is_raised(address: str) -> None:
    """A cancelled task knows that its items are there."""

    async def test() -> None:
        session = ParleySession("cancelled", address)
        for number in range(20):
            task = asyncio.create_task(session.add_items([user(str(number))]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await session.get_items() == users(number + 1)

    asyncio.run(test())


def test_closed_session_refuses_calls(address: str) -> None:
    """As SQLiteSession does, also for an empty list."""

    async def test() -> None:
        session = ParleySession("closed", address)
        await session.add_items([user("kept")])
        session.close()
        session.close()
        for call in (session.get_items, session.pop_item, session.clear_session):
            with pytest.raises(RuntimeError, match="ParleySession is closed"):
                await call()
        with pytest.raises(RuntimeError, match="ParleySession is closed"):
            await session.add_items([])

    asyncio.run(test())
    ParleySession("closed", address).close()


def test_client_of_the_caller_stays_open(address: str) -> None:
    """Only the client that the session made is closed."""

    async def test() -> None:
        async with parley.AsyncClient(address) as client:
            session = ParleySession("shared client", client)
            await session.add_items([user("kept")])
            session.close()
            await session.aclose()
            assert await ParleySession("shared client", client).get_items() == [user("kept")]

    asyncio.run(test())


def test_other_readers_see_roles_texts_calls_and_results(address: str) -> None:
    """Summaries and other clients can use the history."""
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Which city?"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "easy"}]},
        CALL,
        RESULT,
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "San Francisco.", "annotations": []}],
        },
    ]

    async def test() -> parley.RoutingSummary:
        async with parley.AsyncClient(address) as client:
            await ParleySession("readable", client).add_items(items)
            request = parley.GetRoutingSummaryRequest(conversation_id="readable")
            return (await client.get_routing_summary(request)).summary

    summary = asyncio.run(test())
    assert summary.text == "Previous: called lookup, [web search call], San Francisco."
    role = parley.Role
    stored = messages_of(address, "readable")
    assert [(message.role, message.content) for message in stored] == [
        (role.ROLE_SYSTEM, "Be brief."),
        (role.ROLE_USER, "Which city?"),
        (role.ROLE_ASSISTANT, ""),
        (role.ROLE_ASSISTANT, ""),
        (role.ROLE_TOOL, ""),
        (role.ROLE_ASSISTANT, "[web search call]"),
        (role.ROLE_ASSISTANT, "San Francisco."),
    ]
    assert stored[2].reasoning == "easy"
    assert stored[3].tool_calls[0] == parley.ToolCall(id="c1", name="lookup", arguments='{"a": 1}')
    assert stored[4].tool_result == parley.ToolResult(call_id="c1", content="found")
    assert {message.native.type for message in stored} == {"openai.responses.item"}
    assert json.loads(stored[3].native.value) == CALL


def test_messages_of_other_writers_are_items(address: str) -> None:
    """What others append is part of the session."""
    call = parley.ToolCall(id="c9", name="find", arguments="{}")
    others = [
        parley.Message(role=parley.Role.ROLE_USER, content="hello"),
        parley.Message(role=parley.Role.ROLE_ASSISTANT, content="wait", tool_calls=[call]),
        parley.Message(
            role=parley.Role.ROLE_TOOL,
            tool_result=parley.ToolResult(call_id="c9", content="it"),
        ),
    ]

    async def test() -> None:
        async with parley.AsyncClient(address) as client:
            session = ParleySession("others", client)
            await session.add_items(users(1))
            await client.append_messages(
                parley.AppendMessagesRequest(conversation_id="others", messages=others)
            )
            items = await session.get_items()
            assert items == [
                user("0"),
                user("hello"),
                {"role": "assistant", "content": "wait"},
                {"type": "function_call", "call_id": "c9", "name": "find", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c9", "output": "it"},
            ]
            assert await session.pop_item() == items[-1]
            assert await session.pop_item() == items[-2]
            assert await session.get_items() == items[:3]

    asyncio.run(test())


def test_native_values_that_are_not_json_are_skipped(address: str) -> None:
    """As in SQLiteSession, the limit counts the items that can be read."""

    def of(value: bytes) -> parley.Message:
        native = parley.Native(type="openai.responses.item", value=value)
        return parley.Message(role=parley.Role.ROLE_ASSISTANT, native=native)

    invalid = [of(b"{{{"), of(b"{} {}"), of(b"")]

    async def test() -> None:
        async with parley.AsyncClient(address) as client:
            session = ParleySession("invalid", client)
            await session.add_items(users(3))
            await client.append_messages(
                parley.AppendMessagesRequest(conversation_id="invalid", messages=invalid * 2)
            )
            assert await session.get_items(2) == users(3)[-2:]
            assert await session.pop_item() == user("2")
            assert await session.get_items() == users(2)
            await client.append_messages(
                parley.AppendMessagesRequest(
                    conversation_id="invalid", messages=[of(b' {"spaces": [1, 2]}\n')]
                )
            )
            assert repr(await session.get_items(1)) == "[{'spaces': [1, 2]}]"

    asyncio.run(test())


def test_conversation_is_kept_unless_the_caller_passes_a_retention(address: str) -> None:
    """Nothing is dropped by default."""

    async def test() -> None:
        await ParleySession("kept", address).add_items(users(1))
        retention = parley.Retention(max_messages=3)
        session = ParleySession("short", address, retention=retention)
        await session.add_items(users(5))
        assert await session.get_items() == users(5)[-3:]

    asyncio.run(test())
    kept = header(address, "kept").retention
    assert (kept.keep_all, kept.no_expiry, kept.no_eviction) == (True, True, True)


def answer(text: str) -> ResponseOutputMessage:
    """Return an answer of a model."""
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=[content]
    )


@pytest.mark.long
def test_300_turns_of_an_agent(address: str) -> None:
    """An agent with a scripted model keeps all turns and reads the newest."""

    async def test() -> None:
        model = ScriptedModel([[answer(f"answer {turn}")] for turn in range(300)])
        agent: Agent[None] = Agent(name="talker", model=model)
        async with parley.AsyncClient(address) as client:
            session = ParleySession("turns", client, session_settings={"limit": 20})
            for turn in range(300):
                result = await Runner.run(agent, f"question {turn}", session=session)
                assert result.final_output == f"answer {turn}"
            items: list[Any] = await session.get_items(-1)
        texts = [
            item["content"] if item["role"] == "user" else item["content"][0]["text"]
            for item in items
        ]
        expected = [f"{kind} {turn}" for turn in range(300) for kind in ("question", "answer")]
        assert texts == expected
        assert len(model.calls[-1].input) == 21

    asyncio.run(test())


def test_1001_sessions_are_kept(tmp_path: Path) -> None:
    """No session is evicted for another one."""

    async def test(address: str) -> None:
        async with parley.AsyncClient(address) as client:
            sessions = [ParleySession(f"user/{number}", client) for number in range(1001)]
            for start in range(0, len(sessions), 50):
                some = sessions[start : start + 50]
                await asyncio.gather(*(session.add_items(users(1)) for session in some))
            for session in sessions:
                assert await session.get_items() == users(1)

    with parleyd(tmp_path, "", "--max-conversations=2000", store="bolt") as server:
        asyncio.run(test(server.address))


class Model(BaseHTTPRequestHandler):
    """The Responses API of a model that always answers the same."""

    def do_POST(self) -> None:
        """Answer a request."""
        self.rfile.read(int(self.headers["Content-Length"]))
        message = answer("In San Francisco.").model_dump()
        response = {
            "id": "r",
            "object": "response",
            "created_at": 0,
            "model": "m",
            "output": [message],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }
        body = json.dumps(response).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_snippet(address: str) -> None:
    """The snippet of the documentation works."""
    source = (HERE / "snippet.py").read_text()
    assert "127.0.0.1:50051" in source
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as model:
        threading.Thread(target=model.serve_forever, daemon=True).start()
        done = subprocess.run(
            [sys.executable, "-c", source.replace("127.0.0.1:50051", address)],
            env={
                **os.environ,
                "OPENAI_API_KEY": "none",
                "OPENAI_BASE_URL": f"http://127.0.0.1:{model.server_port}/v1",
                "OPENAI_AGENTS_DISABLE_TRACING": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        model.shutdown()
    assert done.stdout == "In San Francisco. 2\n", done.stderr
