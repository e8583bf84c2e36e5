"""Streams of the asyncio client."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc

from parley._error import Error, from_rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from typing_extensions import Self

    from parley._course import Course

S = TypeVar("S")


class AsyncCall(Protocol):
    """What a driver uses of a call of gRPC's."""

    async def read(self) -> Any:  # noqa: ANN401 - its course knows
        """Wait for the next reply; EOF: there is none."""
        ...

    def cancel(self) -> bool:
        """End the call."""
        ...


class AsyncStream(Generic[S]):
    """A stream of events, to be looped over once with ``async for``.

    The call begins with the first step of the loop. It ends at once when the loop is left and
    nothing refers to the stream any more, when the task that loops is cancelled, at the end of
    an ``async with`` block, and with :meth:`aclose`. A stream that fails raises
    :class:`parley.Error` and is over then.
    """

    def __init__(
        self,
        course: Course[Any, Any, S],
        open_call: Callable[[Any, float | None], AsyncCall],
        timeout: float | None,
    ) -> None:
        """Streams come from the methods of a client.

        The course says what to ask; open_call asks it, with the seconds that are left; timeout
        is how many there are.
        """
        self._loop: asyncio.AbstractEventLoop | None = None  # of the call
        self._call: AsyncCall | None = None
        self._closed = asyncio.Event()
        self._course = course
        self._open_call = open_call
        self._timeout = timeout
        self._deadline = math.inf  # Set when the loop begins.

    def __aiter__(self) -> AsyncIterator[S]:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> S:
        """Wait for the next event."""
        self._course.resume()
        try:
            while not self._closed.is_set():
                reply, error = await self._receive()
                if reply is not None:
                    if (shown := self._course.take(reply)) is not None:
                        return shown
                elif self._closed.is_set() or (delay := self._course.end(error)) is None:
                    break
                else:
                    self._call = None
                    await self._wait(min(delay, self._left()))
        except BaseException:
            self._close()
            raise
        self._close()
        raise StopAsyncIteration

    def __del__(self) -> None:
        """Close the stream."""
        if self._call and self._loop and not (self._closed.is_set() or self._loop.is_closed()):
            # Any thread may collect garbage.
            self._loop.call_soon_threadsafe(self._call.cancel)
            self._loop.call_soon_threadsafe(self._course.close)

    async def aclose(self) -> None:
        """End the stream, and the loop over it if there is one."""
        self._close()

    async def __aenter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        self._close()

    def _close(self) -> None:
        self._closed.set()
        if self._call:
            self._call.cancel()
        self._course.close()

    async def _receive(self) -> tuple[Any, Error | None]:
        """Wait for a reply, of a new call if there is none; None: the call has ended."""
        try:
            call = self._call or self._ask()
            # A task of its own, since gRPC raises CancelledError for a call that was cancelled
            # as well as for a caller that is.
            reading = asyncio.ensure_future(call.read())
            reading.add_done_callback(look_at)
            left = self._course.left()
            await asyncio.wait({reading}, timeout=None if left == math.inf else left)
            if not reading.done():
                call.cancel()
                await asyncio.wait({reading})
                return None, self._course.silence()
            if reading.cancelled():
                return None, Error(grpc.StatusCode.CANCELLED, "the call was cancelled")
            reply = reading.result()
        except grpc.RpcError as error:
            return None, from_rpc(error)
        return (None if reply is grpc.aio.EOF else reply), None

    def _ask(self) -> AsyncCall:
        if self._timeout is not None and self._deadline == math.inf:
            self._deadline = time.monotonic() + self._timeout
        left = None if self._timeout is None else self._left()
        self._loop = asyncio.get_running_loop()
        self._call = self._open_call(self._course.ask(), left)
        return self._call

    async def _wait(self, seconds: float) -> None:
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({closed}, timeout=seconds)
        finally:
            closed.cancel()

    def _left(self) -> float:
        return max(0, self._deadline - time.monotonic())


def look_at(reading: asyncio.Future[Any]) -> None:
    """Have asyncio not complain about an error that nobody waited for."""
    if not reading.cancelled():
        reading.exception()
