"""The contract of conversation stores, by the documentation of the interface, and its guarantees.

The tests of the contract also run with InMemoryConversationStore.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from conftest import MODEL
from programs import parleyd
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import UsageLimits

from parley import Client, Error
from parley.adapters.pydantic_ai import ParleyConversationStore

if TYPE_CHECKING:
    from collections.abc import Sequence


def request(text: str) -> ModelRequest:
    """Return a message of a user."""
    return ModelRequest(parts=[UserPromptPart(text)])


def requests(count: int, start: int = 0) -> list[ModelMessage]:
    """Return messages with the texts 0, 1, 2..."""
    return [request(str(number)) for number in range(start, start + count)]


def texts(messages: Sequence[ModelMessage]) -> list[object]:
    """Return the texts of messages."""
    return [part.content for m in messages for part in m.parts if hasattr(part, "content")]


async def saved(
    store: ConversationStore, name: str, messages: list[ModelMessage], scope: str | None = None
) -> Conversation:
    """Save a new conversation."""
    conversation = Conversation(conversation_id=name, messages=messages)
    await store.save(conversation, scope=scope)
    return conversation


async def loaded(store: ConversationStore, name: str, limit: int | None = None) -> Conversation:
    """Load a conversation that exists."""
    conversation = await store.load(name, limit=limit)
    assert conversation
    return conversation


def test_a_conversation_is_saved_and_loaded(store: ConversationStore) -> None:
    async def run() -> None:
        assert await store.load("c") is None
        conversation = await saved(store, "c", requests(3))
        conversation.messages.append(request("3"))
        conversation.usage.requests = 7
        call = ToolCallPart("approve", {"score": 1.0, "n": 2**60}, "call")
        conversation.deferred_tool_requests = DeferredToolRequests(approvals=[call])
        entries = await store.save(conversation)
        assert texts([entry.message for entry in entries]) == ["3"]
        got = await loaded(store, "c")
        assert got.messages == conversation.messages
        assert got.usage == conversation.usage
        assert got.deferred_tool_requests == conversation.deferred_tool_requests
        assert got.revision == conversation.revision
        assert texts((await loaded(store, "c", limit=2)).messages) == ["2", "3"]
        assert texts((await loaded(store, "c", limit=0)).messages) == []

    asyncio.run(run())


def test_messages_come_back_exactly(store: ConversationStore) -> None:
    async def run() -> None:
        file = BinaryContent(b"%PDF\xff\x00" * 50_000, media_type="application/pdf")
        messages: list[ModelMessage] = [
            ModelRequest(parts=[UserPromptPart(["ハロー\u2028\n\x00", file])]),
            ModelResponse(parts=[ToolCallPart("t", {"a": [[[{"b": None}]]]}, "1")]),
            ModelRequest(parts=[ToolReturnPart("t", {"score": 1.0}, "1")]),
            ModelResponse(parts=[TextPart("Done.")], model_name="m", metadata={"k": [1, 2.0]}),
        ]
        await saved(store, "c", messages)
        assert (await loaded(store, "c")).messages == messages

    asyncio.run(run())


def test_a_stale_save_conflicts(store: ConversationStore) -> None:
    async def run() -> None:
        await saved(store, "c", requests(1))
        one, two = await loaded(store, "c"), await loaded(store, "c")
        one.messages.append(request("one"))
        await store.save(one)
        two.messages.append(request("two"))
        with pytest.raises(ConversationConflict):
            await store.save(two)
        with pytest.raises(ConversationConflict):
            await saved(store, "c", requests(1))
        with pytest.raises(ConversationConflict):
            await store.save(one, scope="other")
        assert texts((await loaded(store, "c")).messages) == ["0", "one"]

    asyncio.run(run())


def test_a_history_branches(store: ConversationStore) -> None:
    async def run() -> None:
        conversation = await saved(store, "c", requests(4))
        branched = await store.branch("c", at=2, expected_revision=conversation.revision)
        branched.messages.append(request("new"))
        await store.save(branched)
        assert texts((await loaded(store, "c")).messages) == ["0", "1", "new"]
        (record,) = await store.list_conversations()
        (left,) = record.branches
        back = await store.branch("c", from_entry=left, expected_revision=branched.revision)
        assert texts(back.messages) == ["0", "1", "2", "3"]

    asyncio.run(run())


def test_forks_share_entries(store: ConversationStore) -> None:
    async def run() -> None:
        await saved(store, "c", requests(40), scope="anna")
        fork = await store.fork("c", at=30, new_conversation_id="f")
        fork.messages.append(request("fork"))
        await store.save(fork)
        source, copy = await store.load_entries("c"), await store.load_entries("f")
        assert source
        assert copy
        assert [e.id for e in source[:30]] == [e.id for e in copy[:30]]
        with pytest.raises(ConversationConflict):
            await store.fork("c", new_conversation_id="f")
        await store.delete("c")
        assert texts((await loaded(store, "f")).messages) == [*map(str, range(30)), "fork"]

    asyncio.run(run())


def test_conversations_are_listed_by_scope(store: ConversationStore) -> None:
    async def run() -> None:
        for name, scope in (("a", "anna"), ("b", "bert"), ("c", "anna"), ("d", None)):
            await saved(store, name, requests(1), scope)
        a = await loaded(store, "a")
        await store.save(a)

        async def names(scope: str | None, limit: int | None = None) -> list[str]:
            found = await store.list_conversations(scope=scope, limit=limit)
            return [record.conversation_id for record in found]

        assert await names(None) == ["a", "d", "c", "b"]
        assert await names("anna") == ["a", "c"]
        assert await names("anna", 1) == ["a"]
        assert await store.load("a", scope="bert") is None
        await store.delete("a", scope="bert")
        assert await names("anna") == ["a", "c"]
        await store.delete("a")
        assert await names("anna") == ["c"]
        assert await store.load("a") is None

    asyncio.run(run())


def test_records_without_their_entries_are_refused(store: ConversationStore) -> None:
    async def run() -> None:
        record = ConversationRecord(conversation_id="c", head_id="gone")
        with pytest.raises(ConversationConflict):
            await store.write_record(record, expected_revision=None)
        with pytest.raises(ConversationConflict):
            await store.write_record(
                ConversationRecord(conversation_id="c", head_id=None), expected_revision="x"
            )
        with pytest.raises(ConversationConflict):
            await store.delete_record("c", expected_revision="x")
        with pytest.raises(LookupError):
            await store.read_entry("gone")
        assert await store.read_record("c") is None

    asyncio.run(run())


async def turn(store: ConversationStore, name: str, prompt: str) -> str:
    """Run one turn of an agent, like a process of its own."""
    conversation = await store.load(name) or Conversation(conversation_id=name)
    # The limit counts the requests of the whole conversation.
    limits = UsageLimits(request_limit=None)
    result = await Agent(MODEL).run(prompt, conversation=conversation, usage_limits=limits)
    await store.save(result)
    return result.output


@pytest.mark.long
def test_an_agent_runs_300_turns(fresh: str) -> None:
    async def run() -> None:
        store = ParleyConversationStore(fresh)
        want: list[str] = []
        for number in range(300):
            answer = await turn(store, "agent", f"text {number}")
            assert answer == f"Heard: text {number} ({2 * number + 1})"
            want += [f"text {number}", answer]
        assert texts((await loaded(store, "agent")).messages) == want
        await store.aclose()

    asyncio.run(run())


def test_1500_messages_keep_their_order(fresh: str) -> None:
    """A save of more messages than one commit takes is visible at once or not at all."""

    async def run() -> None:
        store = ParleyConversationStore(fresh)
        conversation = await saved(store, "many", requests(1500))
        assert (await loaded(store, "many")).messages == conversation.messages
        assert texts((await loaded(store, "many", limit=3)).messages) == ["1497", "1498", "1499"]
        one, two = await loaded(store, "many"), await loaded(store, "many")
        one.messages += requests(150, 1500)
        await store.save(one)
        two.messages += requests(150, 9000)
        with pytest.raises(ConversationConflict):
            await store.save(two)
        assert texts((await loaded(store, "many")).messages) == [*map(str, range(1650))]
        await store.aclose()

    asyncio.run(run())


def test_large_messages(fresh: str) -> None:
    async def run() -> None:
        store = ParleyConversationStore(fresh)
        large: list[ModelMessage] = [request(letter * 2_500_000) for letter in "abc"]
        await saved(store, "large", large)
        assert (await loaded(store, "large")).messages == large
        with pytest.raises(UserError, match="limit 3145728"):
            await saved(store, "refused", [request("x" * 3_200_000)])
        assert await store.load("refused") is None
        await store.aclose()

    asyncio.run(run())


class AtOnce(ParleyConversationStore):
    """A store whose writes begin only when 8 of them wait, so after all have read."""

    def __init__(self, address: str) -> None:
        """Make a store."""
        super().__init__(address)
        self._waiting, self._open = 0, asyncio.Event()

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Wait, and write."""
        self._waiting += 1
        if self._waiting == 8:
            self._open.set()
        await self._open.wait()
        await super().write_record(
            record, new_entries=new_entries, expected_revision=expected_revision
        )


def test_of_many_writers_one_wins(fresh: str) -> None:
    async def run() -> None:
        await saved(ParleyConversationStore(fresh), "c", requests(1))
        store = AtOnce(fresh)
        copies = [await loaded(store, "c") for _ in range(8)]
        for number, copy in enumerate(copies):
            copy.messages.append(request(f"writer {number}"))
        results = await asyncio.gather(*map(store.save, copies), return_exceptions=True)
        refused = [each for each in results if isinstance(each, ConversationConflict)]
        assert len(refused) == 7
        assert len((await loaded(store, "c")).messages) == 2
        await store.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("prefix", ["pydantic_ai/", "other/"])
def test_odd_ids_and_1001_conversations(fresh: str, prefix: str) -> None:
    async def run() -> None:
        store = ParleyConversationStore(fresh, prefix=prefix)
        odd = ["user@example.com", "app/1", " a ", "..", "a\nb", "%", "é" * 400, "x" * 1000]
        for name in odd:
            await saved(store, name, [request(name)])
        for name in odd:
            assert texts((await loaded(store, name)).messages) == [name]
        for start in range(0, 1001, 50):
            some = [f"c{number}" for number in range(start, min(1001, start + 50))]
            await asyncio.gather(*(saved(store, name, requests(1)) for name in some))
        assert len(await store.list_conversations()) == 1001 + len(odd)
        await store.aclose()

    asyncio.run(run())


def test_two_event_loops(fresh: str) -> None:
    store = ParleyConversationStore(fresh)

    def run(name: str) -> None:
        async def turns() -> None:
            for number in range(10):
                await turn(store, name, str(number))

        asyncio.run(turns())

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "ab":
        assert len(asyncio.run(loaded(store, name)).messages) == 20


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged before the kill is there after the restart, and in order."""
    with parleyd(tmp_path, store="bolt") as server:
        store = ParleyConversationStore(server.address)
        for _ in range(3):
            several = threading.Event()
            acknowledged: list[object] = []

            def add(
                several: threading.Event = several, acknowledged: list[object] = acknowledged
            ) -> None:
                async def turns() -> None:
                    for number in range(100_000):
                        await turn(store, "crash", str(number))
                        acknowledged.append(str(number))
                        if number == 20:
                            several.set()

                try:
                    asyncio.run(turns())
                except (Error, ConversationConflict):
                    several.set()

            before = asyncio.run(store.load("crash"))
            count = len(before.messages) if before else 0
            writer = threading.Thread(target=add)
            writer.start()
            several.wait()
            server.kill()
            writer.join()
            server.start()
            got = texts(asyncio.run(loaded(store, "crash")).messages)[count::2]
            assert got[: len(acknowledged)] == acknowledged
            assert len(got) - len(acknowledged) <= 1  # stored, but not acknowledged


WRITER = """
import asyncio
from conftest import MODEL
from test_store import turn
from parley.adapters.pydantic_ai import ParleyConversationStore
async def run():
    store = ParleyConversationStore(sys.argv[1])
    for number in range(100000):
        await turn(store, "died", str(number))
        print(number, flush=True)
asyncio.run(run())
"""


def test_a_killed_client_leaves_no_half_change(fresh: str) -> None:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests")]
    code = f"import sys; sys.path[:0] = {folders!r}\n{WRITER}"
    with subprocess.Popen(
        [sys.executable, "-c", code, fresh], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line == "20\n":
                break
        process.kill()

    async def run() -> None:
        store = ParleyConversationStore(fresh)
        messages = (await loaded(store, "died")).messages
        assert len(messages) >= 42
        assert texts(messages)[::2] == [*map(str, range(len(messages) // 2))]
        with Client(fresh) as client:
            keys = client.tenant_records().list("pydantic_ai/entry/", keys_only=True)
            assert len(list(keys)) == len(messages)
        await turn(store, "died", "again")
        await store.aclose()

    asyncio.run(run())


def test_snippet(
    fresh: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ModuleType("my_models")
    models.__dict__["model"] = MODEL
    monkeypatch.setitem(sys.modules, "my_models", models)
    text = Path(__file__).with_name("snippet.py").read_text().replace("127.0.0.1:50051", fresh)
    exec(compile(text, "snippet.py", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "Heard: Which libraries keep state? (1)\n"
