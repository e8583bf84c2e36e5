"""The contract of session stores, retold from test_sessions.py of microsoft/agent-framework.

The tests also run with the framework's SessionStore or FileSessionStore.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from agent_framework import AgentSession, Message, SessionStore, register_state_type
from conftest import run

from parley import Client
from parley.adapters.agent_framework import ParleySessionStore

if TYPE_CHECKING:
    from collections.abc import Callable


class Cart:
    """A registered type."""

    def __init__(self, items: list[str]) -> None:
        """Make a cart."""
        self.items = items

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"type": "tests.cart", "items": self.items}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Cart:
        """Return it from JSON."""
        return cls(value["items"])


register_state_type(Cart, type_id="tests.cart")


def session_of(state: Any, name: str = "s") -> AgentSession:
    """Return a session with a state."""
    session = AgentSession(session_id=name)
    session.state = state
    return session


def state_of(store: SessionStore, name: str) -> Any:
    """Return the state of a stored session."""
    session = run(store.get(name))
    assert session is not None
    return session.state


def test_sessions_are_independent_copies(sessions: SessionStore) -> None:
    assert run(sessions.get("s")) is None
    session = session_of({"nested": {"values": ["original"]}})
    run(sessions.set("s", session))
    session.state["nested"]["values"].append("changed after set")
    state_of(sessions, "s")["nested"]["values"].append("changed after get")
    assert state_of(sessions, "s") == {"nested": {"values": ["original"]}}


def test_a_session_is_replaced_and_deleted(sessions: SessionStore) -> None:
    run(sessions.set("s", AgentSession(session_id="first")))
    run(sessions.set("s", AgentSession(session_id="second")))
    session = run(sessions.get("s"))
    assert session.session_id == "second"
    run(sessions.delete("s"), sessions.delete("s"))
    assert run(sessions.get("s")) is None


@pytest.mark.parametrize(
    "name", ["two words", "tenant/user", "session.id", "café", "telegram:1:2", "CON", "x" * 128]
)
def test_any_id_works(sessions: SessionStore, name: str) -> None:
    run(sessions.set(name, AgentSession(session_id="framework")))
    assert run(sessions.get(name)).session_id == "framework"
    assert run(sessions.get(name[:-1] + "?")) is None
    run(sessions.delete(name))
    assert run(sessions.get(name)) is None


@pytest.mark.parametrize("name", ["", None, 7])
def test_an_id_must_be_a_text(sessions: SessionStore, name: Any) -> None:
    for step in (sessions.get(name), sessions.set(name, AgentSession()), sessions.delete(name)):
        with pytest.raises(ValueError, match="session_id"):
            run(step)


def test_a_session_comes_back_exactly(durable_sessions: SessionStore) -> None:
    session = AgentSession(session_id="s", service_session_id={"response_id": "r", "n": 1.0})
    session.state = {
        "messages": [Message("user", ["ハロー\u2028\x00"])],
        "deep": {"cart": [Cart(["tea"])], "score": 1.0, "n": 2**60, "none": None, "on": True},
    }
    run(durable_sessions.set("key", session))
    got = run(durable_sessions.get("key"))
    assert got.to_dict() == session.to_dict()
    assert repr(got.service_session_id) == "{'response_id': 'r', 'n': 1.0}"
    assert isinstance(got.state["messages"][0], Message)
    assert isinstance(got.state["deep"]["cart"][0], Cart)
    assert isinstance(got.state["deep"]["score"], float)


def test_a_type_with_to_dict_comes_back_as_its_dict(durable_sessions: SessionStore) -> None:
    class Unregistered:
        def to_dict(self) -> dict[str, Any]:
            return {"type": "unregistered", "value": 1}

    run(durable_sessions.set("s", session_of({"nested": [{"value": Unregistered()}]})))
    want = {"nested": [{"value": {"type": "unregistered", "value": 1}}]}
    assert state_of(durable_sessions, "s") == want


def test_what_cannot_come_back_is_refused(durable_sessions: SessionStore) -> None:
    run(durable_sessions.set("s", session_of({"kept": 1})))

    class Unsupported:
        pass

    class Subclass(AgentSession):
        pass

    class Text(str):
        __slots__ = ()

    for value in (Unsupported(), Text("a"), {1}):
        with (
            pytest.warns(RuntimeWarning, match="leaving it unchanged"),
            pytest.raises(TypeError, match=r"state\.nested\[0\]\.value"),
        ):
            run(durable_sessions.set("s", session_of({"nested": [{"value": value}]})))
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="finite float"):
            run(durable_sessions.set("s", session_of({"value": number})))
    with pytest.raises(TypeError, match=r"AgentSession (instances )?only"):
        run(durable_sessions.set("s", Subclass(session_id="s")))
    assert state_of(durable_sessions, "s") == {"kept": 1}


def test_a_state_that_its_type_refuses_is_kept(durable_sessions: SessionStore) -> None:
    """The state {"type": "tests.cart"} is stored, but Cart.from_dict cannot read it."""
    run(durable_sessions.set("s", session_of({"value": {"type": "tests.cart"}})))
    for _ in range(2):
        with pytest.raises(ValueError, match="Failed to"):
            run(durable_sessions.get("s"))
    run(durable_sessions.set("s", session_of({"value": 1})))
    assert state_of(durable_sessions, "s") == {"value": 1}


@pytest.fixture
def store(shared: str, opened: Callable[[Any], Any]) -> ParleySessionStore:
    """Return a store of this adapter."""
    result: ParleySessionStore = opened(ParleySessionStore(shared))
    return result


def test_odd_ids(store: ParleySessionStore) -> None:
    odd = ["user@example.com", "a/b", "a%2Fb", " a ", "..", "a\nb\x00", "%", "é" * 400, "x" * 1000]
    for name in odd:
        run(store.set(name, session_of({"name": name})))
    for name in odd:
        assert state_of(store, name) == {"name": name}


def test_1001_sessions(store: ParleySessionStore) -> None:
    names = [f"many {i}" for i in range(1001)]

    async def each() -> None:
        for start in range(0, 1001, 50):
            some = names[start : start + 50]
            await asyncio.gather(*(store.set(name, session_of({"n": name})) for name in some))
        for start in range(0, 1001, 50):
            some = names[start : start + 50]
            got = await asyncio.gather(*map(store.get, some))
            assert [session.state for session in got if session] == [{"n": name} for name in some]

    run(each())


def test_large_sessions(fresh: str, opened: Callable[[Any], Any]) -> None:
    """A value above the limit of a record is in pieces, which go with it."""
    store = opened(ParleySessionStore(fresh))

    def keys() -> list[str]:
        with Client(fresh) as client:
            return [record.key for record in client.tenant_records().list(keys_only=True)]

    for size in (3_000_000, 3_200_000, 12_000_000, 4_300_000, 10):
        run(store.set("s", session_of({"text": "x" * size})))
        assert len(state_of(store, "s")["text"]) == size
    assert keys() == ["agent_framework/session/s"]
    run(store.set("s", session_of({"text": "x" * 7_000_000})))
    assert len(keys()) == 5
    run(store.delete("s"))
    assert keys() == []


def test_of_two_processes_the_last_wins(store: ParleySessionStore, shared: str) -> None:
    """Each of many concurrent sets is complete, and a reader never sees a mixture."""
    other = ParleySessionStore(shared)

    async def check() -> None:
        async def write(each: ParleySessionStore, name: str) -> None:
            for size in (10, 4_000_000, 10):
                await each.set("both", session_of({"a": name * size, "b": name}))
                got = await each.get("both")
                assert got
                assert set(got.state["a"]) == set(got.state["b"])

        await asyncio.gather(write(store, "x"), write(other, "y"))
        await other.aclose()

    run(check())


def test_stores_with_other_prefixes_share_nothing(store: ParleySessionStore, shared: str) -> None:
    other = ParleySessionStore(shared, prefix="other/")

    async def check() -> None:
        await store.set("same", session_of({"of": "store"}))
        await other.set("same", session_of({"of": "other"}))
        await other.delete("same")
        assert await other.get("same") is None
        await other.aclose()

    run(check())
    assert state_of(store, "same") == {"of": "store"}
