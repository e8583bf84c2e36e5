"""The example of the README runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_snippet(address: str) -> None:
    """It prints the state of the session and of the user."""
    text = Path(__file__).with_name("snippet.py").read_text().replace("127.0.0.1:50051", address)
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert done.stdout == "{'cart': ['tea'], 'user:language': 'en'}\n"
