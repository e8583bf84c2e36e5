"""Segments of keys, and steps that several operations have, such as lists and batches."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from parley._error import Error
from parley.adapters._common import MAX_WRITES, encoded
from parley.v1.record_pb2 import RecordWrite
from parley.v1.record_service_pb2 import GetRecordsRequest, ListRecordsRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from parley.adapters._steps import Steps
    from parley.v1.record_pb2 import Record

MAX_SEGMENT_BYTES = 99  # of a key, as it is
PAGE_SIZE = 1000  # of lists of keys

NOT_FOUND = "CONVERSATION_NOT_FOUND"


def segment(text: str) -> str:
    """Return a part of a key for any text: encoded, and a digest if that has over 99 bytes.

    Different texts have different segments. Only a digest begins with a tilde.
    """
    part = encoded(text, several=True)
    if len(part.encode()) > MAX_SEGMENT_BYTES:
        return "~" + hashlib.sha256(part.encode()).hexdigest()
    return "%7E" + part[1:] if part.startswith("~") else part


def get_all(conversation: str, keys: Iterable[str]) -> Steps[dict[str, Record]]:
    """Get records by their keys. It is empty if the conversation does not exist."""
    remaining = list(dict.fromkeys(keys))
    found: dict[str, Record] = {}
    while remaining:
        request = GetRecordsRequest(conversation_id=conversation, keys=remaining[:MAX_WRITES])
        try:
            reply = yield request
        except Error as error:
            if error.reason != NOT_FOUND:
                raise
            return {}
        found.update((record.key, record) for record in reply.records)
        remaining = [*reply.omitted_keys, *remaining[MAX_WRITES:]]
    return found


def list_page(request: ListRecordsRequest) -> Steps[Sequence[Record]]:
    """Get the next page of a list, and prepare the request for the one after it.

    The token of the request is empty after the last page. A conversation that does not exist has no
    records.
    """
    try:
        reply = yield request
    except Error as error:
        if error.reason != NOT_FOUND:
            raise
        request.page_token = ""
        return ()
    request.page_token = reply.next_page_token
    records: Sequence[Record] = reply.records
    return records


def list_all(conversation: str, prefix: str, *, keys_only: bool = False) -> Steps[list[Record]]:
    """Get all records whose keys begin with a prefix, in the order of the keys."""
    request = ListRecordsRequest(
        conversation_id=conversation, prefix=prefix, keys_only=keys_only, page_size=PAGE_SIZE
    )
    records: list[Record] = []
    while True:
        records += yield from list_page(request)
        if not request.page_token:
            return records


def deletion(key: str) -> RecordWrite:
    """Return the write that deletes a record."""
    return RecordWrite(key=key, delete=True)
