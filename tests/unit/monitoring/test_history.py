"""Series of the page's charts."""

from __future__ import annotations

from typing import Any

from penstock.control.repositories.history import BATCH_PARTS
from penstock.monitoring.dashboard.history import downsample

FIGURES = (
    "batch_ms",
    *BATCH_PARTS,
    "batch_age_ms",
    "lag",
    "watermark_age_ms",
    "state_rows",
    "state_bytes",
    "late",
    "dead",
    "restarts",
)


def report(at: int, **given: Any) -> dict[str, Any]:
    return {"name": "s", "at": at, "rows_per_s": 0.0, **dict.fromkeys(FIGURES, 0), **given}


def test_a_step_has_the_mean_of_a_rate_the_maximum_of_a_lag_and_the_rise_of_a_counter() -> None:
    rows = [
        report(1_000, late=5),
        report(10_500, rows_per_s=1.0, lag=7, late=6),
        report(11_500, rows_per_s=2.0, lag=3, late=9),
        report(13_000, rows_per_s=4.0, lag=None, late=9),
    ]
    found = downsample(rows, 13_999, 4_000, 2)
    assert (found["t"], found["step_ms"]) == ([10, 12], 2_000)
    series = found["streams"]["s"]
    assert (series["rows_per_s"], series["lag"], series["late"]) == ([1.5, 4.0], [7, None], [4, 0])


def test_a_counter_rises_from_nothing_that_is_known() -> None:
    found = downsample([report(10_500, late=6), report(12_500, late=8)], 13_999, 4_000, 2)
    assert found["streams"]["s"]["late"] == [0, 2]


def test_a_stream_without_a_report_in_the_span_is_left_out() -> None:
    assert downsample([report(1_000)], 13_999, 4_000, 2)["streams"] == {}
