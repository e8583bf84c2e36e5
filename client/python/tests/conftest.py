"""Fixtures that several test files use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from programs import shop_agent

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def agent_address() -> Iterator[str]:
    """Give the address of one running example agent; it keeps nothing, so all tests share it."""
    with shop_agent() as (_, address):
        yield address
