"""Some random histories of tables, always the same ones: captured through kills, each topic ends as its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.histories.__main__ import main

# Of captures `make test` has the kills of unit/capture/polling/test_kills.py.
pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(400)]


def test_each_topic_ends_as_its_table(tmp_path: Path, home: Path) -> None:  # noqa: ARG001
    run = "--seed 3 --histories 3 --at-once 3 --kills 2 --outages 1 --engines mariadb,postgres,sqlite --home"
    code = main([*run.split(), str(tmp_path / "run")])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["mistakes"] == []
    assert code == 0
    # It did something.
    assert summary["histories"] == 3
    assert summary["operations"] > 50
    assert summary["records"] >= summary["rows"] > 15
