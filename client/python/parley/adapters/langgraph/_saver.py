"""The checkpointer."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import ormsgpack
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from parley._error import Error, RevisionMismatchError
from parley.adapters._common import Clients, batches, conversation_id, kept
from parley.adapters._steps import Steps, arun, run
from parley.adapters.langgraph import _values as values
from parley.adapters.langgraph._commits import Commits
from parley.adapters.langgraph._rows import (
    NEWEST_PAGE,
    Row,
    Rows,
    all_checkpoints,
    all_conversations,
    checkpoints_of,
    newest_row,
    with_writes,
)
from parley.adapters.langgraph._steps import (
    NOT_FOUND,
    PAGE_SIZE,
    deletion,
    get_all,
    list_all,
    segment,
)
from parley.v1.conversation_pb2 import Conversation
from parley.v1.conversation_service_pb2 import (
    DeleteConversationRequest,
    GetConversationRequest,
)
from parley.v1.record_pb2 import RecordWrite
from parley.v1.record_service_pb2 import WriteRecordsRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from typing_extensions import Self

    from parley.adapters._common import Server
    from parley.v1.conversation_pb2 import Retention
    from parley.v1.record_pb2 import Record

    Filter: TypeAlias = "dict[str, Any] | None"
    Tuples: TypeAlias = "list[CheckpointTuple]"  # in the class, list is a method

STRATEGIES = ("keep_latest", "delete")

RUN = "run"  # label of a checkpoint: the run that wrote it
DELTA = "delta"  # label of a checkpoint of a graph with a DeltaChannel


class ParleySaver(BaseCheckpointSaver[str]):
    """A checkpointer that keeps the checkpoints of a graph in Parley.

    The checkpoints of a thread are records of the conversation whose id is
    ``conversation_id(thread_id)``. It is created with the first of them. A checkpoint and the new
    values of its channels are one commit, and so are the writes of a task: after a crash, both are
    there completely or not at all. Only if they have more than 3 MiB, or 100 values, they may take
    several commits, the checkpoint in the last one. A list that grows, such as the messages of a
    graph, costs what is added to it.

    All methods have an async form and may be used by any number of threads, event loops and
    processes. They raise :class:`parley.Error` if a call fails. A call is retried under one request
    id while the server is unavailable, up to about 1.5 s. ValueError is raised for an empty thread
    id, and for a checkpoint id that makes a key of more than 512 bytes.
    """

    def __init__(
        self,
        server: Server,
        *,
        serde: SerializerProtocol | None = None,
        retention: Retention | None = None,
    ) -> None:
        """Use a server; this makes no call.

        Args:
            server: An address, a :class:`parley.Client` for the sync methods, or a
                :class:`parley.AsyncClient` for the async ones. With an address, both work.
            serde: The serializer of checkpoints, values and writes. If None, LangGraph's default.
            retention: The retention of conversations that the saver creates. If None, they keep
                everything until the thread is deleted.

        """
        super().__init__(serde=serde)
        self._clients = Clients(server)
        self._commits = Commits(Conversation(retention=retention or kept()))

    def __enter__(self) -> Self:
        """Return the saver itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection, if the saver made it."""
        self._clients.close()

    async def __aenter__(self) -> Self:
        """Return the saver itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections that the saver made."""
        await self._clients.aclose()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of a config, or the newest of its thread and namespace.

        None if there is none. The writes are in the order of ``writes_sort_key``.
        """
        return run(self._clients.sync, self._get(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See :meth:`get_tuple`."""
        return await arun(self._clients.aio, self._get(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: Filter = None,  # noqa: A002 - the name of LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first.

        Args:
            config: The thread; with checkpoint_ns only that namespace, with checkpoint_id only that
                checkpoint. If None, the checkpoints of all threads of the tenant, for which each
                conversation with records costs a call. Those of other languages are left out.
            filter: Values that the metadata must have.
            before: Only checkpoints whose ids are before the one of this config.
            limit: The maximum number of checkpoints. If None, all.

        """
        client = self._clients.sync
        listing = run(client, self._listing(config, before, None if filter else limit))
        remaining = limit
        while not listing.ended:
            for found in run(client, listing.page(filter)):
                if remaining is not None and remaining <= 0:
                    return
                yield found
                remaining = None if remaining is None else remaining - 1

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: Filter = None,  # noqa: A002 - the name of LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See :meth:`list`."""
        client = self._clients.aio
        listing = await arun(client, self._listing(config, before, None if filter else limit))
        remaining = limit
        while not listing.ended:
            for found in await arun(client, listing.page(filter)):
                if remaining is not None and remaining <= 0:
                    return
                yield found
                remaining = None if remaining is None else remaining - 1

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and the values of the channels in new_versions; return its config.

        The checkpoint_id of the config is that of its parent. A checkpoint with the same id is
        replaced.
        """
        return run(self._clients.sync, self._put(config, checkpoint, metadata, new_versions))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See :meth:`put`."""
        return await arun(self._clients.aio, self._put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task to a checkpoint, which may not be stored yet.

        A write that the task has stored before stays as it is, except errors, interrupts and other
        special ones, which are replaced.
        """
        run(self._clients.sync, self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """See :meth:`put_writes`."""
        await arun(self._clients.aio, self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread.

        The conversation is deleted if it contains nothing else.
        """
        run(self._clients.sync, self._delete_thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """See :meth:`delete_thread`."""
        await arun(self._clients.aio, self._delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints, with their writes, whose metadata has one of these run ids.

        It reads the keys of the checkpoints of all threads of the tenant.
        """
        run(self._clients.sync, self._delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See :meth:`delete_for_runs`."""
        await arun(self._clients.aio, self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one.

        If the copy fails, the call may be repeated. Do not prune the source at the same time.
        """
        run(self._clients.sync, self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See :meth:`copy_thread`."""
        await arun(self._clients.aio, self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads.

        Runs may add checkpoints to the threads in the meantime. Do not fork from one that is being
        deleted. A call that failed may be repeated.

        Args:
            thread_ids: The threads.
            strategy: "keep_latest" keeps the newest checkpoint of each namespace, with its writes
                and values, and sets its parent to None. "delete" deletes the threads.

        Raises:
            TypeError: thread_ids is a str.
            ValueError: The strategy is another one.
            NotImplementedError: A thread uses a DeltaChannel, whose value is in old checkpoints,
                and the strategy is "keep_latest". Then nothing of that thread is deleted.

        """
        run(self._clients.sync, self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See :meth:`prune`."""
        await arun(self._clients.aio, self._prune(thread_ids, strategy))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Return the version after another one, different from that of any other writer."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - no secret

    # Reading

    def _get(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        thread_id, ns = thread_of(config)
        conversation = conversation_id(thread_id)
        checkpoint_id = get_checkpoint_id(config)
        revision = 0
        while True:
            row = yield from newest_row(conversation, ns, checkpoint_id)
            if row is None:
                return None
            try:
                found = yield from self._load(conversation, [row])
            except values.MissingPieceError as error:
                # Another program deletes or prunes the thread: read what is there now.
                if row.record.revision == revision:
                    raise damaged(row, error) from error
                revision = row.record.revision
            else:
                return found[0]

    def _load(self, conversation: str, rows: Sequence[Row]) -> Steps[Tuples]:
        """Return the checkpoints of rows, with the values of their channels and their writes."""
        contents = [content for row in rows for _, _, content in row.pending]
        contents += [part[1] for row in rows for part in (row.state.checkpoint, row.state.metadata)]
        pieces = yield from self._get_pieces(conversation, values.digests_of(*contents))
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
            self.serde, {**pieces, **(yield from self._get_pieces(conversation, digests))}
        )
        tuples = []
        for row, checkpoint, each in zip(rows, checkpoints, keys, strict=True):
            for channel, key in each.items():
                if key in found:
                    checkpoint["channel_values"][channel] = loader.value(found[key])
            tuples.append(self._tuple(row, checkpoint, loader))
        if generation:
            self._commits.learn(conversation, generation, digests)
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

    def _get_pieces(
        self, conversation: str, digests: Iterable[bytes]
    ) -> Steps[Mapping[str, Record]]:
        return (yield from get_all(conversation, [values.piece_key(each) for each in digests]))

    def _listing(
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

    # Writing

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Steps[RunnableConfig]:
        thread_id, ns = thread_of(config)
        channels = checkpoint["channel_values"]
        inline = {channel: value for channel, value in channels.items() if values.is_inline(value)}
        stored = [
            channel for channel in new_versions if channel in channels and channel not in inline
        ]
        pieces = values.Pieces()
        writes = [
            RecordWrite(
                key=values.value_key(ns, channel, new_versions[channel]),
                value=pieces.encode(self.serde, channels[channel]),
                media_type=values.MEDIA_TYPE,
            )
            for channel in stored
        ]
        all_metadata = get_checkpoint_metadata(config, metadata)
        state = values.State(
            thread_id=thread_id,
            ns=ns,
            id=checkpoint["id"],
            parent_id=get_checkpoint_id(config),
            checkpoint=pieces.typed(self.serde, {**checkpoint, "channel_values": inline}),
            metadata=pieces.typed(self.serde, all_metadata),
            values=[
                channel
                for channel in stored
                if checkpoint["channel_versions"].get(channel) == new_versions[channel]
            ],
        )
        labels = {}
        if isinstance(run_id := all_metadata.get("run_id"), str):
            labels[RUN] = segment(run_id)
        if "counters_since_delta_snapshot" in all_metadata or any(
            isinstance(value, _DeltaSnapshot) for value in channels.values()
        ):
            labels[DELTA] = "true"
        key = values.checkpoint_prefix(ns, checkpoint["id"]) + values.STATE[1:]
        writes.append(values.pack(key, state, labels))
        yield from self._commits.commit(conversation_id(thread_id), pieces, writes)
        return config_of(thread_id, ns, checkpoint["id"])

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, path: str
    ) -> Steps[None]:
        thread_id, ns = thread_of(config)
        conversation = conversation_id(thread_id)
        checkpoint_id = config["configurable"]["checkpoint_id"]
        regular: dict[int, Sequence[Any]] = {}
        special: dict[int, Sequence[Any]] = {}
        for i, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, i)
            which = regular if index >= 0 else special
            which[index] = [index, channel, *self.serde.dumps_typed(value)]

        def record(
            pieces: values.Pieces,
            name: str,
            group: Iterable[Sequence[Any]],
            if_revision: int | None,
        ) -> RecordWrite:
            key = values.pending_key(ns, checkpoint_id, task_id, name)
            content = pieces.content(ormsgpack.packb(list(group)))
            write = values.pack(key, [task_id, path, content])
            if if_revision is not None:
                write.if_revision = if_revision
            return write

        # All other writes of a task are one record, so that a reader has all of them or none. It
        # must not exist. If it does, only writes that it does not contain are added.
        revision = 0
        while regular or special:
            pieces = values.Pieces()
            records = [record(pieces, str(i), [each], None) for i, each in special.items()]
            if regular:
                records.append(record(pieces, "writes", regular.values(), revision))
            try:
                yield from self._commits.commit(conversation, pieces, records)
            except RevisionMismatchError as error:
                revision, before = yield from self._stored_writes(conversation, error.key)
                regular = {**regular, **before} if regular.keys() - before.keys() else {}
            else:
                return

    def _stored_writes(
        self, conversation: str, key: str
    ) -> Steps[tuple[int, dict[int, Sequence[Any]]]]:
        """Return the revision of the record of a task's writes, and the writes by their index."""
        found = yield from get_all(conversation, [key])
        if key not in found:
            return 0, {}
        content = values.unpack(found[key])[2]
        pieces = yield from self._get_pieces(conversation, values.digests_of(content))
        try:
            joined = values.Loader(self.serde, pieces).join(content)
        except values.MissingPieceError:  # Another program is deleting the record.
            return found[key].revision, {}
        return found[key].revision, {each[0]: each for each in ormsgpack.unpackb(joined)}

    # Deleting and copying

    def _delete_thread(self, thread_id: str) -> Steps[None]:
        conversation = conversation_id(str(thread_id))
        while True:
            try:
                header = (yield GetConversationRequest(conversation_id=conversation)).conversation
            except Error as error:
                if error.reason != NOT_FOUND:
                    raise
                return
            keys = [
                record.key
                for record in (yield from list_all(conversation, values.ROOT, keys_only=True))
            ]
            if header.message_count or header.record_count != len(keys):
                yield from self._delete_records(conversation)
                return
            try:
                yield DeleteConversationRequest(
                    conversation_id=conversation, if_version=header.version, allow_missing=True
                )
            except Error as error:
                if error.reason != "VERSION_MISMATCH":
                    raise
            else:
                return

    def _delete_records(self, conversation: str) -> Steps[None]:
        """Delete all records of a thread, and leave the rest of its conversation."""
        while True:
            revision = (yield from self._commits.read_generation(conversation)).revision
            records = yield from list_all(conversation, values.ROOT, keys_only=True)
            keys = [record.key for record in records if record.key != values.GENERATION]
            if not keys and not revision:
                return
            try:
                # Without the guard, a checkpoint that another program puts now would refer to
                # pieces that are deleted.
                for batch in batches(map(deletion, checkpoints_first(keys)), spare=1):
                    guard = RecordWrite(
                        key=values.GENERATION, value=uuid.uuid4().bytes, if_revision=revision
                    )
                    revision = yield from change(conversation, [*batch, guard])
                last = deletion(values.GENERATION)
                last.if_revision = revision
                yield from change(conversation, [last])
            except RevisionMismatchError:
                continue
            return

    def _delete(self, conversation: str, keys: Iterable[str]) -> Steps[None]:
        """Delete records, the checkpoints before what they refer to."""
        for batch in batches(map(deletion, checkpoints_first(keys))):
            yield from change(conversation, batch)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        wanted = {segment(str(run_id)) for run_id in run_ids}
        if not wanted:
            return
        for conversation in (yield from all_conversations()):
            records = yield from list_all(conversation, values.CHECKPOINTS, keys_only=True)
            states = [record.key for record in records if record.labels.get(RUN) in wanted]
            if states:
                yield from self._delete(conversation, with_writes(states, records))
                yield from self._sweep(conversation)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids is a str, want several thread ids")
        if strategy not in STRATEGIES:
            raise ValueError(f"unknown strategy {strategy!r}, want one of {STRATEGIES}")
        for thread_id in thread_ids:
            if strategy == "delete":
                yield from self._delete_thread(thread_id)
            else:
                yield from self._keep_latest(str(thread_id))

    def _keep_latest(self, thread_id: str) -> Steps[None]:
        conversation = conversation_id(thread_id)
        records = yield from list_all(conversation, values.CHECKPOINTS, keys_only=True)
        states = [record for record in records if values.is_state(record.key)]
        if any(DELTA in record.labels for record in states):
            raise NotImplementedError(
                f"keep_latest cannot prune thread {thread_id!r}, which uses a DeltaChannel: "
                "its value is in older checkpoints"
            )
        latest = {record.key.split("/")[2]: record.key for record in states}
        heads = yield from get_all(conversation, latest.values())
        rewritten = []
        for head in heads.values():
            state = values.decode_state(head)
            if state.parent_id:
                write = values.pack(head.key, state._replace(parent_id=None), dict(head.labels))
                write.if_revision = head.revision
                rewritten.append(write)
        old = [record.key for record in states if record.key not in heads]
        for batch in batches(rewritten):
            yield from change(conversation, batch)
        yield from self._delete(conversation, with_writes(old, records))
        yield from self._sweep(conversation)

    def _sweep(self, conversation: str) -> Steps[None]:
        """Delete the values and pieces to which nothing refers."""
        while True:
            known = yield from self._commits.read_generation(conversation)
            stored = yield from list_all(conversation, values.VALUES)
            pieces = yield from list_all(conversation, values.PIECES, keys_only=True)
            # A checkpoint is read after its values: so all that are listed have theirs here, too.
            records = yield from list_all(conversation, values.CHECKPOINTS)
            digests = {
                digest
                for record in records
                for digest in values.references(record.key, values.unpack(record))
            }
            loader = values.Loader(self.serde, (yield from self._get_pieces(conversation, digests)))
            live = set[str]()
            for record in records:
                if values.is_state(record.key):
                    state = values.decode_state(record)
                    try:
                        checkpoint = loader.typed(state.checkpoint)
                    except values.MissingPieceError:  # Another program has deleted it.
                        continue
                    live.update(state.value_keys(checkpoint["channel_versions"], {}).values())
            unused = [record.key for record in stored if record.key not in live]
            for record in stored:
                if record.key in live:
                    digests.update(values.references(record.key, values.unpack(record)))
            used = {values.piece_key(digest) for digest in digests}
            unused += [record.key for record in pieces if record.key not in used]
            revision = known.revision
            generation = uuid.uuid4().bytes
            try:
                for batch in batches(map(deletion, unused), spare=1):
                    guard = RecordWrite(
                        key=values.GENERATION, value=generation, if_revision=revision
                    )
                    revision = yield from change(conversation, [*batch, guard])
            except RevisionMismatchError:
                continue
            return

    def _copy(self, source_id: str, target_id: str) -> Steps[None]:
        source, target = conversation_id(str(source_id)), conversation_id(str(target_id))
        if source == target:
            return
        # Checkpoints first: what they refer to was there before them.
        checkpoints = yield from list_all(source, values.CHECKPOINTS)
        stored = yield from list_all(source, values.VALUES)
        digests = {
            digest
            for record in [*checkpoints, *stored]
            for digest in values.references(record.key, values.unpack(record))
        }
        found = yield from self._get_pieces(source, digests)
        pieces = values.Pieces()
        for record in found.values():
            pieces.split(record.value)
        writes = [copied(record) for record in stored]
        states = []
        for record in checkpoints:
            if values.is_state(record.key):
                state = values.decode_state(record)._replace(thread_id=str(target_id))
                states.append(values.pack(record.key, state, dict(record.labels)))
            else:
                writes.append(copied(record))
        if states or writes:
            yield from self._commits.commit(target, pieces, [*writes, *states])


class Listing:
    """The checkpoints of one namespace, or one checkpoint."""

    def __init__(self, saver: ParleySaver, conversation: str, rows: Rows) -> None:
        """List these rows."""
        self._saver = saver
        self._conversation = conversation
        self._rows = rows

    @property
    def ended(self) -> bool:
        """Whether there are no more pages."""
        return self._rows.ended

    def page(self, wanted: Filter) -> Steps[list[CheckpointTuple]]:
        """Get the next page."""
        rows = yield from self._rows.page()
        return (yield from load_page(self._saver, self._conversation, rows, wanted))


class ScatteredListing:
    """Checkpoints of several namespaces or threads, newest first."""

    def __init__(self, saver: ParleySaver, places: Sequence[tuple[str, str, str]]) -> None:
        """List checkpoints by their ids, keys and conversations."""
        self._saver = saver
        self._places = sorted(places)
        self.ended = not places

    def page(self, wanted: Filter) -> Steps[list[CheckpointTuple]]:
        """Get the next page, which has one checkpoint or none."""
        _, key, conversation = self._places.pop()
        self.ended = not self._places
        rows = yield from Rows(conversation, key.removesuffix(values.STATE[1:])).page()
        return (yield from load_page(self._saver, conversation, rows, wanted))


def load_page(
    saver: ParleySaver, conversation: str, rows: Sequence[Row], wanted: Filter
) -> Steps[list[CheckpointTuple]]:
    """Return the checkpoints of rows whose metadata has the wanted values."""
    if wanted:
        digests = values.digests_of(*(row.state.metadata[1] for row in rows))
        pieces = yield from saver._get_pieces(conversation, digests)
        loader = values.Loader(saver.serde, pieces)
        rows = [row for row in rows if matches(loader.typed(row.state.metadata), wanted)]
    if not rows:
        return []
    try:
        return (yield from saver._load(conversation, rows))
    except values.MissingPieceError:
        # Another program deletes checkpoints. Those that remain are complete.
        found = []
        for row in rows:
            state = row.state
            each = yield from saver._get(config_of(state.thread_id, state.ns, state.id))
            if each:
                found.append(each)
        return found


def checkpoints_first(keys: Iterable[str]) -> list[str]:
    """Return the keys in the order in which to delete them."""
    return sorted(keys, key=lambda key: not key.endswith(values.STATE))


def change(conversation: str, writes: Sequence[RecordWrite]) -> Steps[int]:
    """Write records, and return their revision; 0 if the conversation does not exist anymore."""
    try:
        reply = yield WriteRecordsRequest(conversation_id=conversation, writes=writes)
    except Error as error:
        if error.reason != NOT_FOUND:
            raise
        return 0
    revision: int = reply.revision
    return revision


def copied(record: Record) -> RecordWrite:
    """Return the write of a copy of a record."""
    return RecordWrite(
        key=record.key, value=record.value, media_type=record.media_type, labels=record.labels
    )


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether metadata has the wanted values."""
    return all(metadata.get(key) == value for key, value in wanted.items())


def thread_of(config: RunnableConfig) -> tuple[str, str]:
    """Return the thread and the namespace of a config."""
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")


def config_of(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    """Return the config of a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def damaged(row: Row, error: Exception) -> Error:
    """Return the error of a checkpoint that refers to a record that does not exist."""
    return Error(
        grpc.StatusCode.DATA_LOSS,
        f"checkpoint {row.state.id!r} of thread {row.state.thread_id!r} refers to the record "
        f"{error}, which does not exist",
    )
