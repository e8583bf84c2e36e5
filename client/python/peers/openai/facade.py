"""A parleyd with the OpenAI API on a free port."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openai import OpenAI
from programs import Server, parleyd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Facade:
    """A server and the URL for clients of OpenAI. A restart of the server keeps the URL."""

    server: Server
    url: str

    def client(self) -> OpenAI:
        """Return the official client, with nothing but another URL."""
        return OpenAI(base_url=self.url, api_key="any")


@contextmanager
def facade(folder: Path, config: str = "") -> Iterator[Facade]:
    """Run a parleyd with a file until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with parleyd(folder, config, f"--http-address={address}", store="bolt") as server:
        yield Facade(server, f"http://{address}/openai/v1")
