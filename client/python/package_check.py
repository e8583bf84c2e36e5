"""Try the installed package with a server: package_check.py LOG, the server's log."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from importlib import resources
from pathlib import Path

import parley
import parley.adapters

DEADLINE = 60  # seconds until the server serves


def address(log: Path) -> str:
    """Return the address that the server reports in its log."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        for line in log.read_text().splitlines():
            if line.endswith("}") and json.loads(line)["msg"] == "serving grpc":
                return str(json.loads(line)["address"])
        time.sleep(0.05)
    raise SystemExit("package_check.py: the server does not serve")


def main() -> None:
    """Make a call, and check what the metadata says."""
    folder = Path(parley.__file__).parent
    if "site-packages" not in folder.parts:
        raise SystemExit(f"package_check.py: parley is imported from {folder}")
    files = resources.files("parley")
    for name in ("py.typed", "service_config.json", "v1/message_pb2.pyi"):
        if not files.joinpath(name).is_file():
            raise SystemExit(f"package_check.py: the package lacks {name}")
    metadata = importlib.metadata.metadata("parley-client")
    for field in ("License-Expression", "License-File", "Project-URL", "Provides-Extra"):
        if not metadata.get_all(field):
            raise SystemExit(f"package_check.py: the metadata lacks {field}")
    client = parley.Client(address(Path(sys.argv[1])))
    message = parley.Message(role=parley.Role.ROLE_USER, content="packaged")
    request = parley.AppendMessagesRequest(conversation_id="packaged", messages=[message])
    if client.append_messages(request).appended[0].sequence < 1:
        raise SystemExit("package_check.py: the server stored no message")
    client.close()


if __name__ == "__main__":
    main()
