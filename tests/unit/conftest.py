"""Fixtures of the unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.settings import PROJECT
from tests.unit.supervised import Platform


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Operators and triggers can be imported as Airflow does, by their bare names, in a home of their own."""
    with pytest.MonkeyPatch.context() as m:
        if "airflow" not in sys.modules:
            m.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
        m.syspath_prepend(str(PROJECT / "plugins"))
        yield


@pytest.fixture
def p(tmp_path: Path, home: Path) -> Iterator[Platform]:  # noqa: ARG001
    """A platform of this test's own, under a home of its own; its drivers are killed at the end."""
    made = Platform(tmp_path)
    yield made
    made.close()
