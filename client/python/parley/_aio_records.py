"""Records with the asyncio client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley._records import (
    distinct_keys,
    json_record,
    json_write,
    only_record,
    record_write,
    remaining_keys,
)
from parley.v1.record_pb2 import RecordWrite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from datetime import timedelta

    from typing_extensions import Unpack

    from parley._aio_calls import AsyncCalls
    from parley._options import CallOptions
    from parley._records import JSONRecord, Scope
    from parley.v1.record_pb2 import Record
    from parley.v1.record_service_pb2 import WriteRecordsResponse


class AsyncRecords:
    """The records of one conversation, or of the tenant: bytes under keys, with revisions.

    :meth:`parley.AsyncClient.records` and :meth:`parley.AsyncClient.tenant_records` return it. It
    has the methods of :class:`parley.Records`, with ``await`` and ``async for``.
    """

    def __init__(self, calls: AsyncCalls, scope: Scope) -> None:
        """Make the records of a scope; only the methods of a client do so."""
        self._calls = calls
        self._scope = scope

    async def get(self, key: str, **options: Unpack[CallOptions]) -> Record | None:
        """See :meth:`parley.Records.get`."""
        return only_record(await self._calls.get_records(self._scope.get_request([key]), **options))

    async def get_json(self, key: str, **options: Unpack[CallOptions]) -> JSONRecord:
        """See :meth:`parley.Records.get_json`."""
        return json_record(await self.get(key, **options))

    def get_all(self, keys: Iterable[str], **options: Unpack[CallOptions]) -> AsyncIterator[Record]:
        """See :meth:`parley.Records.get_all`."""
        return self._get_all(distinct_keys(keys), options)

    async def _get_all(self, remaining: list[str], options: CallOptions) -> AsyncIterator[Record]:
        while remaining:
            reply = await self._calls.get_records(self._scope.get_request(remaining), **options)
            remaining = remaining_keys(remaining, reply)
            for record in reply.records:
                yield record

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        media_type: str = "",
        labels: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
        if_revision: int | None = None,
        request_id: str = "",
        **options: Unpack[CallOptions],
    ) -> int:
        """See :meth:`parley.Records.put`."""
        write = record_write(key, value, media_type, labels, ttl, if_revision)
        return self._scope.revision_of(await self.write([write], request_id=request_id, **options))

    async def put_json(
        self,
        key: str,
        value: object,
        *,
        labels: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
        if_revision: int | None = None,
        request_id: str = "",
        **options: Unpack[CallOptions],
    ) -> int:
        """See :meth:`parley.Records.put_json`."""
        write = json_write(key, value, labels=labels, ttl=ttl, if_revision=if_revision)
        return self._scope.revision_of(await self.write([write], request_id=request_id, **options))

    async def delete(
        self,
        key: str,
        *,
        if_revision: int | None = None,
        request_id: str = "",
        **options: Unpack[CallOptions],
    ) -> None:
        """See :meth:`parley.Records.delete`."""
        write = RecordWrite(key=key, delete=True, if_revision=if_revision)
        await self.write([write], request_id=request_id, **options)

    async def write(
        self,
        writes: Iterable[RecordWrite],
        *,
        if_version: int | None = None,
        request_id: str = "",
        **options: Unpack[CallOptions],
    ) -> WriteRecordsResponse:
        """See :meth:`parley.Records.write`."""
        request = self._scope.write_request(writes, if_version, request_id)
        return await self._calls.write_records(request, **options)

    async def list(
        self,
        prefix: str = "",
        *,
        after_key: str = "",
        descending: bool = False,
        keys_only: bool = False,
        page_size: int = 0,
        **options: Unpack[CallOptions],
    ) -> AsyncIterator[Record]:
        """See :meth:`parley.Records.list`."""
        request = self._scope.list_request(
            prefix,
            after_key=after_key,
            descending=descending,
            keys_only=keys_only,
            page_size=page_size,
        )
        while True:
            page = await self._calls.list_records(request, **options)
            for record in page.records:
                yield record
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
