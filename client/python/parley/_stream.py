"""Streams of the sync client."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc

from parley._error import Error, from_rpc
from parley._exit import RETAINED_AT_EXIT
from parley._options import explain_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from google.protobuf.message import Message
    from typing_extensions import Self

    from parley._resumption import Resumption
    from parley._sign_in import SyncAttempts

S = TypeVar("S")


class Call(Protocol):
    """The part of a gRPC call that a stream uses."""

    def __next__(self) -> Any:  # noqa: ANN401 - Resumption has the type
        """Wait for the next reply."""
        ...

    def cancel(self) -> bool:
        """Cancel the call."""
        ...


class Stream(Generic[S]):
    """A stream of events for one loop.

    The call begins with the first step of the loop. It ends at once when the caller leaves the
    loop and nothing refers to the stream, at the end of a ``with`` block, and with :meth:`close`.
    A stream that fails raises :class:`parley.Error` and has then ended.

    Only one thread at a time may loop over it.
    """

    def __init__(
        self,
        resumption: Resumption[Any, Any, S],
        open_call: Callable[[Any, dict[str, Any]], Call],
        attempts: SyncAttempts,
    ) -> None:
        """Make a stream; only the methods of a client do so.

        Args:
            resumption: It chooses the requests and decides when the stream resumes.
            open_call: It starts a call with a request and the arguments for gRPC.
            attempts: The options and the sign-in of the calls. The timeout limits the loop.

        """
        self._watchdog = Watchdog()
        self._lock = threading.RLock()  # guards _call; garbage collection may run inside
        self._closed = threading.Event()
        self._call: Call | None = None
        self._request: Message | None = None  # of the newest call
        self._resumption = resumption
        self._open_call = open_call
        self._attempts = attempts
        self._deadline: float | None = None  # Set by the first call.
        RETAINED_AT_EXIT.add(self)

    def __iter__(self) -> Iterator[S]:
        """Return the stream itself."""
        return self

    def __next__(self) -> S:
        """Wait for the next event."""
        self._resumption.reader_returned()
        try:
            while not self._closed.is_set():
                reply, error = self._receive()
                if reply is not None:
                    self._attempts.accepted()
                    if (item := self._resumption.accept(reply)) is not None:
                        return item
                elif error and self._sign_in_again(error):
                    self._call = None
                elif (
                    self._closed.is_set() or (delay := self._resumption.retry_delay(error)) is None
                ):
                    break
                else:
                    self._call = None
                    self._closed.wait(min(delay, self._remaining()))
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the stream and a loop over it. Any thread may call it."""
        with self._lock:
            self._closed.set()
            if self._call:
                self._call.cancel()
        self._watchdog.close()
        self._resumption.close()

    def __enter__(self) -> Self:
        """Return the stream itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        self.close()

    def __del__(self) -> None:
        """Close the stream."""
        self.close()

    def _receive(self) -> tuple[Any, Error | None]:
        """Wait for a reply; start a call if there is none. None as reply ends the call."""
        call, expired = self._call, threading.Event()
        # An exception of the function that returns the token is not that of a call.
        arguments = {} if call else self._arguments()
        try:
            call = call or self._start_call(arguments)
            with self._watchdog.watch(self._resumption.receive_timeout(), expired, call.cancel):
                return next(call), None
        except StopIteration:
            return None, None
        except grpc.RpcError as error:
            # The call itself is the exception. Its traceback would refer to this frame, hence
            # to the call and the stream: only the garbage collector would end the stream.
            error.__traceback__ = None
            if expired.is_set():
                return None, self._resumption.silence_error()
            return None, explain_size(from_rpc(error), self._request)

    def _arguments(self) -> dict[str, Any]:
        if self._deadline is None:
            self._deadline = self._attempts.deadline()
        return self._attempts.arguments(self._deadline)

    def _start_call(self, arguments: dict[str, Any]) -> Call:
        self._request = self._resumption.next_request()
        call = self._open_call(self._request, arguments)
        with self._lock:
            self._call = call
            if self._closed.is_set():
                call.cancel()
        return call

    def _sign_in_again(self, error: Error) -> bool:
        """Report whether to make another call, because there is another token."""
        possible = not self._closed.is_set() and self._resumption.may_sign_in_again()
        return possible and self._attempts.replace(error)

    def _remaining(self) -> float:
        return max(0, (self._deadline or 0) - time.monotonic())


class Watchdog:
    """Cancels a call that stays silent for too long. gRPC has no such limit.

    Its thread starts with the first watch and ends with close.
    """

    def __init__(self) -> None:
        """Begin without a watch."""
        self._changed = threading.Condition()  # guards the fields below
        self._deadline = math.inf  # Of the current watch.
        self._wake_time = math.inf  # When the thread next checks, unless it is notified.
        self._expired = threading.Event()
        self._on_expiry: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(
        self, seconds: float, expired: threading.Event, on_expiry: Callable[[], object]
    ) -> Self:
        """Start a watch; its with block ends it. After the seconds, set expired, call on_expiry."""
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._expired, self._on_expiry = expired, on_expiry
            if self._thread is None and self._deadline < math.inf:
                self._thread = threading.Thread(target=self._run, name="parley", daemon=True)
                self._thread.start()
            elif self._deadline < self._wake_time:
                self._changed.notify()
        return self

    def __enter__(self) -> None:
        """Do nothing: watch has started the watch."""

    def __exit__(self, *_: object) -> None:
        """End the watch. The thread notices it at its next check."""
        with self._changed:
            self._deadline, self._on_expiry = math.inf, None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                remaining = self._deadline - time.monotonic()
                if remaining <= 0 and self._on_expiry:
                    self._expired.set()
                    self._on_expiry()
                    self._deadline, self._on_expiry = math.inf, None
                    continue
                self._wake_time = self._deadline
                self._changed.wait(None if remaining == math.inf else remaining)
