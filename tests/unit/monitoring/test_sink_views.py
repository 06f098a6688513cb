"""What the operator page shows of sinks and their stores."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.monitoring.dashboard.model import SinkView
from tests.unit.monitoring.overviews import NOW, ROW, row, seen

STORE = {
    "destination": "elasticsearch:tests", "written": 40, "conflicts": 7, "retried": 3, "waits": 2,
    "written_per_s": 12.0, "retried_per_s": 0.5, "answered_at": NOW - 4_000,
}  # fmt: skip


def sunk(store: dict[str, Any] | None = STORE, **given: Any) -> SinkView:
    [sink] = seen(row=row(store=store, **given)).sinks
    return sink


def test_a_sink_is_shown_with_its_metrics_and_the_health_of_its_store() -> None:
    assert seen().sinks == [], "a stream into topics is none"
    well = sunk()
    assert (well.name, well.app, well.destination, well.health, well.health_age_ms, well.reason) == (
        "bundles", "metrics", "elasticsearch:tests", "reachable", 4_000, "",
    )  # fmt: skip
    figures = (well.written_per_s, well.retried_per_s, well.written, well.conflicts, well.retried, well.refused)
    assert figures == (12.0, 0.5, 40, 7, 3, 0)
    assert (well.waits, well.lag, well.dead) == (2, ROW.lag, ROW.dead)
    away = sunk(state="waiting", error="nobody there\nat es:9200", error_at=NOW - 90_000)
    assert (away.health, away.health_age_ms, away.reason) == ("away", 90_000, "nobody there\nat es:9200")


@pytest.mark.parametrize(
    "given",
    [
        {"store": {"destination": "elasticsearch:tests", "answered_at": None}},
        {"state": "failing", "error": "not let in"},
        {"reported_at": NOW - 250_000},
        {"state": "starting"},
    ],
)
def test_the_health_of_an_idle_store_is_unknown(given: dict[str, Any]) -> None:
    found = sunk(**given)
    assert (found.health, found.health_age_ms, found.reason) == ("unknown", None, "")


def test_a_busy_store_is_an_alarm() -> None:
    busy = "its store is too busy: of 100 documents per second, 11 are retried"
    for again, said in ((10.0, ""), (11.0, busy)):
        given = seen(row=row(store={**STORE, "written_per_s": 100.0, "retried_per_s": again}))
        assert given.apps[0].streams[0].why == said
