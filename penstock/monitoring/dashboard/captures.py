"""The health of a capture by its last report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from penstock.catalog import partial_catalog
from penstock.control import Control
from penstock.control.repositories.captures import DRIFT_KINDS, CaptureRow
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.platform_status import read_status
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.humanize import duration
from penstock.settings import settings

# A capture lags if it is behind its database by so many of its intervals, and at least so many seconds.
INTERVALS, AT_LEAST = 5, 15.0
MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class CaptureHealth:
    """fault: why the capture does not work; empty if it works."""

    fault: str = ""
    warnings: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def health(control: Control, name: str) -> CaptureHealth:
    """The health of a capture. ControlError if the control database does not answer."""
    now = read_status(control, StateLimits.of(settings()))
    stream = next((s for s in now.streams if s.name == name), None)
    row = now.snap.captures.get(name)
    if stream is None:
        return CaptureHealth("it is not in the control database: check that the DAG `streams_captures` runs")
    figures = {
        "state": stream.state,
        "lag_ms": stream.watermark_age_ms,
        "rows": stream.rows_in,
        **(asdict(row) if row else {}),
    }
    if stream.desired == "off":
        return CaptureHealth(warnings=["its desired state is off"], figures=figures)
    if stream.state in ("failing", "blocked", "down", "hung"):
        return CaptureHealth(f"{stream.state}: {stream.why}", figures=figures)
    return CaptureHealth(warnings=list(_warnings(stream, row, now.view.now)), figures=figures)


def _warnings(stream: StreamView, row: CaptureRow | None, now: int) -> list[str]:
    warnings = []
    lag = (stream.watermark_age_ms or 0) / 1000
    declared = partial_catalog()[0].captures.get(stream.name)
    every = declared.every.total_seconds() if declared else 0.0
    if lag > max(AT_LEAST, INTERVALS * every):
        warnings.append(f"it is {lag:.0f} s behind its database")
    if row and row.oldest_at and now - row.oldest_at > 60_000:
        warnings.append(
            f"a transaction is open for {duration(now - row.oldest_at)}: each poll reads everything since then"
        )
    if row and row.skipped_until:
        warnings.append("transactions are open longer than HOLD; their rows are read when they have ended")
    if row and row.phase == "waiting":
        warnings.append(f"its snapshot waits for {row.why or 'its overlap to pass'}")
    if row and row.drift and any(row.drift[kind] for kind in DRIFT_KINDS):
        drift = row.drift
        reason = f"; the reason of the comparison: {drift['why']}" if drift.get("explained") else ""
        warnings.append(
            f"the last comparison repaired {drift['missing']} missing, {drift['differing']} differing and "
            f"{drift['extra']} extra of {drift['rows']} rows{reason}"
        )
    interval = declared.reconcile if declared else None
    if (
        interval
        and row
        and row.drift
        and (since := now - int(row.drift["ended"] * 1000)) > 2000 * interval.total_seconds()
    ):
        warnings.append(
            f"table and topic were last compared {duration(since)} ago, not {duration(interval // MS)}: "
            "if it does not finish, set a higher RATE of RECONCILE"
        )
    if row and row.dead_letter_rows:
        warnings.append(
            f"{row.dead_letter_rows['rows']} rows are dead letters and not in its topic, "
            f"e.g. {row.dead_letter_rows['first']}: see why by "
            f"`penstock dead-letters show --stream {row.name}`"
        )
    return warnings
