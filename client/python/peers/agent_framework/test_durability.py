"""What the adapter guarantees beside the contracts: nothing is lost, and the order stays."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from agent_framework import Agent, AgentSession, Content, Message
from conftest import ScriptedClient, run
from programs import parleyd
from proxy import proxy_to
from workflows import Count, counted, counting

from parley import AsyncClient, ChangeKind, Client, Error, ListMessagesRequest, Role
from parley.adapters.agent_framework import (
    ParleyCheckpointStorage,
    ParleyHistoryProvider,
    ParleySessionStore,
)
from parley.v1.conversation_service_pb2 import AppendMessagesRequest, WatchConversationsRequest
from parley.v1.message_pb2 import Message as Stored
from parley.v1.message_pb2 import ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent


@pytest.fixture
def history(shared: str, opened: Callable[[Any], Any]) -> ParleyHistoryProvider:
    """Return a provider of the shared server."""
    provider: ParleyHistoryProvider = opened(ParleyHistoryProvider(shared))
    return provider


def numbered(count: int, start: int = 0) -> list[Message]:
    """Return messages with the texts 0, 1, 2..."""
    return [Message("user", [str(number)]) for number in range(start, start + count)]


def texts(history: ParleyHistoryProvider, session: str, **options: Any) -> list[str]:
    """Return the texts of a session."""
    return [message.text for message in run(history.get_messages(session, **options))]


def double(number: float) -> float:
    """Double a number."""
    return 2 * number


@pytest.mark.long
def test_an_agent_runs_300_turns(shared: str, opened: Callable[[Any], Any]) -> None:
    """Each turn is a new process as far as the agent knows: its session is loaded and set again."""
    store = opened(ParleySessionStore(shared))
    history = opened(ParleyHistoryProvider(shared))

    async def turn(number: int) -> str:
        agent = Agent(ScriptedClient(), tools=[double], context_providers=[history])
        session = await store.get("agent") or AgentSession(session_id="agent")
        session.state["turns"] = [*session.state.get("turns", []), number]
        text = str(number) if number % 10 else f"double {number}"
        answer = (await agent.run(text, session=session)).text
        await store.set("agent", session)
        return answer

    async def turns() -> Any:
        count = 0
        for number in range(300):
            want = f"Heard: {number} ({count + 1})" if number % 10 else f"Result: {2.0 * number}"
            assert await turn(number) == want
            count += 2 if number % 10 else 4
        assert (await store.get("agent")).state["turns"] == list(range(300))
        return await history.get_messages("agent")

    stored: list[Message] = run(turns())
    assert len(stored) == 300 * 2 + 30 * 2
    users = [message.text for message in stored if message.role == "user"]
    assert users == [str(n) if n % 10 else f"double {n}" for n in range(300)]
    calls = [c for m in stored for c in m.contents if c.type == "function_call"]
    assert [repr(call.arguments) for call in calls] == [
        f"{{'number': {float(n)}}}" for n in range(0, 300, 10)
    ]


def test_1500_messages_keep_their_order(history: ParleyHistoryProvider) -> None:
    async def add() -> None:
        for message in numbered(1500):
            await history.save_messages("many", [message])

    run(add())
    assert texts(history, "many") == [str(number) for number in range(1500)]
    assert texts(history, "many", limit=20) == [str(number) for number in range(1480, 1500)]
    assert texts(history, "many", limit=0) == []


def test_1500_messages_are_one_commit(history: ParleyHistoryProvider, shared: str) -> None:
    """A reader sees none of them or all, and what the history ends with is not stored again."""
    ended = threading.Event()
    seen: set[int] = set()

    def watch() -> None:
        other = ParleyHistoryProvider(shared)
        while not ended.is_set():
            seen.add(len(texts(other, "batch")))
        run(other.aclose())

    reader = threading.Thread(target=watch)
    reader.start()
    run(history.save_messages("batch", numbered(1500)))
    run(history.save_messages("batch", numbered(1500, 1000)))
    ended.set()
    reader.join()
    want = [str(number) for number in range(2500)]
    assert texts(history, "batch") == want
    for limit in (1, 49, 51, 900):
        assert texts(history, "batch", limit=limit) == want[-limit:]
    assert seen <= {0, 1500, 2500}


def test_1001_sessions(history: ParleyHistoryProvider) -> None:
    names = [f"session {i}" for i in range(1001)]

    async def each() -> None:
        for start in range(0, 1001, 20):
            some = names[start : start + 20]
            await asyncio.gather(
                *(history.save_messages(name, [Message("user", [name])]) for name in some)
            )
        for name in (*names[:5], *names[-5:]):
            assert [m.text for m in await history.get_messages(name)] == [name]

    run(each())


def test_odd_session_ids(history: ParleyHistoryProvider) -> None:
    odd = ["user@example.com", "a/b", "a%2Fb", " a ", "..", "a\nb\x00", "é" * 400, "x" * 1000]
    for name in odd:
        run(history.save_messages(name, [Message("user", [name])]))
    for name in odd:
        assert texts(history, name) == [name]


def test_scopes_are_apart(history: ParleyHistoryProvider, shared: str) -> None:
    audit = ParleyHistoryProvider(shared, scope="audit", source_id="audit", load_messages=False)

    async def check() -> None:
        agent = Agent(ScriptedClient(), context_providers=[history, audit])
        await agent.run("hello", session=agent.create_session(session_id="scoped"))
        await history.clear("scoped")
        await history.clear("scoped")
        assert await history.get_messages("scoped") == []
        assert [m.text for m in await audit.get_messages("scoped")] == ["hello", "Heard: hello (1)"]
        await audit.aclose()

    run(check())
    with Client(shared) as client:
        request = ListMessagesRequest(conversation_id="audit/scoped")
        assert len(client.list_messages(request).messages) == 2


def test_large_messages(history: ParleyHistoryProvider, shared: str) -> None:
    def image(size: int) -> Message:
        data = random.Random(size).randbytes(size)  # noqa: S311 - any bytes
        return Message("user", ["Look.", Content.from_data(data, media_type="image/png")])

    batches = [[image(n)] for n in (10_000, 30_000, 300_000, 2_500_000, 6_000_000)]
    batches.append([image(1_500_000 + n) for n in range(6)])
    batches.append([image(20_000 + n) for n in range(120)])
    for batch in batches:
        run(history.save_messages("large", batch))
        if len(batch) > 1:  # A single message of a user is stored again.
            run(history.save_messages("large", batch))
    got = run(history.get_messages("large"))
    assert [m.to_dict() for m in got] == [m.to_dict() for batch in batches for m in batch]
    with Client(shared) as client:
        request = ListMessagesRequest(conversation_id="large", page_size=1000, ascending=True)
        (first, *_) = client.list_messages(request).messages
        assert (first.role, first.content) == (Role.ROLE_USER, "Look.\n[image/png]")


def test_a_deleted_record_is_an_error(history: ParleyHistoryProvider, shared: str) -> None:
    run(history.save_messages("broken", [Message("user", ["x" * 100_000])]))
    with Client(shared) as client:
        records = client.records("broken")
        for record in list(records.list(keys_only=True)):
            records.delete(record.key)
    with pytest.raises(ValueError, match="was deleted"):
        run(history.get_messages("broken"))


def test_other_programs_can_read(history: ParleyHistoryProvider, shared: str) -> None:
    messages = [
        Message("system", ["Be brief."]),
        Message("user", ["Hello."]),
        Message(
            "assistant",
            [
                Content.from_text_reasoning(text="secret"),
                Content.from_text("I look."),
                Content.from_function_call("c1", "look", arguments={}),
            ],
            author_name="guide",
        ),
        Message("tool", [Content.from_function_result("c1", result="7")]),
    ]
    run(history.save_messages("read", messages))
    with Client(shared) as client:
        request = ListMessagesRequest(conversation_id="read", ascending=True)
        got = client.list_messages(request).messages
    assert [m.role for m in got] == [
        Role.ROLE_SYSTEM,
        Role.ROLE_USER,
        Role.ROLE_ASSISTANT,
        Role.ROLE_TOOL,
    ]
    assert [m.content for m in got] == ["Be brief.", "Hello.", "I look.\n[calls look]", ""]
    assert (got[3].tool_result.call_id, got[3].tool_result.content) == ("c1", "7")
    assert got[2].agent == "guide"
    assert {m.native.type for m in got} == {"agent_framework.message"}


def test_messages_of_other_programs_are_read(history: ParleyHistoryProvider, shared: str) -> None:
    call = ToolCall(id="c1", name="look", arguments='{"a": 1.0}')
    with Client(shared) as client:
        client.append_messages(
            AppendMessagesRequest(
                conversation_id="foreign",
                messages=[
                    Stored(role=Role.ROLE_USER, content="Hello."),
                    Stored(role=Role.ROLE_ASSISTANT, tool_calls=[call], agent="other"),
                    Stored(role=Role.ROLE_TOOL, tool_result=ToolResult(call_id="c1", content="7")),
                ],
            )
        )
    run(history.save_messages("foreign", [Message("user", ["And?"])]))
    first, second, third, fourth = run(history.get_messages("foreign"))
    assert (first.role, first.text, fourth.text) == ("user", "Hello.", "And?")
    (content,) = second.contents
    assert (second.role, second.author_name) == ("assistant", "other")
    assert (content.type, content.call_id, content.name) == ("function_call", "c1", "look")
    assert content.arguments == '{"a": 1.0}'
    (content,) = third.contents
    assert (third.role, content.call_id, content.result) == ("tool", "c1", "7")


def test_a_full_conversation_says_so(history: ParleyHistoryProvider) -> None:
    """The server keeps 3 MiB of messages in a conversation. At the limit, nothing is lost."""
    saved, full = 0, ""
    while not full:
        try:
            text = f"{saved} " + "x" * 15_000
            run(history.save_messages("full", [Message("user", [text])]))
            saved += 1
        except Error as error:
            full = error.reason
    assert full == "CONVERSATION_FULL"
    assert saved > 50
    got = texts(history, "full")
    assert [text.split()[0] for text in got] == [str(number) for number in range(saved)]


def keys(shared: str, conversation: str) -> list[str]:
    """Return the keys of all records of a conversation."""
    with Client(shared) as client:
        return [record.key for record in client.records(conversation).list(keys_only=True)]


def test_a_refused_save_leaves_no_records(history: ParleyHistoryProvider, shared: str) -> None:
    """Records that a request has no space for are written before the messages."""

    def fill() -> None:
        for start in range(0, 1000, 99):
            texts = [f"{number} " + "x" * 15_000 for number in range(start, start + 99)]
            run(history.save_messages("refused", [Message("user", [text]) for text in texts]))

    with pytest.raises(Error, match="CONVERSATION_FULL"):
        fill()
    assert keys(shared, "refused") == []
    large = [Message("user", [f"{number} " + "x" * 60_000]) for number in range(100)]
    with pytest.raises(Error, match="CONVERSATION_FULL"):
        run(history.save_messages("refused", large))
    assert keys(shared, "refused") == []


def test_a_cancelled_save_leaves_no_records(history: ParleyHistoryProvider, shared: str) -> None:
    async def check() -> None:
        async with AsyncClient(shared) as client:
            message = Message("user", ["x" * (60 << 20)])
            saving = asyncio.create_task(history.save_messages("cancelled", [message]))
            request = WatchConversationsRequest(
                conversation_ids=["cancelled"], include_records=True
            )
            async for change in client.watch_conversations(request):
                if change.kind == ChangeKind.CHANGE_KIND_RECORD:
                    break
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving

    run(check())
    assert keys(shared, "cancelled") == []
    assert texts(history, "cancelled") == []


def test_a_session_with_a_missing_part_is_an_error(
    shared: str, opened: Callable[[Any], Any]
) -> None:
    store = opened(ParleySessionStore(shared, prefix="missing/"))
    session = AgentSession(session_id="s")
    session.state["text"] = "x" * (5 << 20)
    run(store.set("s", session))
    with Client(shared) as client:
        records = client.tenant_records()
        parts = [record.key for record in records.list("missing/piece/", keys_only=True)]
        assert len(parts) == 3
        records.delete(parts[1])
    with pytest.raises(ValueError, match=r"piece/.*/1', a part of the value, is missing"):
        run(store.get("s"))
    session.state["text"] = "y" * (5 << 20)
    run(store.set("s", session))
    assert run(store.get("s")).state == session.state


def test_text_that_is_not_unicode_comes_back(
    history: ParleyHistoryProvider, shared: str, opened: Callable[[Any], Any]
) -> None:
    """Models return half of a surrogate pair now and then. The history in memory stores it, too."""
    messages = [Message("user", ["a\ud800b"]), Message("assistant", ["c"], author_name="\udc00")]
    run(history.save_messages("surrogates", messages))
    got = run(history.get_messages("surrogates"))
    assert [m.to_dict() for m in got] == [m.to_dict() for m in messages]
    run(history.save_messages("surrogates", messages * 60))
    assert len(run(history.get_messages("surrogates"))) > 100
    store = opened(ParleySessionStore(shared))
    session = AgentSession(session_id="surrogates")
    session.state["text"] = "a\ud800b"
    run(store.set("surrogates", session))
    assert run(store.get("surrogates")).state == session.state


def test_the_stores_may_share_a_client(shared: str) -> None:
    """They do not close it. A sync client is refused: the framework has only async methods."""

    async def check() -> None:
        async with AsyncClient(shared) as client:
            stores = ParleyHistoryProvider(client), ParleySessionStore(client)
            for store in stores:
                await store.aclose()
            storage = ParleyCheckpointStorage(client)
            assert await storage.get_latest(workflow_name="none") is None
            await stores[0].save_messages("client", [Message("user", ["hello"])])
            await stores[1].set("client", AgentSession(session_id="client"))
        with Client(shared) as sync, pytest.raises(TypeError, match="AsyncClient"):
            await ParleyHistoryProvider(sync).get_messages("client")

    run(check())


def turns_of(name: str, got: list[str]) -> list[str]:
    """Return the prompts of a writer. After each of them, its answer must be the next text."""
    found = []
    for number, text in enumerate(got):
        if text.startswith(f"{name} "):
            found.append(text)
            assert got[number + 1].startswith(f"Heard: {text} (")
    return found


def started(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process that runs the main function of a module in this folder."""
    code = f"import sys; sys.path[:0] = sys.argv[1:3]; import {module}; {module}.main()"
    folders = [str(HERE), str(HERE.parents[1] / "tests")]
    command = [sys.executable, "-c", code, *folders, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_on_one_session_lose_nothing(
    history: ParleyHistoryProvider, shared: str
) -> None:
    """Each turn of both is there once, with its answer, in the order of its writer."""
    processes = [started("writer", shared, "both", name, "40") for name in "ab"]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    got = texts(history, "both")
    assert len(got) == 160
    for name in "ab":
        assert turns_of(name, got) == [f"{name} {number}" for number in range(40)]


def test_two_event_loops(history: ParleyHistoryProvider) -> None:
    def add(name: str) -> None:
        async def each() -> None:
            for number in range(20):
                await history.save_messages("loops", [Message("user", [f"{name} {number}"])])

        asyncio.run(each())

    threads = [threading.Thread(target=add, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = texts(history, "loops")
    for name in "ab":
        assert [t for t in got if t[0] == name] == [f"{name} {number}" for number in range(20)]


def test_a_cut_connection_stores_nothing_twice(shared: str) -> None:
    """Connections break at any byte of the replies. All messages are there, and once.

    The framework's rule stores such a message of a user again, so only the request id prevents it.
    """
    dice = random.Random(24)  # noqa: S311 - the same bytes in each run

    async def again(step: Callable[[], Any]) -> None:
        try:
            await step()
        except Error as error:
            if error.code is not grpc.StatusCode.UNAVAILABLE:
                raise
            await step()  # The reply of a read was lost: gRPC does not repeat that.

    async def saves() -> None:
        history, sessions = ParleyHistoryProvider(proxy.address), ParleySessionStore(proxy.address)
        session = AgentSession(session_id="cut")
        for number in range(40):
            proxy.limit(dice.randint(1, 900))
            proxy.cut()
            await again(lambda: history.save_messages("cut", [Message("user", ["again"])]))
            session.state["number"] = number
            proxy.limit(dice.randint(1, 300))
            proxy.cut()
            await again(lambda: sessions.set("cut", session))
        assert len(await history.get_messages("cut")) == 40
        got = await sessions.get("cut")
        assert got
        assert got.state == {"number": 39}
        await history.aclose()
        await sessions.aclose()

    with proxy_to(shared) as proxy:
        run(saves())
        assert proxy.connections > 80


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged before the kill is there after the restart, once and in order."""
    with parleyd(tmp_path, store="bolt") as server:
        history = ParleyHistoryProvider(server.address)
        stored = 0
        for _ in range(3):
            several = threading.Event()
            acknowledged: list[int] = []

            def add(
                first: int = stored,
                several: threading.Event = several,
                acknowledged: list[int] = acknowledged,
            ) -> None:
                async def turns() -> None:
                    agent = Agent(ScriptedClient(), context_providers=[history])
                    for number in range(first, 100_000):
                        session = agent.create_session(session_id="crash")
                        await agent.run(f"c {number}", session=session)
                        acknowledged.append(number)
                        if number == first + 20:
                            several.set()

                try:
                    asyncio.run(turns())
                except Error:
                    several.set()

            thread = threading.Thread(target=add)
            thread.start()
            several.wait()
            server.kill()
            thread.join()
            server.start()
            got = turns_of("c", texts(history, "crash"))
            assert got == [f"c {number}" for number in range(len(got))]
            assert len(got) - stored - len(acknowledged) in (0, 1)  # stored, not acknowledged
            stored = len(got)
        run(history.aclose())


def test_a_killed_client_leaves_no_half_turn(history: ParleyHistoryProvider, shared: str) -> None:
    with started("writer", shared, "died", "d", "100000") as process:
        assert process.stdout
        for line in process.stdout:
            if line == "20\n":
                break
        process.kill()
    got = texts(history, "died")
    turns = turns_of("d", got)
    assert turns == [f"d {number}" for number in range(len(turns))]
    assert len(turns) >= 21
    assert len(got) == 2 * len(turns)

    async def again() -> str:
        agent = Agent(ScriptedClient(), context_providers=[history])
        session = agent.create_session(session_id="died")
        return (await agent.run("again", session=session)).text

    assert run(again()) == f"Heard: again ({len(got) + 1})"


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Any]:
    """Yield a server with its own data."""
    with parleyd(tmp_path, store="bolt") as server:
        yield server


def test_a_workflow_resumes_after_kills_of_client_and_server(crashing: Any) -> None:
    """A checkpoint that was written before the kill of both is there, and its chain is complete."""
    with started("workflows", crashing.address) as process:
        assert process.stdout
        for line in process.stdout:
            if line == "30\n":  # begins after the checkpoint of step 29
                break
        crashing.kill()
        process.kill()
    crashing.start()
    storage = ParleyCheckpointStorage(crashing.address)

    async def resume() -> Any:
        latest = await storage.get_latest(workflow_name="counting/1")
        assert latest
        assert latest.iteration_count >= 30
        every = await storage.list_checkpoints(workflow_name="counting/1")
        assert [each.iteration_count for each in every] == list(range(latest.iteration_count + 1))
        for before, after in pairwise(every):
            assert after.previous_checkpoint_id == before.checkpoint_id
        last = latest.iteration_count + 5
        result = await counting(storage, last).run(checkpoint_id=latest.checkpoint_id)
        await storage.aclose()
        return last, result.get_outputs()

    last, outputs = run(resume())
    assert outputs == [counted(last)]


def test_a_workflow_survives_a_kill_of_the_server(crashing: Any) -> None:
    """It runs on, as with any storage that fails, and its newest checkpoint can be resumed."""
    storage = ParleyCheckpointStorage(crashing.address)
    steps: list[int] = []

    def on_step(number: int) -> None:
        steps.append(number)
        if number == 10:
            crashing.kill()
        if number == 12:
            crashing.start()

    async def check() -> None:
        result = await counting(storage, 20, on_step).run(Count(0))
        assert result.get_outputs() == [counted(20)]
        every = await storage.list_checkpoints(workflow_name="counting/1")
        for before, after in pairwise(every):
            assert after.previous_checkpoint_id == before.checkpoint_id
        middle = next(each for each in every if each.iteration_count == 18)
        resumed = await counting(storage, 20).run(checkpoint_id=middle.checkpoint_id)
        assert resumed.get_outputs() == [counted(20)]
        await storage.aclose()

    run(check())
    assert steps == list(range(21))
