"""A PostgreSQL for the benchmarks of adapters."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def programs_of_postgres() -> Path:
    """Return the folder of the newest PostgreSQL of this machine, or the one in PGBIN."""
    if folder := os.environ.get("PGBIN"):
        return Path(folder)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name)
    if not found:
        sys.exit("bench.py: install postgresql, or set PGBIN to the folder of its programs")
    return found[-1]


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL with its default settings until the block ends; yield host, port and so on.

    What it yields is the part of a URL after "postgresql://".
    """
    programs = programs_of_postgres()
    account: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL does not run as root.
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    initialize = [str(programs / "initdb"), "--auth=trust", "--username=bench", f"--pgdata={data}"]
    subprocess.run(initialize, check=True, stdout=subprocess.DEVNULL, cwd=folder, **account)
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", folder],
        stderr=subprocess.DEVNULL,
        cwd=folder,
        **account,
    )
    try:
        ready = [str(programs / "pg_isready"), "--host=127.0.0.1", f"--port={port}"]
        while subprocess.run(ready, stdout=subprocess.DEVNULL, check=False).returncode:
            if server.poll() is not None:
                sys.exit("bench.py: postgres ended before it served")
            time.sleep(0.05)
        yield f"bench@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait()
