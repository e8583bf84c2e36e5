"""Checkpoints of workflows."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from agent_framework import CheckpointStorage, WorkflowCheckpoint, WorkflowCheckpointException

# The framework's storage for Cosmos DB uses this module, too. No public one has the functions.
from agent_framework._workflows._checkpoint_encoding import (
    decode_checkpoint_value,
    encode_checkpoint_value,
)

from parley.adapters._common import Clients, conversation_id
from parley.adapters._values import DamagedValueError, Values
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from parley._aio_records import AsyncRecords
    from parley.adapters._common import Server
    from parley.v1.record_pb2 import Record

logger = logging.getLogger(__name__)

WORKFLOW, PLACE = "workflow", "place"  # labels of a checkpoint: the two parts of its index's key
MICROSECOND = datetime.resolution
START = datetime.min.replace(tzinfo=timezone.utc)


class ParleyCheckpointStorage(CheckpointStorage):
    """A storage of checkpoints in the records of the tenant, instead of FileCheckpointStorage.

    A checkpoint has any size. Its record has the same JSON as a file of FileCheckpointStorage, with
    pickles of other values. So a program that writes to the server can run code in those that
    load checkpoints: restrict the writers, and the types with ``allowed_checkpoint_types``.

    The methods raise WorkflowCheckpointException for a checkpoint that cannot be stored, does not
    exist or cannot be read, and :class:`parley.Error` if a call fails. They work in any number of
    event loops.
    """

    def __init__(
        self,
        server: Server,
        *,
        allowed_checkpoint_types: Iterable[str] = (),
        prefix: str = "agent_framework/",
    ) -> None:
        """Make a storage. It connects with the first call.

        Args:
            server: The address of the server, or an asyncio client that the caller closes.
            allowed_checkpoint_types: Types that checkpoints may contain besides those that the
                framework allows, as "module:qualname".
            prefix: The start of the keys of all records. Storages with different prefixes, of which
                none begins with another, share nothing. Up to 128 bytes.

        """
        self._clients = Clients(server)
        self._allowed = frozenset(allowed_checkpoint_types)
        self._prefix = prefix
        self._values = Values(self._records, prefix)

    async def aclose(self) -> None:
        """Close the client, if the storage was made with an address."""
        await self._clients.aclose()

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint in one commit, and return its id. It replaces one with the same id.

        Raises:
            WorkflowCheckpointException: The checkpoint contains a type that is not allowed, cannot
                be encoded, or has a timestamp that is not ISO 8601.

        """
        head = RecordWrite(
            key=self._key(checkpoint.checkpoint_id),
            value=self._encode(checkpoint),
            media_type="application/json",
            labels={WORKFLOW: workflow_of(checkpoint.workflow_name), PLACE: place_of(checkpoint)},
        )
        index = RecordWrite(key=self._index(head), value=checkpoint.checkpoint_id.encode())

        def others(old: Record | None) -> list[RecordWrite]:
            if old is None or self._index(old) == index.key:
                return [index]
            return [index, RecordWrite(key=self._index(old), delete=True)]

        # The framework gives each checkpoint an id of its own.
        await self._values.put(head, others, probably_new=True)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint.

        Raises:
            WorkflowCheckpointException: There is none with this id, or it cannot be decoded.

        """
        try:
            value = await self._values.get(self._key(checkpoint_id))
        except DamagedValueError as error:
            raise WorkflowCheckpointException(
                f"Checkpoint {checkpoint_id} cannot be read: {error}"
            ) from error
        if value is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return self._decode(value)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, by timestamp, the oldest first.

        Those that cannot be decoded are left out, with an entry in the log.
        """
        ids = [name async for name in self._ids(workflow_name)]
        values = self._values.get_all(map(self._key, ids), leave_out)
        found = [self._try_decode(value) async for value in values]
        return [each for each in found if each and each.workflow_name == workflow_name]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint, and report whether there was one."""
        return await self._values.delete(
            self._key(checkpoint_id), lambda old: [RecordWrite(key=self._index(old), delete=True)]
        )

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow with the newest timestamp; None if there is none."""
        async for name in self._ids(workflow_name, newest_first=True):
            try:
                value = await self._values.get(self._key(name))
            except DamagedValueError as error:
                leave_out(error)
                continue
            found = None if value is None else self._try_decode(value)
            if found and found.workflow_name == workflow_name:
                return found
        return None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of what :meth:`list_checkpoints` returns."""
        found = await self.list_checkpoints(workflow_name=workflow_name)
        return [checkpoint.checkpoint_id for checkpoint in found]

    def _records(self) -> AsyncRecords:
        return self._clients.aio.tenant_records()

    def _key(self, checkpoint_id: str) -> str:
        return self._prefix + conversation_id("checkpoint", checkpoint_id)

    def _index(self, head: Record | RecordWrite) -> str:
        return f"{self._prefix}{head.labels[WORKFLOW]}/{head.labels[PLACE]}"

    async def _ids(self, workflow_name: str, *, newest_first: bool = False) -> AsyncIterator[str]:
        index = self._values.records.list(
            f"{self._prefix}{workflow_of(workflow_name)}/",
            descending=newest_first,
            page_size=1 if newest_first else 1000,
        )
        async for record in index:
            yield record.value.decode()

    def _encode(self, checkpoint: WorkflowCheckpoint) -> bytes:
        try:
            document = encode_checkpoint_value(checkpoint.to_dict())
            # What cannot be read is not stored.
            decode_checkpoint_value(document, allowed_types=self._allowed)
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            return text.encode(errors="surrogatepass")  # json.loads reads them.
        except WorkflowCheckpointException:
            raise
        except Exception as error:  # The pickles of any type raise anything.
            raise WorkflowCheckpointException(
                f"Checkpoint {checkpoint.checkpoint_id} cannot be encoded or decoded: {error}"
            ) from error

    def _decode(self, value: bytes) -> WorkflowCheckpoint:
        try:
            document: Any = json.loads(value)
        except ValueError as error:
            raise WorkflowCheckpointException("A checkpoint is not JSON") from error
        decoded = decode_checkpoint_value(document, allowed_types=self._allowed)
        return WorkflowCheckpoint.from_dict(decoded)

    def _try_decode(self, value: bytes) -> WorkflowCheckpoint | None:
        try:
            return self._decode(value)
        except WorkflowCheckpointException as error:
            leave_out(error)
            return None


def leave_out(error: Exception) -> None:
    """Write an entry about a checkpoint that cannot be decoded."""
    logger.warning("checkpoint left out; it cannot be decoded: %s", error)


def workflow_of(name: str) -> str:
    """Return the part of a key for the name of a workflow, at most 256 bytes."""
    return conversation_id("workflow", name)


def place_of(checkpoint: WorkflowCheckpoint) -> str:
    """Return the part of a key that has the order of the timestamps; 53 bytes.

    Raises:
        WorkflowCheckpointException: The timestamp is not ISO 8601.

    """
    try:
        # Python 3.10 does not read the Z for UTC.
        time = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", checkpoint.timestamp))
    except (TypeError, ValueError) as error:
        raise WorkflowCheckpointException(
            f"Checkpoint {checkpoint.checkpoint_id} has the timestamp {checkpoint.timestamp!r},"
            " which is not ISO 8601"
        ) from error
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    digest = hashlib.sha256(checkpoint.checkpoint_id.encode()).hexdigest()
    return f"{(time - START) // MICROSECOND:020}/{digest[:32]}"
