"""The contract of history providers, retold from test_sessions.py of microsoft/agent-framework.

The tests also run with FileHistoryProvider, so their expectations are those of the framework.
"""

from __future__ import annotations

import asyncio
import math
import random
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

import pytest
from agent_framework import (
    Agent,
    AgentResponse,
    AgentSession,
    Content,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
)
from conftest import ScriptedClient, run

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., HistoryProvider]


def user(text: str) -> Message:
    """Return a message of a user."""
    return Message("user", [text])


def assistant(text: str) -> Message:
    """Return a message of an assistant."""
    return Message("assistant", [text])


def texts(provider: HistoryProvider, session: str | None) -> list[str]:
    """Return the texts of a session."""
    return [message.text for message in run(provider.get_messages(session))]


NO_AGENT = cast("Any", None)  # The providers do not use the agent.


async def one_run(provider: HistoryProvider, session: str, prompt: str, reply: str) -> list[str]:
    """Do what an agent does in a run, and return the texts of the history that it got."""
    context = SessionContext(session_id=session, input_messages=[user(prompt)])
    context.extend_messages("rag", [Message("system", [f"about {prompt}"])])
    context.extend_messages("other", [Message("system", ["other"])])
    kwargs: dict[str, Any] = {"agent": NO_AGENT, "session": AgentSession(session_id=session)}
    await provider.before_run(context=context, state={}, **kwargs)
    context._response = AgentResponse(messages=[assistant(reply)])
    await provider.after_run(context=context, state={}, **kwargs)
    return [message.text for message in context.context_messages.get(provider.source_id, [])]


def test_messages_are_stored_and_loaded(history: Make) -> None:
    provider = history()
    assert run(one_run(provider, "s", "hello", "hi there")) == []
    assert run(one_run(history(), "s", "again", "yes")) == ["hello", "hi there"]
    assert texts(provider, "s") == ["hello", "hi there", "again", "yes"]
    assert texts(provider, "missing") == []
    run(provider.save_messages("s", []))
    assert len(texts(provider, "s")) == 4


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"store_inputs": False}, ["hi"]),
        ({"store_outputs": False}, ["hello"]),
        ({"store_context_messages": True}, ["about hello", "other", "hello", "hi"]),
        (
            {"store_context_messages": True, "store_context_from": {"rag"}},
            ["about hello", "hello", "hi"],
        ),
    ],
)
def test_what_is_stored_can_be_chosen(
    history: Make, options: dict[str, Any], want: list[str]
) -> None:
    provider = history(source_id="audit", load_messages=False, **options)
    assert provider.source_id == "audit"
    assert provider.load_messages is False
    run(one_run(provider, "s", "hello", "hi"))
    assert texts(provider, "s") == want


def test_excluded_messages_are_left_out_on_demand(history: Make) -> None:
    excluded = Message("assistant", ["skip"], additional_properties={"_excluded": True})
    run(history().save_messages("s", [user("keep"), excluded]))
    assert texts(history(skip_excluded=True), "s") == ["keep"]
    assert texts(history(), "s") == ["keep", "skip"]


def test_no_session_is_the_default_one(history: Make) -> None:
    provider = history()
    run(provider.save_messages(None, [user("hello")]))
    assert texts(provider, None) == texts(provider, "") == texts(provider, "default") == ["hello"]


@pytest.mark.parametrize(
    "session", ["two words", "tenant/user", "session.id", "café", "CON", "../a", " a ", "..", "%"]
)
def test_any_session_id_works(history: Make, session: str) -> None:
    provider = history()
    run(provider.save_messages(session, [user("hello")]))
    assert texts(provider, session) == ["hello"]
    assert texts(provider, session + "x") == []


@pytest.mark.parametrize("each_call", [False, True])
def test_an_agent_with_a_tool_continues_its_history(history: Make, each_call: bool) -> None:
    """Also if the history is saved after each call of the model, and not after the run."""

    def double(number: float) -> float:
        """Double a number."""
        return 2 * number

    async def turn(prompt: str) -> str:
        agent = Agent(
            ScriptedClient(),
            tools=[double],
            context_providers=[history()],
            require_per_service_call_history_persistence=each_call,
        )
        return (await agent.run(prompt, session=agent.create_session(session_id="s"))).text

    assert run(turn("one")) == "Heard: one (1)"
    assert run(turn("double 4")) == "Result: 8.0"
    assert run(turn("two")) == "Heard: two (7)"
    assert [message.role for message in run(history().get_messages("s"))] == [
        *("user", "assistant"),
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]


def test_concurrent_saves_are_not_mixed(history: Make) -> None:
    provider = history()

    async def save(name: str) -> None:
        await provider.save_messages("s", [user(f"{name} {i}") for i in range(5)])

    async def both() -> None:
        await asyncio.gather(*map(save, "abcdef"))

    run(both())
    got = texts(provider, "s")
    assert len(got) == 30
    for start in range(0, 30, 5):
        name = got[start][0]
        assert got[start : start + 5] == [f"{name} {i}" for i in range(5)]


def test_concurrent_saves_of_the_same_messages_store_them_once(history: Make) -> None:
    provider = history()

    async def each() -> None:
        messages = [user("a"), assistant("b")]
        await asyncio.gather(*(provider.save_messages("s", messages) for _ in range(8)))

    run(each())
    assert texts(provider, "s") == ["a", "b"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_come_back(history: Make, value: float) -> None:
    provider = history()
    message = Message("user", ["hello"], additional_properties={"value": value})
    run(provider.save_messages("s", [message]))
    (got,) = run(provider.get_messages("s"))
    assert repr(got.additional_properties["value"]) == repr(value)


def test_messages_come_back_exactly(history: Make) -> None:
    provider = history()
    messages = [
        Message("user", ["ハロー\u2028 héllo\r\n\x00 \U0001f469\u200d\U0001f52c"], message_id="m1"),
        Message("user", [Content.from_data(b"\x89PNG\xff\x00" * 20_000, media_type="image/png")]),
        Message("user", [Content.from_uri("https://example.com/a.png", media_type="image/png")]),
        Message(
            "assistant",
            [
                Content.from_text_reasoning(text="hm", protected_data="x="),
                Content.from_text("Look."),
                Content.from_function_call("c1", "f", arguments={"a": 1.0, "n": 2**60, "z": None}),
                Content.from_function_call("c2", "f", arguments='{"a": 1.0 }'),
            ],
            author_name="guide",
            additional_properties={"score": 1.0, "deep": [[[[{"a": None}]]]], "on": True},
        ),
        Message(
            "tool",
            [
                Content.from_function_result("c1", result={"x": [1.0]}),
                Content.from_function_result("c2", result=None),
            ],
        ),
        Message("critic", []),
    ]
    want = [message.to_dict() for message in messages]
    run(provider.save_messages("s", messages))
    got = run(provider.get_messages("s"))
    assert [message.to_dict() for message in got] == want
    assert repr(got[3].contents[2].arguments) == "{'a': 1.0, 'n': 1152921504606846976, 'z': None}"


def test_what_is_not_json_is_left_out_as_by_the_framework(history: Make) -> None:
    provider = history()
    time = datetime(2026, 11, 28, 12, 0, tzinfo=timezone.utc)
    message = Message("user", ["a"], additional_properties={"at": time, "x": object(), "y": {1}})
    run(provider.save_messages("s", [message]))
    (got,) = run(provider.get_messages("s"))
    assert got.additional_properties == {"at": "2026-11-28 12:00:00+00:00"}


def test_what_is_stored_is_not_stored_again(history: Make) -> None:
    provider = history()
    first = [user("a"), assistant("b"), user("c"), assistant("d")]
    run(provider.save_messages("s", first))
    run(provider.save_messages("s", first))  # all of it again
    run(provider.save_messages("s", [*first, user("e"), assistant("f")]))  # and more
    run(provider.save_messages("s", [user("e"), assistant("f"), user("g")]))  # the end of it
    run(provider.save_messages("s", [user("g")]))  # a user may say something twice
    assert "".join(texts(provider, "s")) == "abcdefgg"


def test_the_rule_for_repeated_messages_is_that_of_the_framework(history: Make) -> None:
    """Random saves, of which many repeat something, leave what InMemoryHistoryProvider has."""
    provider, theirs = history(), InMemoryHistoryProvider()
    state: dict[str, Any] = {}

    async def saves() -> None:
        choices = random.Random(24)  # noqa: S311 - the same choices in each run
        for _ in range(60):
            messages = [
                Message(
                    choices.choice(["user", "assistant"]),
                    [choices.choice("ab")],
                    message_id=choices.choice([None, None, "1", "2"]),
                )
                for _ in range(choices.randrange(1, 5))
            ]
            if choices.random() < 0.3:
                messages = [*state.get("messages", [])[-3:], *messages]
            await theirs.save_messages("s", messages, state=state)
            await provider.save_messages("s", messages)

    run(saves())
    got = [message.to_dict() for message in run(provider.get_messages("s"))]
    assert got == [message.to_dict() for message in state["messages"]]
    assert len(got) > 60
