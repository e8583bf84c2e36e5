"""The programs that the tests start: the example agent and, if PARLEYD is set, parleyd."""

from __future__ import annotations

import json
import os
import re
import shutil
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


def parleyd_binary() -> str:
    """Return the path of parleyd; skip the test if there is none."""
    binary = os.environ.get("PARLEYD")
    if not binary:
        pytest.skip("PARLEYD is not set to the path of a parleyd")
    return binary


def create_token(file: Path, tenant: str, role: str, expires: str = "1h") -> str:
    """Add a token to a file of tokens, and return it."""
    arguments = [f"--file={file}", f"--role={role}", f"--expires={expires}"]
    arguments += [f"--tenant={name}" for name in tenant.split(",")]
    created = subprocess.run(
        [parleyd_binary(), "token", "create", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return created.stdout.strip()


class Certificates:
    """The certificates of an authority, as files of a folder."""

    def __init__(self, folder: Path) -> None:
        """Make the authority."""
        self._folder = folder
        self.ca_file = folder / "ca.pem"
        self._make("ca", "-subj=/CN=authority")

    def issue(self, name: str, *alternatives: str) -> tuple[Path, Path]:
        """Return a new certificate with this common name, and its key."""
        arguments = [
            f"-subj=/CN={name}",
            f"-CA={self.ca_file}",
            f"-CAkey={self._folder / 'ca.key'}",
        ]
        arguments.append("-addext=basicConstraints=critical,CA:FALSE")
        if alternatives:
            arguments.append(f"-addext=subjectAltName={','.join(alternatives)}")
        return self._make(name, *arguments)

    def _make(self, name: str, *arguments: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        options = ["-newkey=ec", "-pkeyopt=ec_paramgen_curve:prime256v1", "-nodes", "-days=2"]
        options += [f"-out={certificate}", f"-keyout={key}", *arguments]
        # The options of openssl have their values as arguments of their own.
        split = [part for option in options for part in option.split("=", 1)]
        openssl = shutil.which("openssl")
        assert openssl, "the tests need openssl 3 to make certificates"
        subprocess.run([openssl, "req", "-x509", *split], check=True, capture_output=True)
        return certificate, key


class Server:
    """A parleyd with its own port and data. A restart keeps both."""

    def __init__(
        self, folder: Path, config: str = "", *arguments: str, store: str = "memory"
    ) -> None:
        """Store configuration and data in this folder."""
        binary = parleyd_binary()
        path = folder / "parleyd.yaml"
        path.write_text(config)
        self._command = [
            binary,
            f"--config={path}",
            f"--data-dir={folder / 'data'}",
            f"--store={store}",
            "--http-address=",
            "--log-format=json",
            *arguments,
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
def parleyd(
    folder: Path, config: str = "", *arguments: str, store: str = "memory"
) -> Iterator[Server]:
    """Run the server with more arguments until the block ends."""
    server = Server(folder, config, *arguments, store=store)
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
