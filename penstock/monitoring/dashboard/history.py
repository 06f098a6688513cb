"""The past of streams for the charts of the page: the last hour of all, and of one stream up to 90 days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from penstock.control import Control

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
HISTORY_MS = HOUR_MS
POINTS = 120

Span = Literal["1h", "6h", "24h", "7d", "90d"]
# The length of a span and of its steps, in ms.
SPANS: Mapping[Span, tuple[int, int]] = {
    "1h": (HOUR_MS, 30_000),
    "6h": (6 * HOUR_MS, 2 * MINUTE_MS),
    "24h": (DAY_MS, 10 * MINUTE_MS),
    "7d": (7 * DAY_MS, HOUR_MS),
    "90d": (90 * DAY_MS, 12 * HOUR_MS),
}
# Marks of one answer; of more, the newest.
MARKS = 200

_MAXIMUM = ("batch_ms", "batch_age_ms", "lag", "watermark_age_ms")
_LAST = ("state_rows", "state_bytes")
_RISE = ("late", "dead", "restarts")


def stream_history(control: Control, name: str, app: str, span: Span) -> dict[str, Any]:
    """The past of one stream.

    Returns:
        What `downsample` returns, with `marks`: [{"at": epoch ms, "what": text, "who": text, "detail": text}], what
        was done to the stream and its app, newest first.
    """
    now = control.now()
    length, step = SPANS[span]
    # One more, from which the counters of the first step rise.
    rows = control.history_steps(name, now - length - step, step)
    marks = control.actions_on((name, app), now - length, MARKS)
    return {
        **downsample(rows, now, length, length // step),
        "marks": [
            {"at": a["at"], "what": f"{a['verb']} {a['target']}", "who": a["actor"], "detail": a["detail"] or ""}
            for a in marks
        ],
    }


def downsample(
    rows: Iterable[Mapping[str, Any]], now: int, span_ms: int = HISTORY_MS, points: int = POINTS
) -> dict[str, Any]:
    """Rows of the history (oldest first) on one time axis of at most `points` equal steps, for all streams.

    Returns {"t": [epoch s], "step_ms": n, "streams": {name: {series: [value or None]}}}. A step without a report is
    None. A step has the mean of a rate, the maximum of a lag, time or age, the last value of a size, and the rise of a
    counter.
    """
    step = span_ms // points
    first = now // step - points + 1
    buckets: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        index = int(row["at"]) // step - first
        if index < points:
            # What is before the first step says from where its counters rise.
            buckets.setdefault(row["name"], {}).setdefault(max(index, -1), []).append(row)
    return {
        "t": [(first + i) * step // 1000 for i in range(points)],
        "step_ms": step,
        "streams": {name: _series(steps, points) for name, steps in sorted(buckets.items()) if steps.keys() != {-1}},
    }


def _series(buckets: dict[int, list[Mapping[str, Any]]], points: int) -> dict[str, list[float | None]]:
    series: dict[str, list[float | None]] = {
        name: [None] * points for name in ("rows_per_s", *_MAXIMUM, *_LAST, *_RISE)
    }
    before: Mapping[str, Any] | None = None
    for index, rows in sorted(buckets.items()):
        if index >= 0:
            series["rows_per_s"][index] = round(sum(r["rows_per_s"] for r in rows) / len(rows), 2)
            for name in _MAXIMUM:
                series[name][index] = max((r[name] for r in rows if r[name] is not None), default=None)
            for name in _LAST:
                series[name][index] = rows[-1][name]
            for name in _RISE:
                series[name][index] = max(0, rows[-1][name] - (before or rows[0])[name])
        before = rows[-1]
    return series
