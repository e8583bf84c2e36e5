"""The exception that calls raise."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "parley"


@dataclass(frozen=True)
class FieldViolation:
    """A rule that one field of a request breaks."""

    field: str
    """The path of the field, such as ``conversation.id`` or ``messages[2].content``."""
    description: str
    """The rule, for people."""


class Error(Exception):
    """A failed call. The clients raise it for every error of the server and of the connection.

    They raise other exceptions only before they send something, or for a value that they received:

    - The exceptions of the function token and of an iterable of requests are raised unchanged.
    - :meth:`Records.put_json`, :meth:`Records.get_json`, :func:`parley.json_write` and
      :func:`parley.json_value` raise ValueError for a value that is not JSON.
    - :meth:`Client.records` raises ValueError for an empty id, and :meth:`Records.get_all`
      TypeError for keys that are a str.
    - protobuf raises TypeError or ValueError for a field of a request with another type.

    The reason is ``UNAUTHENTICATED`` if a call has no valid credential, ``PERMISSION_DENIED`` if
    its role is too small (``needed_role`` in metadata) or the tenant is not the caller's, and
    ``TENANT_REQUIRED`` if the caller has several tenants and named none.

    If gRPC raised an exception, that is the cause (``__cause__``). An agent that fails with a text
    for its user raises :class:`parley.AgentError` instead.
    """

    code: grpc.StatusCode
    """The gRPC code."""
    message: str
    """What was wrong and what to do, for people."""
    reason: str
    """The stable reason, such as ``CONVERSATION_NOT_FOUND``. It is empty if the error is not from
    a Parley server: no connection, a deadline, a message over the size limit."""
    metadata: dict[str, str]
    """Details of the reason, such as ``current_version`` for ``VERSION_MISMATCH``."""
    field_violations: tuple[FieldViolation, ...]
    """For ``INVALID_REQUEST``: every field that breaks a rule."""
    retry_delay: float | None
    """Seconds after which the same call may succeed; None if waiting does not help."""

    @property
    def ended(self) -> str:
        """How the conversation ended: ``EVICTED``, ``EXPIRED`` or ``DELETED``.

        Set for the reason ``CONVERSATION_NOT_FOUND`` if the server remembers the end. It remembers
        an end for an hour. Otherwise empty.
        """
        return self.metadata.get("ended", "")

    @property
    def ended_at(self) -> datetime | None:
        """When the server removed the conversation, in UTC; None if :attr:`ended` is empty."""
        at = self.metadata.get("at", "") if self.ended else ""
        if not at:
            return None
        seconds, _, fraction = at.removesuffix("Z").partition(".")
        ended_at = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        return ended_at.replace(microsecond=int(fraction[:6].ljust(6, "0")))

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        field_violations: Iterable[FieldViolation] = (),
        retry_delay: float | None = None,
    ) -> None:
        """Make an error; the parameters are its attributes."""
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.field_violations = tuple(field_violations)
        self.retry_delay = retry_delay

    def __str__(self) -> str:
        """Return code, reason and message in one line."""
        return f"{self.code.name} {self.reason}".rstrip() + f": {self.message}"

    def after(self, text: str) -> Error:
        """Return a copy with this text before the message; this error is its cause."""
        error = type(self)(
            self.code,
            f"{text}: {self.message}",
            reason=self.reason,
            metadata=self.metadata,
            field_violations=self.field_violations,
            retry_delay=self.retry_delay,
        )
        error.__cause__ = self
        return error


class RevisionMismatchError(Error):
    """A write of records that required another revision (``if_revision``). It wrote nothing.

    Its code is ABORTED and its reason ``REVISION_MISMATCH``. Read the record again, and write with
    its new revision. Writes of records, appends and chats raise it.
    """

    @property
    def key(self) -> str:
        """The key of the first write that required another revision."""
        return self.metadata.get("key", "")

    @property
    def current_revision(self) -> int:
        """The revision of that record; 0 if it does not exist."""
        return int(self.metadata.get("current_revision", "0"))

    @property
    def tenant_scope(self) -> bool:
        """Whether that record belongs to the tenant and not to a conversation."""
        return self.metadata.get("scope") == "tenant"


def from_rpc(cause: grpc.RpcError) -> Error:
    """Convert an exception of gRPC."""
    details = b""
    trailers = cast("Iterable[tuple[str, str | bytes]]", cause.trailing_metadata() or ())
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = value
    error = from_details(cause.code(), cause.details() or "", details)
    error.__cause__ = cause
    return error


def from_status(status: Status) -> Error:
    """Convert the status of one request of a stream."""
    code = next((code for code in grpc.StatusCode if code.value[0] == status.code), None)
    encoded = status.SerializeToString()
    return from_details(code or grpc.StatusCode.UNKNOWN, status.message, encoded)


def from_details(code: grpc.StatusCode, message: str, encoded: bytes) -> Error:
    """Return the error of a status with these details. It ignores details it cannot decode."""
    info, bad, retry = ErrorInfo(), BadRequest(), RetryInfo()
    reason, metadata = "", dict[str, str]()
    field_violations: tuple[FieldViolation, ...] = ()
    retry_delay = None
    try:
        for detail in Status.FromString(encoded).details:
            if detail.Unpack(info) and info.domain == DOMAIN:
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(bad):
                field_violations = tuple(
                    FieldViolation(v.field, v.description) for v in bad.field_violations
                )
            elif detail.Unpack(retry):
                retry_delay = retry.retry_delay.ToTimedelta().total_seconds()
    except DecodeError:
        pass  # The details so far are used.
    kind = RevisionMismatchError if reason == "REVISION_MISMATCH" else Error
    return kind(
        code,
        message,
        reason=reason,
        metadata=metadata,
        field_violations=field_violations,
        retry_delay=retry_delay,
    )
