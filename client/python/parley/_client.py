"""The sync client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from parley._calls import Calls
from parley._course import TurnCourse, WatchCourse
from parley._exit import PINS
from parley._line import SyncLine
from parley._options import CallOptions, channel_options, for_grpc, is_local
from parley._patience import Patience
from parley._stream import Call, Stream
from parley.v1.admin_service_pb2_grpc import AdminServiceStub
from parley.v1.conversation_service_pb2 import (
    ChatRequest,
    ConversationChange,
    ResumeTurnRequest,
    WatchConversationsRequest,
)
from parley.v1.conversation_service_pb2_grpc import ConversationServiceStub
from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceStub

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from parley.v1.turn_pb2 import TurnEvent


class Client(Calls):
    """A connection to one Parley server. Any number of threads may share it.

    Begin with :meth:`chat`, which streams an agent's answer; come back to one with
    :meth:`resume_turn`; see what happens to conversations as it does with
    :meth:`watch_conversations`. None of them minds a connection that breaks or a server that
    restarts meanwhile. Every other method is one call.

    Three things hold for all of them:

    - An empty request_id is filled with a random UUID, on a copy of the request. The server
      does the work of a request_id once, so a call that carries one may be sent again.
    - Calls that only read, and calls that carry a request_id, are sent up to five times within
      about 1.5 s while the server is UNAVAILABLE: a quick restart goes unnoticed. The others
      (update, delete, clear, purge, lease, import) are sent once.
    - A program that repeats a call itself, say after its own restart, sets the request_id
      itself, to the same value each time.

    It does not connect before the first call: where there is no server, that one fails with
    UNAVAILABLE. Messages may have 4 MiB in either direction. A connection that has been silent
    for 30 s is checked, and given up after another 10 s.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        plaintext: bool | None = None,
        options: Sequence[tuple[str, Any]] = (),
        compression: grpc.Compression | None = None,
    ) -> None:
        """Make a client of the server at target; see :meth:`close`.

        Args:
            target: "host:port", "unix:PATH", or any other target that gRPC can resolve.
            credentials: For TLS; the system's certificates unless set.
            plaintext: Whether to do without TLS. Unless set, a target on this machine (a
                loopback address, localhost or a Unix socket) is spoken to in plaintext if there
                are no credentials, and any other with TLS.
            options: More options of the channel, as gRPC knows them; they replace the defaults.
            compression: How to compress what is sent.

        """
        if plaintext is None:
            plaintext = credentials is None and is_local(target)
        settings = channel_options(target, options)
        if plaintext:
            channel = grpc.insecure_channel(target, settings, compression)
        else:
            credentials = credentials or grpc.ssl_channel_credentials()
            channel = grpc.secure_channel(target, credentials, settings, compression)
        self._channel = channel
        PINS.add(channel)
        super().__init__(
            ConversationServiceStub(channel),
            InteractionLogServiceStub(channel),
            AdminServiceStub(channel),
        )

    def close(self) -> None:
        """End the connection; calls that are under way fail with CANCELLED.

        Turns that they began go on at the server, unless they asked for ON_DISCONNECT_CANCEL.
        """
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def chat(self, request: ChatRequest, **options: Unpack[CallOptions]) -> Stream[TurnEvent]:
        """Say something and stream the events of the turn as they come.

        First queued while the turn waits for others, started once the user's message is
        durable, then the pieces of the answer, and last finished once the answer is durable.
        Whatever became of the turn, failed included, is in finished; it is not an error.

        What the caller sees is one unbroken stream: where the connection breaks, or the server
        restarts, the client asks again and goes on where it was. Indexes rise, nothing comes
        twice, no text is missing or doubled. It helps to know that:

        - Where the server no longer has the events one by one, the text comes in larger
          pieces, indexes are left out, and so may be notes of progress and messages that the
          history has dropped.
        - A crash of the server may cost up to a second of text that was shown already. The
          messages in finished are what is kept.
        - Who waits in a queue and loses the connection may have to line up again: before
          started, the turn_id may change, and the indexes begin at 1 again.
        - With ON_DISCONNECT_CANCEL a break stops the turn, and that is what finished says.
        - started.replayed is never set when request_id was empty: the turn is a new one then.
          With an id of the caller's own it may only mean that the client asked twice.

        The loop ends with an error when the call was refused; the turn is gone (NOT_FOUND); the
        timeout is over; no server was there at first (UNAVAILABLE, after about 1.5 s); or there
        has been nothing new for a minute, though the client went on asking, with the status of
        the last attempt, or UNKNOWN where the server ends streams without finished. Time that
        the loop's body takes counts for the timeout only.

        Leaving the loop ends the stream, see :class:`Stream`. The turn goes on at the server
        unless request.on_disconnect is ON_DISCONNECT_CANCEL.
        """
        return self._turn(request, options)

    def resume_turn(
        self, request: ResumeTurnRequest, **options: Unpack[CallOptions]
    ) -> Stream[TurnEvent]:
        """Stream the events of a turn behind request.after_index, whether it runs or has ended.

        It is one unbroken stream; all that :meth:`chat` says of that holds here too. It is
        empty when after_index is that of the last event. An empty turn_id is the turn that
        runs, else the newest, when the first event comes.

        From 0 it works as long as the turn is kept. From elsewhere it may end with
        OUT_OF_RANGE, EVENTS_GONE: the events are no longer kept one by one, and how much of a
        message's text the caller has is not known here. Then show the turn from 0 anew, or cut
        its text with the help of TextDelta.offset.
        """
        return self._turn(request, options)

    def watch_conversations(
        self, request: WatchConversationsRequest, **options: Unpack[CallOptions]
    ) -> Stream[ConversationChange]:
        """Stream changes as they are committed, behind request.cursor, else from now on.

        It does not end by itself, see :class:`Stream`.

        What the caller sees is one stream: where the connection breaks, or the server restarts,
        it is asked again and goes on behind the last change, so that nothing is missing and
        nothing comes twice. It helps to know that:

        - A HEARTBEAT is handed on like the rest. The first one says that the watch stands, with
          request.delete_after_disconnect in force; then one comes after every 15 s of silence,
          and one more each time that the stream has been opened anew. The cursor of each
          change, heartbeats included, is where another watch can go on, say after the caller's
          restart.
        - A GAP says that changes are missing: the server no longer has them, has restarted, or
          the caller has taken too long for what came before. Read the state anew, then go on;
          what is committed after the GAP comes behind it, so nothing falls between.
        - Events of turns have no place in that order: of those that fall into a break none
          come. Their index and offset tell, and :meth:`resume_turn` has the whole turn.
        - To the server a break is a disconnect: session memory that is to outlive one needs a
          delete_after_disconnect of some seconds. Two minutes outlive any that is gone on with.

        The loop ends with an error when the watch was refused; the timeout is over; no server
        was there at first (UNAVAILABLE, after about 1.5 s); or the server has not answered for
        a minute, though it was asked again and again, with the status of the last attempt, or
        UNKNOWN where it ends each stream without a word. Over its limit of watchers
        (TOO_MANY_WATCHERS) a server refuses a new watch; one that it had let in before tries
        for that minute, since its own broken stream may still be counted. Time that the loop's
        body takes counts for the timeout only.
        """
        line = SyncLine(self._channel)

        def open_call(request: WatchConversationsRequest, timeout: float | None) -> Call:
            with self._opening():
                each = for_grpc(options, timeout)
                call = self._conversations.WatchConversations(request, **each)
                line.open()
                return call

        patience = Patience(line, wait_for_ready=bool(options.get("wait_for_ready")))
        course = WatchCourse(request, patience)
        return Stream(course, open_call, options.get("timeout"))

    def _turn(
        self, request: ChatRequest | ResumeTurnRequest, options: CallOptions
    ) -> Stream[TurnEvent]:
        line = SyncLine(self._channel)

        def open_call(request: ChatRequest | ResumeTurnRequest, timeout: float | None) -> Call:
            with self._opening():
                each = for_grpc(options, timeout)
                if isinstance(request, ChatRequest):
                    call: Call = self._conversations.Chat(request, **each)
                else:
                    call = self._conversations.ResumeTurn(request, **each)
                line.open()
                return call

        patience = Patience(line, wait_for_ready=bool(options.get("wait_for_ready")))
        course = TurnCourse(request, patience)
        return Stream(course, open_call, options.get("timeout"))
