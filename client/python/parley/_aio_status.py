"""The status of a call of the asyncio client that sends a stream of requests.

When a server ends a call early, a write may fail. gRPC then sets an INTERNAL status of its own,
either before it has read the server's status, which replaces it soon, or after, which loses the
server's status. The callback for the end of the call sees only the first of the two.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

if TYPE_CHECKING:
    from collections.abc import Coroutine

STATUS_DELAY = 5.0
"""Seconds to wait for the server's status after a failed write. It usually arrives within
milliseconds. After this time the call fails with the status of the write."""
STATUS_INTERVAL = 0.005
"""Seconds between two checks for the server's status; gRPC reports no change of a status."""

R = TypeVar("R")


class ServerStatus:
    """The status with which the server ends a call."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - the types of calls lack methods
        """Observe the call from its beginning."""
        self._call = call
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def _note(self, _: object) -> None:
        self._first = result_of(status_of(self._call))

    async def after(self, failure: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the status of an ended call, of which a write failed with this one.

        If the server's status does not arrive within STATUS_DELAY, it returns that of the write.
        """
        if failure.code() is not grpc.StatusCode.INTERNAL:
            return failure  # The call had ended before the write.
        if self._first and not is_same_status(self._first, failure):
            return self._first
        deadline = time.monotonic() + STATUS_DELAY
        while is_same_status(status := await status_of(self._call), failure):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(STATUS_INTERVAL)
        return status


async def status_of(call: Any) -> grpc.aio.AioRpcError:  # noqa: ANN401 - the type lacks a method
    """Return the current status of a call. If the call has ended, it does not wait."""
    return grpc.aio.AioRpcError(
        await call.code(),
        grpc.aio.Metadata(),
        await call.trailing_metadata(),
        await call.details(),
        await call.debug_error_string(),
    )


def is_same_status(one: grpc.aio.AioRpcError, other: grpc.aio.AioRpcError) -> bool:
    """Report whether two errors have the same status. The debug text names the failed write."""
    return one.debug_error_string() == other.debug_error_string()


def result_of(coroutine: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waits")
