"""Whether a stream that has received no message has reached the server.

The status of a failed call does not show it. gRPC reports UNAVAILABLE for a host name without an
address, for a host that never answers, and for a broken connection. The connectivity state of the
channel shows the difference.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

import grpc

STATES = grpc.ChannelConnectivity
NOTIFICATION_DELAY = 0.5
"""Seconds to wait until gRPC reports a connection. gRPC's threads do so after the end of the call,
usually within milliseconds. Only a call that has reached no server waits for the full time."""


class Connectivity(Protocol):
    """The connectivity of a channel, observed for one stream."""

    def reached(self) -> bool:
        """Report whether there has been a connection since the stream's first call."""
        ...

    def close(self) -> None:
        """Stop observing. Any thread may call it, more than once."""
        ...


class ObservedStates:
    """The connectivity states that a channel has had."""

    def __init__(self) -> None:
        """Begin without a state."""
        self.changed = threading.Condition()  # guards the fields below
        self.last: grpc.ChannelConnectivity | None = None
        self.ready = False

    def add(self, state: grpc.ChannelConnectivity) -> None:
        """Record the next state."""
        with self.changed:
            self.ready = self.ready or state is STATES.READY
            self.last = state
            self.changed.notify_all()

    def reached(self) -> bool:
        """Report whether there has been a connection. Call it after a call has failed."""
        # A call makes the channel connect. After that, only a connection returns it to IDLE. The
        # connection may have been too short for its READY to be reported.
        return self.ready or self.last is STATES.IDLE


class SyncConnectivity:
    """The connectivity of a sync channel. gRPC observes it in a thread, so close it soon."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Make it for this channel; it observes nothing before open."""
        self._channel = channel
        self._states = ObservedStates()
        self._lock = threading.RLock()  # guards the fields below; garbage collection may run inside
        self._open = self._closed = False

    def open(self) -> None:
        """Start to observe the channel on the first call; later calls do nothing."""
        with self._lock:
            if not self._open and not self._closed:
                self._open = True
                self._channel.subscribe(self._states.add)

    def reached(self) -> bool:
        """See Connectivity. It waits for states that gRPC has not reported yet."""
        with self._states.changed:
            self._states.changed.wait_for(lambda: self._states.ready, NOTIFICATION_DELAY)
            return self._states.reached()

    def close(self) -> None:
        """See Connectivity."""
        with self._lock:
            self._closed = True
            if self._open:
                self._open = False
                self._channel.unsubscribe(self._states.add)


class AsyncConnectivity:
    """The connectivity of an asyncio channel. It belongs to the event loop of the channel."""

    def __init__(self) -> None:
        """Make it without a channel; open sets the channel."""
        self._channel: grpc.aio.Channel | None = None
        self._states = ObservedStates()
        self._observer: asyncio.Task[None] | None = None
        self._closed = False

    def open(self, channel: grpc.aio.Channel) -> None:
        """Start to observe the channel on the first call; later calls do nothing."""
        if not self._observer and not self._closed:
            self._channel = channel
            self._observer = asyncio.ensure_future(self._observe(channel))

    def reached(self) -> bool:
        """See Connectivity."""
        self._read_state()
        return self._states.reached()

    def close(self) -> None:
        """See Connectivity. Only the thread of the event loop may call it."""
        self._closed = True
        if self._observer:
            self._observer.cancel()

    async def _observe(self, channel: grpc.aio.Channel) -> None:
        while (state := self._read_state()) not in (None, STATES.READY, STATES.SHUTDOWN):
            try:
                await channel.wait_for_state_change(state)
            except grpc.aio.UsageError:
                return  # The channel was closed.

    def _read_state(self) -> grpc.ChannelConnectivity | None:
        """Return the state and record it. None means that the channel is closed or not set."""
        if not self._channel:
            return None
        try:
            state = self._channel.get_state()
        except grpc.aio.UsageError:
            return None
        self._states.add(state)
        return state
