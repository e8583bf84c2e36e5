"""The one exception that calls raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import grpc

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "parley"


@dataclass(frozen=True)
class FieldViolation:
    """What is wrong with one field of a request."""

    field: str
    """Its path, such as ``conversation.id`` or ``messages[2].content``."""
    description: str
    """What is wrong with it, for people."""


class Error(Exception):
    """A call that failed. Every call of the clients raises this and nothing else.

    Its cause (``__cause__``) is what gRPC raised, if gRPC did. An agent that is to fail with a
    text for its user raises :class:`parley.AgentError` instead.
    """

    code: grpc.StatusCode
    """The gRPC code."""
    message: str
    """For people: what was wrong, and what to do about it."""
    reason: str
    """Why, in one stable upper-snake-case word, such as ``CONVERSATION_NOT_FOUND``. Empty when
    no Parley server said so: no connection, a deadline, a message over the size limit."""
    metadata: dict[str, str]
    """What goes with the reason, such as ``current_version`` with ``VERSION_MISMATCH``."""
    field_violations: tuple[FieldViolation, ...]
    """With ``INVALID_REQUEST``: every field that is wrong."""
    retry_delay: float | None
    """Seconds after which the same call may succeed; None where waiting does not help."""

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
        """Give code, reason and message in one line."""
        return f"{self.code.name} {self.reason}".rstrip() + f": {self.message}"

    def after(self, what: str) -> Error:
        """Return this error with a text ahead of its own, which it is the cause of."""
        error = Error(
            self.code,
            f"{what}: {self.message}",
            reason=self.reason,
            metadata=self.metadata,
            field_violations=self.field_violations,
            retry_delay=self.retry_delay,
        )
        error.__cause__ = self
        return error


def from_rpc(cause: grpc.RpcError) -> Error:
    """Return what gRPC raised as an error of ours."""
    error = Error(cause.code(), cause.details() or "")
    error.__cause__ = cause
    trailers = cast("Iterable[tuple[str, str | bytes]]", cause.trailing_metadata() or ())
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            read_details(error, value)
    return error


def read_details(error: Error, encoded: bytes) -> None:
    """Fill an error with the details of its status; those that cannot be read are left out."""
    info, bad, retry = ErrorInfo(), BadRequest(), RetryInfo()
    try:
        for detail in Status.FromString(encoded).details:
            if detail.Unpack(info) and info.domain == DOMAIN:
                error.reason = info.reason
                error.metadata = dict(info.metadata)
            elif detail.Unpack(bad):
                error.field_violations = tuple(
                    FieldViolation(v.field, v.description) for v in bad.field_violations
                )
            elif detail.Unpack(retry):
                error.retry_delay = retry.retry_delay.ToTimedelta().total_seconds()
    except DecodeError:
        return
