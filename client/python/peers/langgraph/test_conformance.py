"""LangGraph's own suite for checkpointers: all of its capabilities and tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from langgraph.checkpoint.conformance import checkpointer_test, validate

from parley.adapters.langgraph import ParleySaver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

# The number of tests of each capability in version 0.0.2 of the suite.
TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


def test_all_capabilities_pass(address: str) -> None:
    """Each of the 81 tests passes, and none is left out."""

    @checkpointer_test(name="ParleySaver")
    async def savers() -> AsyncGenerator[ParleySaver, None]:
        async with ParleySaver(address) as saver:
            yield saver

    report = asyncio.run(validate(savers))

    failures = [failure for result in report.results.values() for failure in result.failures]
    assert not failures
    assert {name: result.tests_passed for name, result in report.results.items()} == TESTS
