"""Which checkpoints a thread has: lists of them, and single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parley.adapters.langgraph import _values as values
from parley.adapters.langgraph._steps import PAGE_SIZE, list_all, list_page, segment
from parley.v1.conversation_service_pb2 import ListConversationsRequest
from parley.v1.record_service_pb2 import ListRecordsRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from parley.adapters._steps import Steps
    from parley.v1.record_pb2 import Record

NEWEST_PAGE = 4  # records: usually the newest checkpoint with all its writes, and one of the next


class Row:
    """A checkpoint and the records of its writes."""

    def __init__(self, record: Record) -> None:
        """Begin with the checkpoint."""
        self.record = record
        self.state = values.decode_state(record)
        self.prefix = record.key.removesuffix(values.STATE[1:])
        self.pending: list[list[Any]] = []  # task id, its path, the content of its writes


class Rows:
    """The checkpoints of a thread whose keys begin with a prefix, newest first."""

    def __init__(
        self, conversation: str, prefix: str, *, after_key: str = "", page_size: int = 0
    ) -> None:
        """List in pages of this size; 0 means 100 records."""
        self._request = ListRecordsRequest(
            conversation_id=conversation,
            prefix=prefix,
            after_key=after_key,
            descending=True,
            page_size=page_size,
        )
        self._open: Row | None = None  # more of its writes may follow
        self.ended = False

    def page(self) -> Steps[list[Row]]:
        """Get the next page: complete rows, perhaps none."""
        rows: list[Row] = []
        for record in (yield from list_page(self._request)):
            if values.is_state(record.key):
                if self._open:
                    rows.append(self._open)
                self._open = Row(record)
            # Writes may arrive before their checkpoint. Then they are no part of a row yet.
            elif self._open and record.key.startswith(self._open.prefix):
                self._open.pending.append(values.unpack(record))
        if not self._request.page_token:
            self.ended = True
            if self._open:
                rows.append(self._open)
        return rows


def newest_row(conversation: str, ns: str, checkpoint_id: str | None) -> Steps[Row | None]:
    """Get one checkpoint, or the newest one of a namespace."""
    if checkpoint_id:
        rows = Rows(conversation, values.checkpoint_prefix(ns, checkpoint_id))
    else:
        rows = Rows(conversation, values.namespace_prefix(ns), page_size=NEWEST_PAGE)
    while not rows.ended:
        page = yield from rows.page()
        if page:
            return page[0]
    return None


def checkpoints_of(conversation: str, before_id: str | None) -> Steps[list[tuple[str, str, str]]]:
    """Return the segments of the ids, the keys and the conversation of all checkpoints in it."""
    records = yield from list_all(conversation, values.CHECKPOINTS, keys_only=True)
    return places_of(records, conversation, before_id)


def places_of(
    records: Iterable[Record], conversation: str, before_id: str | None
) -> list[tuple[str, str, str]]:
    """Return what checkpoints_of returns for these records."""
    places = [
        (record.key.split("/")[3], record.key, conversation)
        for record in records
        if values.is_state(record.key)
    ]
    return [place for place in places if before_id is None or place[0] < segment(before_id)]


def all_checkpoints(before_id: str | None) -> Steps[list[tuple[str, str, str]]]:
    """Return the checkpoints of all conversations of the tenant, as checkpoints_of.

    It leaves out those of the adapters of other languages.
    """
    places = []
    for conversation in (yield from all_conversations()):
        records = yield from list_all(conversation, values.CHECKPOINTS, keys_only=True)
        own = [record for record in records if record.media_type == values.MEDIA_TYPE]
        places += places_of(own, conversation, before_id)
    return places


def all_conversations() -> Steps[list[str]]:
    """Return the ids of all conversations of the tenant that have records."""
    request = ListConversationsRequest(page_size=PAGE_SIZE)
    ids = []
    while True:
        page = yield request
        ids += [
            entry.conversation.id for entry in page.conversations if entry.conversation.record_count
        ]
        if not page.next_page_token:
            return ids
        request.page_token = page.next_page_token


def with_writes(states: Sequence[str], records: Iterable[Record]) -> list[str]:
    """Return the keys of checkpoints and of their writes, which are among these records."""
    prefixes = {key.removesuffix(values.STATE[1:]) for key in states}
    return [
        record.key for record in records if "/".join(record.key.split("/")[:4]) + "/" in prefixes
    ]
