"""Whether the server has been reached while a stream has heard nothing of it yet.

What a call fails with does not tell: gRPC says UNAVAILABLE for a host without an address, for one
that never answers, and for a connection that broke. The state of the channel does.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

import grpc

STATES = grpc.ChannelConnectivity
LAG = 0.5
"""Seconds for gRPC to tell of a connection, which its threads do behind the end of the call; it
takes milliseconds. Only a call that has found no server waits so long."""


class Line(Protocol):
    """The connection of a channel, as one stream sees it."""

    def reached(self) -> bool:
        """Tell whether there has been a connection since the stream first asked."""
        ...

    def close(self) -> None:
        """Look no more; once is enough. Any thread may."""
        ...


class Seen:
    """What has been seen of a channel's states."""

    def __init__(self) -> None:
        """Begin with none."""
        self.changed = threading.Condition()  # guards the rest
        self.last: grpc.ChannelConnectivity | None = None
        self.ready = False

    def note(self, state: grpc.ChannelConnectivity) -> None:
        """Take the next state."""
        with self.changed:
            self.ready = self.ready or state is STATES.READY
            self.last = state
            self.changed.notify_all()

    def reached(self) -> bool:
        """Tell whether there has been a connection, once a call has failed."""
        # A call makes the channel connect, and from there only a connection leads back to IDLE:
        # one that was perhaps too short for its READY to be seen.
        return self.ready or self.last is STATES.IDLE


class SyncLine:
    """The connection of a sync channel. gRPC watches it with a thread, so it is not for long."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Begin closed."""
        self._channel = channel
        self._seen = Seen()
        self._lock = threading.RLock()  # guards the rest; garbage may be collected inside
        self._open = self._closed = False

    def open(self) -> None:
        """Begin to look, the first time; do nothing later."""
        with self._lock:
            if not self._open and not self._closed:
                self._open = True
                self._channel.subscribe(self._seen.note)

    def reached(self) -> bool:
        """See Line; what gRPC has not told yet is waited for."""
        with self._seen.changed:
            self._seen.changed.wait_for(lambda: self._seen.ready, LAG)
            return self._seen.reached()

    def close(self) -> None:
        """See Line."""
        with self._lock:
            self._closed = True
            if self._open:
                self._open = False
                self._channel.unsubscribe(self._seen.note)


class AsyncLine:
    """The connection of an asyncio channel; it belongs to the loop of the channel."""

    def __init__(self) -> None:
        """Begin closed."""
        self._channel: grpc.aio.Channel | None = None
        self._seen = Seen()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, channel: grpc.aio.Channel) -> None:
        """Start to watch the channel on the first call; later calls do nothing."""
        if not self._watching and not self._closed:
            self._channel = channel
            self._watching = asyncio.ensure_future(self._watch(channel))

    def reached(self) -> bool:
        """See Line."""
        self._look()
        return self._seen.reached()

    def close(self) -> None:
        """See Line; only the loop's thread may."""
        self._closed = True
        if self._watching:
            self._watching.cancel()

    async def _watch(self, channel: grpc.aio.Channel) -> None:
        while (state := self._look()) not in (None, STATES.READY, STATES.SHUTDOWN):
            try:
                await channel.wait_for_state_change(state)
            except grpc.aio.UsageError:
                return  # The channel was closed.

    def _look(self) -> grpc.ChannelConnectivity | None:
        """Return the state and note it. None: the channel is closed or not open yet."""
        if not self._channel:
            return None
        try:
            state = self._channel.get_state()
        except grpc.aio.UsageError:
            return None
        self._seen.note(state)
        return state
