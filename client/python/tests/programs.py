"""The programs that the tests start: the example agent and, if PARLEYD is set, parleyd."""

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
    """Run the example on a free port until the block ends; yield the process and its address."""
    # With this variable the line arrives even if the example does not flush it.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command("--address", "127.0.0.1:0", *arguments),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = output_of(process).readline()
            match = re.fullmatch(r"agent serves AgentService address=(127\.0\.0\.1:\d+)\n", line)
            assert match, f"the agent printed {line!r}"
            yield process, match[1]
        finally:
            process.kill()


def refusal(*arguments: str) -> tuple[int, str]:
    """Run the example with invalid arguments; return its exit code and standard error."""
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            # The line is empty if the example ends, and the address if it serves by mistake.
            line = output_of(process).readline()
            assert not line, f"the agent printed {line!r}"
            _, errors = process.communicate()
            return process.returncode, errors
        finally:
            process.kill()


class Server:
    """A parleyd with its own port and data. A restart keeps both."""

    def __init__(self, folder: Path, config: str = "", *, store: str = "memory") -> None:
        """Store configuration and data in this folder."""
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
        """Start the server, and return once it serves."""
        self._process = subprocess.Popen(
            [*self._command, f"--grpc-address={self.address}"], stderr=subprocess.PIPE, text=True
        )
        log = self._process.stderr
        assert log
        address = ""
        for line in log:
            print(line, end="", file=sys.stderr)
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("msg") == "serving grpc":
                address = entry["address"]
                break
        # A full pipe would block the server.
        self._log_reader = threading.Thread(target=copy_log, args=(log,))
        self._log_reader.start()
        assert address, "parleyd ended before it served"
        self.address = address

    def kill(self) -> None:
        """Kill the server, like a crash."""
        self._process.kill()
        self._process.wait()
        self._log_reader.join()


@contextmanager
def parleyd(folder: Path, config: str = "", *, store: str = "memory") -> Iterator[Server]:
    """Run the server until the block ends."""
    server = Server(folder, config, store=store)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def copy_log(log: IO[str]) -> None:
    """Copy the rest of a log to standard error, which pytest shows for a failing test."""
    for line in log:
        print(line, end="", file=sys.stderr)


def output_of(process: subprocess.Popen[str]) -> IO[str]:
    """Return the standard output of a process that was started with a pipe."""
    assert process.stdout
    return process.stdout
