"""Pydantic AI: a store of conversations, whose entries forks share.

Start at :class:`ParleyConversationStore`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessagesTypeAdapter

from parley._error import RevisionMismatchError
from parley.adapters._common import Clients, Server
from parley.adapters._common import conversation_id as id_of
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parley._aio_records import AsyncRecords
    from parley.v1.record_pb2 import Record

VALUE_BYTES = 3 << 20  # of a record
COMMIT_BYTES = 3 << 20  # of the values in one call, which has at most 4 MiB
COMMIT_WRITES = 100
ANCESTORS = 32

RECORDS: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class ParleyConversationStore(ConversationStore):
    """A store of conversations in the records of the tenant: one for each conversation and entry.

    A save writes the conversation and its new entries in one commit. If they have more than 3 MiB
    or are more than 99, the entries are written before, and the commit of the conversation makes
    them visible. So a crash leaves the conversation as it was.

    :meth:`delete` deletes the conversation, but keeps its entries, because others may be about to
    use them. To erase messages, delete the records that begin with ``PREFIXentry/``.

    The methods raise ConversationConflict if the conversation has changed since it was loaded,
    UserError if a message has more than 3 MiB as JSON, and :class:`parley.Error` if a call fails.
    They work in any number of event loops.
    """

    def __init__(self, server: Server, *, prefix: str = "pydantic_ai/") -> None:
        """Make a store. It connects with the first call.

        Args:
            server: The address of the server, or an asyncio client that the caller closes.
            prefix: The start of the keys of all records. Stores with different prefixes, of which
                none begins with another, share nothing. Up to 128 bytes.

        """
        self._clients = Clients(server)
        self._prefix = prefix

    async def aclose(self) -> None:
        """Close the client, if the store was made with an address."""
        await self._clients.aclose()

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None if there is none."""
        record = await self._records().get(self._conversation(conversation_id))
        return None if record is None else RECORDS.validate_json(record.value)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records, or those of a scope: newest updated_at first, at most limit."""
        start = f"{self._prefix}conversation/"
        found = [
            RECORDS.validate_json(record.value) async for record in self._records().list(start)
        ]
        found = [record for record in found if scope is None or record.scope == scope]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and the new entries of its history, each after the one it points at.

        Raises:
            ConversationConflict: The stored record does not have the expected revision, or the
                entry that the history continues does not exist.
            UserError: An entry or the record has more than 3 MiB as JSON.

        """
        name = record.conversation_id
        continued = new_entries[0].parent_id if new_entries else record.head_id
        key, keys = self._conversation(name), {"": self._conversation(name)}
        if continued is not None:
            keys[continued] = self._entry(continued)
        stored = {each.key: each async for each in self._records().get_all(keys.values())}
        revision = expected(stored.get(key), name, expected_revision)
        before: list[str] = []
        if continued is not None:
            if keys[continued] not in stored:
                raise ConversationConflict(name)
            before = [continued, *header_of(stored[keys[continued]]).before]
        writes: list[RecordWrite] = []
        for entry in new_entries:
            header = Header(entry.id, entry.parent_id, entry.kind, before[:ANCESTORS])
            message = ModelMessagesTypeAdapter.dump_json([entry.message])
            writes.append(write_of(self._entry(entry.id), encode(header) + b"\n" + message))
            before = [entry.id, *before[:ANCESTORS]]
        last = write_of(key, RECORDS.dump_json(record))
        last.if_revision = revision
        *earlier, batch = batches(writes, last)
        for each in earlier:  # Nothing refers to these entries before the last commit.
            await self._records().write(each)
        try:
            await self._records().write(batch)
        except RevisionMismatchError as error:
            raise ConversationConflict(name) from error

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete the record of a conversation. Its entries stay.

        Raises:
            ConversationConflict: There is no record with the expected revision.

        """
        key = self._conversation(conversation_id)
        revision = expected(await self._records().get(key), conversation_id, expected_revision)
        try:
            await self._records().delete(key, if_revision=revision)
        except RevisionMismatchError as error:
            raise ConversationConflict(conversation_id) from error

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. LookupError if there is none."""
        return entry_of(await self._read_entry(entry_id))

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to a head, oldest first, or only the last of them.

        Each entry names the 32 before it, so a history of n entries needs about n / 32 calls.
        """
        entries: list[ConversationEntry] = []
        found: dict[str, Record] = {}
        entry_id = head_id
        while entry_id is not None and (limit is None or len(entries) < limit):
            record = found.pop(entry_id, None) or await self._read_entry(entry_id)
            entry = entry_of(record)
            entries.append(entry)
            entry_id = entry.parent_id
            if not found:
                names = header_of(record).before
                if limit is not None:
                    names = names[: limit - len(entries)]
                keys = {self._entry(name): name for name in names}
                if keys:
                    records = self._records().get_all(keys)
                    found = {keys[each.key]: each async for each in records}
        entries.reverse()
        return entries

    def _records(self) -> AsyncRecords:
        return self._clients.aio.tenant_records()

    def _conversation(self, name: str) -> str:
        return f"{self._prefix}conversation/{id_of(name)}"

    def _entry(self, name: str) -> str:
        return f"{self._prefix}entry/{id_of(name)}"

    async def _read_entry(self, entry_id: str) -> Record:
        record = await self._records().get(self._entry(entry_id))
        if record is None:
            raise LookupError(f"entry {entry_id!r} is not in the store")
        return record


class Header(NamedTuple):
    """The first line of an entry's record. The second is the message."""

    id: str
    parent_id: str | None
    kind: Literal["message"]
    before: list[str]
    """The ids of the entries before it, the nearest first, at most 32."""


def encode(header: Header) -> bytes:
    """Return a header as JSON in one line."""
    return json.dumps(header._asdict(), separators=(",", ":")).encode()


def header_of(record: Record) -> Header:
    """Return the header of an entry."""
    return Header(**json.loads(record.value.split(b"\n", 1)[0]))


def entry_of(record: Record) -> ConversationEntry:
    """Return an entry."""
    header = header_of(record)
    (message,) = ModelMessagesTypeAdapter.validate_json(record.value.split(b"\n", 1)[1])
    return ConversationEntry(
        id=header.id, parent_id=header.parent_id, message=message, kind=header.kind
    )


def write_of(key: str, value: bytes) -> RecordWrite:
    """Return the write of a record.

    Raises:
        UserError: The value is too large.

    """
    if len(value) > VALUE_BYTES:
        raise UserError(f"{key} has {len(value)} bytes as JSON, limit {VALUE_BYTES}")
    return RecordWrite(key=key, value=value, media_type="application/json")


def expected(record: Record | None, name: str, revision: str | None) -> int:
    """Return the revision of a stored record, or 0 if there is none.

    Raises:
        ConversationConflict: It is not what the caller of the store expects.

    """
    if (RECORDS.validate_json(record.value).revision if record else None) != revision:
        raise ConversationConflict(name)
    return record.revision if record else 0


def batches(writes: Sequence[RecordWrite], last: RecordWrite) -> list[list[RecordWrite]]:
    """Return the writes in as many commits as they need, of which the last has the last write."""
    result, size = [[last]], len(last.value)
    for write in reversed(writes):
        if size + len(write.value) > COMMIT_BYTES or len(result[0]) == COMMIT_WRITES:
            result.insert(0, [])
            size = 0
        result[0].insert(0, write)
        size += len(write.value)
    return result
