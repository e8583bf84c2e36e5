"""Values in pieces, see parley.adapters._values."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from fake import fail, serving

from parley import AsyncClient, Error
from parley.adapters._values import VALUE_BYTES, Values
from parley.v1.record_pb2 import Record, RecordWrite
from parley.v1.record_service_pb2 import (
    ListRecordsRequest,
    ListRecordsResponse,
    WriteRecordsRequest,
    WriteRecordsResponse,
)


class Refusing:
    """Records of a tenant. It refuses the write of a key, before or after it has executed it."""

    def __init__(self, *, executed: bool) -> None:
        """Start without records."""
        self.records: dict[str, Record] = {}
        self._executed = executed

    def write(self, request: WriteRecordsRequest, context: Any) -> WriteRecordsResponse:
        """Answer WriteRecords."""
        refused = any(write.key == "value" for write in request.writes)
        if self._executed or not refused:
            for write in request.writes:
                record = Record(key=write.key, labels=write.labels, revision=1)
                if write.delete:
                    self.records.pop(write.key)
                else:
                    self.records[write.key] = record
        if refused:
            fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "TENANT_REQUESTS")
        return WriteRecordsResponse()

    def list(self, request: ListRecordsRequest, _: Any) -> ListRecordsResponse:
        """Answer ListRecords."""
        return ListRecordsResponse(
            records=[r for key, r in sorted(self.records.items()) if key.startswith(request.prefix)]
        )


@pytest.mark.parametrize("executed", [False, True])
def test_a_refused_repetition_keeps_the_pieces_of_a_written_value(executed: bool) -> None:
    """The server checks limits before it sees that a call repeats an executed one."""
    handlers = Refusing(executed=executed)

    async def put(address: str) -> None:
        async with AsyncClient(address) as client:
            values = Values(client.tenant_records, "")
            await values.put(RecordWrite(key="value", value=bytes(VALUE_BYTES + 1)))

    with (
        serving(WriteRecords=handlers.write, ListRecords=handlers.list) as address,
        pytest.raises(Error, match="TENANT_REQUESTS"),
    ):
        asyncio.run(put(address))
    assert len(handlers.records) == (3 if executed else 0)
