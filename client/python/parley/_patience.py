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
NO_SERVER = (1.0, 4.0)
"""Where no server listens, gRPC says UNAVAILABLE after its five attempts: between these. It does
not tell whether it had connected, but sooner it had, since it sends nothing again once headers
have come; and later it had, since the call went on."""


class Patience:
    """How long one stream waits, and when it gives up."""

    def __init__(
        self, *, wait_for_ready: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin before the first ask. The clock tells seconds."""
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
            self.calm()

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
            self.calm()
            if not self._wait_for_ready:
                self._give_up = self._asked + GIVE_UP_AFTER
        delay = self.delay * random.uniform(0.8, 1.2)  # noqa: S311 - not a secret
        if self._give_up - self._clock() < delay:
            raise error.after(f"nothing new for {GIVE_UP_AFTER:.0f} s")
        self.delay = min(2 * self.delay, MAX_DELAY)
        return delay

    def _reached(self, error: Error) -> bool:
        return (
            error.code is not grpc.StatusCode.UNAVAILABLE
            or error.reason != ""
            or self._wait_for_ready
            or not NO_SERVER[0] < self._clock() - self._asked < NO_SERVER[1]
        )


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
