"""How a stream that goes on over many calls bears what ends them."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

import grpc

from parley._error import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from parley._line import Line

# All in seconds.
GIVE_UP_AFTER = 60.0
"""How long is asked in a row without anything new: the server sends something every 15 s at
least. What the reader does in its loop does not count."""
MAX_SILENCE = 45.0
"""Silence of a stream after which it counts as broken, though the connection is well: three of
those are missing. It leaves time to ask once more."""
FIRST_DELAY, MAX_DELAY = 0.1, 2.0
"""The wait before the next ask doubles from the one to the other until there is something new.
Each ask may be up to five attempts of gRPC's own."""


class Patience:
    """How long one stream waits, and when it gives up."""

    def __init__(
        self,
        line: Line,
        *,
        wait_for_ready: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin before the first ask. The clock tells seconds."""
        self._line = line
        self.delay = FIRST_DELAY
        self.news = False  # Something new has come since the last ask.
        self._wait_for_ready = wait_for_ready  # gRPC waits for the server and tells of none.
        self._clock = clock
        self._connected = False  # The server has been reached.
        self._asked = 0.0
        self._give_up = math.inf
        self._broken: Error | None = None  # What ended the call before this one.

    def ask(self) -> None:
        """Note that the next call begins."""
        self.news = False
        if not self._connected:
            self._asked = self._clock()

    def heard(self) -> None:
        """Note that the server has sent something."""
        if not self._connected:
            self._connected = True
            self._line.close()
            self.calm()

    def close(self) -> None:
        """Let go of the line."""
        self._line.close()

    def calm(self) -> None:
        """Begin to count anew how long there has been nothing new."""
        self._give_up, self.delay = self._clock() + GIVE_UP_AFTER, FIRST_DELAY

    def left(self) -> float:
        """Return the seconds to wait for the next message of a call."""
        if self._connected:
            return min(MAX_SILENCE, self._give_up - self._clock())
        return math.inf if self._wait_for_ready else MAX_SILENCE

    def silence(self) -> Error:
        """Return the error of a call that was given up for its silence."""
        if self._broken and not self.news and is_break(self._broken):
            return self._broken  # It says more.
        return Error(grpc.StatusCode.UNAVAILABLE, "the stream has been silent for too long")

    def retry(self, error: Error) -> float:
        """Return the seconds to wait before the next ask; raise the error if there is none."""
        self._broken = error
        if not self._connected:
            if not self._reached(error):
                raise error
            self._connected = True
            self._line.close()
            self.calm()
            if not self._wait_for_ready:
                self._give_up = self._asked + GIVE_UP_AFTER
        delay = self.delay * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret
        if self._give_up - self._clock() < delay:
            raise error.after(f"nothing new for {GIVE_UP_AFTER:.0f} s")
        self.delay = min(2 * self.delay, MAX_DELAY)
        return delay

    def _reached(self, error: Error) -> bool:
        if error.reason:
            return True  # The server has said so.
        # Who waits for the server is told of UNAVAILABLE only once it has been there.
        waited = self._wait_for_ready and error.code is grpc.StatusCode.UNAVAILABLE
        return waited or self._line.reached()


def is_break(error: Error) -> bool:
    """Tell whether a stream that ended so may be gone on with.

    The connection broke, the server restarts, something in between has reset the stream, or
    the reader was slow.
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
