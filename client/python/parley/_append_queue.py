"""The requests of an appender without a reply.

This module does no input or output, so that the sync and the asyncio appender share it.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc

from parley._error import Error, from_status
from parley._options import with_request_id
from parley._retry import is_resumable
from parley.v1.conversation_service_pb2 import AppendStreamRequest

if TYPE_CHECKING:
    from parley.v1.conversation_service_pb2 import (
        AppendMessagesRequest,
        AppendMessagesResponse,
        AppendStreamResponse,
    )

F = TypeVar("F")

MAX_REQUESTS = 1024
"""The limit of the requests without a reply. It is also that of the server for one stream."""
MAX_BYTES = 4 << 20
"""The limit of the sizes of these requests together. One larger request goes alone."""
MAX_REQUESTS_OF_CONVERSATION = 16
"""The limit of the requests without a reply for one conversation. A conversation remembers its
newest 32 request ids, so a request that is sent again is still known. The other half is for other
writers."""
FIRST_ATTEMPTS = 5
"""The attempts to reach a server at first, as gRPC makes for other calls."""
END_DELAY = 5.0
"""Seconds to wait until the server ends a stream of which it has answered all requests."""


@dataclass(frozen=True)
class Append(Generic[F]):
    """A request, its encoded size, and the future of its reply."""

    request: AppendStreamRequest
    size: int
    future: F

    @property
    def conversation(self) -> str:
        """The id of the conversation."""
        return self.request.append.conversation_id


class AppendQueue(Generic[F]):
    """The requests without a reply, in the order of append. A new stream sends all of them."""

    def __init__(self) -> None:
        """Begin without requests."""
        self._unsent: deque[Append[F]] = deque()
        self._sent: deque[Append[F]] = deque()  # on the current stream, before the unsent ones
        self._bytes = 0
        self._by_conversation: Counter[str] = Counter()
        self._waiting_since = math.inf  # Since when a reply is missing; else infinity.
        self._added = self._answered = 0

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self._sent) + len(self._unsent)

    @property
    def waiting_since(self) -> float:
        """The time of the last reply or, if it is later, of the first request after it."""
        return self._waiting_since

    @property
    def added(self) -> int:
        """The number of requests that were ever added."""
        return self._added

    def has_answered(self, number: int) -> bool:
        """Report whether the first requests that were ever added have their results."""
        return self._answered >= number

    def has_space(self, append: Append[F]) -> bool:
        """Report whether the request is within the limits. A single request always is."""
        return not len(self) or (
            len(self) < MAX_REQUESTS
            and self._bytes + append.size <= MAX_BYTES
            and self._by_conversation[append.conversation] < MAX_REQUESTS_OF_CONVERSATION
        )

    def add(self, append: Append[F]) -> None:
        """Add a request at the end."""
        if not len(self):
            self._waiting_since = time.monotonic()
        self._added += 1
        self._unsent.append(append)
        self._bytes += append.size
        self._by_conversation[append.conversation] += 1

    def begin_stream(self) -> None:
        """Record that another stream begins, which has to send all requests."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()

    def has_unsent(self) -> bool:
        """Report whether the current stream has a request to send."""
        return bool(self._unsent)

    def next_unsent(self) -> AppendStreamRequest:
        """Return the next request for the current stream, and record it as sent."""
        append = self._unsent.popleft()
        self._sent.append(append)
        return append.request

    def take_answered(self) -> F | None:
        """Remove the request that the server answers next, if the current stream has sent one.

        Return its future. Call note_answered when it has its result.
        """
        if not self._sent:
            return None
        append = self._sent.popleft()
        self._bytes -= append.size
        self._by_conversation[append.conversation] -= 1
        if not self._by_conversation[append.conversation]:
            del self._by_conversation[append.conversation]
        self._waiting_since = time.monotonic() if len(self) else math.inf
        return append.future

    def note_answered(self) -> None:
        """Record that the future of a taken request has its result."""
        self._answered += 1

    def remove_all(self) -> list[F]:
        """Remove all requests, and return their futures."""
        self.begin_stream()
        futures = [append.future for append in self._unsent]
        self._unsent.clear()
        self._by_conversation.clear()
        self._bytes, self._waiting_since = 0, math.inf
        return futures


def envelope_of(request: AppendMessagesRequest) -> AppendStreamRequest:
    """Return a copy of the request for the stream, with a random request_id if it has none."""
    return AppendStreamRequest(append=with_request_id(request))


def outcome_of(reply: AppendStreamResponse) -> AppendMessagesResponse | Error:
    """Return the reply to one request, or its error."""
    if reply.HasField("response"):
        return reply.response
    if reply.HasField("error"):
        return from_status(reply.error)
    return Error(grpc.StatusCode.INTERNAL, "the server sent a reply without a result")


def breaks_stream(error: Error) -> bool:
    """Report whether to send the request with this error again, as calls do.

    That needs a new stream, which also sends the requests after it again.
    """
    return error.code is grpc.StatusCode.UNAVAILABLE


def unexpected_reply() -> Error:
    """Return the error of a stream with more replies than requests."""
    return Error(grpc.StatusCode.INTERNAL, "the server answered a request that was not sent")


def stream_error(error: Error | None) -> Error:
    """Return the error of a stream that ended before all requests were answered."""
    if error is None:
        text = "the server ended the stream before it answered all requests"
        return Error(grpc.StatusCode.UNKNOWN, text)
    return error


def check_resumable(error: Error, *, accepted: bool) -> None:
    """Raise the error for the caller unless another stream may continue after it.

    The parameter accepted means that the server has answered a request before.
    """
    if error.code is grpc.StatusCode.UNIMPLEMENTED:
        raise error.after("the server has no AppendStream: update it, or use AppendMessages")
    # The server ended a stream that was idle until the request. Or the tenant is at its limit of
    # streams or of requests: the server may still count the broken stream, and its requests.
    limits = ("TENANT_STREAMS", "TENANT_REQUESTS")
    expected = error.reason == "SLOW_SENDER" or (accepted and error.reason in limits)
    if not expected and not is_resumable(error):
        raise error


def closed_error() -> Error:
    """Return the error of an append after the end of the appender."""
    return Error(grpc.StatusCode.FAILED_PRECONDITION, "the appender is closed")


def interrupted_error() -> Error:
    """Return the error of the requests without a reply when close was interrupted."""
    return Error(grpc.StatusCode.CANCELLED, "the appender was closed before the reply")
