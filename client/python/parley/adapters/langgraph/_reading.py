"""Reading checkpoints, one or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import grpc
import ormsgpack
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointTuple,
    get_checkpoint_id,
    writes_sort_key,
)

from parley._error import Error
from parley.adapters._common import conversation_id
from parley.adapters.langgraph import _values as values
from parley.adapters.langgraph._configs import config_of, thread_of
from parley.adapters.langgraph._rows import (
    NEWEST_PAGE,
    Row,
    Rows,
    all_checkpoints,
    checkpoints_of,
    newest_row,
)
from parley.adapters.langgraph._steps import PAGE_SIZE, get_all, segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from parley.adapters._steps import Steps
    from parley.adapters.langgraph._commits import Commits
    from parley.v1.record_pb2 import Record

Filter: TypeAlias = "dict[str, Any] | None"


class Reader(NamedTuple):
    """Reads checkpoints with the serializer of a saver."""

    serde: SerializerProtocol
    commits: Commits

    def get(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        """Return the checkpoint of a config, or None if there is none.

        Raises:
            parley.Error: With the code DATA_LOSS if a record that it refers to does not exist.

        """
        thread_id, ns = thread_of(config)
        conversation = conversation_id(thread_id)
        checkpoint_id = get_checkpoint_id(config)
        revision = 0
        while True:
            row = yield from newest_row(conversation, ns, checkpoint_id)
            if row is None:
                return None
            try:
                found = yield from self.load(conversation, [row])
            except values.MissingPieceError as error:
                # Another program deletes or prunes the thread: read what is there now.
                if row.record.revision == revision:
                    raise damaged(row, error) from error
                revision = row.record.revision
            else:
                return found[0]

    def load(self, conversation: str, rows: Sequence[Row]) -> Steps[list[CheckpointTuple]]:
        """Return the checkpoints of rows, with the values of their channels and their writes."""
        contents = [content for row in rows for _, _, content in row.pending]
        contents += [part[1] for row in rows for part in (row.state.checkpoint, row.state.metadata)]
        pieces = yield from get_pieces(conversation, values.digests_of(*contents))
        loader = values.Loader(self.serde, pieces)
        checkpoints: list[Checkpoint] = [loader.typed(row.state.checkpoint) for row in rows]
        keys = [
            row.state.value_keys(checkpoint["channel_versions"], checkpoint["channel_values"])
            for row, checkpoint in zip(rows, checkpoints, strict=True)
        ]
        wanted = [key for each in keys for key in each.values()]
        records = yield from get_all(conversation, [*wanted, values.GENERATION] if wanted else [])
        generation = records.pop(values.GENERATION, None)
        found = {key: values.unpack(record) for key, record in records.items()}
        for row, each in zip(rows, keys, strict=True):
            for channel in row.state.values:
                if each[channel] not in found:
                    raise values.MissingPieceError(each[channel])
        digests = {
            digest
            for value in found.values()
            for digest in values.digests_of(*values.contents_of(value))
        }
        loader = values.Loader(
            self.serde, {**pieces, **(yield from get_pieces(conversation, digests))}
        )
        tuples = []
        for row, checkpoint, each in zip(rows, checkpoints, keys, strict=True):
            for channel, key in each.items():
                if key in found:
                    checkpoint["channel_values"][channel] = loader.value(found[key])
            tuples.append(self._tuple(row, checkpoint, loader))
        if generation:
            self.commits.learn(conversation, generation, digests)
        return tuples

    def _tuple(self, row: Row, checkpoint: Checkpoint, loader: values.Loader) -> CheckpointTuple:
        state = row.state
        writes = sorted(
            (
                (task_path, task_id, *write)
                for task_id, task_path, content in row.pending
                for write in ormsgpack.unpackb(loader.join(content))
            ),
            key=lambda write: writes_sort_key(*write[:3]),
        )
        return CheckpointTuple(
            config=config_of(state.thread_id, state.ns, state.id),
            checkpoint=checkpoint,
            metadata=loader.typed(state.metadata),
            parent_config=(
                config_of(state.thread_id, state.ns, state.parent_id) if state.parent_id else None
            ),
            pending_writes=[
                (task_id, channel, self.serde.loads_typed((kind, data)))
                for _, task_id, _, channel, kind, data in writes
            ],
        )

    def listing(
        self, config: RunnableConfig | None, before: RunnableConfig | None, limit: int | None
    ) -> Steps[Listing | ScatteredListing]:
        """Return the listing for a config."""
        before_id = get_checkpoint_id(before) if before else None
        if config is None:
            return ScatteredListing(self, (yield from all_checkpoints(before_id)))
        thread_id, ns = thread_of(config)
        conversation = conversation_id(thread_id)
        checkpoint_id = get_checkpoint_id(config)
        if "checkpoint_ns" not in config["configurable"]:
            places = yield from checkpoints_of(conversation, before_id)
            if checkpoint_id:
                places = [place for place in places if place[0] == segment(checkpoint_id)]
            return ScatteredListing(self, places)
        if checkpoint_id:
            if before_id and checkpoint_id >= before_id:
                return ScatteredListing(self, [])
            rows = Rows(conversation, values.checkpoint_prefix(ns, checkpoint_id))
        else:
            after_key = values.checkpoint_prefix(ns, before_id) if before_id else ""
            page_size = 0 if limit is None else max(1, min(NEWEST_PAGE * limit, PAGE_SIZE))
            prefix = values.namespace_prefix(ns)
            rows = Rows(conversation, prefix, after_key=after_key, page_size=page_size)
        return Listing(self, conversation, rows)


class Listing:
    """The checkpoints of one namespace, or one checkpoint."""

    def __init__(self, reader: Reader, conversation: str, rows: Rows) -> None:
        """List these rows."""
        self._reader = reader
        self._conversation = conversation
        self._rows = rows

    @property
    def ended(self) -> bool:
        """Whether there are no more pages."""
        return self._rows.ended

    def page(self, wanted: Filter) -> Steps[list[CheckpointTuple]]:
        """Get the next page."""
        rows = yield from self._rows.page()
        return (yield from load_page(self._reader, self._conversation, rows, wanted))


class ScatteredListing:
    """Checkpoints of several namespaces or threads, newest first."""

    def __init__(self, reader: Reader, places: Sequence[tuple[str, str, str]]) -> None:
        """List checkpoints by their ids, keys and conversations."""
        self._reader = reader
        self._places = sorted(places)
        self.ended = not places

    def page(self, wanted: Filter) -> Steps[list[CheckpointTuple]]:
        """Get the next page, which has one checkpoint or none."""
        _, key, conversation = self._places.pop()
        self.ended = not self._places
        rows = yield from Rows(conversation, key.removesuffix(values.STATE[1:])).page()
        return (yield from load_page(self._reader, conversation, rows, wanted))


def load_page(
    reader: Reader, conversation: str, rows: Sequence[Row], wanted: Filter
) -> Steps[list[CheckpointTuple]]:
    """Return the checkpoints of rows whose metadata has the wanted values."""
    if wanted:
        digests = values.digests_of(*(row.state.metadata[1] for row in rows))
        pieces = yield from get_pieces(conversation, digests)
        loader = values.Loader(reader.serde, pieces)
        rows = [row for row in rows if matches(loader.typed(row.state.metadata), wanted)]
    if not rows:
        return []
    try:
        return (yield from reader.load(conversation, rows))
    except values.MissingPieceError:
        # Another program deletes checkpoints. Those that remain are complete.
        found = []
        for row in rows:
            state = row.state
            each = yield from reader.get(config_of(state.thread_id, state.ns, state.id))
            if each:
                found.append(each)
        return found


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether metadata has the wanted values."""
    return all(metadata.get(key) == value for key, value in wanted.items())


def get_pieces(conversation: str, digests: Iterable[bytes]) -> Steps[Mapping[str, Record]]:
    """Return the records of pieces by their keys."""
    return (yield from get_all(conversation, [values.piece_key(each) for each in digests]))


def damaged(row: Row, error: Exception) -> Error:
    """Return the error of a checkpoint that refers to a record that does not exist."""
    return Error(
        grpc.StatusCode.DATA_LOSS,
        f"checkpoint {row.state.id!r} of thread {row.state.thread_id!r} refers to the record "
        f"{error}, which does not exist",
    )
