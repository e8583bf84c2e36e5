"""The example of the README runs as it is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from conftest import ScriptedModel

if TYPE_CHECKING:
    import pytest


def test_snippet(
    fresh: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ModuleType("my_models")
    models.__dict__["model"] = ScriptedModel()
    monkeypatch.setitem(sys.modules, "my_models", models)
    text = Path(__file__).with_name("snippet.py").read_text().replace("127.0.0.1:50051", fresh)
    exec(compile(text, "snippet.py", "exec"), {})  # noqa: S102
    assert "Heard: Which libraries keep state?" in capsys.readouterr().out
