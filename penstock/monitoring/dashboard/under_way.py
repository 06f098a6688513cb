"""What takes long and is under way: snapshots, reconciles, backfills, replacements, loading and catching up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.control import Control
from penstock.model.declaration import CAPTURES_APP
from penstock.monitoring.dashboard.model import BackfillRunView, CaptureView, Overview, ReplacementView, StreamView
from penstock.monitoring.dashboard.replacements import REPLACEMENT_STATES

LISTED = 100
# A stream whose lag is more than it reads in this time is catching up.
BEHIND_SECONDS = 60
# What a batch or two read is no backlog, however few records come.
SMALL_LAG = 1_000
# The history by which the lag falls, and how much of it there must be.
HISTORY_MS, HISTORY_AT_LEAST_MS = 5 * 60_000, 30_000


@dataclass(frozen=True)
class UnderWay:
    """Something that takes long.

    Attributes:
        app: Whose driver does it; empty for a backfill.
        view: The view of the page that has more about it.
        what: How far it is, in a sentence.
        done: 0 to 1; None if unknown.
        rate: Records per second; None if unknown.
        remaining_ms: Estimated; None if unknown, or if it does not come nearer to its end.
    """

    kind: Literal["capture snapshot", "reconcile", "backfill", "replacement", "loading", "catching up"]
    name: str
    app: str
    view: Literal["captures", "backfills", "replacements", "streams"]
    what: str
    done: float | None = None
    rate: float | None = None
    remaining_ms: int | None = None


def under_way(view: Overview, streams: Iterable[StreamView], lag_falls: Mapping[str, float]) -> list[UnderWay]:
    """All that is under way.

    Args:
        view: The overview.
        streams: Those of `late_streams`.
        lag_falls: By stream, in records/s, see `read_lag_falls`.
    """
    rates = {stream.name: stream.rows_per_s for app in view.apps if app.name == CAPTURES_APP for stream in app.streams}
    listed = [one for capture in view.captures for one in _of_capture(capture, rates.get(capture.name))]
    listed += [_of_replacement(one) for one in view.replacements if one.state in _REPLACING]
    listed += [_of_run(run) for run in view.runs if run.ended_age_ms is None and run.state != "silent"]
    return [*listed, *(_of_stream(stream, lag_falls.get(stream.name)) for stream in streams)]


def late_streams(streams: Iterable[StreamView]) -> list[StreamView]:
    """Streams that load their tables or catch up, at most LISTED, those with the greatest lag first."""
    late = [stream for stream in streams if stream.state == "loading" or is_behind(stream)]
    return sorted(late, key=lambda stream: (stream.state != "loading", -(stream.lag or 0)))[:LISTED]


def read_lag_falls(control: Control, names: Sequence[str], now: int) -> dict[str, float]:
    """How fast the lag of streams has fallen in the last minutes.

    Args:
        control: The control database.
        names: Names of the streams.
        now: Epoch ms.

    Returns:
        By stream, records/s; without those whose lag does not fall.
    """
    lags: dict[str, list[tuple[int, int]]] = {}
    for row in control.history(now - HISTORY_MS, names) if names else ():
        if row["lag"] is not None:
            lags.setdefault(row["name"], []).append((row["at"], row["lag"]))
    falls = {}
    for name, points in lags.items():
        (begin, before), (end, after) = points[0], points[-1]
        if end - begin >= HISTORY_AT_LEAST_MS and after < before:
            falls[name] = (before - after) * 1000 / (end - begin)
    return falls


_REPLACING = ("queued", "building", "following", "cutting")


def is_behind(stream: StreamView) -> bool:
    """Whether a stream that runs has more to read than it reads in BEHIND_SECONDS."""
    rate = stream.rows_per_s
    return stream.state == "running" and rate is not None and (stream.lag or 0) > max(BEHIND_SECONDS * rate, SMALL_LAG)


def _of_capture(capture: CaptureView, rate: float | None) -> Iterator[UnderWay]:
    if capture.snapshot is not None:
        read, total = capture.snapshot
        what = f"{read:,} of about {total:,} rows of its table are read"
        remaining = _remaining(max(0, total - read), rate)
        done = min(1.0, read / total)
        yield UnderWay("capture snapshot", capture.name, CAPTURES_APP, "captures", what, done, rate, remaining)
    if capture.phase == "reconciling":
        yield UnderWay("reconcile", capture.name, CAPTURES_APP, "captures", "its table and its topic are compared")


def _of_replacement(one: ReplacementView) -> UnderWay:
    read = f"{one.records or 0:,} of {one.total:,} records are read: " if one.total and one.state == "building" else ""
    what = one.why or read + REPLACEMENT_STATES[one.state]
    return UnderWay("replacement", one.name, one.app, "replacements", what, one.done, one.rate, one.remaining_ms)


def _of_run(run: BackfillRunView) -> UnderWay:
    rows = f"{run.rows_done:,} of {run.rows:,} rows" if run.rows else f"{run.files_done:,} of {run.files:,} files"
    how = {"waiting": f"waits {run.why}", "verifying": "is verified"}.get(run.state, f"{rows} are written")
    return UnderWay("backfill", run.name, "", "backfills", f"{run.run}: {how}", run.done, run.rate, run.remaining_ms)


def _of_stream(stream: StreamView, fall: float | None) -> UnderWay:
    remaining = _remaining(stream.lag or 0, fall)
    if stream.state != "loading":
        what, rate = f"{stream.lag:,} records are not read yet", stream.rows_per_s
        return UnderWay("catching up", stream.name, stream.app, "streams", what, None, rate, remaining)
    read = sum(sum(topic.offsets.values()) for topic in stream.topics)
    done = read / (read + stream.lag) if stream.lag is not None and read + stream.lag else None
    return UnderWay("loading", stream.name, stream.app, "streams", stream.why, done, fall, remaining)


def _remaining(records: int, rate: float | None) -> int | None:
    return int(records * 1000 / rate) if rate else None
