"""A TCP proxy that resets connections on request."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset


class Proxy:
    """Forwards bytes between clients and a server, with two threads for each connection."""

    def __init__(self, target: str) -> None:
        """Listen on a free port."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._limits: list[int] = []
        self.connections = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def limit(self, *counts: int) -> None:
        """Reset each of the next connections after this many bytes from the server."""
        self._limits = list(counts)

    def cut(self) -> None:
        """Reset all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            reset(*pair)

    def close(self) -> None:
        """Stop listening, reset all connections and wait for the threads."""
        with suppress(OSError):  # The shutdown ends accept.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads[:1]:
            thread.join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def run(self) -> None:
        """Start to accept connections."""
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self._target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()  # The server is not running.
                continue
            with self._lock:
                self.connections += 1
                self._pairs.append((client, server))
                limit = self._limits.pop(0) if self._limits else None
            self._start(pump, client, server, None)
            self._start(pump, server, client, limit)


def pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    """Forward bytes until the connection ends or the limit is reached."""
    with suppress(OSError):
        while data := source.recv(65536 if limit is None else min(limit, 65536)):
            sink.sendall(data)
            if limit is not None and (limit := limit - len(data)) <= 0:
                break
    reset(source, sink)


def reset(*pair: socket.socket) -> None:
    """Reset a connection on both sides."""
    for end in pair:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            # The shutdown ends a recv in another thread; close alone does not.
            end.shutdown(socket.SHUT_RD)
        end.close()


@contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    """Yield a proxy to a server until the block ends."""
    proxy = Proxy(target)
    proxy.run()
    try:
        yield proxy
    finally:
        proxy.close()
