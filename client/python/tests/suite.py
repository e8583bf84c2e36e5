"""Run the tests of a framework with another class in place of its own: parts of pytest plugins.

The file deselected.txt beside the plugin has a test and a reason in each line, with two spaces
between them. These tests must fail: one that passes fails the run, and so does an entry that is no
test, or another number of results than ``--expect`` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def add_option(parser: pytest.Parser) -> None:
    """Add the option for the results that the run must have."""
    parser.addoption("--expect", help="the results, such as passed=3,xfailed=1")


def mark_deselected(items: list[pytest.Item], folder: Path) -> None:
    """Mark the tests of deselected.txt in the folder."""
    reasons = {}
    for line in (folder / "deselected.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            test, separator, reason = line.partition("  ")
            if not separator:
                raise pytest.UsageError(f"deselected.txt has no reason in {line!r}")
            reasons[test] = reason.strip()
    for item in items:
        if item.nodeid in reasons:
            item.add_marker(pytest.mark.xfail(reason=reasons.pop(item.nodeid), strict=True))
    if reasons:
        raise pytest.UsageError(f"deselected.txt has tests that do not exist: {list(reasons)}")


def compare_results(reporter: Any, config: pytest.Config, with_session: int) -> None:
    """Compare the results, and the number of tests that made a session, with the option."""
    kinds = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    stats = {kind: len(reporter.stats.get(kind, ())) for kind in kinds}
    got = ",".join(f"{kind}={count}" for kind, count in stats.items() if count)
    got += f",with_session={with_session}"
    reporter.write_line(f"results: {got}")
    expected = config.getoption("--expect")
    if expected and got != expected:
        reporter.write_line(f"want the results {expected}", red=True)
        reporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED
