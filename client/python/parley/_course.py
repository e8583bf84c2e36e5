"""The course of a stream: what to ask, what to show, when to ask again.

It does no input or output, so that the clients of both kinds share it: each has a driver that
makes the calls and keeps the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import grpc

from parley._error import Error
from parley._options import with_request_id
from parley._patience import Patience, is_break
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


class Course(Protocol[Q_co, R_contra, S_co]):
    """One stream to one reader: requests Q, replies R, and what the reader is shown, S."""

    def ask(self) -> Q_co:
        """Begin the next call; return its request."""
        ...

    def left(self) -> float:
        """Return the seconds to wait for the next reply; infinity: there is no limit."""
        ...

    def take(self, reply: R_contra) -> S_co | None:
        """Take a reply of the call; return what the reader is to be shown of it, if anything."""
        ...

    def resume(self) -> None:
        """Note that the reader comes back for more: the time that it took does not count."""
        ...

    def silence(self) -> Error:
        """Return the error of a call that was given up since left has gone by."""
        ...

    def close(self) -> None:
        """Note that the stream is over; more than once, too."""
        ...

    def end(self, error: Error | None) -> float | None:
        """Take the end of the call, None being a regular one.

        Return the seconds after which to ask again, or None where the stream is whole. Raise
        the error that the reader is to have, where there is no way on.
        """
        ...


class OneCall(Generic[Q, R]):
    """The course of a stream that is one call; it ends as the call does."""

    def __init__(self, request: Q) -> None:
        """Ask with this request."""
        self._request = request

    def ask(self) -> Q:
        """See Course."""
        return self._request

    def left(self) -> float:
        """See Course."""
        return math.inf

    def take(self, reply: R) -> R | None:
        """See Course."""
        return reply

    def resume(self) -> None:
        """See Course."""

    def silence(self) -> Error:
        """See Course; there is no limit, and so no silence."""
        raise NotImplementedError

    def close(self) -> None:
        """See Course."""

    def end(self, error: Error | None) -> None:
        """See Course."""
        if error:
            raise error


class TurnCourse:
    """Shows one turn."""

    def __init__(self, request: ChatRequest | ResumeTurnRequest, patience: Patience) -> None:
        """Ask for the turn with a request, of which a copy is taken."""
        self._patience = patience
        self._chat: ChatRequest | None = None  # What asks for the turn; None once it has started.
        self._own_id = False  # Nobody but this stream has used the request_id of chat.
        self._conversation = request.conversation_id
        self._view = View()
        self._after = 0  # Behind which index the last ask was; 0: from the start.
        self._shown = self._over = False
        if isinstance(request, ChatRequest):
            self._chat = ChatRequest()
            self._chat.CopyFrom(with_request_id(request))
            self._own_id = not request.request_id
        else:
            bytes_shown = UNKNOWN if request.after_index else 0
            self._view = View(request.turn_id, request.after_index, bytes_shown)

    def ask(self) -> ChatRequest | ResumeTurnRequest:
        """See Course."""
        self._patience.ask()
        if self._chat:
            self._after = self._view.begin(0)
            return self._chat
        self._after = self._view.begin(self._view.next())
        return ResumeTurnRequest(
            conversation_id=self._conversation,
            turn_id=self._view.turn,
            after_index=self._after,
        )

    def left(self) -> float:
        """See Course."""
        return self._patience.left()

    def take(self, reply: ChatResponse | ResumeTurnResponse) -> TurnEvent | None:
        """See Course."""
        self._patience.heard()
        event = self._view.take(reply.event)
        if not event:
            return None
        if self._chat and event.HasField("started"):
            if self._own_id and event.started.replayed:
                # It is this stream that asked more than once, perhaps down in gRPC.
                event = copy_of(event)
                event.started.replayed = False
            self._conversation = event.started.conversation.id or self._chat.conversation_id
            self._chat = None
        self._shown = self._patience.news = True
        # The turn is over and durable then; how the call closes changes nothing. But to leave
        # before the server has ended it would look like a break there.
        self._over = event.HasField("finished")
        return event

    def resume(self) -> None:
        """See Course."""
        if self._shown:
            self._patience.calm()

    def silence(self) -> Error:
        """See Course."""
        return self._patience.silence()

    def close(self) -> None:
        """See Course."""
        self._patience.close()

    def end(self, error: Error | None) -> float | None:
        """See Course."""
        if self._over:
            return None
        if not error:
            if not self._shown and self._after:
                return None  # The reader began behind the last event.
            error = Error(
                grpc.StatusCode.UNKNOWN, "the server ended the stream before the turn has ended"
            )
        known = self._patience.news or self._after > 0
        if error.reason == "EVENTS_GONE" and known and self._view.gone():
            return 0
        if not is_break(error):
            raise error
        return self._patience.retry(error)


class WatchCourse:
    """Shows changes, without an end."""

    def __init__(self, request: WatchConversationsRequest, patience: Patience) -> None:
        """Watch as a request says, of which a copy is taken."""
        self._patience = patience
        self._request = WatchConversationsRequest()  # Its cursor is that of the last change shown.
        self._request.CopyFrom(request)
        self._let_in = False  # The server has sent something, ever.
        self._quiet = False  # The last change was a heartbeat or a gap.

    def ask(self) -> WatchConversationsRequest:
        """See Course."""
        self._patience.ask()
        return self._request

    def left(self) -> float:
        """See Course."""
        return self._patience.left()

    def take(self, reply: WatchConversationsResponse) -> ConversationChange | None:
        """See Course."""
        self._patience.heard()
        if not reply.HasField("change"):
            return None
        if reply.change.cursor:
            self._request.cursor = reply.change.cursor
        self._let_in = self._patience.news = True
        self._quiet = reply.change.kind in (CHANGE_KIND_HEARTBEAT, CHANGE_KIND_GAP)
        return reply.change

    def resume(self) -> None:
        """See Course."""
        if not self._let_in:
            return
        delay = self._patience.delay
        self._patience.calm()
        if self._quiet:
            # A server that answers, but breaks each stream behind that, is not to be asked
            # ever more quickly.
            self._patience.delay = delay

    def silence(self) -> Error:
        """See Course."""
        return self._patience.silence()

    def close(self) -> None:
        """See Course."""
        self._patience.close()

    def end(self, error: Error | None) -> float:
        """See Course."""
        if not error:
            error = Error(grpc.StatusCode.UNKNOWN, "the server has ended the watch")
        # Over its limit of watchers a server refuses a new watch; of one that it had let in,
        # its own broken stream may still be counted.
        full = self._let_in and error.reason == "TOO_MANY_WATCHERS"
        if not full and not is_break(error):
            raise error
        return self._patience.retry(error)
