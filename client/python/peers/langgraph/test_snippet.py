"""The example of the README runs as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def test_snippet(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the messages of the graph."""
    text = Path(__file__).with_name("snippet.py").read_text()
    exec(compile(text.replace("127.0.0.1:50051", address), "snippet.py", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "['Hi.', '1 so far']\n"
