"""The contract of checkpoint storages, and workflows that resume from them.

It is retold from test_checkpoint.py, test_checkpoint_storage_conformance.py and
test_checkpoint_unrestricted_pickle.py of microsoft/agent-framework. The tests also run with the
framework's InMemoryCheckpointStorage or FileCheckpointStorage.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from agent_framework import (
    CheckpointStorage,
    Message,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowEvent,
    WorkflowMessage,
    WorkflowRunState,
    register_checkpoint_type,
)
from conftest import run
from workflows import Count, approving, counted, counting

from parley import AsyncClient, Client
from parley.adapters.agent_framework import ParleyCheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Unlisted:
    """A type that checkpoints must not contain unless it is listed."""

    value: int


@dataclass
class Registered:
    """A type that is registered for all storages, and that copy.deepcopy refuses."""

    value: int

    def __deepcopy__(self, _: Any) -> Registered:
        """Refuse."""
        raise TypeError("no copies")


register_checkpoint_type(Registered)


def checkpoint_of(name: str = "w", *, minutes: float = 0, **fields: Any) -> WorkflowCheckpoint:
    """Return a checkpoint so many minutes after noon."""
    time = datetime(2026, 11, 28, 12, 0, tzinfo=timezone.utc) + timedelta(minutes=minutes)
    fields.setdefault("timestamp", time.isoformat())
    return WorkflowCheckpoint(workflow_name=name, graph_signature_hash="hash", **fields)


def saved(storage: CheckpointStorage, *all_of: WorkflowCheckpoint) -> None:
    """Save checkpoints."""
    for each in all_of:
        assert run(storage.save(each)) == each.checkpoint_id


def ids(storage: CheckpointStorage, name: str = "w") -> list[str]:
    """Return the ids of a workflow, from both lists."""
    got: list[str] = run(storage.list_checkpoint_ids(workflow_name=name))
    listed = run(storage.list_checkpoints(workflow_name=name))
    assert [each.checkpoint_id for each in listed] == got
    assert all(each.workflow_name == name for each in listed)
    return got


def test_checkpoints_are_stored_listed_and_deleted(checkpoints: CheckpointStorage) -> None:
    one, two, other = checkpoint_of(), checkpoint_of(minutes=1), checkpoint_of("other", minutes=2)
    saved(checkpoints, one, two, other)
    assert run(checkpoints.load(one.checkpoint_id)) == one
    assert sorted(ids(checkpoints)) == sorted([one.checkpoint_id, two.checkpoint_id])
    assert ids(checkpoints, "other") == [other.checkpoint_id]
    assert ids(checkpoints, "none") == []
    assert run(checkpoints.delete(one.checkpoint_id)) is True
    assert run(checkpoints.delete(one.checkpoint_id)) is False
    assert ids(checkpoints) == [two.checkpoint_id]
    with pytest.raises(WorkflowCheckpointException, match="No checkpoint found"):
        run(checkpoints.load(one.checkpoint_id))


def test_the_latest_has_the_newest_timestamp(checkpoints: CheckpointStorage) -> None:
    west = timezone(timedelta(hours=-9))
    last = (datetime(2026, 11, 28, 12, 5, tzinfo=timezone.utc)).astimezone(west).isoformat()
    saved(
        checkpoints,
        checkpoint_of(minutes=3, checkpoint_id="a"),
        checkpoint_of(timestamp=last, checkpoint_id="newest"),
        checkpoint_of(minutes=4.5, checkpoint_id="c"),
        checkpoint_of(minutes=-1, checkpoint_id="d"),
        checkpoint_of("other", minutes=9, checkpoint_id="e"),
    )
    assert run(checkpoints.get_latest(workflow_name="w")).checkpoint_id == "newest"
    assert run(checkpoints.get_latest(workflow_name="other")).checkpoint_id == "e"
    assert run(checkpoints.get_latest(workflow_name="none")) is None
    run(checkpoints.delete("newest"))
    assert run(checkpoints.get_latest(workflow_name="w")).checkpoint_id == "c"


def test_checkpoints_are_independent_copies(checkpoints: CheckpointStorage) -> None:
    original = checkpoint_of(
        state={"nested": {"values": ["original"]}},
        messages={"a": [WorkflowMessage(data=["original"], source_id="a", target_id="b")]},
        metadata={"nested": {"value": "original"}},
    )
    name = original.checkpoint_id
    saved(checkpoints, original)
    original.state["nested"]["values"].append("changed after save")
    for get in (
        lambda: checkpoints.load(name),
        lambda: checkpoints.get_latest(workflow_name="w"),
        lambda: checkpoints.list_checkpoints(workflow_name="w"),
    ):
        got: Any = run(get())
        got = got[0] if isinstance(got, list) else got
        assert got.state == {"nested": {"values": ["original"]}}
        assert got.messages["a"][0].data == ["original"]
        assert got.metadata == {"nested": {"value": "original"}}
        got.state["nested"]["values"].append("changed after get")
        got.messages["a"][0].data.append("changed")
        got.metadata["nested"]["value"] = "changed"


def test_a_checkpoint_with_the_same_id_is_replaced(checkpoints: CheckpointStorage) -> None:
    saved(
        checkpoints,
        checkpoint_of(checkpoint_id="same", minutes=5, state={"n": 1}),
        checkpoint_of(checkpoint_id="later", minutes=6),
        checkpoint_of(checkpoint_id="same", minutes=7, state={"n": 2}),
    )
    assert sorted(ids(checkpoints)) == ["later", "same"]
    assert run(checkpoints.load("same")).state == {"n": 2}
    assert run(checkpoints.get_latest(workflow_name="w")).checkpoint_id == "same"
    saved(checkpoints, checkpoint_of("moved", checkpoint_id="same"))
    assert ids(checkpoints) == ["later"]
    assert ids(checkpoints, "moved") == ["same"]
    assert run(checkpoints.delete("same")) is True
    assert ids(checkpoints, "moved") == []


class CountingClient(AsyncClient):
    """A client that counts the calls for records."""

    calls = 0

    async def _unary(self, *arguments: Any) -> Any:
        self.calls += 1
        return await super()._unary(*arguments)


def test_a_new_checkpoint_is_one_call(fresh: str) -> None:
    client = CountingClient(fresh)
    storage = ParleyCheckpointStorage(client)
    saved(storage, checkpoint_of(checkpoint_id="new"))
    assert client.calls == 1
    saved(storage, checkpoint_of(checkpoint_id="new", minutes=1))
    assert client.calls == 4  # It also reads what it replaces.
    assert ids(storage) == ["new"]
    run(client.close())


def test_values_come_back_exactly(durable_checkpoints: CheckpointStorage) -> None:
    time = datetime(2026, 6, 15, 10, 30, 45, 123456, tzinfo=timezone.utc)
    event = WorkflowEvent.request_info("r", "a", {"question": "ハロー"}, str)
    original = checkpoint_of(
        previous_checkpoint_id="before",
        messages={"a": [WorkflowMessage(data=Count(1, (2,)), source_id="a", target_id="b")]},
        state={
            "float": 1.0,
            "n": 2**80,
            "none": None,
            "on": True,
            "text": "ハロー\u2028\x00 \U0001f469\u200d",
            "bytes": b"\x00\xff",
            "time": {"nested": [time]},
            "tuple": (1, "two", 3.0, None),
            "set": frozenset({1, 2}),
            "keys": {1: "a", "1": "b"},
            "marker": {"__pickled__": "x", "__type__": "y"},
            "empty": [{}, [], "", 0],
            "chat": [Message("user", ["hello"])],
            "registered": Registered(7),
            "inf": -math.inf,
        },
        pending_request_info_events={"r": event},
        iteration_count=7,
        metadata={"a": {"b": [1.0]}},
        version="2.0",
    )
    saved(durable_checkpoints, original)
    got = run(durable_checkpoints.load(original.checkpoint_id))
    chat, want = got.state.pop("chat"), original.state.pop("chat")
    assert [message.to_dict() for message in chat] == [message.to_dict() for message in want]
    (pending,) = (got.pending_request_info_events.pop("r"),)
    assert (pending.request_id, pending.data) == ("r", {"question": "ハロー"})
    original.pending_request_info_events.clear()
    assert got == original
    assert repr(got.state) == repr(original.state)


def test_types_that_are_not_allowed_are_refused(durable_checkpoints: CheckpointStorage) -> None:
    saved(durable_checkpoints, checkpoint_of(checkpoint_id="kept"))
    for value in (Unlisted(1), print, lambda: None):
        bad = checkpoint_of(checkpoint_id="kept", minutes=1, state={"value": value})
        with pytest.raises(WorkflowCheckpointException):
            run(durable_checkpoints.save(bad))
    assert run(durable_checkpoints.load("kept")).state == {}
    assert ids(durable_checkpoints) == ["kept"]


@pytest.fixture
def storage(fresh: str, opened: Callable[[Any], Any]) -> ParleyCheckpointStorage:
    """Return a storage of this adapter."""
    result: ParleyCheckpointStorage = opened(ParleyCheckpointStorage(fresh))
    return result


def test_types_may_be_allowed(
    fresh: str, storage: ParleyCheckpointStorage, opened: Callable[[Any], Any]
) -> None:
    """Who does not allow a type reads the other checkpoints, as with FileCheckpointStorage."""
    allowing = opened(
        ParleyCheckpointStorage(fresh, allowed_checkpoint_types=[f"{__name__}:Unlisted"])
    )
    saved(
        allowing,
        checkpoint_of(checkpoint_id="plain"),
        checkpoint_of(checkpoint_id="unlisted", minutes=1, state={"value": Unlisted(1)}),
    )
    assert run(allowing.load("unlisted")).state == {"value": Unlisted(1)}
    assert ids(allowing) == ["plain", "unlisted"]
    with pytest.raises(WorkflowCheckpointException, match="blocked"):
        run(storage.load("unlisted"))
    assert ids(storage) == ["plain"]
    assert run(storage.get_latest(workflow_name="w")).checkpoint_id == "plain"


def test_a_timestamp_may_end_with_z(storage: ParleyCheckpointStorage) -> None:
    """Python 3.10 itself does not read it."""
    late = checkpoint_of(checkpoint_id="late", timestamp="2026-11-28T12:00:01Z")
    saved(storage, late, checkpoint_of(checkpoint_id="early"))
    assert ids(storage) == ["early", "late"]


def test_a_timestamp_must_be_one(storage: ParleyCheckpointStorage) -> None:
    """FileCheckpointStorage stores it, and then get_latest raises ValueError."""
    with pytest.raises(WorkflowCheckpointException, match="not ISO 8601"):
        run(storage.save(checkpoint_of(timestamp="yesterday")))
    saved(storage, checkpoint_of(timestamp="2026-11-28T12:00:00"))
    assert len(ids(storage)) == 1


def test_odd_names(storage: ParleyCheckpointStorage) -> None:
    odd = ["user@example.com", "a", "a/b", "a%2Fb", " a ", "..", "a\nb\x00", "%", "", "é" * 400]
    for number, name in enumerate(odd):
        saved(storage, checkpoint_of(name, checkpoint_id=f"{number}{name}", state={"n": number}))
        saved(storage, checkpoint_of(name, checkpoint_id=name, minutes=1))
    for number, name in enumerate(odd):
        assert ids(storage, name) == [f"{number}{name}", name]
        assert run(storage.load(f"{number}{name}")).state == {"n": number}


def test_large_checkpoints(fresh: str, storage: ParleyCheckpointStorage) -> None:
    """Values above the limit of a record are in pieces, which go with them."""
    for size in (3_200_000, 300, 9_000_000):
        saved(storage, checkpoint_of(checkpoint_id="large", state={"text": "x" * size}))
        saved(storage, checkpoint_of(checkpoint_id="more", minutes=1, state={"text": "y" * size}))
        assert len(run(storage.load("large")).state["text"]) == size
        listed = run(storage.list_checkpoints(workflow_name="w"))
        assert [each.state["text"] for each in listed] == ["x" * size, "y" * size]
    assert run(storage.delete("large"))
    assert run(storage.delete("more"))
    with Client(fresh) as client:
        assert not list(client.tenant_records().list(keys_only=True))


def test_a_checkpoint_with_a_missing_part_is_left_out(
    fresh: str, storage: ParleyCheckpointStorage
) -> None:
    saved(storage, checkpoint_of(checkpoint_id="old"))
    text = "x" * (5 << 20)
    saved(storage, checkpoint_of(checkpoint_id="damaged", minutes=1, state={"text": text}))
    with Client(fresh) as client:
        records = client.tenant_records()
        (_, second, _) = [r.key for r in records.list("agent_framework/piece/", keys_only=True)]
        records.delete(second)
    with pytest.raises(WorkflowCheckpointException, match=r"damaged cannot be read: .* missing"):
        run(storage.load("damaged"))
    assert ids(storage) == ["old"]
    latest = run(storage.get_latest(workflow_name="w"))
    assert latest.checkpoint_id == "old"
    assert run(storage.delete("damaged"))
    with Client(fresh) as client:
        names = [r.key for r in client.tenant_records().list("agent_framework/", keys_only=True)]
    assert len(names) == 2


def test_a_replaced_checkpoint_leaves_nothing(fresh: str, storage: ParleyCheckpointStorage) -> None:
    """It has the place of its new timestamp and workflow only."""
    saved(storage, checkpoint_of(checkpoint_id="other", minutes=3))
    for minutes in (2, 9, 4):
        saved(storage, checkpoint_of(checkpoint_id="same", minutes=minutes))
        assert ids(storage) == (["same", "other"] if minutes < 3 else ["other", "same"])
    saved(storage, checkpoint_of("moved", checkpoint_id="same"))
    assert run(storage.delete("same"))
    assert run(storage.delete("other"))
    with Client(fresh) as client:
        assert not list(client.tenant_records().list(keys_only=True))


def test_1001_checkpoints_of_two_processes(
    fresh: str, storage: ParleyCheckpointStorage, opened: Callable[[Any], Any]
) -> None:
    both = [storage, opened(ParleyCheckpointStorage(fresh))]
    names = [f"{i:04}" for i in range(1001)]

    async def save(number: int) -> None:
        one = checkpoint_of(checkpoint_id=names[number], minutes=number, state={"n": number})
        await both[number % 2].save(one)

    async def each() -> None:
        for start in range(0, 1001, 50):
            await asyncio.gather(*map(save, range(start, min(start + 50, 1001))))

    run(each())
    assert ids(storage) == names
    assert run(storage.get_latest(workflow_name="w")).state == {"n": 1000}


def test_a_workflow_resumes_from_each_checkpoint(checkpoints: CheckpointStorage) -> None:
    """The checkpoints are a chain, one for each step and one before the first."""
    workflow = counting(checkpoints, 3)
    assert run(workflow.run(Count(0))).get_outputs() == [counted(3)]
    chain = run(checkpoints.list_checkpoints(workflow_name="counting/1"))
    chain.sort(key=lambda each: each.iteration_count)
    assert [each.iteration_count for each in chain] == list(range(5))
    assert [each.previous_checkpoint_id for each in chain] == [
        None,
        *(each.checkpoint_id for each in chain[:-1]),
    ]
    for each in chain[:-1]:
        resumed = run(counting(checkpoints, 3).run(checkpoint_id=each.checkpoint_id))
        assert resumed.get_outputs() == [counted(3)]
    every = run(checkpoints.list_checkpoints(workflow_name="counting/1"))
    assert {each.previous_checkpoint_id for each in every} >= {
        each.checkpoint_id for each in chain[:-1]
    }


def test_a_workflow_waits_for_a_person(checkpoints: CheckpointStorage) -> None:
    result = run(approving(checkpoints).run("May I?"))
    assert result.get_final_state() == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    waiting = run(checkpoints.get_latest(workflow_name="approving"))
    assert list(waiting.pending_request_info_events) == ["request"]

    async def answer() -> Any:  # in another process, as far as the workflow knows
        workflow = approving(checkpoints)
        restored = await workflow.run(checkpoint_id=waiting.checkpoint_id)
        assert [event.request_id for event in restored.get_request_info_events()] == ["request"]
        return (await workflow.run(responses={"request": "yes"})).get_outputs()

    assert run(answer()) == ["May I?: yes"]
    latest = run(checkpoints.get_latest(workflow_name="approving"))
    assert latest.previous_checkpoint_id
    assert not latest.pending_request_info_events
