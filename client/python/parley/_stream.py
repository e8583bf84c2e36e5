"""Streams of the sync client."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc

from parley._error import Error, from_rpc
from parley._exit import PINS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from parley._course import Course

S = TypeVar("S")


class Call(Protocol):
    """What a driver uses of a call of gRPC's."""

    def __next__(self) -> Any:  # noqa: ANN401 - its course knows
        """Wait for the next reply."""
        ...

    def cancel(self) -> bool:
        """End the call."""
        ...


class Stream(Generic[S]):
    """A stream of events, to be looped over once.

    The call begins with the first step of the loop. It ends at once when the loop is left and
    nothing refers to the stream any more, at the end of a ``with`` block, and with
    :meth:`close`. A stream that fails raises :class:`parley.Error` and is over then.

    One thread at a time may loop over it.
    """

    def __init__(
        self,
        course: Course[Any, Any, S],
        open_call: Callable[[Any, float | None], Call],
        timeout: float | None,
    ) -> None:
        """Streams come from the methods of a client.

        The course says what to ask; open_call asks it, with the seconds that are left; timeout
        is how many there are.
        """
        self._watchdog = Watchdog()
        self._lock = threading.RLock()  # guards _call; garbage may be collected inside
        self._closed = threading.Event()
        self._call: Call | None = None
        self._course = course
        self._open_call = open_call
        self._timeout = timeout
        self._deadline = math.inf  # Set when the loop begins.
        PINS.add(self)

    def __iter__(self) -> Iterator[S]:
        """Return the stream itself."""
        return self

    def __next__(self) -> S:
        """Wait for the next event."""
        self._course.resume()
        try:
            while not self._closed.is_set():
                reply, error = self._receive()
                if reply is not None:
                    if (shown := self._course.take(reply)) is not None:
                        return shown
                elif self._closed.is_set() or (delay := self._course.end(error)) is None:
                    break
                else:
                    self._call = None
                    self._closed.wait(min(delay, self._left()))
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the stream, and the loop over it if there is one. Any thread may close it."""
        with self._lock:
            self._closed.set()
            if self._call:
                self._call.cancel()
        self._watchdog.close()
        self._course.close()

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
        """Wait for a reply, of a new call if there is none; None: the call has ended."""
        call, silent = self._call, threading.Event()
        try:
            call = call or self._ask()
            with self._watchdog.watch(self._course.left(), silent, call.cancel):
                return next(call), None
        except StopIteration:
            return None, None
        except grpc.RpcError as error:
            return None, self._course.silence() if silent.is_set() else from_rpc(error)

    def _ask(self) -> Call:
        if self._timeout is not None and self._deadline == math.inf:
            self._deadline = time.monotonic() + self._timeout
        left = None if self._timeout is None else self._left()
        call = self._open_call(self._course.ask(), left)
        with self._lock:
            self._call = call
            if self._closed.is_set():
                call.cancel()
        return call

    def _left(self) -> float:
        return max(0, self._deadline - time.monotonic())


class Watchdog:
    """Ends a call that stays silent for too long; gRPC has no such limit.

    Its thread starts with the first watch and ends with close.
    """

    def __init__(self) -> None:
        """Begin without a watch."""
        self._changed = threading.Condition()  # guards the rest
        self._until = math.inf  # When to bark.
        self._wakes = math.inf  # When the thread looks next, unless it is notified.
        self._silent = threading.Event()
        self._bark: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, seconds: float, silent: threading.Event, bark: Callable[[], object]) -> Self:
        """Begin to watch; unless the with block ends in that time, set silent and call bark."""
        with self._changed:
            self._until = time.monotonic() + seconds
            self._silent, self._bark = silent, bark
            if self._thread is None and self._until < math.inf:
                self._thread = threading.Thread(target=self._run, name="parley", daemon=True)
                self._thread.start()
            elif self._until < self._wakes:
                self._changed.notify()
        return self

    def __enter__(self) -> None:
        """Do nothing: the watch has begun."""

    def __exit__(self, *_: object) -> None:
        """End the watch; the thread finds out when it looks."""
        with self._changed:
            self._until, self._bark = math.inf, None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                left = self._until - time.monotonic()
                if left <= 0 and self._bark:
                    self._silent.set()
                    self._bark()
                    self._until, self._bark = math.inf, None
                    continue
                self._wakes = self._until
                self._changed.wait(None if left == math.inf else left)
