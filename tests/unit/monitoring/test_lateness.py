"""Why a stream is late, by what the platform knows."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control import ProgressRow
from penstock.monitoring.dashboard.answers import streams
from penstock.monitoring.dashboard.answers.summary import summary
from penstock.monitoring.dashboard.lateness import lateness
from tests.unit.monitoring.overviews import NOW, row
from tests.unit.monitoring.page_moments import declared, moment

OLD = NOW - 5 * 60_000
EDGES = [("stream first", "topic receipts"), ("topic receipts", "stream bundles")]


def why(one: ProgressRow, *others: ProgressRow, behind_ms: int = 0, **more: Any) -> str:
    rows: list[dict[str, Any]] = [
        {"name": "bundles", "kind": "stream", "behind_ms": behind_ms},
        {"name": "first", "kind": "stream"},
    ]
    data = moment([one, *others], declared(*rows, edges=EDGES), **more)
    return lateness(data, data.streams["bundles"])


def topics(lag: int, **figures: Any) -> dict[str, Any]:
    return {"receipts": {"lag": lag, "offsets": {"0": 5}, **figures}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"watermark": OLD, "state": "failing", "error": "E"}, ""),
        (
            {"watermark": OLD, "state": "idle", "lag": 0, "topics": topics(0), "batch_at": OLD},
            "its input is idle: no record came since its last batch 5 min ago",
        ),
        ({"lag": 90_000, "topics": topics(90_000)}, "it is behind by 90,000 records, at 120 a second"),
        (
            {"watermark": OLD, "topics": topics(17, open={"3": 77})},
            "partition 3 of receipts gives no records: a producer's transaction is open",
        ),
        (
            {"watermark": OLD, "lag": 17, "topics": topics(17), "batch_at": OLD},
            "17 records wait for its next batch, 5 min after the last one",
        ),
        ({"watermark": OLD, "lag": 0, "topics": topics(0)}, "it reads all there is: its input has no newer event time"),
    ],
)
def test_a_late_stream_says_why(changes: dict[str, Any], said: str) -> None:
    assert why(row(**changes)) == said


def test_what_is_declared_is_not_late() -> None:
    assert why(row(watermark=OLD), behind_ms=5 * 60_000) == ""


def test_the_furthest_of_several_topics_is_named() -> None:
    both = {"far": {"lag": 80_000, "offsets": {"0": 1}}, "near": {"lag": 10_000, "offsets": {"0": 1}}}
    assert why(row(lag=90_000, topics=both)).startswith("it is behind by 90,000 records, most of far")


def test_a_stream_that_waits_names_what_it_waits_for() -> None:
    late = row(watermark=OLD)
    first = {"name": "first", "app": "before"}
    said = why(late, row(**first, state="failing", error="E"))
    assert said == "it waits for stream first, which is failing"
    assert why(late, row(**first, watermark=OLD)) == "it waits for stream first, which is late by 5 min itself"
    held = {"receipts": {"at": NOW - 1, "why": "first is down"}}
    said = why(late, row(**first, state="failing", error="E"), holds=held)
    assert said == "it waits for what writes receipts: first is down"


def test_streams_are_ordered_by_lag_and_by_watermark() -> None:
    rows = [
        row(name="a", app="x", lag=5, watermark=NOW - 30_000),
        row(name="b", app="y", lag=None, watermark=NOW - 90_000),
        row(name="c", app="x", lag=700, watermark=None),
    ]
    data = moment(rows, declared({"name": "b", "kind": "stream", "behind_ms": 80_000}))
    assert streams.stream_list(data, "", "", "", 1)["order"] is None
    assert streams.stream_list(data, "", "", "", 1, "lag")["order"] == ["c", "a", "b"]
    # Of the 90 s of b, 80 are declared.
    assert streams.stream_list(data, "", "", "", 1, "watermark")["order"] == ["a", "b", "c"]
    assert streams.stream_list(data, "", "x", "", 1, "watermark")["order"] == ["a", "c"]
    totals = summary(data)["totals"]
    assert (totals["watermark_of"], totals["watermark_age_ms"]) == ("a", 30_000)
    assert streams.lags(data) == {name: {"receipts": 17} for name in "abc"}
