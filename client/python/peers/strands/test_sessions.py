"""The contract of session repositories, and what the adapter guarantees beside it.

The tests of the contract are retold from Strands' test_repository_session_manager.py and
test_file_session_manager.py. Those of behaviour that both have also run with FileSessionManager.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import ScriptedModel
from programs import parleyd
from strands import Agent, tool
from strands.agent.conversation_manager import (
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from strands.multiagent import GraphBuilder
from strands.session import FileSessionManager, RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from parley import Client, Error, ListMessagesRequest, Record, Role
from parley.adapters.strands import ParleySessionRepository, message_of


def message(text: str, number: int = 0) -> SessionMessage:
    """Return a message of a user."""
    return SessionMessage(message={"role": "user", "content": [{"text": text}]}, message_id=number)


def agent_state(name: str, **state: Any) -> SessionAgent:
    """Return an agent."""
    manager = SlidingWindowConversationManager().get_state()
    return SessionAgent(agent_id=name, state=state, conversation_manager_state=manager)


def texts(repository: Any, session: str, agent: str, **options: Any) -> list[str]:
    """Return the texts of the messages of an agent."""
    found = repository.list_messages(session, agent, **options)
    return [each.to_message()["content"][0]["text"] for each in found]


@pytest.fixture(params=["file", "parley"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a repository of files, and one of this adapter, with the session s."""
    if request.param == "file":
        return FileSessionManager("s", storage_dir=str(tmp_path))
    repository = request.getfixturevalue("repository")
    repository.create_session(Session(session_id="s", session_type=SessionType.AGENT))
    return repository


def test_a_session_is_created_once(both: Any) -> None:
    session = both.read_session("s")
    assert (session.session_id, session.session_type) == ("s", SessionType.AGENT)
    with pytest.raises(SessionException, match="already exists"):
        both.create_session(session)
    assert both.read_session("t") is None
    both.delete_session("s")
    assert both.read_session("s") is None
    with pytest.raises(SessionException, match="does not exist"):
        both.delete_session("s")


def test_an_agent_is_stored(both: Any) -> None:
    assert both.read_agent("s", "a") is None
    with pytest.raises(SessionException, match="does not exist"):
        both.update_agent("s", agent_state("a"))
    agent = agent_state("a", key="value", score=1.0)
    both.create_agent("s", agent)
    assert both.read_agent("s", "a") == agent
    changed = agent_state("a", key="other")
    both.update_agent("s", changed)
    got = both.read_agent("s", "a")
    assert got.state == {"key": "other"}
    assert got.created_at == agent.created_at


def test_messages_are_listed_in_order(both: Any) -> None:
    with pytest.raises(SessionException):
        both.list_messages("s", "a")
    both.create_agent("s", agent_state("a"))
    for number in range(12):
        both.create_message("s", "a", message(f"text {number}", number))
    want = [f"text {number}" for number in range(12)]
    assert texts(both, "s", "a") == want
    assert texts(both, "s", "a", limit=3) == want[:3]
    assert texts(both, "s", "a", offset=4) == want[4:]
    assert texts(both, "s", "a", limit=3, offset=10) == want[10:]
    assert texts(both, "s", "a", offset=13) == []
    assert both.read_message("s", "a", 11).message == message("text 11").message
    assert both.read_message("s", "a", 12) is None
    with pytest.raises(ValueError, match="integer"):
        both.read_message("s", "a", "../x")


def test_a_message_is_redacted(both: Any) -> None:
    both.create_agent("s", agent_state("a"))
    first = message("secret")
    both.create_message("s", "a", first)
    first.redact_message = message("redacted").message
    both.update_message("s", "a", first)
    assert texts(both, "s", "a") == ["redacted"]
    with pytest.raises(SessionException, match="does not exist"):
        both.update_message("s", "a", message("none", 7))


def test_bytes_come_back(both: Any) -> None:
    both.create_agent("s", agent_state("a"))
    image = {"image": {"format": "png", "source": {"bytes": b"\x89PNG" * 100_000}}}
    sent: Any = {"role": "user", "content": [{"text": "Look."}, image]}
    both.create_message("s", "a", SessionMessage(message=sent, message_id=0))
    assert both.read_message("s", "a", 0).message == sent


def test_messages_are_read_as_by_the_framework() -> None:
    content: Any = [{"document": {"source": {"bytes": b"\x00\xff"}}}]
    stored = SessionMessage(
        message={"role": "user", "content": content},
        message_id=7,
        redact_message={"role": "user", "content": [{"text": "…"}]},
    )
    value = stored.to_dict() | {"of a newer version": 1}
    got = message_of(Record(value=json.dumps(value).encode()))
    assert got == SessionMessage.from_dict(value) == stored


def test_a_manager_creates_and_restores(repository: ParleySessionRepository) -> None:
    manager = RepositorySessionManager("s", repository)
    assert repository.read_session("s") == manager.session
    assert RepositorySessionManager("s", repository).session == manager.session
    agent = Agent(ScriptedModel(), agent_id="a", messages=[message("Hello!").message])
    manager.initialize(agent)
    with pytest.raises(SessionException, match="must be unique"):
        manager.initialize(Agent(ScriptedModel(), agent_id="a"))
    agent.state.set("key", "value")
    manager.sync_agent(agent)
    restored = Agent(
        ScriptedModel(), agent_id="a", session_manager=RepositorySessionManager("s", repository)
    )
    assert restored.state.get("key") == "value"
    assert restored.messages[0]["content"] == [{"text": "Hello!"}]


def test_a_summary_is_restored(repository: ParleySessionRepository) -> None:
    conversation = SummarizingConversationManager()
    conversation.removed_message_count = 1
    conversation._summary_message = {"role": "assistant", "content": [{"text": "summary"}]}
    manager = RepositorySessionManager("s", repository)
    state = agent_state("a")
    state.conversation_manager_state = conversation.get_state()
    repository.create_agent("s", state)
    for number in range(2):
        repository.create_message("s", "a", message(str(number), number))
    manager = RepositorySessionManager("s", repository)
    agent = Agent(
        ScriptedModel(),
        agent_id="a",
        conversation_manager=SummarizingConversationManager(),
        session_manager=manager,
    )
    assert [m["content"][0]["text"] for m in agent.messages] == ["summary", "1"]


def test_a_graph_is_restored(repository: ParleySessionRepository) -> None:
    def graph(manager: RepositorySessionManager) -> Any:
        builder = GraphBuilder()
        builder.add_node(Agent(ScriptedModel(), agent_id="one"), "one")
        builder.set_graph_id("graph")
        builder.set_session_manager(manager)
        return builder.build()

    graph(RepositorySessionManager("s", repository))("Go.")
    state = repository.read_multi_agent("s", "graph")
    assert state
    assert state["status"] == "completed"
    graph(RepositorySessionManager("s", repository))("Go again.")
    assert repository.read_multi_agent("s", "other") is None


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


@pytest.mark.long
def test_an_agent_runs_300_turns(repository: ParleySessionRepository) -> None:
    want: list[str] = []
    for number in range(300):
        prompt = f"double {number}" if number % 10 == 0 else f"text {number}"
        answer = f"Result: {2 * number}" if number % 10 == 0 else f"Heard: {prompt}"
        # Each tenth turn is that of a new process.
        if number % 10 == 0:
            manager = RepositorySessionManager("s", repository)
            agent = Agent(
                ScriptedModel(),
                agent_id="a",
                tools=[double],
                session_manager=manager,
                callback_handler=None,
                conversation_manager=SlidingWindowConversationManager(window_size=40),
            )
        assert str(agent(prompt)).strip() == answer
        want += [prompt, answer]
    messages = [each.message for each in repository.list_messages("s", "a")]
    got = [m["content"][0]["text"] for m in messages if "text" in m["content"][0]]
    assert got == want
    assert len(messages) == 300 * 2 + 30 * 2


def test_other_programs_can_read(fresh: str, repository: ParleySessionRepository) -> None:
    manager = RepositorySessionManager("s", repository)
    agent = Agent(
        ScriptedModel(),
        agent_id="a",
        tools=[double],
        session_manager=manager,
        callback_handler=None,
    )
    agent("double 4")
    with Client(fresh) as client:
        request = ListMessagesRequest(conversation_id="s", ascending=True)
        got = client.list_messages(request).messages
    assert [(m.role, m.content or m.tool_result.content) for m in got] == [
        (Role.ROLE_USER, "double 4"),
        (Role.ROLE_ASSISTANT, "[calls double]"),
        (Role.ROLE_TOOL, "8"),
        (Role.ROLE_ASSISTANT, "Result: 8"),
    ]


@pytest.mark.parametrize("redacted", [0, 100, 149])
def test_no_reader_gets_a_redacted_text(
    fresh: str, repository: ParleySessionRepository, redacted: int
) -> None:
    RepositorySessionManager("s", repository)
    repository.create_agent("s", agent_state("a"))
    for number in range(150):
        repository.create_message("s", "a", message(f"text {number}.", number))
    secret = message("", redacted)
    secret.redact_message = message("redacted").message
    repository.update_message("s", "a", secret)
    want = [f"text {number}." for number in range(150)]
    want[redacted] = "redacted"
    assert texts(repository, "s", "a") == want
    with Client(fresh) as client:
        request = ListMessagesRequest(conversation_id="s", ascending=True, page_size=1000)
        got = [m.content for m in client.list_messages(request).messages]
    assert got[-90:] == want[-90:]
    assert f"text {redacted}." not in got


def test_two_processes_conflict(fresh: str, repository: ParleySessionRepository) -> None:
    """The second of two processes gets SessionException; what the first has written stays."""
    other = ParleySessionRepository(fresh)
    RepositorySessionManager("s", repository)
    repository.create_agent("s", agent_state("a"))
    assert other.read_agent("s", "a")
    with pytest.raises(SessionException, match="already exists"):
        other.create_agent("s", agent_state("a"))
    repository.create_message("s", "a", message("first"))
    with pytest.raises(SessionException, match="already exists"):
        other.create_message("s", "a", message("second"))
    repository.update_agent("s", agent_state("a", by="first"))
    with pytest.raises(SessionException, match="another process"):
        other.update_agent("s", agent_state("a", by="second"))
    got = other.read_agent("s", "a")
    assert got
    assert got.state == {"by": "first"}
    other.update_agent("s", agent_state("a", by="second"))
    assert texts(other, "s", "a") == ["first"]
    other.close()


def test_1500_messages_keep_their_order(repository: ParleySessionRepository) -> None:
    RepositorySessionManager("s", repository)
    repository.create_agent("s", agent_state("a"))
    for number in range(1500):
        repository.create_message("s", "a", message(str(number), number))
    assert texts(repository, "s", "a") == [str(number) for number in range(1500)]
    assert texts(repository, "s", "a", offset=1498) == ["1498", "1499"]


def test_1001_sessions(shared: str) -> None:
    repository = ParleySessionRepository(shared)
    for number in range(1001):
        RepositorySessionManager(f"session {number}", repository)
    for number in range(1001):
        assert repository.read_session(f"session {number}")
    repository.close()


@pytest.mark.parametrize("name", ["user@example.com", "app/1", " a ", "..", "a\nb", "%", "é" * 80])
def test_odd_ids(shared: str, name: str) -> None:
    repository = ParleySessionRepository(shared)
    manager = RepositorySessionManager(name, repository)
    for agent in (name, name + "/", "/" + name):
        repository.create_agent(name, agent_state(agent, id=agent))
        repository.create_message(name, agent, message(agent))
    for agent in (name, name + "/", "/" + name):
        state = repository.read_agent(name, agent)
        assert state
        assert state.state == {"id": agent}
        assert texts(repository, name, agent) == [agent]
    assert manager.session.session_id == name
    repository.close()


def test_a_value_that_is_too_large_is_refused(repository: ParleySessionRepository) -> None:
    RepositorySessionManager("s", repository)
    repository.create_agent("s", agent_state("a"))
    for number in range(3):
        repository.create_message("s", "a", message("x" * 3_000_000, number))
    with pytest.raises(SessionException, match="limit 3145728"):
        repository.create_message("s", "a", message("x" * 3_200_000, 3))
    assert [len(text) for text in texts(repository, "s", "a")] == [3_000_000] * 3


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged before the kill is there after the restart, and in order."""
    with parleyd(tmp_path, store="bolt") as server:
        repository = ParleySessionRepository(server.address)
        RepositorySessionManager("s", repository)
        repository.create_agent("s", agent_state("a"))
        stored = 0
        for _ in range(3):
            several = threading.Event()
            first = stored

            def add(several: threading.Event = several, first: int = first) -> None:
                nonlocal stored
                try:
                    for number in range(first, first + 100_000):
                        repository.create_message("s", "a", message(str(number), number))
                        stored = number + 1
                        if number == first + 30:
                            several.set()
                except Error:
                    several.set()

            writer = threading.Thread(target=add)
            writer.start()
            several.wait()
            server.kill()
            writer.join()
            server.start()
            got = texts(repository, "s", "a")
            assert got == [str(number) for number in range(len(got))]
            assert len(got) in (stored, stored + 1)
            stored = len(got)
        repository.close()


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from conftest import ScriptedModel
from parley.adapters.strands import ParleySessionRepository
from strands import Agent
from strands.session import RepositorySessionManager
manager = RepositorySessionManager("died", ParleySessionRepository(sys.argv[1]))
agent = Agent(ScriptedModel(), agent_id="a", session_manager=manager, callback_handler=None)
for number in range(100000):
    agent(str(number))
    print(number, flush=True)
"""


def test_a_killed_client_loses_nothing(shared: str) -> None:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests")]
    code = f"import sys; sys.path[:0] = {folders!r}\n{WRITER}"
    command = [sys.executable, "-c", code, shared, folders[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if line == "20\n":
                break
        process.kill()
    repository = ParleySessionRepository(shared)
    got = texts(repository, "died", "a")
    want = [text for number in range(len(got)) for text in (str(number), f"Heard: {number}")]
    assert len(got) >= 2 * 21
    assert got == want[: len(got)]
    # Another process continues the session.
    manager = RepositorySessionManager("died", repository)
    agent = Agent(ScriptedModel(), agent_id="a", session_manager=manager, callback_handler=None)
    assert str(agent("again")).strip() == "Heard: again"
    repository.close()
