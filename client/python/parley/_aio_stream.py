"""Streams of the asyncio client."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import grpc

from parley._error import Error, from_rpc
from parley._options import explain_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from types import TracebackType

    from google.protobuf.message import Message
    from typing_extensions import Self

    from parley._resumption import Resumption
    from parley._sign_in import AsyncAttempts

S = TypeVar("S")
T = TypeVar("T")


class AsyncCall(Protocol):
    """The part of a gRPC call that a stream uses."""

    async def read(self) -> Any:  # noqa: ANN401 - Resumption has the type
        """Wait for the next reply. EOF is the end of the call."""
        ...

    def cancel(self) -> bool:
        """Cancel the call."""
        ...


class AsyncStream(Generic[S]):
    """A stream of events for one ``async for`` loop.

    The call begins with the first step of the loop. It ends at once when the caller leaves the
    loop and nothing refers to the stream, when the task of the loop is cancelled, at the end of an
    ``async with`` block, and with :meth:`aclose`. A stream that fails raises
    :class:`parley.Error` and has then ended.
    """

    def __init__(
        self,
        resumption: Resumption[Any, Any, S],
        open_call: Callable[[Any, dict[str, Any]], AsyncCall],
        attempts: AsyncAttempts,
    ) -> None:
        """Make a stream; only the methods of a client do so.

        Args:
            resumption: It chooses the requests and decides when the stream resumes.
            open_call: It starts a call with a request and the arguments for gRPC.
            attempts: The options and the sign-in of the calls. The timeout limits the loop.

        """
        self._loop: asyncio.AbstractEventLoop | None = None  # of the call
        self._call: AsyncCall | None = None
        self._request: Message | None = None  # of the newest call
        self._closed = asyncio.Event()
        self._resumption = resumption
        self._open_call = open_call
        self._attempts = attempts
        self._deadline: float | None = None  # Set by the first call.

    def __aiter__(self) -> AsyncIterator[S]:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> S:
        """Wait for the next event."""
        self._resumption.reader_returned()
        try:
            while not self._closed.is_set():
                reply, error = await self._receive()
                if reply is not None:
                    self._attempts.accepted()
                    if (item := self._resumption.accept(reply)) is not None:
                        return item
                elif error and await self._sign_in_again(error):
                    self._call = None
                elif (
                    self._closed.is_set() or (delay := self._resumption.retry_delay(error)) is None
                ):
                    break
                else:
                    self._call = None
                    await self._wait(min(delay, self._remaining()))
        except BaseException:
            self._close()
            raise
        self._close()
        raise StopAsyncIteration

    def __del__(self) -> None:
        """Close the stream."""
        if self._call and self._loop and not (self._closed.is_set() or self._loop.is_closed()):
            # The garbage collector may run in any thread.
            self._loop.call_soon_threadsafe(self._call.cancel)
            self._loop.call_soon_threadsafe(self._resumption.close)

    async def aclose(self) -> None:
        """End the stream and a loop over it."""
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
        self._resumption.close()

    async def _receive(self) -> tuple[Any, Error | None]:
        """Wait for a reply; start a call if there is none. None as reply ends the call."""
        # An exception of the function that returns the token is not that of a call.
        arguments = {} if self._call else await self._arguments()
        if arguments is None:
            return None, None  # The stream was closed.
        try:
            call = self._call or self._start_call(arguments)
            # The read has its own task. Otherwise a CancelledError could be that of the call or
            # that of the caller's task.
            reading = asyncio.ensure_future(call.read())
            reading.add_done_callback(retrieve_exception)
            limit = self._resumption.receive_timeout()
            await asyncio.wait({reading}, timeout=None if limit == math.inf else limit)
            if not reading.done():
                call.cancel()
                await asyncio.wait({reading})
                return None, self._resumption.silence_error()
            if reading.cancelled():
                return None, Error(grpc.StatusCode.CANCELLED, "the call was cancelled")
            reply = reading.result()
        except grpc.RpcError as error:
            return None, explain_size(from_rpc(error), self._request)
        return (None if reply is grpc.aio.EOF else reply), None

    async def _arguments(self) -> dict[str, Any] | None:
        """Return the arguments of the next call, or None if the stream was closed before."""
        if self._deadline is None:
            self._deadline = self._attempts.deadline()
        return await self._unless_closed(self._attempts.arguments(self._deadline))

    def _start_call(self, arguments: dict[str, Any]) -> AsyncCall:
        self._loop = asyncio.get_running_loop()
        self._request = self._resumption.next_request()
        self._call = self._open_call(self._request, arguments)
        return self._call

    async def _sign_in_again(self, error: Error) -> bool:
        """Report whether to make another call, because there is another token."""
        if self._closed.is_set() or not self._resumption.may_sign_in_again():
            return False
        deadline = self._deadline or 0
        return bool(await self._unless_closed(self._attempts.replace(error, deadline)))

    async def _unless_closed(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a coroutine, or None if the stream was closed before."""
        result = asyncio.ensure_future(coroutine)
        result.add_done_callback(retrieve_exception)
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({result, closed}, return_when=asyncio.FIRST_COMPLETED)
            return None if self._closed.is_set() else result.result()
        finally:
            result.cancel()
            closed.cancel()

    async def _wait(self, seconds: float) -> None:
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({closed}, timeout=seconds)
        finally:
            closed.cancel()

    def _remaining(self) -> float:
        return max(0, (self._deadline or 0) - time.monotonic())


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Mark the exception of a task as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
