"""What ParleySaver guarantees beyond LangGraph's suite."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from checkpoints import get, put, start, values_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, _DeltaSnapshot

import parley
from parley.adapters._steps import method_of
from parley.adapters.langgraph import ParleySaver
from parley.adapters.langgraph import _values as values

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

MIB = 1 << 20


def items(count: int) -> list[str]:
    """Return a list that is split into pieces if it has more than eight items."""
    return [f"item {i} " + "x" * 100 for i in range(count)]


def conversation(client: parley.Client, thread_id: str) -> parley.Conversation:
    """Return the header of a conversation."""
    request = parley.GetConversationRequest(conversation_id=thread_id)
    return client.get_conversation(request).conversation


def keys(client: parley.Client, thread_id: str, prefix: str = "") -> list[str]:
    """Return the keys of the records of a thread."""
    return [record.key for record in client.records(thread_id).list(prefix, keys_only=True)]


def writes_of(saver: ParleySaver, config: RunnableConfig) -> list[tuple[str, str, Any]]:
    """Return the writes to a checkpoint."""
    return get(saver, config).pending_writes or []


def test_a_checkpoint_and_its_values_are_one_commit(
    saver: ParleySaver, client: parley.Client
) -> None:
    """A put, and the writes of a task, raise the version of the conversation by one."""
    config = put(saver, start("one commit"), {"list": items(20), "dict": {"a": 1}})
    before = conversation(client, "one commit").version
    put(saver, config, {"list": items(40), "dict": {"a": 2}, "text": "x" * MIB})
    assert conversation(client, "one commit").version == before + 1
    saver.put_writes(config, [("a", 1), ("b", 2), (ERROR, "no")], "task")
    assert conversation(client, "one commit").version == before + 2


def test_the_conversation_keeps_everything(saver: ParleySaver, client: parley.Client) -> None:
    """By default a conversation neither expires nor is evicted."""
    put(saver, start("kept"), {})
    retention = conversation(client, "kept").retention
    assert retention.keep_all
    assert retention.no_expiry
    assert retention.no_eviction


def test_another_retention(address: str, client: parley.Client) -> None:
    """The caller may choose the retention of new conversations."""
    with ParleySaver(address, retention=parley.Retention(max_messages=7)) as saver:
        put(saver, start("seven"), {})
    assert conversation(client, "seven").retention.max_messages == 7


def test_a_list_that_grows_costs_what_is_added(saver: ParleySaver, client: parley.Client) -> None:
    """The items before are not written again."""
    config = put(saver, start("growing"), {"list": items(400)})
    before = conversation(client, "growing").record_bytes
    config = put(saver, config, {"list": items(401)})
    assert conversation(client, "growing").record_bytes - before < 4000
    assert values_of(saver, config)["list"] == items(401)


def test_a_value_that_did_not_change_is_not_written_again(
    saver: ParleySaver, client: parley.Client
) -> None:
    """A checkpoint refers to the value of an earlier one."""
    config = put(saver, start("unchanged"), {"dict": {"text": "x" * 100_000}})
    before = conversation(client, "unchanged").record_bytes
    checkpoint = get(saver, config).checkpoint
    checkpoint["id"] = empty_checkpoint()["id"]
    config = saver.put(config, checkpoint, {"source": "loop"}, {})
    assert conversation(client, "unchanged").record_bytes - before < 2000
    assert values_of(saver, config)["dict"] == {"text": "x" * 100_000}


@pytest.mark.parametrize("size", [MIB - 100, MIB + 1, 3 * MIB, 9 * MIB])
def test_large_values(saver: ParleySaver, size: int) -> None:
    """Values above the limit of a record, and of a call, come back as they were."""
    name = f"large {size}"
    state = {"text": "t" * size, "bytes": b"b" * size, "list": ["i" * (size // 4)] * 9}
    config = put(saver, start(name), state, note="n" * size)
    saver.put_writes(config, [("a", "w" * size), ("b", b"w" * size)], "task")
    found = get(saver, config)
    assert found.checkpoint["channel_values"] == state
    assert found.metadata["note"] == "n" * size  # type: ignore[typeddict-item]
    assert found.pending_writes == [("task", "a", "w" * size), ("task", "b", b"w" * size)]
    (listed,) = saver.list(start(name), filter={"note": "n" * size})
    assert listed == found


def test_many_channels_and_writes(saver: ParleySaver) -> None:
    """More values and writes than a call may have come back in their order."""
    state = {f"channel {i}": {"value": i} for i in range(250)}
    config = put(saver, start("many"), state)
    saver.put_writes(config, [(f"channel {i}", i) for i in range(1000)], "task")
    assert values_of(saver, config) == state
    assert writes_of(saver, config) == [("task", f"channel {i}", i) for i in range(1000)]


def test_long_names(saver: ParleySaver) -> None:
    """Names that do not fit into a key are no errors."""
    ns = "|".join(f"node:{i:036}" for i in range(20))
    state = {"c" * 1000: {"a": 1}, "d" * 1000: {"a": 2}, "~" + "e" * 64: {"a": 3}}
    config = put(saver, start("long names", ns), state)
    saver.put_writes(config, [("c" * 1000, 1)], "t" * 1000)
    found = get(saver, config)
    assert found.checkpoint["channel_values"] == state
    assert found.config == config
    assert found.pending_writes == [("t" * 1000, "c" * 1000, 1)]


def test_an_encrypting_serializer(address: str, client: parley.Client) -> None:
    """The records contain nothing in plaintext."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    with ParleySaver(address, serde=serde) as saver:
        config = put(saver, start("encrypted"), {"list": ["secret"] * 20})
        assert values_of(saver, config) == {"list": ["secret"] * 20}
        for record in client.records("encrypted").list():
            assert b"secret" not in record.value
        saver.delete_thread("encrypted")  # Savers without the key fail to list it.


def test_writes_are_in_the_order_of_their_paths(saver: ParleySaver) -> None:
    """The order is that of writes_sort_key: path, task, index as a number."""
    config = put(saver, start("order"), {})
    saver.put_writes(config, [("a", 1), ("a", 2)], "task 1", "path 2")
    saver.put_writes(config, [("a", 3)], "task 2", "path 1")
    saver.put_writes(config, [("a", 4)], "task 3", "path 1")
    saver.put_writes(config, [("a", i) for i in range(5, 20)], "task 0", "path 3")
    assert [value for _, _, value in writes_of(saver, config)] == [3, 4, 1, 2, *range(5, 20)]


def test_writes_are_kept_and_special_ones_replaced(saver: ParleySaver) -> None:
    """A task that runs again does not change its writes, except special ones."""
    config = put(saver, start("again"), {})
    saver.put_writes(config, [(INTERRUPT, "first")], "task")
    saver.put_writes(config, [("a", 1)], "task")
    saver.put_writes(config, [("a", 2), ("b", 3), (INTERRUPT, "second")], "task")
    saver.put_writes(config, [("a", 4), ("b", 5)], "task")
    saver.put_writes(config, [(RESUME, "yes")], "task")
    assert writes_of(saver, config) == [
        ("task", RESUME, "yes"),
        ("task", INTERRUPT, "second"),
        ("task", "a", 1),
        ("task", "b", 3),
    ]


def test_writes_before_their_checkpoint(saver: ParleySaver) -> None:
    """Writes that arrive first belong to the checkpoint that follows."""
    config = put(saver, start("early"), {})
    checkpoint = empty_checkpoint()
    early: RunnableConfig = {
        "configurable": {**start("early")["configurable"], "checkpoint_id": checkpoint["id"]}
    }
    saver.put_writes(early, [("a", 1)], "task")
    assert get(saver, start("early")).config == config
    saver.put(config, checkpoint, {}, {})
    assert writes_of(saver, start("early")) == [("task", "a", 1)]


def test_a_checkpoint_never_refers_to_pieces_that_another_program_pruned(
    saver: ParleySaver, address: str, client: parley.Client
) -> None:
    """A saver notices that pieces it has written are gone, and writes them again."""
    first = put(saver, start("stale"), {"list": items(100)})
    config = put(saver, first, {"list": ["other"]})
    with ParleySaver(address) as other:
        other.prune(["stale"])
    assert keys(client, "stale", values.PIECES) == []
    # This saver has written the pieces of these items, and does not know that they are gone.
    config = put(saver, config, {"list": items(101)})
    assert values_of(saver, config)["list"] == items(101)


def test_a_checkpoint_never_refers_to_pieces_of_a_deleted_thread(
    saver: ParleySaver, address: str
) -> None:
    """The same holds if the thread was deleted, or deleted and created again."""
    put(saver, start("recreated"), {"list": items(100)})
    with ParleySaver(address) as other:
        other.delete_thread("recreated")
        config = put(saver, start("recreated"), {"list": items(101)})
        assert values_of(other, config)["list"] == items(101)
        other.delete_thread("recreated")
        put(other, start("recreated"), {"list": ["other"]})
        config = put(saver, start("recreated"), {"list": items(102)})
        assert values_of(other, config)["list"] == items(102)


def test_a_checkpoint_that_is_put_during_a_deletion_is_complete(
    saver: ParleySaver, client: parley.Client
) -> None:
    """A thread of a conversation with messages is deleted in several calls."""
    config = put(saver, start("meanwhile"), {"list": items(100)})
    message = parley.Message(role=parley.Role.ROLE_USER, content="stays")
    client.append_messages(
        parley.AppendMessagesRequest(conversation_id="meanwhile", messages=[message])
    )
    deletion = saver._deleter.delete_thread("meanwhile")
    request = next(deletion)
    while not isinstance(request, parley.WriteRecordsRequest):
        request = deletion.send(getattr(client, method_of(request))(request))
    # All keys to delete are known now. Another put of this saver follows.
    config = put(saver, config, {"list": items(101)})
    with pytest.raises(parley.RevisionMismatchError) as refused:
        client.write_records(request)
    request = deletion.throw(refused.value)
    with suppress(StopIteration):
        while True:
            request = deletion.send(getattr(client, method_of(request))(request))
    assert saver.get_tuple(config) is None
    config = put(saver, start("meanwhile"), {"list": items(102)})
    assert values_of(saver, config)["list"] == items(102)
    saver.delete_thread("meanwhile")
    assert keys(client, "meanwhile") == []
    assert conversation(client, "meanwhile").message_count == 1


def test_threads_of_another_language_are_refused_and_left_out_of_lists(
    saver: ParleySaver, client: parley.Client
) -> None:
    """JavaScript has the same keys, and serializes in its own way."""
    put(saver, start("ours"), {"a": 1})
    request = parley.LoadConversationRequest(conversation_id="theirs")
    client.load_conversation(request)
    key = values.checkpoint_prefix("", "1") + "state"
    client.records("theirs").put(key, b"{}", media_type="application/json")
    for read in (saver.get_tuple, lambda config: list(saver.list(config))):
        with pytest.raises(parley.Error, match="another language") as refused:
            read(start("theirs"))
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    threads = [found.config["configurable"]["thread_id"] for found in saver.list(None)]
    assert "ours" in threads
    assert "theirs" not in threads
    saver.delete_for_runs(["run"])
    saver.delete_thread("theirs")


def test_threads_that_begin_at_once_share_a_connection(address: str) -> None:
    """A saver with an address makes one client, which closing it closes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            with ParleySaver(address) as saver, ThreadPoolExecutor(16) as pool:
                begin = threading.Barrier(16)

                def client(saver: ParleySaver = saver, begin: threading.Barrier = begin) -> object:
                    begin.wait()
                    return saver._clients.sync

                clients = [made.result() for made in [pool.submit(client) for _ in range(16)]]
                assert len(set(map(id, clients))) == 1
    finally:
        sys.setswitchinterval(interval)


def test_prune_while_checkpoints_are_put_and_read(address: str) -> None:
    """No reader sees half a checkpoint, and no checkpoint is lost."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def repeat(action: Any) -> None:
        with ParleySaver(address) as saver:
            while not ended.is_set():
                try:
                    action(saver)
                except BaseException as error:  # noqa: BLE001 - the test reports it
                    failures.append(error)
                    return

    def read(saver: ParleySaver) -> None:
        found = saver.get_tuple(start("pruned"))
        if found:
            count = found.metadata["count"]  # type: ignore[typeddict-item]
            assert found.checkpoint["channel_values"]["list"] == items(count)
            assert found.checkpoint["channel_values"]["dict"] == {"count": count}

    def read_all(saver: ParleySaver) -> None:
        list(saver.list(start("pruned")))
        list(saver.list({"configurable": {"thread_id": "pruned"}}))

    actions = [read, read_all, lambda saver: saver.prune(["pruned"])]
    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    try:
        with ParleySaver(address) as saver:
            config = start("pruned")
            for i in range(60):
                count = 20 + i * 7 % 40  # it grows and shrinks, so that pieces come back
                state = {"list": items(count), "dict": {"count": count}}
                config = put(saver, config, state, count=count)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not failures
    with ParleySaver(address) as saver:
        assert values_of(saver, start("pruned")) == state


def test_prune_keeps_the_newest_with_all_it_refers_to(
    saver: ParleySaver, client: parley.Client
) -> None:
    """What only older checkpoints used is deleted."""
    for ns in ("", "child:1"):
        config = start("prune", ns)
        for i in range(5):
            config = put(saver, config, {"list": items(20 + i), "dict": {"i": i}})
            saver.put_writes(config, [("a", "w" * 2 * MIB)], f"task {i}")
    before = get(saver, config)
    saver.prune(["prune"])
    after = list(saver.list({"configurable": {"thread_id": "prune"}}))
    assert len(after) == 2
    assert after[0] == before._replace(parent_config=None)
    assert after[1].checkpoint["channel_values"] == {"list": items(24), "dict": {"i": 4}}
    # Two checkpoints, two writes of two pieces each, four values of which two have three pieces.
    assert len(keys(client, "prune", values.CHECKPOINTS)) == 4
    assert len(keys(client, "prune", values.VALUES)) == 4
    assert len(keys(client, "prune", values.PIECES)) == 3 + 3


def test_prune_refuses_what_it_does_not_know(saver: ParleySaver) -> None:
    """It raises the errors of LangGraph's saver for PostgreSQL, and deletes nothing."""
    with pytest.raises(ValueError, match="unknown strategy 'oldest'"):
        saver.prune(["thread"], strategy="oldest")
    with pytest.raises(TypeError, match="thread_ids is a str"):
        saver.prune("thread")
    config = put(saver, start("delta"), {"delta": _DeltaSnapshot(["a"])})
    put(saver, config, {})
    with pytest.raises(NotImplementedError, match="DeltaChannel"):
        saver.prune(["delta"])
    assert len(list(saver.list(start("delta")))) == 2
    saver.prune(["delta"], strategy="delete")
    assert saver.get_tuple(start("delta")) is None


def test_delete_for_runs_deletes_what_only_they_used(
    saver: ParleySaver, client: parley.Client
) -> None:
    """The other checkpoints of the thread stay complete."""
    config = put(saver, start("runs"), {"list": items(20)}, run_id="run 1")
    config = put(saver, config, {"list": items(40)}, run_id="run 2")
    saver.put_writes(config, [("a", 1)], "task")
    saver.delete_for_runs(["run 2", "no run"])
    (left,) = saver.list(start("runs"))
    assert left.checkpoint["channel_values"] == {"list": items(20)}
    assert len(keys(client, "runs")) == 1 + 1 + 3 + 1  # with the generation


def test_delete_thread_keeps_what_is_not_of_langgraph(
    saver: ParleySaver, client: parley.Client
) -> None:
    """The messages of the conversation stay; without any, the conversation goes."""
    message = parley.Message(role=parley.Role.ROLE_USER, content="Hi.")
    client.append_messages(
        parley.AppendMessagesRequest(conversation_id="shared with a chat", messages=[message])
    )
    put(saver, start("shared with a chat"), {"list": items(20)})
    saver.delete_thread("shared with a chat")
    assert conversation(client, "shared with a chat").message_count == 1
    assert keys(client, "shared with a chat") == []
    put(saver, start("only checkpoints"), {"list": items(20)})
    saver.delete_thread("only checkpoints")
    with pytest.raises(parley.Error, match="CONVERSATION_NOT_FOUND"):
        conversation(client, "only checkpoints")


def test_copy_thread_copies_everything(saver: ParleySaver) -> None:
    """The copy does not depend on its source."""
    config = start("source")
    for i in range(5):
        config = put(saver, config, {"list": items(20 + i), "text": "t" * 2 * MIB})
        saver.put_writes(config, [("a", "w" * 2 * MIB)], f"task {i}")
    saver.copy_thread("source", "copy")
    found = list(saver.list(start("copy")))
    assert len(found) == 5
    for ours, theirs in zip(found, saver.list(start("source")), strict=True):
        assert ours.config["configurable"]["thread_id"] == "copy"
        assert ours.checkpoint == theirs.checkpoint
        assert ours.pending_writes == theirs.pending_writes
    saver.delete_thread("source")
    assert list(saver.list(start("copy"))) == found


def test_list_of_all_namespaces_is_newest_first(saver: ParleySaver) -> None:
    """A config without a namespace means all of them."""
    configs = [put(saver, start("both", ns), {"n": i}) for i, ns in enumerate(("", "a", "", "b"))]
    listed = list(saver.list({"configurable": {"thread_id": "both"}}))
    assert [each.config for each in listed] == configs[::-1]
    before = saver.list({"configurable": {"thread_id": "both"}}, before=configs[2], limit=1)
    assert [each.config for each in before] == [configs[1]]
    assert list(saver.list(configs[1])) == [listed[2]]
    assert list(saver.list(start("both"), limit=0)) == []


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=60,
)
STATES = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c/d", "%"]), VALUES), min_size=1, max_size=6
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(states=STATES)
def test_states_are_those_of_the_saver_in_memory(
    saver: ParleySaver, states: list[dict[str, Any]]
) -> None:
    """Random states, of which each may replace any channel, come back the same."""
    saver.delete_thread("random")
    memory = InMemorySaver()
    ours = theirs = start("random")
    for state in states:
        checkpoint = empty_checkpoint()
        versions = {channel: saver.get_next_version(None, None) for channel in state}
        checkpoint["channel_values"], checkpoint["channel_versions"] = state, dict(versions)
        ours = saver.put(ours, checkpoint, {"source": "loop"}, dict(versions))
        theirs = memory.put(theirs, checkpoint, {"source": "loop"}, dict(versions))
        writes = list(state.items())
        saver.put_writes(ours, writes, "task")
        memory.put_writes(theirs, writes, "task")
    assert list(saver.list(start("random"))) == list(memory.list(start("random")))
    assert saver.get_tuple(start("random")) == memory.get_tuple(start("random"))
