"""The example of the README runs as it is there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from conftest import ScriptedClient

if TYPE_CHECKING:
    import pytest


def test_snippet(
    fresh: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ModuleType("my_models")
    models.__dict__["client"] = ScriptedClient()
    monkeypatch.setitem(sys.modules, "my_models", models)
    text = Path(__file__).with_name("snippet.py").read_text().replace("127.0.0.1:50051", fresh)
    for count in (1, 3):
        exec(compile(text, "snippet.py", "exec"), {})  # noqa: S102
        want = f"Heard: Which libraries keep state? ({count})\n"
        assert capsys.readouterr().out == want
