"""The last hour of all streams, downsampled for the charts of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

HISTORY_MS = 60 * 60 * 1000
POINTS = 120

_MAXIMUM = ("batch_ms", "batch_age_ms", "lag", "watermark_age_ms")
_LAST = ("state_rows", "state_bytes")
_RISE = ("late", "dead", "restarts")


def downsample(rows: Iterable[Mapping[str, Any]], now: int, span_ms: int = HISTORY_MS) -> dict[str, Any]:
    """Rows of the history (oldest first) on one time axis of at most `POINTS` equal steps, for all streams.

    Returns {"t": [epoch s], "step_ms": n, "streams": {name: {series: [value or None]}}}. A step without a report is
    None. A step has the mean of a rate, the maximum of a lag, time or age, the last value of a size, and the rise of a
    counter.
    """
    step = span_ms // POINTS
    first = now // step - POINTS + 1
    buckets: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        index = int(row["at"]) // step - first
        if 0 <= index < POINTS:
            buckets.setdefault(row["name"], {}).setdefault(index, []).append(row)
    return {
        "t": [(first + i) * step // 1000 for i in range(POINTS)],
        "step_ms": step,
        "streams": {name: _series(steps) for name, steps in sorted(buckets.items())},
    }


def _series(buckets: dict[int, list[Mapping[str, Any]]]) -> dict[str, list[float | None]]:
    series: dict[str, list[float | None]] = {
        name: [None] * POINTS for name in ("rows_per_s", *_MAXIMUM, *_LAST, *_RISE)
    }
    before: Mapping[str, Any] | None = None
    for index, rows in sorted(buckets.items()):
        series["rows_per_s"][index] = round(sum(r["rows_per_s"] for r in rows) / len(rows), 2)
        for name in _MAXIMUM:
            series[name][index] = max((r[name] for r in rows if r[name] is not None), default=None)
        for name in _LAST:
            series[name][index] = rows[-1][name]
        for name in _RISE:
            series[name][index] = max(0, rows[-1][name] - (before or rows[0])[name])
        before = rows[-1]
    return series
