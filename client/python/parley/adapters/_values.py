"""Values of any size under keys, in the records of the tenant or of a conversation."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from parley._error import Error, RevisionMismatchError
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from parley._aio_records import AsyncRecords
    from parley.v1.record_pb2 import Record

VALUE_BYTES = 3 << 20  # of a record
PIECE_BYTES = 2 << 20
COMMIT_WRITES = 100
OTHERS = 10  # writes of a commit besides the pieces of the value before

PIECES, COUNT = "pieces", "count"  # labels of a record whose value is in pieces

UNCERTAIN = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
)
"""The codes of calls that the server may have executed nevertheless."""

UNCHECKED = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
)
"""The codes of calls that the server may refuse before it sees that they repeat an executed one."""

CHECKED = ("CONVERSATION_FULL", "RECORDS_FULL")
"""The reasons of refusals with these codes that it gives only after that."""


def is_refused(error: BaseException) -> bool:
    """Report whether the server has executed no attempt of the call that raised this."""
    if not isinstance(error, Error):
        return False
    return error.code not in (*UNCERTAIN, *UNCHECKED) or error.reason in CHECKED


class DamagedValueError(ValueError):
    """A piece of a value does not exist, because another program has deleted it."""


class Values:
    """Values under keys. Each change is one commit: readers see all of it or nothing.

    A value of more than 3 MiB is written in pieces before the commit that makes it visible. If the
    write fails before that, the pieces are deleted. If the process dies, or it is unknown whether
    the server has executed the commit, they stay; if it has not, nothing refers to them.
    """

    def __init__(
        self,
        records: Callable[[], AsyncRecords],
        prefix: str,
        create: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Use the records of a scope whose keys begin with a prefix.

        Args:
            records: Returns the records of the scope.
            prefix: The start of the keys.
            create: Creates the conversation of the scope, which the first write needs. Until then,
                there are no values. None if the scope is the tenant.

        """
        self._scope = records
        self._prefix = prefix
        self._create = create

    @property
    def records(self) -> AsyncRecords:
        """The records of the scope."""
        return self._scope()

    async def get(self, key: str) -> bytes | None:
        """Return a value, or None if there is none.

        Raises:
            DamagedValueError: A piece of it does not exist.

        """
        revision = 0
        while (head := await self._get(key)) is not None:
            pieces = self._pieces(head)
            if not pieces:
                return head.value
            found = {r.key: r.value async for r in self.records.get_all(pieces)}
            if len(found) == len(pieces):
                return b"".join(found[piece] for piece in pieces)
            if head.revision == revision:  # Otherwise the value was replaced in between.
                missing = next(piece for piece in pieces if piece not in found)
                raise DamagedValueError(f"the record {missing!r}, a part of the value, is missing")
            revision = head.revision
        return None

    async def get_all(
        self, keys: Iterable[str], on_damage: Callable[[DamagedValueError], None]
    ) -> AsyncIterator[bytes]:
        """Yield the values of keys in their order, without those that do not exist.

        Args:
            keys: The keys.
            on_damage: Is called instead for a value of which a piece does not exist.

        """
        async for record in self.records.get_all(keys):
            try:
                value = await self.get(record.key) if self._pieces(record) else record.value
            except DamagedValueError as error:
                on_damage(error)
                continue
            if value is not None:
                yield value

    async def head(self, key: str) -> Record | None:
        """Return the record of a key without its value, or None if there is none."""
        try:
            # The key itself is the first of those that begin with it.
            async for record in self.records.list(key, keys_only=True, page_size=1):
                return record if record.key == key else None
        except Error as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
        return None

    async def put(
        self,
        head: RecordWrite,
        others: Callable[[Record | None], Sequence[RecordWrite]] = lambda _: (),
        *,
        probably_new: bool = False,
    ) -> None:
        """Write a value. It replaces the value before.

        Args:
            head: The write of the value, of any size.
            others: Returns up to 10 writes for the same commit, from the record before.
            probably_new: The first attempt is for a key without a value: one call instead of two,
                but three if there is a value.

        """
        pieces: list[str] = []
        try:
            if len(head.value) > VALUE_BYTES:
                await self._write_pieces(head, pieces)
            old = None if probably_new else await self.head(head.key)
        except (Exception, asyncio.CancelledError):
            await self._discard(pieces)
            raise
        while True:
            try:
                if await self._replace(head, old, others(old)):
                    return
                old = await self.head(head.key)
            except Error as error:
                if error.code not in UNCERTAIN:
                    await self._discard_unless_written(head, pieces)
                raise
            except Exception:
                await self._discard(pieces)
                raise

    async def delete(
        self, key: str, others: Callable[[Record], Sequence[RecordWrite]] = lambda _: ()
    ) -> bool:
        """Delete a value, and report whether there was one.

        Args:
            key: The key.
            others: Returns up to 10 writes for the same commit, from the record before.

        """
        while (old := await self.head(key)) is not None:
            if await self._replace(RecordWrite(key=key, delete=True), old, others(old)):
                return True
        return False

    async def _get(self, key: str) -> Record | None:
        try:
            return await self.records.get(key)
        except Error as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
        return None

    async def _write(self, writes: Sequence[RecordWrite]) -> None:
        try:
            await self.records.write(writes)
        except Error as error:
            if error.code is not grpc.StatusCode.NOT_FOUND or self._create is None:
                raise
            await self._create()
            await self.records.write(writes)

    async def _write_pieces(self, head: RecordWrite, pieces: list[str]) -> None:
        """Write the value of a head in pieces, and add their keys to the list before each."""
        start = f"piece/{uuid.uuid4()}"
        value, head.value = head.value, b""
        for at in range(0, len(value), PIECE_BYTES):
            pieces.append(f"{self._prefix}{start}/{len(pieces)}")
            await self._write([RecordWrite(key=pieces[-1], value=value[at : at + PIECE_BYTES])])
        head.labels[PIECES], head.labels[COUNT] = start, str(len(pieces))

    async def _discard(self, pieces: Sequence[str]) -> None:
        """Delete pieces that nothing refers to; if that fails, they stay."""
        with suppress(Error):
            await self._delete(pieces)

    async def _discard_unless_written(self, head: RecordWrite, pieces: Sequence[str]) -> None:
        """Delete pieces, unless an earlier attempt of the refused commit was executed."""
        with suppress(Error):
            now = await self.head(head.key) if pieces else None
            if not now or now.labels.get(PIECES) != head.labels[PIECES]:
                await self._delete(pieces)

    async def _delete(self, keys: Sequence[str]) -> None:
        for i in range(0, len(keys), COMMIT_WRITES):
            part = keys[i : i + COMMIT_WRITES]
            await self.records.write([RecordWrite(key=key, delete=True) for key in part])

    async def _replace(
        self, head: RecordWrite, old: Record | None, others: Sequence[RecordWrite]
    ) -> bool:
        """Return False, and change nothing, if the record before is another one."""
        head.if_revision = old.revision if old else 0
        unused = self._pieces(old)
        space = COMMIT_WRITES - 1 - OTHERS
        deletions = [RecordWrite(key=key, delete=True) for key in unused[:space]]
        try:
            await self._write([head, *others, *deletions])
        except RevisionMismatchError:
            return False
        await self._discard(unused[space:])
        return True

    def _pieces(self, head: Record | None) -> list[str]:
        count = int(head.labels.get(COUNT, "0")) if head else 0
        return [f"{self._prefix}{head.labels[PIECES]}/{i}" for i in range(count)] if head else []
