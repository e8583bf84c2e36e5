"""A TCP proxy that cuts connections when it is told to."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: no goodbye


class Proxy:
    """Passes bytes on between clients and a server; two threads a connection."""

    def __init__(self, target: str) -> None:
        """Listen on a free port."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._lines: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._limits: list[int] = []
        self.connections = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def limit(self, *counts: int) -> None:
        """Cut each of the next connections once so many bytes have come from the server."""
        self._limits = list(counts)

    def cut(self) -> None:
        """Reset all connections."""
        with self._lock:
            lines, self._lines = self._lines, []
        for line in lines:
            reset(*line)

    def close(self) -> None:
        """End everything."""
        with suppress(OSError):  # A listener that is shut down ends accept.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads[:1]:
            thread.join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def run(self) -> None:
        """Begin to accept."""
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
                client.close()  # There is no server now.
                continue
            with self._lock:
                self.connections += 1
                self._lines.append((client, server))
                limit = self._limits.pop(0) if self._limits else None
            self._start(pump, client, server, None)
            self._start(pump, server, client, limit)


def pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    """Pass bytes on until the connection ends, or so many have gone by."""
    with suppress(OSError):
        while data := source.recv(65536 if limit is None else min(limit, 65536)):
            sink.sendall(data)
            if limit is not None and (limit := limit - len(data)) <= 0:
                break
    reset(source, sink)


def reset(*line: socket.socket) -> None:
    """Break a connection off on both sides."""
    for end in line:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            # It wakes the thread that reads, which close alone does not.
            end.shutdown(socket.SHUT_RD)
        end.close()


@contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    """Give a proxy to a server until the block ends."""
    proxy = Proxy(target)
    proxy.run()
    try:
        yield proxy
    finally:
        proxy.close()
