"""When a stream that resumes over several calls makes the next call, and when it gives up."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

import grpc

from parley._error import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from parley._connectivity import Connectivity

# All times are in seconds.
GIVE_UP_AFTER = 60.0
"""The limit of the time without a new message over all attempts. The server sends something at
least every 15 s. The time that the reader's loop takes does not count."""
MAX_SILENCE = 45.0
"""The time without a message after which a stream counts as broken although its connection works:
three messages of the server are then missing. It leaves time for another attempt."""
FIRST_DELAY, MAX_DELAY = 0.1, 2.0
"""The delay before the next attempt doubles from the first to the second value until there is a
new message. gRPC itself may send each attempt up to five times."""


class Retry:
    """How long one stream waits, and when it gives up."""

    def __init__(
        self,
        connectivity: Connectivity,
        *,
        wait_for_ready: bool = False,
        first_attempts: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the state before the first attempt.

        Args:
            connectivity: It reports whether the server has been reached.
            wait_for_ready: The option of the call.
            first_attempts: The attempts to reach a server. It is 1 if gRPC itself repeats them.
            clock: It returns seconds.

        """
        self._connectivity = connectivity
        self.delay = FIRST_DELAY
        self.progress = False  # A new message has arrived since the last attempt began.
        # gRPC waits for the server and does not report that there is none.
        self._wait_for_ready = wait_for_ready
        self._first_attempts = first_attempts
        self._clock = clock
        self._connected = False  # The server has been reached.
        self._attempt_begin = 0.0  # Of the newest attempt, until the server has been reached.
        self._deadline = math.inf  # The stream gives up at this time.
        self._last_error: Error | None = None  # The error that ended the previous call.

    def begin_attempt(self) -> None:
        """Record that the next call begins."""
        self.progress = False
        if not self._connected:
            self._attempt_begin = self._clock()

    def note_message(self) -> None:
        """Record that the server has sent a message."""
        if not self._connected:
            self._connected = True
            self._connectivity.close()
            self.reset_deadline()

    def close(self) -> None:
        """Stop observing the connection."""
        self._connectivity.close()

    def reset_deadline(self) -> None:
        """Restart the time limit and the delay, because there is a new message."""
        self._deadline, self.delay = self._clock() + GIVE_UP_AFTER, FIRST_DELAY

    def extend_deadline(self, since: float) -> None:
        """Let the time limit begin at this time or later. Before, there was nothing to wait for."""
        if self._connected:
            self._deadline = max(self._deadline, since + GIVE_UP_AFTER)

    def receive_timeout(self) -> float:
        """Return how many seconds to wait for the next message of a call."""
        if self._connected:
            return min(MAX_SILENCE, self._deadline - self._clock())
        return math.inf if self._wait_for_ready else MAX_SILENCE

    def silence_error(self) -> Error:
        """Return the error of a call that was cancelled for its silence."""
        if self._last_error and not self.progress and is_resumable(self._last_error):
            return self._last_error  # It is more specific.
        return Error(grpc.StatusCode.UNAVAILABLE, "the stream has been silent for too long")

    def next_delay(self, error: Error) -> float:
        """Return the seconds to wait before the next attempt; raise the error if there is none."""
        self._last_error = error
        if not self._connected:
            self._first_attempts -= 1
            if self._first_attempts > 0 and error.code is grpc.StatusCode.UNAVAILABLE:
                return self._next_delay()
            if not self._reached(error):
                raise error
            self._connected = True
            self._connectivity.close()
            self.reset_deadline()
            if not self._wait_for_ready:
                self._deadline = self._attempt_begin + GIVE_UP_AFTER
        delay = self._next_delay()
        if self._deadline - self._clock() < delay:
            raise error.after(f"nothing new for {GIVE_UP_AFTER:.0f} s")
        return delay

    def _next_delay(self) -> float:
        delay = self.delay * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret
        self.delay = min(2 * self.delay, MAX_DELAY)
        return delay

    def _reached(self, error: Error) -> bool:
        if error.reason:
            return True  # Only a Parley server sets a reason.
        # With wait_for_ready, gRPC reports UNAVAILABLE only after it has reached the server.
        waited = self._wait_for_ready and error.code is grpc.StatusCode.UNAVAILABLE
        return waited or self._connectivity.reached()


def silence_limit() -> float:
    """Return the longest time to wait for one message of a server that was reached."""
    return MAX_SILENCE


def is_resumable(error: Error) -> bool:
    """Report whether a stream may resume after a call that ended with this error.

    That is so if the connection broke, the server restarts, a proxy reset the stream, or the
    reader was too slow.
    """
    match error.code:
        case grpc.StatusCode.UNAVAILABLE:
            return True
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return error.reason == "SLOW_READER"
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN | grpc.StatusCode.CANCELLED:
            return not error.reason
        case _:
            return False
