"""The projects of the benchmarks are valid: they use declarations of the shipped systems, which change."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import catalog
from penstock.settings import PROJECT
from tests.chaos.projects import other_project

BENCH = PROJECT / "tests" / "bench"


@pytest.mark.parametrize(("name", "streams"), [("receipts", 8), ("project", 7)])
def test_a_benchmark_project_is_valid(name: str, streams: int, tmp_path: Path) -> None:
    with other_project(BENCH / name, {"PENSTOCK_HOME": tmp_path}):
        assert len(catalog.load().streams) == streams
