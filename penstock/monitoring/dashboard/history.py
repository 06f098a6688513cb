"""The past of streams for the charts of the page: the last hour of some or in total, and of one up to 90 days."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Lock
from typing import Any, Literal

from penstock.control import Control
from penstock.control.repositories.history import BATCH_PARTS

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

_MAXIMUM = ("batch_ms", *BATCH_PARTS, "batch_age_ms", "lag", "watermark_age_ms")
_LAST = ("state_rows", "state_bytes")
_RISE = ("late", "dead", "restarts")
TOTALS = ("rows_per_s", "lag", "watermark_age_ms", "state_bytes", "late", "dead")
_STEP_MS = HISTORY_MS // POINTS


def stream_history(control: Control, name: str, app: str, span: Span) -> dict[str, Any]:
    """The past of one stream.

    Returns:
        What `downsample` returns, with `marks`: [{"at": epoch ms, "what": text, "who": text, "detail": text}], what
        was done to the stream and its app, newest first.
    """
    now = control.now()
    length, step = SPANS[span]
    # One more, from which the counters of the first step rise.
    rows = control.history_steps([name], now - length - step, step)
    marks = control.actions_on((name, app), now - length, MARKS)
    return {
        **downsample(rows, now, length, length // step),
        "marks": [
            {"at": a["at"], "what": f"{a['verb']} {a['target']}", "who": a["actor"], "detail": a["detail"] or ""}
            for a in marks
        ],
    }


def hour_history(control: Control, names: Collection[str]) -> dict[str, Any]:
    """The last hour of some streams; as `downsample` returns it, but only `rows_per_s` and `lag`."""
    now = control.now() // _STEP_MS
    first = now - POINTS + 1
    streams: dict[str, dict[str, list[float | None]]] = {}
    for row in control.spark_steps(names, first * _STEP_MS, _STEP_MS):
        index = row["at"] // _STEP_MS - first
        if index < POINTS:
            series = streams.setdefault(row["name"], {"rows_per_s": [None] * POINTS, "lag": [None] * POINTS})
            series["rows_per_s"][index], series["lag"][index] = round(row["rows_per_s"], 2), row["lag"]
    return {"t": _axis(first), "step_ms": _STEP_MS, "streams": streams}


class TotalsHistory:
    """The last hour of all streams together.

    With thousands of streams it takes seconds to read it: steps that are over are kept, and the first answers begin
    later than an hour ago.

    Args:
        budget: Seconds that an answer may take, beside that of one step.
        clock: In seconds.
    """

    def __init__(self, budget: float = 0.5, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget, self._clock = budget, clock
        self._lock = Lock()
        self._delays: Mapping[str, int] = {}
        self._steps: dict[int, Mapping[str, Any]] = {}
        """By number"""

    def read(self, control: Control, delays: Mapping[str, int]) -> dict[str, Any]:
        """The totals.

        Args:
            control: The control database.
            delays: By stream, how far its watermark is behind by declaration, in ms.

        Returns:
            {"t": [epoch s], "step_ms": n, "totals": {series: [value or None]}}; the series are those of
            `Control.history_totals`.
        """
        now, end = control.now() // _STEP_MS, self._clock() + self._budget
        first = now - POINTS + 1
        with self._lock:
            if delays != self._delays:
                self._delays, self._steps = delays, {}
            for step in range(now, first - 1, -1):
                if step not in self._steps:
                    self._steps[step] = control.history_totals(step * _STEP_MS, _STEP_MS, delays)
                    if self._clock() > end:
                        break
            steps = [self._steps.get(step, {}) for step in range(first, now + 1)]
            # A report may be committed after the end of its step.
            self._steps = {step: row for step, row in self._steps.items() if first <= step < now - 1}
        return {
            "t": _axis(first),
            "step_ms": _STEP_MS,
            "totals": {name: [step.get(name) for step in steps] for name in TOTALS},
        }


def _axis(first: int) -> list[int]:
    return [step * _STEP_MS // 1000 for step in range(first, first + POINTS)]


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
