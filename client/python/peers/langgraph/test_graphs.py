"""Real graphs with a scripted model: long ones, crashes, interrupts, many threads."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import graphs
import pytest
from graphs import answer_to, approval_graph, chat_graph, delta_graph, thread
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from programs import parleyd

from parley import Client, GetConversationRequest
from parley.adapters.langgraph import ParleySaver

if TYPE_CHECKING:
    from programs import Server

TURNS = 300
KILLS = 10
THREADS = 1001

ODD_IDS = [
    "user@example.com",
    "app/1",
    "100%",
    " blank at the ends ",
    "line\nbreak",
    "nul\0",
    "..",
    "~tilde",
    "Zoë \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "x" * 1000,
    "ü" * 300,
]


def said(result: dict[str, Any]) -> list[str]:
    """Return the texts of the messages of a graph."""
    return [str(message.content) for message in result["messages"]]


def expected(turns: int) -> list[str]:
    """Return the texts after some turns."""
    return [text for turn in range(turns) for text in (f"turn {turn}", answer_to(f"turn {turn}"))]


def ask(turn: int) -> dict[str, Any]:
    """Return the input of a turn."""
    return {"messages": [("user", f"turn {turn}")]}


@pytest.mark.long
def test_300_turns_with_kills_of_the_server_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checkpoints are there, in order, and the last turns cost what the first ones cost."""

    def restart(server: Server) -> None:
        server.kill()
        server.start()

    with (
        parleyd(tmp_path, store="bolt") as server,
        Client(server.address) as client,
        ParleySaver(server.address) as saver,
    ):
        model = graphs.model

        def crashing_model(state: Any) -> dict[str, Any]:
            # While the first checkpoint of the turn may be on its way, and before the writes.
            if len(state["messages"]) % (2 * TURNS // KILLS) == 1:
                restart(server)
            return model(state)

        monkeypatch.setattr(graphs, "model", crashing_model)
        graph = chat_graph(saver)
        sizes = []
        for turn in range(TURNS):
            result = graph.invoke(ask(turn), thread("long"))
            assert len(result["messages"]) == 2 * (turn + 1)
            request = GetConversationRequest(conversation_id="long")
            sizes.append(client.get_conversation(request).conversation.record_bytes)
        restart(server)

        with ParleySaver(server.address) as other:
            texts = expected(TURNS)
            assert said(chat_graph(other).get_state(thread("long")).values) == texts
            # Each turn has three checkpoints: its input, the question, and the answer.
            ids = [
                record.key.split("/")[-2]
                for record in client.records("long").list("langgraph/checkpoints/", keys_only=True)
                if record.key.endswith("/state")
            ]
            assert len(ids) == 3 * TURNS
            for i in range(0, len(ids), 25):
                config = thread("long")
                config["configurable"]["checkpoint_id"] = ids[i]
                found = other.get_tuple(config)
                assert found
                assert found.metadata["step"] == i - 1
                messages = found.checkpoint["channel_values"].get("messages", [])
                assert said({"messages": messages}) == texts[: 2 * (i // 3) + i % 3]

    # A turn costs what it adds, a few items more, and 35 bytes for each eight messages before.
    def cost(turn: int) -> int:
        return (sizes[turn + 16] - sizes[turn]) // 16

    assert cost(TURNS - 17) < 1.6 * cost(20)


def test_a_killed_client_resumes_where_it_was(tmp_path: Path) -> None:
    """A program that dies in a turn leaves its input, and another one ends the turn."""
    with parleyd(tmp_path, store="bolt") as server:
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("dying.py")), server.address],
            env={"PYTHONPATH": f"{Path(__file__).parent}"},
        ) as process:
            process.wait()
        assert process.returncode == -signal.SIGKILL
        with ParleySaver(server.address) as saver:
            graph = chat_graph(saver)
            state = graph.get_state(thread("dying"))
            assert state.next == ("model",)
            assert said(state.values) == [*expected(3), "turn 3"]
            assert said(graph.invoke(None, thread("dying"))) == expected(4)


def test_interrupt_and_resume_over_restarts(tmp_path: Path) -> None:
    """A graph waits for a person while both programs restart."""
    with parleyd(tmp_path, store="bolt") as server:
        for turn in range(3):
            with ParleySaver(server.address) as saver:
                result = approval_graph(saver).invoke(ask(turn), thread("approved"))
                assert result["__interrupt__"][0].value == {"question": answer_to(f"turn {turn}")}
            server.kill()
            server.start()
            with ParleySaver(server.address) as saver:
                graph = approval_graph(saver)
                assert graph.get_state(thread("approved")).next == ("approval",)
                result = graph.invoke(Command(resume=f"yes {turn}"), thread("approved"))
                assert said(result)[-1] == f"decided: yes {turn}"
        assert len(result["messages"]) == 9


@pytest.mark.long
def test_1001_threads(tmp_path: Path) -> None:
    """Each of them has its own state, and all of them can be listed."""
    # A server keeps 1000 conversations by default, and refuses more of those that it must keep.
    with (
        parleyd(tmp_path, "", "--max-conversations=2000", store="bolt") as server,
        ParleySaver(server.address) as saver,
        ThreadPoolExecutor(8) as pool,
    ):
        graph = chat_graph(saver)

        def invoke(number: int) -> None:
            graph.invoke(ask(number), thread(f"thread {number}"))

        list(pool.map(invoke, range(THREADS)))
        for number in range(THREADS):
            values = graph.get_state(thread(f"thread {number}")).values
            assert said(values) == [f"turn {number}", answer_to(f"turn {number}")]
        newest = list(saver.list(None, limit=5))
        assert len(newest) == 5
        ids = [each.checkpoint["id"] for each in newest]
        assert ids == sorted(ids, reverse=True)
        ended = {
            each.config["configurable"]["thread_id"]
            for each in saver.list(None, filter={"step": 1})
        }
        assert ended == {f"thread {number}" for number in range(THREADS)}


@pytest.mark.parametrize("thread_id", ODD_IDS)
def test_odd_thread_ids(saver: ParleySaver, thread_id: str) -> None:
    """Any text is the id of a thread, and comes back as it is."""
    graph = chat_graph(saver)
    graph.invoke(ask(0), thread(thread_id))
    assert said(graph.invoke(ask(1), thread(thread_id))) == expected(2)
    (newest,) = saver.list(thread(thread_id), limit=1)
    assert newest.config["configurable"]["thread_id"] == thread_id
    found = {each.config["configurable"]["thread_id"] for each in saver.list(None)}
    assert thread_id in found
    saver.delete_thread(thread_id)
    assert saver.get_tuple(thread(thread_id)) is None


def test_two_processes_on_one_thread_lose_nothing(address: str) -> None:
    """Both see all checkpoints of each other, with complete lists."""
    script = str(Path(__file__).with_name("writer.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, script, address, "shared", name],
            env={"PYTHONPATH": f"{Path(__file__).parent}"},
        )
        for name in ("first", "second")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    with ParleySaver(address) as saver:
        found = list(saver.list(thread("shared")))
    assert len(found) == 100
    for name in ("first", "second"):
        ours = [each for each in found if each.metadata.get("writer") == name]
        lengths = [len(each.checkpoint["channel_values"]["items"]) for each in ours]
        assert lengths == list(range(50, 0, -1))
        assert ours[0].checkpoint["channel_values"]["items"] == [f"{name} {i}" for i in range(50)]


def test_one_saver_in_threads_and_event_loops(saver: ParleySaver) -> None:
    """The sync and async methods work side by side."""
    graph = chat_graph(saver)
    config = thread("loops")

    async def three_at_once(number: int) -> None:
        await asyncio.gather(
            *(graph.ainvoke(ask(0), thread(f"loops {number} {each}")) for each in range(3))
        )

    for turn in range(0, 6, 2):
        graph.invoke(ask(turn), config)
        asyncio.run(graph.ainvoke(ask(turn + 1), config))
    assert said(graph.get_state(config).values) == expected(6)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda number: asyncio.run(three_at_once(number)), range(3)))
    for number in range(3):
        for each in range(3):
            assert said(graph.get_state(thread(f"loops {number} {each}")).values) == expected(1)


def test_a_graph_has_the_history_that_the_saver_in_memory_gives_it(saver: ParleySaver) -> None:
    """Interrupts, forks and updates have the same history as with LangGraph's saver."""

    def history(graph: Any) -> list[Any]:
        config = thread("history")
        for turn in range(12):
            graph.invoke(ask(turn), config)
            graph.invoke(Command(resume="yes"), config)
        # A fork: the third turn again, from the checkpoint before its approval.
        older = [state for state in graph.get_state_history(config) if state.interrupts][-3]
        graph.invoke(Command(resume="no"), older.config)
        graph.update_state(config, {"messages": [("user", "by the way")]})
        return [
            (state.metadata, said(state.values or {"messages": []}), state.next, len(state.tasks))
            for state in graph.get_state_history(config)
        ]

    assert history(approval_graph(saver)) == history(approval_graph(InMemorySaver()))


def test_a_delta_channel_is_rebuilt_from_its_writes(saver: ParleySaver) -> None:
    """The states are those with LangGraph's saver, and pruning them is refused."""

    def states(graph: Any) -> list[Any]:
        for turn in range(20):
            graph.invoke({"items": [f"turn {turn}"]}, thread("delta graph"))
        return [
            (state.values, state.metadata)
            for state in graph.get_state_history(thread("delta graph"))
        ]

    found = states(delta_graph(saver))
    assert found == states(delta_graph(InMemorySaver()))
    assert len(found[0][0]["items"]) == 40
    with pytest.raises(NotImplementedError, match="DeltaChannel"):
        saver.prune(["delta graph"])
