"""Deleting threads, runs and old checkpoints, with what only they refer to."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

from parley._error import Error, RevisionMismatchError
from parley.adapters._common import batches, conversation_id
from parley.adapters.langgraph import _values as values
from parley.adapters.langgraph._reading import get_pieces
from parley.adapters.langgraph._rows import all_conversations, with_writes
from parley.adapters.langgraph._steps import NOT_FOUND, deletion, get_all, list_all, segment
from parley.v1.conversation_service_pb2 import (
    DeleteConversationRequest,
    GetConversationRequest,
)
from parley.v1.record_pb2 import RecordWrite
from parley.v1.record_service_pb2 import WriteRecordsRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from langgraph.checkpoint.serde.base import SerializerProtocol

    from parley.adapters._steps import Steps
    from parley.adapters.langgraph._commits import Commits

STRATEGIES = ("keep_latest", "delete")

RUN = "run"  # label of a checkpoint: the run that wrote it
DELTA = "delta"  # label of a checkpoint of a graph with a DeltaChannel


class Deleter(NamedTuple):
    """Deletes checkpoints with the serializer of a saver."""

    serde: SerializerProtocol
    commits: Commits

    def delete_thread(self, thread_id: str) -> Steps[None]:
        """Delete the checkpoints of a thread, and its conversation if that has nothing else."""
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
            revision = (yield from self.commits.read_generation(conversation)).revision
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

    def delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        """Delete the checkpoints that runs wrote, in all threads."""
        wanted = {segment(str(run_id)) for run_id in run_ids}
        if not wanted:
            return
        for conversation in (yield from all_conversations()):
            records = yield from list_all(conversation, values.CHECKPOINTS, keys_only=True)
            states = [record.key for record in records if record.labels.get(RUN) in wanted]
            if states:
                yield from self._delete(conversation, with_writes(states, records))
                yield from self._sweep(conversation)

    def prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
        """Delete the checkpoints of threads, or all but the latest of each namespace.

        Raises:
            TypeError: thread_ids is a str.
            ValueError: There is no such strategy.
            NotImplementedError: keep_latest, and a thread uses a DeltaChannel.

        """
        if isinstance(thread_ids, str):
            raise TypeError("thread_ids is a str, want several thread ids")
        if strategy not in STRATEGIES:
            raise ValueError(f"unknown strategy {strategy!r}, want one of {STRATEGIES}")
        for thread_id in thread_ids:
            if strategy == "delete":
                yield from self.delete_thread(thread_id)
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
            known = yield from self.commits.read_generation(conversation)
            stored = yield from list_all(conversation, values.VALUES)
            pieces = yield from list_all(conversation, values.PIECES, keys_only=True)
            # A checkpoint is read after its values: so all that are listed have theirs here, too.
            records = yield from list_all(conversation, values.CHECKPOINTS)
            digests = {
                digest
                for record in records
                for digest in values.references(record.key, values.unpack(record))
            }
            loader = values.Loader(self.serde, (yield from get_pieces(conversation, digests)))
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
