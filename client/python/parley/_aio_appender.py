"""The appender of the asyncio client."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from parley._aio_status import ServerStatus
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
from parley._options import too_large
from parley._retry import silence_limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Self

    from parley._retry import Retry
    from parley._sign_in import AsyncAttempts
    from parley.v1.conversation_service_pb2 import (
        AppendMessagesRequest,
        AppendMessagesResponse,
        AppendStreamResponse,
    )

    Reply: TypeAlias = asyncio.Future[AppendMessagesResponse]


class AsyncBidiCall(Protocol):
    """The part of a gRPC call that an appender uses."""

    async def read(self) -> Any:  # noqa: ANN401 - it is a reply or EOF
        """Wait for the next reply. EOF is the end of the call."""
        ...

    async def write(self, request: Any) -> None:  # noqa: ANN401 - the stubs have the type
        """Send a request. It waits while the server does not read."""
        ...

    async def done_writing(self) -> None:
        """Record that no request follows."""
        ...

    def cancel(self) -> bool:
        """Cancel the call."""
        ...


class AsyncAppender:
    """Appends messages over one stream, without waiting for a reply before the next request.

    It belongs to the event loop of its first append. See :meth:`parley.AsyncClient.appender`.
    """

    def __init__(
        self,
        open_call: Callable[[dict[str, Any]], AsyncBidiCall],
        attempts: AsyncAttempts,
        retry: Retry,
        check_client: Callable[[], None],
    ) -> None:
        """Make an appender; only the method of a client does so.

        Args:
            open_call: It starts a call with the arguments for gRPC.
            attempts: The options and the sign-in of the calls.
            retry: It decides when there is another call.
            check_client: It raises an error if the client is closed.

        """
        self._open_call = open_call
        self._attempts = attempts
        self._retry = retry
        self._check_client = check_client
        self._turn = asyncio.Lock()  # One append at a time waits for space, in their order.
        self._work = asyncio.Event()  # There is a request to send, or an end.
        self._changed = asyncio.Event()  # The queue is shorter, or an end.
        self._queue: AppendQueue[Reply] = AppendQueue()
        self._task: asyncio.Task[None] | None = None  # It sends, receives, and answers requests.
        self._call: AsyncBidiCall | None = None  # of the current stream
        self._timer: asyncio.TimerHandle | None = None  # of the next reply
        self._expired = False  # The current stream was silent for too long.
        self._accepted = False  # The server has answered a request.
        self._closed = False  # No request follows.
        self._failure: Exception | None = None

    async def append(self, request: AppendMessagesRequest) -> Reply:
        """Send a request and return the future of its reply, which the caller may await later.

        It first waits while 1024 requests, 4 MiB of requests, or 16 requests for the same
        conversation are without a reply. Requests are sent in the order of the calls. The appender
        copies the request, and sets request_id if it is empty.

        The future raises the :class:`parley.Error` that append_messages would raise. If it is
        cancelled, the request is sent nevertheless.

        Raises:
            Error: The appender has failed or is closed.

        """
        loop = asyncio.get_running_loop()
        if self._task and self._task.get_loop() is not loop:
            raise RuntimeError("the appender belongs to another event loop")
        envelope = envelope_of(request)
        append: Append[Reply] = Append(envelope, envelope.ByteSize(), loop.create_future())
        if error := too_large(append.size):
            append.future.set_exception(error)
            return append.future
        async with self._turn:
            while not (self._failure or self._closed or self._queue.has_space(append)):
                await self._wait_for_change()
            if self._failure or self._closed:
                raise self._failure or closed_error()
            is_first = not len(self._queue)
            self._queue.add(append)
        if is_first and self._call:
            self._watch(self._call, silence_limit())
        self._work.set()
        self._task = self._task or loop.create_task(self._run())
        return append.future

    async def flush(self) -> None:
        """Wait until all requests so far have a reply.

        Raises:
            Error: The appender has failed. The errors of single requests are in their futures.

        """
        number = self._queue.added
        while not (self._failure or self._queue.has_answered(number)):
            await self._wait_for_change()
        if self._failure:
            raise self._failure

    async def close(self) -> None:
        """Wait until all requests have a reply, and end the stream. It may be called again.

        If the task is cancelled, the requests without a reply fail with CANCELLED. The server may
        have stored their messages.

        Raises:
            Error: The appender has failed. The errors of single requests are in their futures.

        """
        self._closed = True
        self._work.set()
        self._changed.set()
        try:
            await self.flush()
            if self._task:
                await asyncio.wait({self._task}, timeout=END_DELAY)
        finally:
            if self._task:
                self._task.cancel()
                await asyncio.wait({self._task})

    async def __aenter__(self) -> Self:
        """Return the appender itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the appender."""
        await self.close()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # The rest runs in the task, except _write, which has one of its own.

    async def _run(self) -> None:
        """Send requests and receive replies, over as many streams as it takes."""
        failure: Exception = interrupted_error()
        try:
            deadline = self._attempts.deadline()
            while await self._wait_for_requests():
                await self._prepare_next(await self._attempt(deadline), deadline)
        except Exception as error:  # noqa: BLE001 - the futures raise it
            failure = error
        finally:
            self._retry.close()
            if len(self._queue):
                self._failure = failure
            for future in self._queue.remove_all():
                if not future.done():
                    future.set_exception(failure)
                    future.exception()  # Otherwise asyncio logs what flush and close raise.
            self._changed.set()

    async def _wait_for_requests(self) -> bool:
        """Wait until the next stream has a request to send. Return False at the end."""
        while not (self._closed or len(self._queue)):
            self._work.clear()
            await self._work.wait()
        return len(self._queue) > 0

    async def _attempt(self, deadline: float) -> Error | None:
        """Open a stream and use it to its end. Return its error, or None."""
        # An exception of the function that returns the token is not that of a call.
        arguments = await self._attempts.arguments(deadline)
        self._retry.begin_attempt()
        self._expired = False
        self._call = call = self._open_call(arguments)
        status = ServerStatus(call)
        writing = asyncio.ensure_future(self._write(call))
        error: Error | None
        try:
            while (reply := await self._receive(call)) is not grpc.aio.EOF:
                if error := self._accept(reply):
                    return error
            return None
        except grpc.aio.AioRpcError as failure:
            writing.cancel()
            await asyncio.wait({writing})
            written = None if writing.cancelled() else writing.result()
            ended = await status.after(written) if written else failure
            return None if ended.code() is grpc.StatusCode.OK else from_rpc(ended)
        except asyncio.CancelledError:
            # gRPC also raises it for a call that was cancelled.
            if self._expired:
                return self._retry.silence_error()
            self._check_client()
            raise
        finally:
            self._call = None
            if self._timer:
                self._timer.cancel()
            call.cancel()
            writing.cancel()
            await asyncio.wait({writing})
            self._queue.begin_stream()

    async def _write(self, call: AsyncBidiCall) -> grpc.aio.AioRpcError | None:
        """Send the requests of a stream. Return the status of a failed write."""
        try:
            while True:
                while self._queue.has_unsent():
                    await call.write(self._queue.next_unsent())
                if self._closed:
                    await call.done_writing()
                    return None
                self._work.clear()
                await self._work.wait()
        except grpc.aio.AioRpcError as error:
            return error
        except asyncio.InvalidStateError:
            return None  # The call has ended.

    async def _receive(self, call: AsyncBidiCall) -> Any:  # noqa: ANN401 - it is a reply or EOF
        """Wait for the next reply, or EOF."""
        if (since := self._queue.waiting_since) < math.inf:
            self._retry.extend_deadline(since)
            self._watch(call, self._retry.receive_timeout())
        elif self._timer:
            self._timer.cancel()
        return await call.read()

    def _watch(self, call: AsyncBidiCall, seconds: float) -> None:
        """Cancel the call after these seconds, unless the next reply or another watch precedes."""
        if self._timer:
            self._timer.cancel()
        if seconds < math.inf:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire, call)

    def _expire(self, call: AsyncBidiCall) -> None:
        self._expired = True
        call.cancel()

    def _accept(self, reply: AppendStreamResponse) -> Error | None:
        """Answer a request. Return the error if the stream must not be used after this reply."""
        self._attempts.accepted()
        self._retry.note_message()
        self._accepted = True
        outcome = outcome_of(reply)
        if isinstance(outcome, Error) and breaks_stream(outcome):
            return outcome
        future = self._queue.take_answered()
        if not future:
            return unexpected_reply()
        self._retry.progress = True
        self._retry.reset_deadline()
        if future.done():
            pass  # The caller has cancelled it.
        elif isinstance(outcome, Error):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        self._queue.note_answered()
        self._changed.set()
        return None

    async def _prepare_next(self, error: Error | None, deadline: float) -> None:
        """Wait until the next stream may begin. Raise the error if there must be none."""
        since = self._queue.waiting_since
        if since == math.inf:
            return  # Without requests the end of the stream does not matter.
        error = stream_error(error)
        if await self._attempts.replace(error, deadline):
            return
        check_resumable(error, accepted=self._accepted)
        self._retry.extend_deadline(since)
        delay = self._retry.next_delay(error)
        await asyncio.sleep(max(0, min(delay, deadline - time.monotonic())))
