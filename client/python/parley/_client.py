"""The sync client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from parley._append_queue import FIRST_ATTEMPTS
from parley._appender import Appender
from parley._calls import Calls
from parley._connectivity import SyncConnectivity
from parley._exit import RETAINED_AT_EXIT
from parley._options import CallOptions, channel_options
from parley._resumption import Follower, Watcher
from parley._retry import Retry
from parley._sign_in import SignIn, SyncAttempts
from parley._stream import Call, Stream
from parley._tls import channel_credentials
from parley.v1.admin_service_pb2_grpc import AdminServiceStub
from parley.v1.conversation_service_pb2 import (
    ChatRequest,
    ConversationChange,
    ResumeTurnRequest,
    WatchConversationsRequest,
)
from parley.v1.conversation_service_pb2_grpc import ConversationServiceStub
from parley.v1.interaction_log_service_pb2_grpc import InteractionLogServiceStub
from parley.v1.record_service_pb2_grpc import RecordServiceStub

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from parley.v1.conversation_service_pb2 import AppendStreamRequest
    from parley.v1.turn_pb2 import TurnEvent


class Client(Calls):
    """A connection to one Parley server. Any number of threads may share it.

    :meth:`appender` appends many messages over one stream. :meth:`records` and
    :meth:`tenant_records` read and write records.

    Three methods stream. :meth:`chat` sends a message to an agent and streams its answer.
    :meth:`resume_turn` streams a turn that has begun before. :meth:`watch_conversations` streams
    the changes of conversations. They reconnect and resume automatically if the connection breaks
    or the server restarts. Every other method is one call.

    These rules hold for all methods:

    - If request_id is empty, the client sets it to a random UUID, on a copy of the request. The
      server executes a request_id once, so the client may send such a call again.
    - Calls that only read, and calls with a request_id, are sent up to five times within about
      1.5 s while the server is UNAVAILABLE. A quick restart of the server stays unnoticed. The
      other calls (update, delete, purge, lease, import) are sent once.
    - A program that repeats a call itself, for example after its own restart, must set
      request_id itself, to the same value each time.

    The client does not connect before the first call. If there is no server, that call fails with
    UNAVAILABLE. The limit of a message is 4 MiB in each direction. The client pings a connection
    that has been silent for 30 s, and closes it if there is no answer within 10 s.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        plaintext: bool | None = None,
        token: str | Callable[[], str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tenant: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        options: Sequence[tuple[str, Any]] = (),
        compression: grpc.Compression | None = None,
    ) -> None:
        """Make a client of the server at target. Call :meth:`close` when it is no longer needed.

        Args:
            target: "host:port", "unix:PATH", or any other target that gRPC can resolve.
            credentials: The credentials for TLS, instead of the three files.
            plaintext: Whether to connect without TLS. If None, the connection is plaintext if
                target is a loopback address, localhost or a Unix socket, and there are neither
                credentials nor files of certificates. Otherwise it uses TLS. With True, a token is
                sent in plaintext, also to another machine.
            token: The token to sign in with, or a function that returns it. The client calls the
                function for each attempt of each call, perhaps in several threads at once. So it
                should cache the token, and get another one before it expires. The call raises an
                exception of the function unchanged.
            token_file: The file of the token. White space around the token is ignored. The client
                reads the file again when it has changed, or when the server refuses its token.
                If the file is missing or not valid for a time, the last token remains in use.
            tenant: The tenant that each call names. Only callers with several tenants need it.
            ca_file: The certificates of the authorities to trust, as PEM. If not set, those of
                gRPC, which are the usual public ones.
            cert_file: The client certificate, with its intermediates, as PEM.
            key_file: The private key of the client certificate, as PEM, not encrypted.
            options: gRPC channel options, applied after the defaults; they override them.
            compression: The compression of the requests.

        If token and token_file are both None, they are read from the environment: PARLEY_TOKEN or
        PARLEY_TOKEN_FILE. PARLEY_TENANT, PARLEY_TLS_CA_FILE, and the pair PARLEY_TLS_CERT_FILE and
        PARLEY_TLS_KEY_FILE are read in the same way. With credentials or plaintext=True the client
        ignores the files of certificates in the environment. An empty string means "none", also if
        the environment has a value. Only the constructor reads the files of certificates.

        Raises:
            ValueError: Arguments are not valid or contradict each other. The text does not contain
                the token.
            OSError: A file cannot be read.

        """
        sign_in = SignIn(token, token_file, tenant)
        credentials = channel_credentials(
            target, credentials, plaintext, ca_file, cert_file, key_file
        )
        settings = channel_options(target, options)
        if credentials:
            channel = grpc.secure_channel(target, credentials, settings, compression)
        else:
            channel = grpc.insecure_channel(target, settings, compression)
        self._channel = channel
        RETAINED_AT_EXIT.add(channel)
        super().__init__(
            ConversationServiceStub(channel),
            InteractionLogServiceStub(channel),
            AdminServiceStub(channel),
            RecordServiceStub(channel),
            sign_in,
        )

    def close(self) -> None:
        """Close the connection. Calls in progress fail with CANCELLED.

        The turns that they started continue on the server, unless their requests set
        ON_DISCONNECT_CANCEL.
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
        """Send a user's message and stream the events of the turn.

        The first events are queued, while the turn waits for other turns, and started, once the
        user's message is durable. The pieces of the answer follow. The last event is finished,
        once the answer is durable. Finished contains the turn's final state. A failed turn is not
        an error.

        The caller sees one uninterrupted stream. If the connection breaks or the server restarts,
        the client reconnects and resumes after the last event. Indexes increase, no event is
        repeated, and no text is missing or doubled. There are these limits:

        - If the server no longer has the single events, text and reasoning arrive in larger
          pieces. Some indexes are then left out, and so may be progress notes, deltas of tool
          calls, records and messages that the history has dropped.
        - A crash of the server may lose up to one second of text that the caller has already
          received. The messages in finished are the stored ones.
        - A turn that loses its connection while it is queued may lose its position in the queue.
          The turn_id may then change before started, and the indexes begin at 1 again.
        - With ON_DISCONNECT_CANCEL a broken connection cancels the turn, and finished says so.
        - If request_id is empty, started.replayed is never set, because the turn is a new one. If
          the caller sets request_id, started.replayed may only mean that the client sent the
          request twice.

        The loop raises an error when

        - the server refuses the call,
        - the turn no longer exists (NOT_FOUND),
        - the timeout has passed,
        - no server could be reached at first (UNAVAILABLE, after about 1.5 s), or
        - no new event arrived for one minute, although the client kept retrying. The error is
          that of the last attempt, or UNKNOWN if the server ends streams without finished.

        The time that the loop's body takes counts only for the timeout.

        The stream ends when the caller leaves the loop, see :class:`Stream`. The turn continues
        on the server unless request.on_disconnect is ON_DISCONNECT_CANCEL.
        """
        return self._turn(request, options)

    def resume_turn(
        self, request: ResumeTurnRequest, **options: Unpack[CallOptions]
    ) -> Stream[TurnEvent]:
        """Stream the events of a turn after request.after_index.

        The turn may be running or have ended. Everything that :meth:`chat` guarantees for its
        stream holds here too. The stream is empty if after_index is the index of the last event.
        If turn_id is empty, the turn is the running one, or the newest one if none runs; it is
        chosen when the first event arrives.

        With after_index 0 it works as long as the server keeps the turn. With another after_index
        it may end with OUT_OF_RANGE, EVENTS_GONE: the server no longer has the single events, and
        the client does not know how much of a message the caller has. Then show the turn from
        index 0 again, or use the offsets of deltas to cut what you have. After such a restart at
        the beginning, deltas of the arguments of a tool call may repeat what the caller has; their
        offset says where each belongs.
        """
        return self._turn(request, options)

    def watch_conversations(
        self, request: WatchConversationsRequest, **options: Unpack[CallOptions]
    ) -> Stream[ConversationChange]:
        """Stream the changes of conversations as they are committed.

        The changes begin after request.cursor or, if it is empty, with the next commit. The stream
        has no end of its own, see :class:`Stream`.

        The caller sees one stream. If the connection breaks or the server restarts, the client
        reconnects and resumes after the last change, so that no change is missing and none is
        repeated. There are these limits:

        - The stream includes each HEARTBEAT. The first one confirms that the watch is active,
          with request.delete_after_disconnect in force. Another one follows after each 15 s
          without a change, and each time the stream is opened again. Every change, heartbeats
          included, has a cursor from which another watch can resume, for example after the caller
          restarts.
        - A GAP means that changes are missing, because the server no longer has them, has
          restarted, or the caller was too slow to read earlier changes. Read the state again,
          then continue. Changes that are committed after the GAP follow it, so none is lost
          between.
        - Events of turns are not part of that order. The events of turns during a break are lost.
          Index and offset of the later events show this, and :meth:`resume_turn` returns the
          complete turn.
        - For the server a break is a disconnect. An ephemeral conversation that must survive a
          break needs a delete_after_disconnect of some seconds. Two minutes are longer than any
          break after which the client resumes.

        The loop raises an error when

        - the server refuses the watch,
        - the timeout has passed,
        - no server could be reached at first (UNAVAILABLE, after about 1.5 s), or
        - the server sent nothing for one minute, although the client kept retrying. The error is
          that of the last attempt, or UNKNOWN if the server ends each stream without a message.

        The time that the loop's body takes counts only for the timeout.

        At its limit of watchers the server refuses a new watch (TOO_MANY_WATCHERS). A watch that
        the server accepted before retries for that minute, because the server may still count its
        broken stream.
        """
        connectivity = SyncConnectivity(self._channel)

        def open_call(request: WatchConversationsRequest, arguments: dict[str, Any]) -> Call:
            with self._raising_if_closed():
                call = self._conversations.WatchConversations(request, **arguments)
                connectivity.open()
                return call

        retry = Retry(connectivity, wait_for_ready=bool(options.get("wait_for_ready")))
        resumption = Watcher(request, retry)
        return Stream(resumption, open_call, SyncAttempts(self._sign_in, options))

    def appender(self, **options: Unpack[CallOptions]) -> Appender:
        """Return an appender, which appends messages over one stream, many at the same time.

        :meth:`Appender.append` returns a future, so the next request does not wait for the reply.
        Requests are sent in the order of the calls. That costs the server less than a call for
        each. The stream begins with the first request. The end of a ``with`` block waits for all
        replies, as do :meth:`Appender.flush` and :meth:`Appender.close`. Close each appender: it
        has a thread.

        If the connection breaks or the server restarts, the appender reconnects and sends the
        requests without a reply again, in their order and with the same request_id. So each
        message is stored once, and the messages of a conversation in their order. A reply with
        replayed may only mean that the appender sent the request twice.

        The server refuses single requests, for example one that is not valid. Only the future of
        that request raises the error; the others are not affected. The appender fails, and all
        futures without a reply raise its error, when

        - the server refuses the stream,
        - the timeout has passed, which limits the appender from its first request,
        - no server could be reached at first (UNAVAILABLE, after about 1.5 s),
        - no reply arrived for one minute, although requests were under way and the appender kept
          retrying, or
        - the client is closed (CANCELLED).

        The server may have stored the messages of such a request. To repeat it without storing
        them twice, set request_id yourself.
        """
        connectivity = SyncConnectivity(self._channel)

        def open_call(requests: Iterator[AppendStreamRequest], arguments: dict[str, Any]) -> Call:
            with self._raising_if_closed():
                call: Call = self._conversations.AppendStream(requests, **arguments)
                connectivity.open()
                return call

        waits = bool(options.get("wait_for_ready"))
        retry = Retry(connectivity, wait_for_ready=waits, first_attempts=FIRST_ATTEMPTS)
        return Appender(open_call, SyncAttempts(self._sign_in, options), retry)

    def _turn(
        self, request: ChatRequest | ResumeTurnRequest, options: CallOptions
    ) -> Stream[TurnEvent]:
        connectivity = SyncConnectivity(self._channel)

        def open_call(request: ChatRequest | ResumeTurnRequest, arguments: dict[str, Any]) -> Call:
            with self._raising_if_closed():
                if isinstance(request, ChatRequest):
                    call: Call = self._conversations.Chat(request, **arguments)
                else:
                    call = self._conversations.ResumeTurn(request, **arguments)
                connectivity.open()
                return call

        retry = Retry(connectivity, wait_for_ready=bool(options.get("wait_for_ready")))
        resumption = Follower(request, retry)
        return Stream(resumption, open_call, SyncAttempts(self._sign_in, options))
