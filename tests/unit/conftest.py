"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.supervised import Platform


@pytest.fixture
def p(tmp_path: Path, home: Path) -> Iterator[Platform]:  # noqa: ARG001
    """A platform of this test's own, under a home of its own; its drivers are killed at the end."""
    made = Platform(tmp_path)
    yield made
    made.close()
