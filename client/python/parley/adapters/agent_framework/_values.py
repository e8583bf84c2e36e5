"""Values of any size under keys, in the records of the tenant."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from parley._error import RevisionMismatchError
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from parley._aio_records import AsyncRecords
    from parley.adapters._common import Clients
    from parley.v1.record_pb2 import Record

VALUE_BYTES = 3 << 20  # of a record
PIECE_BYTES = 2 << 20
COMMIT_WRITES = 100
OTHERS = 10  # writes of a commit besides the pieces of the value before

PIECES, COUNT = "pieces", "count"  # labels of a record whose value is in pieces


class Values:
    """Values under keys. Each change is one commit: readers see all of it or nothing.

    A value of more than 3 MiB is written in pieces before the commit that makes it visible. If the
    process dies before that, the pieces stay, and nothing refers to them.
    """

    def __init__(self, clients: Clients, prefix: str) -> None:
        """Use the records whose keys begin with a prefix."""
        self._clients = clients
        self._prefix = prefix

    @property
    def records(self) -> AsyncRecords:
        """The records of the tenant."""
        return self._clients.aio.tenant_records()

    async def get(self, key: str) -> bytes | None:
        """Return a value, or None if there is none."""
        while True:
            head = await self.records.get(key)
            if head is None:
                return None
            pieces = self._pieces(head)
            if not pieces:
                return head.value
            found = {r.key: r.value async for r in self.records.get_all(pieces)}
            if len(found) == len(pieces):  # Otherwise the value was replaced in between.
                return b"".join(found[piece] for piece in pieces)

    async def get_all(self, keys: Iterable[str]) -> AsyncIterator[bytes]:
        """Yield the values of keys in their order, without those that do not exist."""
        async for record in self.records.get_all(keys):
            value = await self.get(record.key) if self._pieces(record) else record.value
            if value is not None:
                yield value

    async def head(self, key: str) -> Record | None:
        """Return the record of a key without its value, or None if there is none."""
        # The key itself is the first of those that begin with it.
        async for record in self.records.list(key, keys_only=True, page_size=1):
            return record if record.key == key else None
        return None

    async def put(
        self,
        head: RecordWrite,
        old: Record | None,
        others: Callable[[Record | None], Sequence[RecordWrite]] = lambda _: (),
    ) -> None:
        """Write a value. It replaces the value before.

        Args:
            head: The write of the value, of any size.
            old: The record before, if it is known. It is read again if it is another one.
            others: Returns up to 10 writes for the same commit, from the record before.

        """
        if len(head.value) > VALUE_BYTES:
            start = f"piece/{uuid.uuid4()}"
            parts = range(0, len(head.value), PIECE_BYTES)
            for i, at in enumerate(parts):
                value = head.value[at : at + PIECE_BYTES]
                await self.records.put(f"{self._prefix}{start}/{i}", value)
            head.value = b""
            head.labels[PIECES], head.labels[COUNT] = start, str(len(parts))
        while not await self._replace(head, old, others(old)):
            old = await self.head(head.key)

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

    async def _replace(
        self, head: RecordWrite, old: Record | None, others: Sequence[RecordWrite]
    ) -> bool:
        """Return False, and change nothing, if the record before is another one."""
        head.if_revision = old.revision if old else 0
        unused = [RecordWrite(key=key, delete=True) for key in self._pieces(old)]
        space = COMMIT_WRITES - 1 - OTHERS
        try:
            await self.records.write([head, *others, *unused[:space]])
        except RevisionMismatchError:
            return False
        for i in range(space, len(unused), COMMIT_WRITES):
            await self.records.write(unused[i : i + COMMIT_WRITES])
        return True

    def _pieces(self, head: Record | None) -> list[str]:
        count = int(head.labels.get(COUNT, "0")) if head else 0
        return [f"{self._prefix}{head.labels[PIECES]}/{i}" for i in range(count)] if head else []
