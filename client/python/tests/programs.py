"""The programs that the tests start: the example agent and, where there is one, parleyd."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[1] / "examples" / "shop_agent.py"


def command(*arguments: str) -> list[str]:
    """Return the command line that runs the example."""
    return [sys.executable, str(EXAMPLE), *arguments]


@contextmanager
def shop_agent(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the example on a free port until the block ends; give it and its address."""
    # With this variable the line comes through whether or not it is flushed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command("--address", "127.0.0.1:0", *arguments),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = output_of(process).readline()
            said = re.fullmatch(r"agent serves AgentService address=(127\.0\.0\.1:\d+)\n", line)
            assert said, f"the agent printed {line!r}"
            yield process, said[1]
        finally:
            process.kill()


def refusal(*arguments: str) -> tuple[int, str]:
    """Run the example with arguments that it refuses; return its exit code and its errors."""
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            # Nothing when it ends; its address when it serves after all, and would for ever.
            line = output_of(process).readline()
            assert not line, f"the agent printed {line!r}"
            _, errors = process.communicate()
            return process.returncode, errors
        finally:
            process.kill()


class Server:
    """A parleyd on a port and with data of its own, which it has again after a restart."""

    def __init__(self, folder: Path, config: str = "", *, store: str = "memory") -> None:
        """Keep configuration and data in that folder."""
        binary = os.environ.get("PARLEYD")
        if not binary:
            pytest.skip("PARLEYD is not set to the path of a parleyd")
        path = folder / "parleyd.yaml"
        path.write_text(config)
        self._command = [
            binary,
            f"--config={path}",
            f"--data-dir={folder / 'data'}",
            f"--store={store}",
            "--http-address=",
            "--log-format=json",
        ]
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        """Start it, and return once it serves."""
        self._process = subprocess.Popen(
            [*self._command, f"--grpc-address={self.address}"], stderr=subprocess.PIPE, text=True
        )
        log = self._process.stderr
        assert log
        served = ""
        for line in log:
            print(line, end="", file=sys.stderr)
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("msg") == "serving grpc":
                served = entry["address"]
                break
        # A full pipe would stop the server.
        self._rest = threading.Thread(target=pass_on, args=(log,))
        self._rest.start()
        assert served, "parleyd ended before it served"
        self.address = served

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()
        self._rest.join()


@contextmanager
def parleyd(folder: Path, config: str = "", *, store: str = "memory") -> Iterator[Server]:
    """Run the server until the block ends."""
    server = Server(folder, config, store=store)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def pass_on(log: IO[str]) -> None:
    """Show the rest of a log where pytest keeps it for a test that fails."""
    for line in log:
        print(line, end="", file=sys.stderr)


def output_of(process: subprocess.Popen[str]) -> IO[str]:
    """Return the standard output of a process that was started with a pipe for it."""
    assert process.stdout
    return process.stdout
