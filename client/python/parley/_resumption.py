"""How a stream resumes over several calls: which request to send, what to deliver, when to retry.

This module does no input or output, so that the sync and the asyncio client share it. Each client
has a stream class that makes the calls and measures the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import grpc

from parley._error import Error
from parley._options import with_request_id
from parley._retry import Retry, is_resumable
from parley._view import UNKNOWN, View, copy_of
from parley.v1.conversation_pb2 import CHANGE_KIND_GAP, CHANGE_KIND_HEARTBEAT
from parley.v1.conversation_service_pb2 import (
    ChatRequest,
    ChatResponse,
    ConversationChange,
    ResumeTurnRequest,
    ResumeTurnResponse,
    WatchConversationsRequest,
    WatchConversationsResponse,
)

if TYPE_CHECKING:
    from parley.v1.turn_pb2 import TurnEvent

Q_co = TypeVar("Q_co", covariant=True)
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
S_co = TypeVar("S_co", covariant=True)
Q = TypeVar("Q")


class Resumption(Protocol[Q_co, R_contra, S_co]):
    """One stream for one reader, over as many calls as it takes.

    Q is the type of the requests, R of the replies, and S of the items for the reader.
    """

    def next_request(self) -> Q_co:
        """Begin the next call and return its request."""
        ...

    def receive_timeout(self) -> float:
        """Return how many seconds to wait for the next reply; infinity means no limit."""
        ...

    def accept(self, reply: R_contra) -> S_co | None:
        """Record a reply of the call and return the item for the reader, or None."""
        ...

    def reader_returned(self) -> None:
        """Record that the reader asks for the next item. The reader's own time does not count."""
        ...

    def silence_error(self) -> Error:
        """Return the error of a call that was cancelled after receive_timeout."""
        ...

    def close(self) -> None:
        """Record that the stream has ended. It may be called more than once."""
        ...

    def may_sign_in_again(self) -> bool:
        """Report whether the stream can continue with a call that has another token."""
        ...

    def retry_delay(self, error: Error | None) -> float | None:
        """Record the end of the call; error is None if the server ended the stream normally.

        Return the seconds to wait before the next call, or None if the stream is complete. Raise
        the error for the reader if the stream cannot resume.
        """
        ...


class SingleCall(Generic[Q, R]):
    """A stream that does not resume: it is one call and ends with it."""

    def __init__(self, request: Q) -> None:
        """Make a stream of the call with this request."""
        self._request = request
        self._begun = False  # There was a reply.

    def next_request(self) -> Q:
        """See Resumption."""
        return self._request

    def receive_timeout(self) -> float:
        """See Resumption."""
        return math.inf

    def accept(self, reply: R) -> R | None:
        """See Resumption."""
        self._begun = True
        return reply

    def reader_returned(self) -> None:
        """See Resumption."""

    def silence_error(self) -> Error:
        """See Resumption. It is never called, because receive_timeout is infinite."""
        raise NotImplementedError

    def close(self) -> None:
        """See Resumption."""

    def may_sign_in_again(self) -> bool:
        """See Resumption."""
        return not self._begun

    def retry_delay(self, error: Error | None) -> None:
        """See Resumption."""
        if error:
            raise error


class Follower:
    """Delivers the events of one turn."""

    def __init__(self, request: ChatRequest | ResumeTurnRequest, retry: Retry) -> None:
        """Follow the turn of a request. The follower copies the request."""
        self._retry = retry
        # The request that starts the turn; None once the turn has started.
        self._chat: ChatRequest | None = None
        self._generated_id = False  # The client generated the request_id of _chat.
        self._conversation = request.conversation_id
        self._view = View()
        self._after = 0  # The newest call begins after this index; 0 is the beginning of the turn.
        self._delivered = False  # The reader has received an event.
        self._finished = False  # The reader has received the last event.
        if isinstance(request, ChatRequest):
            self._chat = ChatRequest()
            self._chat.CopyFrom(with_request_id(request))
            self._generated_id = not request.request_id
        else:
            delivered_bytes = UNKNOWN if request.after_index else 0
            self._view = View(request.turn_id, request.after_index, delivered_bytes)

    def next_request(self) -> ChatRequest | ResumeTurnRequest:
        """See Resumption."""
        self._retry.begin_attempt()
        if self._chat:
            self._after = self._view.start_stream(0)
            return self._chat
        self._after = self._view.start_stream(self._view.resume_index())
        return ResumeTurnRequest(
            conversation_id=self._conversation,
            turn_id=self._view.turn,
            after_index=self._after,
        )

    def receive_timeout(self) -> float:
        """See Resumption."""
        return self._retry.receive_timeout()

    def accept(self, reply: ChatResponse | ResumeTurnResponse) -> TurnEvent | None:
        """See Resumption."""
        self._retry.note_message()
        event = self._view.new_part(reply.event)
        if not event:
            return None
        if self._chat and event.HasField("started"):
            if self._generated_id and event.started.replayed:
                # This stream itself has sent the request more than once, perhaps in gRPC's retries.
                event = copy_of(event)
                event.started.replayed = False
            self._conversation = event.started.conversation.id or self._chat.conversation_id
            self._chat = None
        self._delivered = self._retry.progress = True
        # After this event the turn is over and durable, so the status of the call does not matter.
        # The stream still reads to the end of the call: the server would see a disconnect if the
        # client left before.
        self._finished = event.HasField("finished")
        return event

    def reader_returned(self) -> None:
        """See Resumption."""
        if self._delivered:
            self._retry.reset_deadline()

    def silence_error(self) -> Error:
        """See Resumption."""
        return self._retry.silence_error()

    def close(self) -> None:
        """See Resumption."""
        self._retry.close()

    def may_sign_in_again(self) -> bool:
        """See Resumption."""
        return not self._finished

    def retry_delay(self, error: Error | None) -> float | None:
        """See Resumption."""
        if self._finished:
            return None
        if not error:
            if not self._delivered and self._after:
                return None  # The reader resumed after the last event.
            error = Error(grpc.StatusCode.UNKNOWN, "the server ended the stream before the turn")
        known = self._retry.progress or self._after > 0
        if error.reason == "EVENTS_GONE" and known and self._view.restart():
            return 0
        if not is_resumable(error):
            raise error
        return self._retry.next_delay(error)


class Watcher:
    """Delivers changes. It has no end of its own."""

    def __init__(self, request: WatchConversationsRequest, retry: Retry) -> None:
        """Watch as the request says. The watcher copies the request."""
        self._retry = retry
        # Its cursor is that of the last delivered change.
        self._request = WatchConversationsRequest()
        self._request.CopyFrom(request)
        self._accepted = False  # The server has sent a change on any call.
        self._idle = False  # The last change was a heartbeat or a gap.

    def next_request(self) -> WatchConversationsRequest:
        """See Resumption."""
        self._retry.begin_attempt()
        return self._request

    def receive_timeout(self) -> float:
        """See Resumption."""
        return self._retry.receive_timeout()

    def accept(self, reply: WatchConversationsResponse) -> ConversationChange | None:
        """See Resumption."""
        self._retry.note_message()
        if not reply.HasField("change"):
            return None
        if reply.change.cursor:
            self._request.cursor = reply.change.cursor
        self._accepted = self._retry.progress = True
        self._idle = reply.change.kind in (CHANGE_KIND_HEARTBEAT, CHANGE_KIND_GAP)
        return reply.change

    def reader_returned(self) -> None:
        """See Resumption."""
        if not self._accepted:
            return
        delay = self._retry.delay
        self._retry.reset_deadline()
        if self._idle:
            # Keep the delay, so that the client does not retry quickly against a server that
            # answers but breaks each stream after its first messages.
            self._retry.delay = delay

    def silence_error(self) -> Error:
        """See Resumption."""
        return self._retry.silence_error()

    def close(self) -> None:
        """See Resumption."""
        self._retry.close()

    def may_sign_in_again(self) -> bool:
        """See Resumption."""
        return True

    def retry_delay(self, error: Error | None) -> float:
        """See Resumption."""
        if not error:
            error = Error(grpc.StatusCode.UNKNOWN, "the server ended the watch")
        # At its limit of watchers the server refuses a new watch. If it accepted this watch
        # before, it may still count the broken stream of this watch.
        full = self._accepted and error.reason == "TOO_MANY_WATCHERS"
        if not full and not is_resumable(error):
            raise error
        return self._retry.next_delay(error)
