"""Records with the sync client, and the part that both clients share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration

from parley._error import Error
from parley.v1.record_pb2 import RecordWrite
from parley.v1.record_service_pb2 import (
    GetRecordsRequest,
    ListRecordsRequest,
    WriteRecordsRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from typing_extensions import Unpack

    from parley._calls import Calls
    from parley._options import CallOptions
    from parley.v1.record_pb2 import Record
    from parley.v1.record_service_pb2 import GetRecordsResponse, WriteRecordsResponse

JSON_MEDIA_TYPE = "application/json"
MAX_KEYS = 100  # in one call


class JSONRecord(NamedTuple):
    """The value of a record that is JSON, and its revision."""

    value: Any
    """What ``json.loads`` returns; None also if there is no record."""
    revision: int
    """The revision of the record; 0 if there is none. As if_revision of the next write it makes
    sure that the record has not changed, or that it still does not exist."""


def json_write(
    key: str,
    value: object,
    *,
    labels: Mapping[str, str] | None = None,
    ttl: timedelta | None = None,
    if_revision: int | None = None,
    tenant_scope: bool = False,
) -> RecordWrite:
    """Return the write of a record with a value as JSON and the media type application/json.

    It can be one of several in :meth:`Records.write`, in the field records of an append or a chat,
    or a piece of an agent's answer. The parameters are the fields of :class:`RecordWrite`.

    The JSON is that of ``json.dumps``: a tuple becomes a list, and a key that is a number, a bool
    or None becomes a string. Other clients may read an integer above 2**53 as another number; make
    it a string for them.

    Raises:
        ValueError: The value is not JSON: a type that ``json.dumps`` does not know, NaN or an
            infinite number, a value that contains itself or is nested too deeply, a string that is
            not Unicode, keys of a dict that become the same string.

    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        check_keys(value)
        encoded = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the value of record {key!r} is not JSON: {error}") from error
    write = record_write(key, encoded, JSON_MEDIA_TYPE, labels, ttl, if_revision)
    write.tenant_scope = tenant_scope
    return write


def check_keys(value: object) -> None:
    """Check the keys of all dicts in a value that ``json.dumps`` has accepted.

    Raises:
        ValueError: Two keys become the same string, so that a reader would lose one of them.

    """
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, dict):
            remaining.extend(item.values())
            seen = set[str]()
            for key in item if any(not isinstance(key, str) for key in item) else ():
                (text,) = json.loads(json.dumps({key: 0}))
                if text in seen:
                    raise ValueError(f"several keys become {text!r}")
                seen.add(text)
        elif isinstance(item, (list, tuple)):
            remaining.extend(item)


def json_value(record: Record) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a record that is JSON. The media type does not matter.

    Raises:
        ValueError: The value is not JSON in UTF-8, or it is nested too deeply. NaN and Infinity,
            which ``json.loads`` accepts, are not JSON.

    """
    try:
        return json.loads(record.value.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the value of record {record.key!r} is not JSON: {error}") from error


def refuse_constant(name: str) -> None:
    """Raise ValueError for a word that ``json.loads`` accepts but JSON does not have."""
    raise ValueError(f"{name} is no number of JSON")


def distinct_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys of ``get_all``, each once.

    Raises:
        TypeError: It is one string, whose characters would be the keys.

    """
    if isinstance(keys, str):
        raise TypeError(f"keys is the string {keys!r}, want several keys; get returns one record")
    return list(dict.fromkeys(keys))


def record_write(
    key: str,
    value: bytes,
    media_type: str,
    labels: Mapping[str, str] | None,
    ttl: timedelta | None,
    if_revision: int | None,
) -> RecordWrite:
    """Return the write of a record."""
    expiry = None
    if ttl is not None:
        expiry = Duration()
        expiry.FromTimedelta(ttl)
    return RecordWrite(
        key=key,
        value=value,
        media_type=media_type,
        labels=labels,
        ttl=expiry,
        if_revision=if_revision,
    )


class Scope:
    """The owner of records: one conversation, or the tenant."""

    def __init__(self, conversation_id: str) -> None:
        """Use the records of this conversation; empty means those of the tenant."""
        self._conversation_id = conversation_id

    def get_request(self, keys: Sequence[str]) -> GetRecordsRequest:
        """Return the request for the records of the first keys, as many as one call may have."""
        return GetRecordsRequest(conversation_id=self._conversation_id, keys=keys[:MAX_KEYS])

    def write_request(
        self, writes: Iterable[RecordWrite], if_version: int | None, request_id: str
    ) -> WriteRecordsRequest:
        """Return the request for some writes."""
        return WriteRecordsRequest(
            conversation_id=self._conversation_id,
            writes=writes,
            if_version=if_version,
            request_id=request_id,
        )

    def list_request(
        self, prefix: str, *, after_key: str, descending: bool, keys_only: bool, page_size: int
    ) -> ListRecordsRequest:
        """Return the request for the first page of a list."""
        return ListRecordsRequest(
            conversation_id=self._conversation_id,
            prefix=prefix,
            after_key=after_key,
            descending=descending,
            keys_only=keys_only,
            page_size=page_size,
        )

    def revision_of(self, reply: WriteRecordsResponse) -> int:
        """Return the revision of the records of this scope that a call wrote."""
        return reply.revision if self._conversation_id else reply.tenant_revision


def scope_of(conversation_id: str) -> Scope:
    """Return the scope of a conversation.

    Raises:
        ValueError: The id is empty. The API would use the records of the tenant.

    """
    if not conversation_id:
        raise ValueError("conversation_id is empty; tenant_records has the records of the tenant")
    return Scope(conversation_id)


def only_record(reply: GetRecordsResponse) -> Record | None:
    """Return the record of a request for one, or None if there is none."""
    return reply.records[0] if reply.records else None


def remaining_keys(keys: Sequence[str], reply: GetRecordsResponse) -> list[str]:
    """Return the keys whose records are not in the reply of a request for the first of them."""
    omitted = list(reply.omitted_keys)
    if len(omitted) >= min(len(keys), MAX_KEYS):
        raise Error(grpc.StatusCode.INTERNAL, "the server returned none of the records")
    return [*omitted, *keys[MAX_KEYS:]]


def json_record(record: Record | None) -> JSONRecord:
    """Return the value of a record that is JSON, with its revision."""
    return JSONRecord(json_value(record), record.revision) if record else JSONRecord(None, 0)


class Records:
    """The records of one conversation, or of the tenant: bytes under keys, with revisions.

    :meth:`parley.Client.records` and :meth:`parley.Client.tenant_records` return it. Any number of
    threads may share it. Each method is one call, or one call for each page. It takes the
    :class:`CallOptions` as more keyword arguments and raises :class:`parley.Error`. The methods for
    JSON also raise ValueError. A conversation
    must exist; an append creates it and may write records in the same commit.
    """

    def __init__(self, calls: Calls, scope: Scope) -> None:
        """Make the records of a scope; only the methods of a client do so."""
        self._calls = calls
        self._scope = scope

    def get(self, key: str, **options: Unpack[CallOptions]) -> Record | None:
        """Return the record of a key, or None if there is none."""
        return only_record(self._calls.get_records(self._scope.get_request([key]), **options))

    def get_json(self, key: str, **options: Unpack[CallOptions]) -> JSONRecord:
        """Return the JSON value of a record and its revision: (None, 0) if there is no record.

        Raises ValueError if the value is not JSON.
        """
        return json_record(self.get(key, **options))

    def get_all(self, keys: Iterable[str], **options: Unpack[CallOptions]) -> Iterator[Record]:
        """Iterate over the records of any number of keys. A key without a record is left out.

        A call gets up to 100 records with up to 3 MiB, all as they are at one instant. The iterator
        makes as many calls as it needs. A record for which a reply had no space follows later. A
        key that occurs several times counts once.

        Raises TypeError if keys is a str.
        """
        return self._get_all(distinct_keys(keys), options)

    def _get_all(self, remaining: list[str], options: CallOptions) -> Iterator[Record]:
        while remaining:
            reply = self._calls.get_records(self._scope.get_request(remaining), **options)
            remaining = remaining_keys(remaining, reply)
            yield from reply.records

    def put(
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
        """Write a record and return its revision. It replaces a record with the same key.

        Args:
            key: 1 to 512 bytes of UTF-8 without control characters and line breaks.
            value: Up to 3 MiB.
            media_type: What the value is, up to 256 bytes.
            labels: Up to 16 labels.
            ttl: The time until the record expires, 100 ms to 366 days. Only records of the tenant
                may have one. If None, the record does not expire.
            if_revision: The revision that the record must have; 0 means that it must not exist.
                Otherwise the call raises :class:`parley.RevisionMismatchError` and writes nothing.
                If None, the record may have any revision.
            request_id: The id of the request. If empty, the client sets it.
            options: The options of the call.

        """
        write = record_write(key, value, media_type, labels, ttl, if_revision)
        return self._scope.revision_of(self.write([write], request_id=request_id, **options))

    def put_json(
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
        """Write a record with a value as JSON, and return its revision.

        Raises ValueError if the value is not JSON. See :meth:`put` and :func:`parley.json_write`.
        """
        write = json_write(key, value, labels=labels, ttl=ttl, if_revision=if_revision)
        return self._scope.revision_of(self.write([write], request_id=request_id, **options))

    def delete(
        self,
        key: str,
        *,
        if_revision: int | None = None,
        request_id: str = "",
        **options: Unpack[CallOptions],
    ) -> None:
        """Delete a record. If there is none, the call succeeds. See :meth:`put`.

        The version of the conversation rises in both cases, because the call has a request_id.
        """
        write = RecordWrite(key=key, delete=True, if_revision=if_revision)
        self.write([write], request_id=request_id, **options)

    def write(
        self,
        writes: Iterable[RecordWrite],
        *,
        if_version: int | None = None,
        request_id: str = "",
        **options: Unpack[CallOptions],
    ) -> WriteRecordsResponse:
        """Write and delete up to 100 records in one commit: all or none.

        Together they may have up to 4 MiB. With tenant_scope, a write is of the tenant's records,
        in the same commit. If if_version is not None, it is the version that the conversation must
        have.

        The version of the conversation rises even if all writes are deletions of records that do
        not exist, because the call has a request_id. The revision in the reply is then 0.
        """
        request = self._scope.write_request(writes, if_version, request_id)
        return self._calls.write_records(request, **options)

    def list(
        self,
        prefix: str = "",
        *,
        after_key: str = "",
        descending: bool = False,
        keys_only: bool = False,
        page_size: int = 0,
        **options: Unpack[CallOptions],
    ) -> Iterator[Record]:
        """Iterate over the records whose keys begin with prefix, in the order of their keys.

        A record that exists during the whole iteration is returned once. Each page is a call, made
        when the iterator needs it. The timeout limits each of these calls.

        Args:
            prefix: The beginning of the keys. If empty, all records.
            after_key: The key after which the list begins, in its direction; it need not exist. If
                empty, the list begins at its start.
            descending: List from the last key to the first.
            keys_only: Leave out the values.
            page_size: The maximum number of records in a page, up to 1000; 0 means 100. A page has
                at most 3 MiB of records, but at least one.
            options: The options of the calls.

        """
        request = self._scope.list_request(
            prefix,
            after_key=after_key,
            descending=descending,
            keys_only=keys_only,
            page_size=page_size,
        )
        while True:
            page = self._calls.list_records(request, **options)
            yield from page.records
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
