"""What the store guarantees beside the contract: nothing is lost, and the order stays."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import ChatMemoryBuffer
from programs import parleyd

from parley import Client, Error, ListMessagesRequest, ListMessagesResponse, Role
from parley.adapters.llama_index import ParleyChatStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def texts(store: ParleyChatStore, key: str) -> list[str | None]:
    """Return the texts of the messages of a key."""
    return [message.content for message in store.get_messages(key)]


def numbered(count: int) -> list[ChatMessage]:
    """Return messages with the texts 0, 1, 2..."""
    return [ChatMessage(role="user", content=str(i)) for i in range(count)]


@pytest.mark.long
def test_an_agent_runs_300_turns(parley_store: ParleyChatStore) -> None:
    def script(messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
        last = messages[-1]
        if last.role == "user" and int(last.content or "") % 10:
            return ChatMessage(role="assistant", content=f"I heard {last.content}.")
        if last.role == "user":
            call = ToolCallBlock(
                tool_call_id=f"call {last.content}",
                tool_name="double",
                tool_kwargs={"number": int(last.content or "")},
            )
            return ChatMessage(role="assistant", blocks=[call])
        return ChatMessage(role="assistant", content=f"It is {last.content}.")

    def answer_to(number: int) -> str:
        return f"I heard {number}." if number % 10 else f"It is {2 * number}."

    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    async def turns() -> None:
        for number in range(300):
            # Each turn is a new process as far as the agent knows.
            memory = ChatMemoryBuffer.from_defaults(
                token_limit=100_000,
                tokenizer_fn=str.split,
                chat_store=parley_store,
                chat_store_key="agent",
            )
            agent = FunctionAgent(
                tools=[double],
                llm=MockFunctionCallingLLM(response_generator=script, is_chat_model=True),
                streaming=False,
            )
            answer = await agent.run(user_msg=str(number), memory=memory)
            assert str(answer) == answer_to(number)

    asyncio.run(turns())
    stored = parley_store.get_messages("agent")
    assert [m.content for m in stored if m.role == "user"] == [str(n) for n in range(300)]
    answers = [m.content for m in stored if m.role == "assistant" and m.content]
    assert answers == [answer_to(n) for n in range(300)]
    assert len(stored) == 300 * 2 + 30 * 2


def test_1500_messages_keep_their_order(parley_store: ParleyChatStore) -> None:
    async def add() -> None:
        for message in numbered(1500):
            await parley_store.async_add_message("many", message)

    asyncio.run(add())
    want: list[str | None] = [str(i) for i in range(1500)]
    assert texts(parley_store, "many") == want
    parley_store.add_message("many", ChatMessage(role="user", content="new"), idx=700)
    want.insert(700, "new")
    deleted = parley_store.delete_message("many", 3)
    assert deleted
    assert deleted.content == want.pop(3)
    assert texts(parley_store, "many") == want


def test_a_replacement_is_atomic(shared: str, parley_store: ParleyChatStore) -> None:
    ended = threading.Event()
    seen: set[tuple[str | None, ...]] = set()

    def watch() -> None:
        other = ParleyChatStore(shared)
        while not ended.is_set():
            seen.add(tuple(texts(other, "atomic")))
        other.close()

    few, many = numbered(3), numbered(1500)
    parley_store.set_messages("atomic", few)
    reader = threading.Thread(target=watch)
    reader.start()
    for _ in range(10):
        parley_store.set_messages("atomic", many)
        assert len(parley_store.get_messages("atomic")) == 1500
        parley_store.set_messages("atomic", few)
    ended.set()
    reader.join()
    assert {len(each) for each in seen} <= {3, 1500}


def test_large_messages(shared: str, parley_store: ParleyChatStore) -> None:
    def image(size: int) -> ChatMessage:
        blocks = [TextBlock(text="Look."), ImageBlock(image=os.urandom(size))]
        return ChatMessage(role="user", blocks=blocks)

    messages = [image(size) for size in (30_000, 300_000, 2_500_000, 6_000_000)]
    for message in messages:
        parley_store.add_message("large", message)
    assert parley_store.get_messages("large") == messages
    more = [image(1_500_000) for _ in range(6)]
    parley_store.set_messages("large", [*more, *messages])
    assert parley_store.get_messages("large") == [*more, *messages]
    parley_store.delete_message("large", 0)
    assert parley_store.get_messages("large") == [*more[1:], *messages]
    with Client(shared) as client:
        parley_store.set_messages("large", messages[:2])
        records = sum(len(record.value) for record in client.records("large").list())
        assert 300_000 < records < 500_000  # those of removed messages have gone with them
        reply = client.list_messages(ListMessagesRequest(conversation_id="large"))
        assert {message.content for message in reply.messages} == {"Look."}
        parley_store.set_messages("large", [])
        assert not list(client.records("large").list())


def test_a_full_conversation_continues(parley_store: ParleyChatStore) -> None:
    want = [ChatMessage(role="user", content=f"{i} " + "x" * 60_000) for i in range(70)]
    for message in want:
        parley_store.add_message("full", message)
    assert parley_store.get_messages("full") == want


def test_payloads_come_back_exactly(parley_store: ParleyChatStore) -> None:
    message = ChatMessage(
        role="assistant",
        content="ハロー\u2028 héllo\n\x00",
        additional_kwargs={"score": 1.0, "n": 2**60, "deep": [[[[[[{"a": None}]]]]]], "on": True},
    )
    parley_store.set_messages("exact", [message, message])
    for got in parley_store.get_messages("exact"):
        assert got == message
        assert isinstance(got.additional_kwargs["score"], float)


def test_other_programs_can_read(shared: str, parley_store: ParleyChatStore) -> None:
    result = ChatMessage(role="tool", content="7", additional_kwargs={"tool_call_id": "c1"})
    messages = [ChatMessage(role="system", content="Be brief."), *numbered(1), result]
    parley_store.set_messages("read", messages)
    with Client(shared) as client:
        request = ListMessagesRequest(conversation_id="read", ascending=True)
        got = client.list_messages(request).messages
    assert [m.role for m in got] == [Role.ROLE_SYSTEM, Role.ROLE_USER, Role.ROLE_TOOL]
    assert [m.content for m in got] == ["Be brief.", "0", ""]
    assert (got[2].tool_result.call_id, got[2].tool_result.content) == ("c1", "7")


def test_a_value_that_is_not_json_is_refused(parley_store: ParleyChatStore) -> None:
    message = ChatMessage(role="user", content="a", additional_kwargs={"x": object()})
    with pytest.raises(ValueError, match="not JSON"):
        parley_store.add_message("refused", message)
    assert parley_store.get_keys() == []


ODD = ["user@example.com", "app/1", " a ", "..", "a\nb\x00", "%", "é" * 200, "\U0001f469\u200d"]


def test_odd_keys(parley_store: ParleyChatStore) -> None:
    for key in ODD:
        parley_store.add_message(key, ChatMessage(role="user", content=key))
    assert parley_store.get_keys() == ODD
    for key in ODD:
        assert texts(parley_store, key) == [key]
    for key in ("", "k" * 1025):
        with pytest.raises(ValueError, match=r"empty|1024"):
            parley_store.add_message(key, numbered(1)[0])


def test_1001_keys(parley_store: ParleyChatStore) -> None:
    keys = [f"user {i}" for i in range(1001)]

    async def add() -> None:
        for start in range(0, 1001, 20):
            some = keys[start : start + 20]
            message = numbered(1)[0]
            await asyncio.gather(*(parley_store.async_add_message(k, message) for k in some))

    asyncio.run(add())
    assert sorted(parley_store.get_keys()) == sorted(keys)
    assert all(texts(parley_store, key) == ["0"] for key in keys[:5])


def test_two_processes_lose_nothing(shared: str, parley_store: ParleyChatStore) -> None:
    """Changes that depend on what is stored, from two stores at once, all happen."""
    parley_store.set_messages("both", numbered(1))

    def insert(name: str) -> None:
        store = ParleyChatStore(shared)
        for i in range(25):
            message = ChatMessage(role="user", content=f"{name} {i}")
            store.add_message("both", message, idx=1)
            if i % 5 == 4:
                assert store.delete_message("both", 0)
                store.add_message("both", numbered(1)[0], idx=0)
        store.close()

    threads = [threading.Thread(target=insert, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts(parley_store, "both")) == 51


def test_a_long_key_is_read_while_others_append(shared: str, parley_store: ParleyChatStore) -> None:
    """Messages that arrive between two pages do not begin a read again."""
    parley_store.set_messages("busy", [])
    for message in numbered(1100):
        parley_store.add_message("busy", message)
    before = [str(i) for i in range(1100)]

    class Appending(Client):
        """A client that has another program append a message after each page."""

        def list_messages(self, *args: Any, **options: Any) -> ListMessagesResponse:
            page = super().list_messages(*args, **options)
            parley_store.add_message("busy", ChatMessage(role="user", content="later"))
            return page

    with Appending(shared) as client:
        store = ParleyChatStore(client)
        assert texts(store, "busy") == [*before, "later"]
        with pytest.raises(Error, match="changed by others") as refused:
            store.delete_last_message("busy")
        assert refused.value.code is grpc.StatusCode.ABORTED
    assert texts(parley_store, "busy")[:1101] == [*before, "later"]


def test_two_event_loops(parley_store: ParleyChatStore) -> None:
    def add(name: str) -> None:
        async def each() -> None:
            for i in range(20):
                message = ChatMessage(role="user", content=f"{name} {i}")
                await parley_store.async_add_message("loops", message)

        asyncio.run(each())

    threads = [threading.Thread(target=add, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = texts(parley_store, "loops")
    for name in "ab":
        assert [t for t in got if t and t[0] == name] == [f"{name} {i}" for i in range(20)]


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged before the kill is there after the restart, once and in order."""
    with parleyd(tmp_path, store="bolt") as server:
        store = ParleyChatStore(server.address)
        acknowledged: list[str] = []
        for round_ in range(3):
            several = threading.Event()

            def add(round_: int = round_, several: threading.Event = several) -> None:
                try:
                    for i in range(100_000):
                        text = f"{round_} {i}"
                        store.add_message("crash", ChatMessage(role="user", content=text))
                        acknowledged.append(text)
                        if i == 30:
                            several.set()
                except Error:
                    several.set()

            writer = threading.Thread(target=add)
            writer.start()
            several.wait()
            server.kill()
            writer.join()
            server.start()
            got = texts(store, "crash")
            assert [text for text in got if text in set(acknowledged)] == acknowledged
            assert len(got) - len(acknowledged) <= round_ + 1  # stored, but not acknowledged
        store.close()


WRITER = """
import sys
from llama_index.core.llms import ChatMessage
from parley.adapters.llama_index import ParleyChatStore
store = ParleyChatStore(sys.argv[1])
for i in range(100000):
    store.set_messages("died", [ChatMessage(role="user", content=f"{i} {j}") for j in range(150)])
    print(i, flush=True)
"""


def test_a_killed_client_leaves_no_half_change(shared: str, parley_store: ParleyChatStore) -> None:
    command = [sys.executable, "-c", WRITER, shared]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if line == "20\n":
                break
        process.kill()
    got = texts(parley_store, "died")
    last = int((got[0] or "").split()[0])
    assert last >= 20
    assert got == [f"{last} {j}" for j in range(150)]
