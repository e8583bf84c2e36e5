"""Fixtures of the tests: a parleyd with a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from programs import parleyd

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a parleyd that the tests share, each with its own session ids."""
    folder = tmp_path_factory.mktemp("parleyd")
    with parleyd(folder, store="bolt") as server:
        yield server.address
