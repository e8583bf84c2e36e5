"""ParleyStore by the documentation of BaseStore, and compared with InMemoryStore."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from graphs import chat_graph, thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

import parley
from parley.adapters.langgraph import ParleySaver, ParleyStore

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore, Op

LABELS = ["a", "b", "a/b", "%", "~", "x" * 120]
NAMESPACES = st.lists(st.sampled_from(LABELS), min_size=1, max_size=3).map(tuple)
KEYS = st.sampled_from(["k", "k/l", "", "ü", "y" * 120])
FIELDS = st.dictionaries(
    st.sampled_from(["n", "s", "d"]),
    st.integers(0, 3)
    | st.sampled_from(["0", "red"])
    | st.lists(st.integers(0, 1), max_size=2)
    | st.dictionaries(st.sampled_from(["n", "s"]), st.integers(0, 2)),
)
NUMBERS = st.integers(0, 3)
FILTERS = (
    st.none()
    | FIELDS
    | st.dictionaries(
        st.just("n"),
        st.dictionaries(st.sampled_from(["$eq", "$ne"]), NUMBERS, min_size=1),
        min_size=1,
    )
)
PATHS = st.lists(st.sampled_from([*LABELS, "*"]), max_size=2).map(tuple)
CONDITIONS = st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), PATHS)
PUTS = st.builds(PutOp, NAMESPACES, KEYS, FIELDS | st.none(), st.none(), st.none())
GETS = st.builds(GetOp, NAMESPACES, KEYS)
SEARCHES = st.builds(
    SearchOp,
    st.lists(st.sampled_from(LABELS), max_size=2).map(tuple),
    filter=FILTERS,
    limit=st.just(1000),  # Items that are as old as each other have no order.
    offset=st.just(0),
)
LISTS = st.builds(
    ListNamespacesOp,
    match_conditions=st.none() | st.lists(CONDITIONS, max_size=2).map(tuple),
    max_depth=st.none() | st.integers(1, 3),
    limit=st.integers(0, 5),
    offset=st.integers(0, 3),
)
OPERATIONS = st.lists(st.lists(PUTS | GETS | SEARCHES | LISTS, max_size=8), max_size=8)


def clear(store: BaseStore) -> None:
    """Delete all items."""
    store.batch([PutOp(item.namespace, item.key, None) for item in store.search((), limit=10_000)])


def plain(result: Any) -> Any:
    """Return a result without times, and searches in the order of the keys."""
    if isinstance(result, list):
        return sorted(map(plain, result), key=repr)
    return (result.namespace, result.key, result.value) if hasattr(result, "value") else result


def is_listing(op: Op) -> bool:
    """Return whether an operation lists namespaces."""
    return isinstance(op, ListNamespacesOp)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches=OPERATIONS)
def test_operations_have_the_results_of_the_store_in_memory(
    store: ParleyStore, batches: list[list[Op]]
) -> None:
    """Random batches have the same results, except for the order of searches."""
    clear(store)
    memory = InMemoryStore()
    for ops in batches:
        # The store in memory also lists namespaces that were only read, or whose items are gone.
        live = InMemoryStore()
        live.batch(
            [PutOp(each.namespace, each.key, each.value) for each in memory.search((), limit=1000)]
        )
        expected = [
            live.batch([op])[0] if is_listing(op) else result
            for op, result in zip(ops, memory.batch(ops), strict=True)
        ]
        assert [plain(result) for result in store.batch(ops)] == [plain(each) for each in expected]


def test_nested_filters_and_operators(store: ParleyStore) -> None:
    """Filters work as the documentation of SearchOp says."""
    values: list[dict[str, Any]] = [
        {"score": 1, "color": "red", "who": {"name": "Zoë", "age": 3}},
        {"score": 4.99, "color": "red", "who": {"name": "Max", "age": 30}},
        {"score": 10, "color": "blue"},
        {"score": "high"},
    ]
    for i, value in enumerate(values):
        store.put(("docs",), str(i), value)

    def found(**wanted: Any) -> set[str]:
        return {item.key for item in store.search(("docs",), filter=wanted)}

    assert found(color="red") == {"0", "1"}
    assert found(color={"$ne": "red"}) == {"2", "3"}
    assert found(score={"$gt": 4.98}) == {"1", "2"}
    assert found(score={"$gte": 1, "$lt": 10}) == {"0", "1"}
    assert found(score={"$lte": 4.99}, color="red") == {"0", "1"}
    assert found(who={"name": "Max"}) == {"1"}
    assert found(who={"age": {"$lt": 18}}) == {"0"}
    assert found(missing=None) == {"0", "1", "2", "3"}
    with pytest.raises(ValueError, match=r"unknown operator '\$in'"):
        found(score={"$in": [1]})


def test_an_item_keeps_the_time_of_its_creation(store: ParleyStore) -> None:
    """A put changes only the time of the update."""
    before = datetime.now(timezone.utc)
    store.put(("times",), "a", {"n": 1})
    first = store.get(("times",), "a")
    store.put(("times",), "a", {"n": 2})
    second = store.get(("times",), "a")
    assert first
    assert second
    assert before <= first.created_at == first.updated_at
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    assert store.search(("times",))[0].created_at == first.created_at
    store.delete(("times",), "a")
    store.put(("times",), "a", {"n": 3})
    third = store.get(("times",), "a")
    assert third
    assert third.created_at > second.updated_at


def test_a_search_returns_the_items_that_were_updated_last(store: ParleyStore) -> None:
    """The order is that of LangGraph's store for PostgreSQL."""
    for key in "abcd":
        store.put(("order",), key, {})
    store.put(("order",), "b", {})
    assert [item.key for item in store.search(("order",), limit=3)] == ["b", "d", "c"]
    assert [item.key for item in store.search(("order",), limit=3, offset=2)] == ["c", "a"]
    assert [item.key for item in store.search(("order",), filter={"n": None}, limit=1)] == ["b"]


def test_a_batch_of_puts_is_one_commit(address: str) -> None:
    """All puts of a batch have the same revision."""
    with ParleyStore(address) as store, parley.Client(address) as client:
        store.batch([PutOp(("commit",), str(i), {"i": i}) for i in range(100)])
        records = client.tenant_records().list("langgraph-store/commit/")
        assert len({record.revision for record in records}) == 1


def test_more_puts_than_a_call_may_have(store: ParleyStore) -> None:
    """They are stored in several commits."""
    text = "x" * 40_000
    store.batch([PutOp(("many",), str(i), {"i": i, "text": text}) for i in range(250)])
    found = store.search(("many",), limit=300)
    assert {item.value["i"] for item in found} == set(range(250))
    store.batch([PutOp(("many",), str(i), None) for i in range(250)])
    assert store.search(("many",)) == []
    assert store.list_namespaces(prefix=("many",)) == []


def expiries(client: parley.Client, namespace: str) -> dict[str, float]:
    """Return when the items of a namespace expire, by their keys; 0 means never."""
    records = client.tenant_records().list(f"langgraph-store/{namespace}/", keys_only=True)
    return {
        record.key.split("/")[-1]: record.expire_time.seconds + record.expire_time.nanos / 1e9
        for record in records
    }


def test_an_item_expires_after_its_ttl(address: str, client: parley.Client) -> None:
    """Reading it begins the ttl again, unless the caller says otherwise."""
    with ParleyStore(address) as store:
        store.put(("ttl",), "a", {}, ttl=2.0)
        store.put(("ttl",), "kept", {})
        before = expiries(client, "ttl")
        assert 100 < before["a"] - datetime.now(timezone.utc).timestamp() < 130
        assert before["kept"] == 0
        store.get(("ttl",), "a", refresh_ttl=False)
        store.search(("ttl",), refresh_ttl=False)
        assert expiries(client, "ttl") == before
        store.get(("ttl",), "a")
        after = expiries(client, "ttl")
        assert after["a"] > before["a"]
        created = store.search(("ttl",), filter={"none": None})[0].updated_at
        assert expiries(client, "ttl")["a"] > after["a"]
        assert expiries(client, "ttl")["kept"] == 0
        item = store.get(("ttl",), "kept")
        assert item
        assert item.updated_at == created

        store.put(("ttl",), "short", {}, ttl=0.2 / 60)
        while store.get(("ttl",), "short", refresh_ttl=False):
            pass
        assert [item.key for item in store.search(("ttl",))] == ["kept", "a"]


def test_the_default_ttl(address: str, client: parley.Client) -> None:
    """Items without a ttl of their own get that of the config."""
    with ParleyStore(address, ttl={"default_ttl": 1.0, "refresh_on_read": False}) as store:
        store.put(("default",), "a", {})
        store.put(("default",), "b", {}, ttl=None)
        before = expiries(client, "default")
        assert before["a"] > 0
        assert before["b"] == 0
        store.get(("default",), "a")
        store.search(("default",))
        assert expiries(client, "default") == before


def test_limits_and_errors(store: ParleyStore) -> None:
    """What cannot be stored is an error, before anything is written."""
    fine = PutOp(("errors",), "fine", {})
    with pytest.raises(ValueError, match="more than 3145728"):
        store.batch([fine, PutOp(("errors",), "large", {"text": "x" * (3 << 20)})])
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.batch([fine, PutOp(("errors",), "object", {"value": object()})])
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.batch([fine, PutOp(("errors",), "nan", {"value": float("nan")})])
    with pytest.raises(ValueError, match="more than 512 bytes"):
        store.batch([fine, PutOp(("l" * 60,) * 10, "deep", {})])
    for ttl in (0.001, 366 * 24 * 60 + 1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="not between 100 ms and 366 days"):
            store.put(("errors",), "ttl", {}, ttl=ttl)
    with pytest.raises(InvalidNamespaceError):
        store.put(("langgraph",), "reserved", {})
    with pytest.raises(ValueError, match="unknown operation"):
        store.batch(["put"])  # type: ignore[list-item]
    assert store.search(()) == []
    store.put(("errors",), "largest", {"text": "x" * ((3 << 20) - 100)})


def test_an_index_is_an_error(address: str) -> None:
    """The store has no vectors and says so."""
    with pytest.raises(NotImplementedError, match="no vector search"):
        ParleyStore(address, index={"dims": 2, "embed": "model"})


def test_long_and_odd_names(store: ParleyStore) -> None:
    """Any label and key comes back as it is, also in lists of namespaces."""
    for label in ["a/b", "%2F", " blank ", "new\nline", "ü" * 100, "~" + "0" * 64, "*", ".."]:
        ops: list[Op] = [PutOp((label, "b"), label, {"label": label})]
        store.batch(ops)
        (item,) = store.batch([GetOp((label, "b"), label)])
        assert plain(item) == ((label, "b"), label, {"label": label})
        (namespaces,) = store.batch(
            [ListNamespacesOp((MatchCondition("prefix", (label,)),), max_depth=1)]
        )
        assert (label,) in namespaces  # type: ignore[operator]
        (found,) = store.batch([SearchOp((label,))])
        assert plain(found) == [((label, "b"), label, {"label": label})]


def test_two_programs_put_one_item(store: ParleyStore) -> None:
    """Neither loses the time of the creation, and the last put wins."""
    store.put(("shared",), "item", {"n": -1})
    created = store.get(("shared",), "item")
    assert created
    failures: list[BaseException] = []

    def put() -> None:
        try:
            for n in range(30):
                store.put(("shared",), "item", {"n": n})
        except BaseException as error:  # noqa: BLE001 - the test reports it
            failures.append(error)

    threads = [threading.Thread(target=put) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    item = store.get(("shared",), "item")
    assert item
    assert item.value == {"n": 29}
    assert item.created_at == created.created_at


def test_sync_and_async_and_several_event_loops(store: ParleyStore) -> None:
    """All forms see the same items."""

    async def use(n: int) -> None:
        await asyncio.gather(*(store.aput(("loop", str(n)), str(i), {"i": i}) for i in range(5)))
        item = await store.aget(("loop", str(n)), "3")
        assert item
        assert item.value == {"i": 3}
        await store.adelete(("loop", str(n)), "3")

    for n in range(3):
        asyncio.run(use(n))
        assert len(store.search(("loop", str(n)))) == 4

    async def read() -> list[tuple[str, ...]]:
        assert len(await store.asearch(("loop",), limit=20)) == 12
        return await store.alist_namespaces(suffix=("1",))

    assert asyncio.run(read()) == [("loop", "1")]


def test_a_graph_uses_the_store(address: str) -> None:
    """A node of a graph gets the store, and another thread sees its items."""

    def remember(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        known = store.search(("memories", "ada"))
        store.put(("memories", "ada"), str(len(known)), {"text": state["messages"][-1].content})
        return {"messages": [("ai", f"I know {len(known)} things.")]}

    with ParleySaver(address) as saver, ParleyStore(address) as store:
        builder = StateGraph(MessagesState)
        builder.add_node("remember", remember)
        builder.add_edge(START, "remember")
        graph: Any = builder.compile(checkpointer=saver, store=store)
        for i in range(3):
            result = graph.invoke({"messages": [("user", f"fact {i}")]}, thread(f"memory {i}"))
            assert result["messages"][-1].content == f"I know {i} things."
        assert chat_graph(saver, store).store is store
