"""The snippets of adapters.md are the examples that the tests of the adapters run."""

from __future__ import annotations

import re
from pathlib import Path

CLIENT = Path(__file__).parents[2]
PAGE = (CLIENT / "adapters.md").read_text("utf-8")


def snippets(language: str) -> set[str]:
    """Return the code of the page in a language."""
    return set(re.findall(f"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def examples(pattern: str) -> set[str]:
    """Return the contents of files."""
    return {path.read_text("utf-8") for path in CLIENT.glob(pattern)}


def test_python() -> None:
    """Each example of Python is a snippet, and each snippet an example."""
    assert snippets("python") == examples("python/peers/*/snippet.py")


def test_javascript() -> None:
    """Each example of JavaScript is a snippet, and each snippet an example."""
    assert snippets("ts") == examples("typescript/peers/snippets/*.mjs")


def test_go() -> None:
    """The snippet of Go is in the example, except for its address and its indentation."""
    (example,) = examples("adk/example_test.go")
    code = "\n".join(line.removeprefix("\t") for line in example.splitlines())
    (snippet,) = snippets("go")
    begin, _, rest = snippet.partition("\n")
    assert begin == 'c, err := client.Dial("127.0.0.1:50051")'
    assert rest.strip() in code
