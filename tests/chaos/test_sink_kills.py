"""A driver of sinks killed and its stores cut under load: each store ends as its topics say. Without Elasticsearch,
which takes a third of the time and is in `make chaos`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.sinks.__main__ import main

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]


def test_each_store_ends_as_its_topics_say(tmp_path: Path, home: Path) -> None:  # noqa: ARG001
    run = "--seed 3 --rate 40 --kills 1 --outages 1 --longest 6 --stores mongodb influxdb --home"
    code = main([*run.split(), str(tmp_path / "run")])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["mistakes"] == []
    assert code == 0
    # It did something.
    assert (sum(summary["kills"].values()), sum(summary["outages"].values())) == (1, 1)
    assert summary["records"] > 500
    assert all(count > 50 for count in summary["documents"].values())
    assert summary["documents"].keys() >= {"documents-log", "points-now", "dead letters"}
