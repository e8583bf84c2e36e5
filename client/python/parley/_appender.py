"""The appender of the sync client."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import grpc

from parley._append_queue import (
    END_DELAY,
    Append,
    AppendQueue,
    breaks_stream,
    check_resumable,
    closed_error,
    envelope_of,
    interrupted_error,
    outcome_of,
    stream_error,
    unexpected_reply,
)
from parley._error import Error, from_rpc
from parley._exit import RETAINED_AT_EXIT
from parley._options import too_large
from parley._retry import silence_limit
from parley._stream import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Self

    from parley._retry import Retry
    from parley._sign_in import SyncAttempts
    from parley._stream import Call
    from parley.v1.conversation_service_pb2 import (
        AppendMessagesRequest,
        AppendMessagesResponse,
        AppendStreamRequest,
        AppendStreamResponse,
    )

    Reply: TypeAlias = Future[AppendMessagesResponse]


class Appender:
    """Appends messages over one stream, without waiting for a reply before the next request.

    Any number of threads may share it. See :meth:`parley.Client.appender`.
    """

    def __init__(
        self,
        open_call: Callable[[Iterator[AppendStreamRequest], dict[str, Any]], Call],
        attempts: SyncAttempts,
        retry: Retry,
    ) -> None:
        """Make an appender; only the method of a client does so.

        Args:
            open_call: It starts a call with requests and the arguments for gRPC.
            attempts: The options and the sign-in of the calls.
            retry: It decides when there is another call. Only the appender's thread uses it.

        """
        self._open_call = open_call
        self._attempts = attempts
        self._retry = retry
        self._watchdog = Watchdog()
        self._turn = threading.Lock()  # One append at a time waits for space.
        self._lock = threading.Lock()  # guards the fields below
        self._work = threading.Condition(self._lock)  # There is a request to send, or an end.
        self._changed = threading.Condition(self._lock)  # The queue is shorter, or an end.
        self._queue: AppendQueue[Reply] = AppendQueue()
        self._thread: threading.Thread | None = None  # It alone answers and removes requests.
        self._stream = 0  # The number of the current stream.
        self._call: Call | None = None  # of the current stream
        self._expired = threading.Event()  # The current stream was silent for too long.
        self._closed = False  # No request follows.
        self._interrupted = False  # The caller does not wait for replies.
        self._failure: BaseException | None = None
        self._accepted = False  # The server has answered a request. Only the thread uses it.
        RETAINED_AT_EXIT.add(self)

    def append(self, request: AppendMessagesRequest) -> Reply:
        """Send a request and return the future of its reply, at once if there is space.

        It first waits while 1024 requests, 4 MiB of requests, or 16 requests for the same
        conversation are without a reply. Requests are sent in the order of the calls. The appender
        copies the request, and sets request_id if it is empty.

        The future raises the :class:`parley.Error` that append_messages would raise. It cannot be
        cancelled. Its callbacks run in the thread of the appender, so they must not block.

        Raises:
            Error: The appender has failed or is closed.
            RuntimeError: A callback of a future called append, and there is no space.

        """
        envelope = envelope_of(request)
        append: Append[Reply] = Append(envelope, envelope.ByteSize(), Future())
        append.future.set_running_or_notify_cancel()
        if error := too_large(append.size):
            append.future.set_exception(error)
            return append.future
        if threading.current_thread() is self._thread:
            self._add(append)
        else:
            with self._turn:
                self._add(append)
        return append.future

    def flush(self) -> None:
        """Wait until all requests so far have a reply.

        Raises:
            Error: The appender has failed. The errors of single requests are in their futures.

        """
        self._check_thread()
        with self._lock:
            number = self._queue.added
            while not (self._failure or self._queue.has_answered(number)):
                self._changed.wait()
            if self._failure:
                raise self._failure

    def close(self) -> None:
        """Wait until all requests have a reply, and end the stream. It may be called again.

        If an exception such as KeyboardInterrupt ends the wait, the requests without a reply fail
        with CANCELLED. The server may have stored their messages.

        Raises:
            Error: The appender has failed. The errors of single requests are in their futures.

        """
        self._check_thread()
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._changed.notify_all()
            if self._call and not len(self._queue):
                self._watchdog.watch(END_DELAY, self._expired, self._call.cancel)
        try:
            self.flush()
        except BaseException:
            self._interrupt()
            raise
        finally:
            if self._thread:
                self._thread.join()

    def __enter__(self) -> Self:
        """Return the appender itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the appender."""
        self.close()

    def _add(self, append: Append[Reply]) -> None:
        with self._lock:
            while not (self._failure or self._closed or self._queue.has_space(append)):
                self._check_thread()
                self._changed.wait()
            if self._failure or self._closed:
                raise self._failure or closed_error()
            if self._call and not len(self._queue):
                # So far the thread waits for a reply without a limit.
                self._watchdog.watch(silence_limit(), self._expired, self._call.cancel)
            self._queue.add(append)
            self._work.notify_all()
            if not self._thread:
                self._thread = threading.Thread(target=self._run, name="parley", daemon=True)
                self._thread.start()

    def _interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            if self._call:
                self._call.cancel()
            self._work.notify_all()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of a future must not wait for the appender")

    # The rest runs in the thread, except _requests.

    def _run(self) -> None:
        """Send requests and receive replies, over as many streams as it takes."""
        failure: BaseException = interrupted_error()
        try:
            deadline = self._attempts.deadline()
            while self._wait_for_requests():
                self._prepare_next(self._attempt(deadline), deadline)
        except BaseException as error:  # noqa: BLE001 - the futures raise it
            failure = error
        self._watchdog.close()
        self._retry.close()
        with self._lock:
            if len(self._queue):
                self._failure = failure
            futures = self._queue.remove_all()
        for future in futures:
            future.set_exception(failure)
        with self._lock:
            self._changed.notify_all()

    def _wait_for_requests(self) -> bool:
        """Wait until the next stream has a request to send. Return False at the end."""
        with self._lock:
            while not (self._closed or len(self._queue)):
                self._work.wait()
            return len(self._queue) > 0 and not self._interrupted

    def _attempt(self, deadline: float) -> Error | None:
        """Open a stream and use it to its end. Return its error, or None."""
        # An exception of the function that returns the token is not that of a call.
        arguments = self._attempts.arguments(deadline)
        expired = threading.Event()
        try:
            call = self._open_stream(arguments, expired)
            while not (error := self._accept(self._receive(call, expired))):
                pass
        except StopIteration:
            return None
        except grpc.RpcError as error:
            return self._retry.silence_error() if expired.is_set() else from_rpc(error)
        else:
            call.cancel()
            return error
        finally:
            with self._lock:
                self._call = None
                self._stream += 1  # It ends the iterator of the requests.
                self._queue.begin_stream()
                self._work.notify_all()

    def _open_stream(self, arguments: dict[str, Any], expired: threading.Event) -> Call:
        self._retry.begin_attempt()
        call = self._open_call(self._requests(self._stream), arguments)
        with self._lock:
            self._call, self._expired = call, expired
            if self._interrupted:
                call.cancel()
        return call

    def _requests(self, stream: int) -> Iterator[AppendStreamRequest]:
        """Yield the requests of a stream. gRPC runs this in another thread."""
        while True:
            with self._lock:
                while not (self._closed or self._queue.has_unsent() or stream != self._stream):
                    self._work.wait()
                if stream != self._stream or not self._queue.has_unsent():
                    return
                request = self._queue.next_unsent()
            yield request

    def _receive(self, call: Call, expired: threading.Event) -> AppendStreamResponse:
        """Wait for the next reply."""
        with self._lock:
            if (since := self._queue.waiting_since) < math.inf:
                self._retry.extend_deadline(since)
                limit = self._retry.receive_timeout()
            else:
                limit = END_DELAY if self._closed else math.inf
            watch = self._watchdog.watch(limit, expired, call.cancel)
        with watch:
            reply: AppendStreamResponse = next(call)
        return reply

    def _accept(self, reply: AppendStreamResponse) -> Error | None:
        """Answer a request. Return the error if the stream must not be used after this reply."""
        self._attempts.accepted()
        self._retry.note_message()
        self._accepted = True
        outcome = outcome_of(reply)
        if isinstance(outcome, Error) and breaks_stream(outcome):
            return outcome
        with self._lock:
            future = self._queue.take_answered()
        if not future:
            return unexpected_reply()
        self._retry.progress = True
        self._retry.reset_deadline()
        # It runs the callbacks, so it comes after the request has left its space to others.
        if isinstance(outcome, Error):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        with self._lock:
            self._queue.note_answered()
            self._changed.notify_all()
        return None

    def _prepare_next(self, error: Error | None, deadline: float) -> None:
        """Wait until the next stream may begin. Raise the error if there must be none."""
        with self._lock:
            since = self._queue.waiting_since
            if self._interrupted or since == math.inf:
                return  # Without requests the end of the stream does not matter.
        error = stream_error(error)
        if self._attempts.replace(error):
            return
        check_resumable(error, accepted=self._accepted)
        self._retry.extend_deadline(since)
        until = min(time.monotonic() + self._retry.next_delay(error), deadline)
        with self._lock:
            while not self._interrupted and (remaining := until - time.monotonic()) > 0:
                self._work.wait(remaining)
