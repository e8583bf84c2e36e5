"""The example of the README runs as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from parley.adapters.llama_index import ParleyChatStore


def test_snippet(
    shared: str, parley_store: ParleyChatStore, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(__file__).with_name("snippet.py").read_text()
    exec(compile(text.replace("127.0.0.1:50051", shared), "snippet.py", "exec"), {})  # noqa: S102
    want = ["Which libraries keep state?", "Zustand and Jotai do."]
    assert capsys.readouterr().out == f"{want}\n"
    assert parley_store.get_keys() == ["dora@example.com"]
