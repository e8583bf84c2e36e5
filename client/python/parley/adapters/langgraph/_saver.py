"""The checkpointer."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeAlias

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
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from parley._error import RevisionMismatchError
from parley.adapters._common import Clients, conversation_id, kept
from parley.adapters._steps import Steps, arun, run
from parley.adapters.langgraph import _values as values
from parley.adapters.langgraph._commits import Commits
from parley.adapters.langgraph._configs import config_of, thread_of
from parley.adapters.langgraph._deleting import DELTA, RUN, Deleter
from parley.adapters.langgraph._reading import Reader, get_pieces
from parley.adapters.langgraph._steps import get_all, list_all, segment
from parley.v1.conversation_pb2 import Conversation
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from typing_extensions import Self

    from parley.adapters._common import Server
    from parley.v1.conversation_pb2 import Retention
    from parley.v1.record_pb2 import Record

    Filter: TypeAlias = "dict[str, Any] | None"


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
        return run(self._clients.sync, self._reader.get(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See :meth:`get_tuple`."""
        return await arun(self._clients.aio, self._reader.get(config))

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
        steps = self._reader.listing(config, before, None if filter else limit)
        listing = run(client, steps)
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
        listing = await arun(
            client, self._reader.listing(config, before, None if filter else limit)
        )
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
        run(self._clients.sync, self._deleter.delete_thread(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """See :meth:`delete_thread`."""
        await arun(self._clients.aio, self._deleter.delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints, with their writes, whose metadata has one of these run ids.

        It reads the keys of the checkpoints of all threads of the tenant.
        """
        run(self._clients.sync, self._deleter.delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See :meth:`delete_for_runs`."""
        await arun(self._clients.aio, self._deleter.delete_for_runs(run_ids))

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
        run(self._clients.sync, self._deleter.prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See :meth:`prune`."""
        await arun(self._clients.aio, self._deleter.prune(thread_ids, strategy))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Return the version after another one, different from that of any other writer."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - no secret

    # LangGraph copies a saver and gives the copy another serializer.

    @property
    def _reader(self) -> Reader:
        return Reader(self.serde, self._commits)

    @property
    def _deleter(self) -> Deleter:
        return Deleter(self.serde, self._commits)

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
        pieces = yield from get_pieces(conversation, values.digests_of(content))
        try:
            joined = values.Loader(self.serde, pieces).join(content)
        except values.MissingPieceError:  # Another program is deleting the record.
            return found[key].revision, {}
        return found[key].revision, {each[0]: each for each in ormsgpack.unpackb(joined)}

    # Copying

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
        found = yield from get_pieces(source, digests)
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


def copied(record: Record) -> RecordWrite:
    """Return the write of a copy of a record."""
    return RecordWrite(
        key=record.key, value=record.value, media_type=record.media_type, labels=record.labels
    )
