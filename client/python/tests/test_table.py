"""The calls of ../../testdata/calls.json, which the tests of all client packages make."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import string
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake import text_of
from google.protobuf import json_format
from programs import parleyd

import parley
from parley import AppendMessagesRequest, AsyncClient, Client, Error, TurnEvent, TurnState

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

TABLE = Path(__file__).parents[2] / "testdata" / "calls.json"

Step = dict[str, Any]
Result = Any  # a reply, or the list of a stream's events


def test_table_sync(tmp_path: Path) -> None:
    """Every step has the result of the table with the sync client."""
    with parleyd(tmp_path) as server, Client(server.address) as client:

        def make(name: str, request: Message, limit: int | None) -> Result:
            reply = getattr(client, name)(request)
            return list(islice(reply, limit)) if isinstance(reply, parley.Stream) else reply

        def append(requests: list[AppendMessagesRequest]) -> list[Result]:
            with client.appender() as appender:
                futures = [appender.append(request) for request in requests]
            return [future.exception() or future.result() for future in futures]

        run(make, append)


def test_table_asyncio(tmp_path: Path) -> None:
    """Every step has the result of the table with the asyncio client."""

    async def made(client: AsyncClient, name: str, request: Message, limit: int | None) -> Result:
        reply = getattr(client, name)(request)
        if inspect.isawaitable(reply):
            return await reply
        events = []
        async with reply:
            async for event in reply:
                events.append(event)
                if len(events) == limit:
                    break
        return events

    async def appended(client: AsyncClient, requests: list[AppendMessagesRequest]) -> list[Result]:
        async with client.appender() as appender:
            futures = [await appender.append(request) for request in requests]
        return await asyncio.gather(*futures, return_exceptions=True)

    async def client_of(address: str) -> AsyncClient:
        return AsyncClient(address)

    with parleyd(tmp_path) as server:
        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(client_of(server.address))
        try:
            run(
                lambda *call: loop.run_until_complete(made(client, *call)),
                lambda requests: loop.run_until_complete(appended(client, requests)),
            )
        finally:
            loop.run_until_complete(client.close())
            loop.close()


def run(
    make: Callable[[str, Message, int | None], Result],
    append: Callable[[list[AppendMessagesRequest]], list[Result]],
) -> None:
    """Execute the steps in order.

    The function make makes a call and reads up to limit events. The function append makes appends
    with an appender and returns the replies and errors.
    """
    saved: dict[str, str] = {}
    for step in json.loads(TABLE.read_text("utf-8"))["steps"]:
        text = string.Template(json.dumps(step["request"])).substitute(saved)
        if "answers" in step:
            check_answers(step, append(appends_of(json.loads(text))))
            continue
        request = getattr(parley, step["call"] + "Request")()
        json_format.Parse(text, request)
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", step["call"]).lower()
        limit = len(step["changes"]) if "changes" in step else None
        try:
            result: Result = make(name, request, limit)
        except Error as error:
            check_error(step, error)
            continue
        assert "error" not in step, (
            f"{step['name']}: the call returned {result!r}, want error {step.get('error')}"
        )
        check(step, result)
        if "save" in step:
            reply = json_format.MessageToDict(result)
            saved |= {key: value_at(reply, path) for key, path in step["save"].items()}


def appends_of(requests: list[Any]) -> list[AppendMessagesRequest]:
    """Return the requests of a step with AppendStream."""
    return [
        json_format.ParseDict(request["append"], AppendMessagesRequest()) for request in requests
    ]


def check_answers(step: Step, results: list[Result]) -> None:
    """Compare the replies and errors of appends with the expected ones."""
    assert len(results) == len(step["answers"]), step["name"]
    for index, (answer, result) in enumerate(zip(step["answers"], results, strict=True)):
        expected = {"name": f"{step['name']}: answer {index}", **answer}
        if isinstance(result, Error):
            check_error(expected, result)
        else:
            assert "error" not in answer, f"{expected['name']}: {result!r}, want an error"
            check(expected, result)


def check_error(step: Step, error: Error) -> None:
    """Compare an error with the expected one of a step."""
    want = step.get("error")
    assert want, f"{step['name']}: {error!r}"
    fields = sorted(violation.field for violation in error.field_violations)
    got = (error.code.name, error.reason, fields)
    assert got == (want["code"], want["reason"], sorted(want.get("fields", []))), step["name"]


def check(step: Step, result: Result) -> None:
    """Compare a reply, or the events of a stream, with the expected result of a step."""
    if "turn" in step:
        events: list[TurnEvent] = result
        finished = events[-1].finished
        got = {
            "text": text_of(events),
            "state": TurnState.Name(finished.turn.state),
            "messages": [json_format.MessageToDict(message) for message in finished.messages],
        }
        match(step["turn"], got, step["name"])
    if "changes" in step:
        changes = [json_format.MessageToDict(change) for change in result]
        match(step["changes"], changes, step["name"])
    if "want" in step:
        match(step["want"], json_format.MessageToDict(result), step["name"])


def match(want: Any, got: Any, path: str) -> None:
    """Compare values: objects may have more fields, lists not more elements; "*" is any string."""
    if isinstance(want, dict):
        assert isinstance(got, dict), f"{path}: {got!r}, want an object"
        for key, value in want.items():
            assert key in got, f"{path}: no {key} in {got!r}"
            match(value, got[key], f"{path}.{key}")
    elif isinstance(want, list):
        assert isinstance(got, list), f"{path}: {got!r}, want a list"
        assert len(got) == len(want), f"{path}: {got!r}, want {len(want)} elements"
        for index, value in enumerate(want):
            match(value, got[index], f"{path}.{index}")
    elif want == "*":
        assert isinstance(got, str), f"{path}: {got!r}, want a string"
        assert got, f"{path}: empty string, want any other"
    else:
        assert got == want, path


def value_at(reply: Any, path: str) -> str:
    """Return the string at a path of fields and list indexes."""
    for part in path.split("."):
        reply = reply[int(part)] if isinstance(reply, list) else reply[part]
    assert isinstance(reply, str)
    return reply


@pytest.mark.parametrize(
    ("want", "got"),
    [
        ({"a": 1}, {}),
        ({"a": 1}, {"a": 2}),
        ([1], [1, 2]),
        ([1, 2], [1]),
        ("*", ""),
        ("*", 1),
        ({"a": [{"b": "c"}]}, {"a": [{"b": "d"}]}),
        ([], {}),
    ],
)
def test_match_fails(want: Any, got: Any) -> None:
    """Values that do not match fail."""
    with pytest.raises(AssertionError):
        match(want, got, "")
