"""The store: items of all threads under namespaces."""

from __future__ import annotations

import json
import operator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from google.protobuf.duration_pb2 import Duration
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    PutOp,
    SearchItem,
    SearchOp,
)

from parley._error import RevisionMismatchError
from parley.adapters._common import Clients, batches, key_of
from parley.adapters._steps import Steps, arun, run
from parley.adapters.langgraph._steps import (
    get_all,
    list_all,
    segment,
)
from parley.v1.record_pb2 import RecordWrite
from parley.v1.record_service_pb2 import WriteRecordsRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from langgraph.store.base import IndexConfig, MatchCondition, Op, Result, TTLConfig
    from typing_extensions import Self

    from parley.adapters._common import Server
    from parley.v1.record_pb2 import Record

ROOT = "langgraph-store"
TENANT = ""  # the conversation of the tenant's records
MEDIA_TYPE = "application/json"
MAX_VALUE_BYTES = 3 << 20
MIN_TTL, MAX_TTL = 0.1 / 60, 366.0 * 24 * 60  # minutes

# Labels of a record, which lists of keys contain.
CREATED, UPDATED, TTL = "created_at", "updated_at", "ttl_minutes"


class ParleyStore(BaseStore):
    """A store that keeps its items as records of the tenant, which all threads share.

    Searches are by namespace and filter, not by meaning: a query is ignored, as in LangGraph's own
    stores without an index. They return the items that were updated last first.

    The gets, searches and lists of a batch read the items as they are before its puts. The puts of
    a batch are one commit, unless they are more than 100 or have more than 3 MiB; then they may
    take several commits, in the order of the batch.

    An item has up to 3 MiB of JSON. Its key and namespace together have up to 510 bytes, in which a
    label or key of more than 99 bytes counts 65. With a ttl, it expires that long after it was last
    written or read; the server deletes it. A ttl has 100 ms to 366 days.

    All methods have an async form and may be used by any number of threads, event loops and
    processes. They raise :class:`parley.Error` if a call fails, and ValueError or TypeError for
    items that break these limits or are not JSON.
    """

    __slots__ = ("_clients", "ttl_config")

    supports_ttl = True

    def __init__(
        self, server: Server, *, index: IndexConfig | None = None, ttl: TTLConfig | None = None
    ) -> None:
        """Use a server; this makes no call.

        Args:
            server: An address, a :class:`parley.Client` for the sync methods, or a
                :class:`parley.AsyncClient` for the async ones. With an address, both work.
            index: Must be None: the store has no vectors.
            ttl: default_ttl and refresh_on_read, as in LangGraph. Expired items are always omitted
                and deleted by the server, so the other settings have no effect.

        Raises:
            NotImplementedError: There is an index.

        """
        if index is not None:
            raise NotImplementedError(
                "ParleyStore has no vector search; set index=None, or use a store with vectors"
            )
        super().__init__()
        self._clients = Clients(server)
        self.ttl_config = ttl

    def __enter__(self) -> Self:
        """Return the store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection, if the store made it."""
        self._clients.close()

    async def __aenter__(self) -> Self:
        """Return the store itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections that the store made."""
        await self._clients.aclose()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations, and return the result of each. Of several puts of an item, the last.

        Raises:
            ValueError: An operation or an operator of a filter is unknown.

        """
        return run(self._clients.sync, execute(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """See :meth:`batch`."""
        return await arun(self._clients.aio, execute(list(ops)))


class Stored(NamedTuple):
    """An item, and what is needed to refresh its ttl."""

    item: SearchItem
    record: Record


def execute(ops: Sequence[Op]) -> Steps[list[Result]]:
    """Execute the reads of a batch, then its puts."""
    results: list[Result] = []
    found = yield from get_all(TENANT, [key_of_item(op) for op in ops if isinstance(op, GetOp)])
    puts: dict[str, PutOp] = {}
    read: dict[str, Record] = {}
    for op in ops:
        if isinstance(op, GetOp):
            record = found.get(key_of_item(op))
            results.append(Item(**fields_of(record)) if record else None)
            if record and op.refresh_ttl:
                read[record.key] = record
        elif isinstance(op, SearchOp):
            stored = yield from search(op)
            results.append([each.item for each in stored])
            if op.refresh_ttl:
                read.update((each.record.key, each.record) for each in stored)
        elif isinstance(op, ListNamespacesOp):
            results.append((yield from list_namespaces(op)))
        elif isinstance(op, PutOp):
            puts[key_of_item(op)] = op
            results.append(None)
        else:
            raise ValueError(f"unknown operation {op!r}")
    yield from refresh(record for key, record in read.items() if key not in puts)
    yield from put(puts)
    return results


def search(op: SearchOp) -> Steps[list[Stored]]:
    """Return the items of a search, the last updated one first."""
    prefix = key_prefix(op.namespace_prefix)
    records = yield from list_all(TENANT, prefix, keys_only=not op.filter)
    records.sort(key=lambda record: record.labels[UPDATED], reverse=True)
    if not op.filter:
        records = records[op.offset : op.offset + op.limit]
        found = yield from get_all(TENANT, [record.key for record in records])
        records = [found[record.key] for record in records if record.key in found]
        return [Stored(SearchItem(**fields_of(record)), record) for record in records]
    matching = []
    for record in records:
        item = SearchItem(**fields_of(record))
        if all(matches(item.value.get(key), wanted) for key, wanted in op.filter.items()):
            matching.append(Stored(item, record))
    return matching[op.offset : op.offset + op.limit]


def list_namespaces(op: ListNamespacesOp) -> Steps[list[tuple[str, ...]]]:
    """Return the namespaces that contain items, in their order."""
    records = yield from list_all(TENANT, key_prefix(()), keys_only=True)
    paths = {tuple(record.key.split("/")[1:-1]): record.key for record in records}
    # A digest does not say which label it stands for, but the item does.
    digested = [key for path, key in paths.items() if any(part[:1] == "~" for part in path)]
    found = yield from get_all(TENANT, digested)
    namespaces = {
        tuple(json.loads(found[key].value)["namespace"])
        if key in found
        else tuple(unquote(part) for part in path)
        for path, key in paths.items()
    }
    matching = {
        namespace[: op.max_depth]
        for namespace in namespaces
        if all(is_match(condition, namespace) for condition in op.match_conditions or ())
    }
    return sorted(matching)[op.offset : op.offset + op.limit]


def refresh(records: Iterable[Record]) -> Steps[None]:
    """Begin the ttl of items again, unless they have changed since they were read."""
    writes = [
        write_of(record.key, record.value, dict(record.labels), record.revision)
        for record in records
        if TTL in record.labels
    ]
    for batch in batches(writes):
        unchanged = batch
        while unchanged:
            try:
                yield WriteRecordsRequest(writes=unchanged)
            except RevisionMismatchError as error:
                unchanged = [write for write in unchanged if write.key != error.key]
            else:
                break


def put(ops: Mapping[str, PutOp]) -> Steps[None]:
    """Write and delete items. An item that exists keeps the time of its creation."""
    values = {
        key: encode_item(op.namespace, op.key, op.value)
        for key, op in ops.items()
        if op.value is not None
    }
    remaining = dict(ops)
    while remaining:
        found = yield from get_all(TENANT, [key for key in remaining if key in values])
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        writes = []
        for key, op in remaining.items():
            if key not in values:
                writes.append(RecordWrite(key=key, delete=True))
                continue
            created, revision = now, 0
            if key in found:
                created, revision = found[key].labels[CREATED], found[key].revision
            labels = {CREATED: created, UPDATED: now}
            if op.ttl is not None:
                labels[TTL] = repr(float(op.ttl))
            writes.append(write_of(key, values[key], labels, revision))
        try:
            for batch in batches(writes):
                yield WriteRecordsRequest(writes=batch)
                for write in batch:
                    del remaining[write.key]
        except RevisionMismatchError:
            continue  # Another program has written one of them: read the times again.


def write_of(key: str, value: bytes, labels: dict[str, str], revision: int) -> RecordWrite:
    """Return the write of an item, with the ttl that its labels have."""
    ttl = None
    if TTL in labels:
        ttl = Duration()
        ttl.FromTimedelta(timedelta(minutes=float(labels[TTL])))
    return RecordWrite(
        key=key,
        value=value,
        media_type=MEDIA_TYPE,
        labels=labels,
        ttl=ttl,
        if_revision=revision,
    )


def encode_item(namespace: Sequence[str], key: str, value: Mapping[str, Any]) -> bytes:
    """Return the JSON of an item.

    Raises:
        TypeError: The value is not JSON.
        ValueError: It is too large, or not JSON in another way, such as NaN.

    """
    parts = {"namespace": list(namespace), "key": key, "value": dict(value)}
    encoded = json.dumps(parts, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(encoded) > MAX_VALUE_BYTES:
        raise ValueError(
            f"item {key!r} of namespace {tuple(namespace)!r} has {len(encoded)} bytes, "
            f"more than {MAX_VALUE_BYTES}"
        )
    return encoded


def fields_of(record: Record) -> dict[str, Any]:
    """Return the fields of an item."""
    return {
        **json.loads(record.value),
        "created_at": datetime.fromisoformat(record.labels[CREATED]),
        "updated_at": datetime.fromisoformat(record.labels[UPDATED]),
    }


def key_prefix(namespace: Sequence[str]) -> str:
    """Return how the keys of the items in a namespace, and in those under it, begin."""
    return "".join(segment(label) + "/" for label in (ROOT, *namespace))


def key_of_item(op: GetOp | PutOp) -> str:
    """Return the key of the record of an item.

    Raises:
        ValueError: It is too long, or the ttl is out of its limits.

    """
    ttl = op.ttl if isinstance(op, PutOp) else None
    if ttl is not None and not MIN_TTL <= ttl <= MAX_TTL:
        raise ValueError(f"the ttl of {ttl} minutes is not between 100 ms and 366 days")
    return key_of(ROOT, *map(segment, op.namespace), segment(op.key))


def is_match(condition: MatchCondition, namespace: Sequence[str]) -> bool:
    """Return whether a namespace begins or ends with a path, in which "*" is any label."""
    if condition.match_type not in ("prefix", "suffix"):
        raise ValueError(f"unknown match type {condition.match_type!r}")
    path = condition.path
    if len(namespace) < len(path):
        return False
    labels = namespace[: len(path)]
    if condition.match_type == "suffix":
        labels = namespace[len(namespace) - len(path) :]
    return all(part in ("*", label) for part, label in zip(path, labels, strict=True))


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(value: object, wanted: object) -> bool:
    """Return whether a field matches a filter: a value, a nested one, or operators.

    Raises:
        ValueError: An operator is unknown.

    """
    if isinstance(wanted, dict):
        if any(key.startswith("$") for key in wanted):
            return all(compare(value, name, operand) for name, operand in wanted.items())
        return isinstance(value, dict) and all(
            matches(value.get(key), each) for key, each in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(map(matches, value, wanted))
        )
    return value == wanted


def compare(value: Any, name: str, operand: Any) -> bool:  # noqa: ANN401 - JSON
    """Return the result of an operator. Values that are no numbers are not above or below any."""
    if name == "$eq":
        return bool(value == operand)
    if name == "$ne":
        return bool(value != operand)
    if name not in COMPARISONS:
        raise ValueError(f"unknown operator {name!r}")
    try:
        return COMPARISONS[name](float(value), float(operand))
    except (TypeError, ValueError):
        return False
