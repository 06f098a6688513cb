"""How far a run of a stream is through its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.control import ProgressRow
from penstock.engine.progress.caught_up import MAX_MEASUREMENTS, CaughtUpTracker
from penstock.supervision.unreadable_run import UnreadableRun

ENDS = {("t", 0): 5, ("t", 1): 7}
BEFORE, THERE = {"t": {0: 5, 1: 6}}, {"t": {0: 5, 1: 7}}


@dataclass
class Clock:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


def made(behind_ms: int | None = None, *, waits: bool = False) -> tuple[CaughtUpTracker, Clock]:
    clock = Clock()
    return CaughtUpTracker(behind_ms, waits=waits, clock=clock), clock


def behind(through: CaughtUpTracker) -> int | None:
    return through.behind_ms


def test_it_is_through_once_all_that_was_there_is_written() -> None:
    through, clock = made()
    through.add_measurement(1000.0, ENDS, BEFORE)
    assert behind(through) is None
    clock.at = 1004.0
    through.batch_written({"t": {0: 9, 1: 6}})
    assert behind(through) is None, "one partition is not the other"
    through.batch_written(THERE)
    assert behind(through) == 4000
    through.add_measurement(1003.0, ENDS, THERE)
    assert behind(through) == 1000


def test_what_an_earlier_run_had_reached_grows_old() -> None:
    through, clock = made(3000)
    clock.at += 2.0
    assert behind(through) == 5000


def test_windows_close_one_batch_later() -> None:
    through, _ = made(waits=True)
    through.add_measurement(1000.0, ENDS, BEFORE)
    through.batch_written(THERE)
    assert behind(through) is None
    through.batch_written(THERE)
    assert behind(through) == 0


def test_where_no_window_closes_it_rests() -> None:
    through, clock = made(waits=True)
    through.add_measurement(1000.0, ENDS, THERE)
    clock.at = 1002.0
    assert behind(through) is None
    through.query_idle()
    assert behind(through) == 2000


def test_a_partition_of_which_nothing_is_known() -> None:
    through, _ = made()
    through.add_measurement(1000.0, {("t", 0): 5}, THERE)
    through.add_measurement(1000.0, {}, {})
    assert behind(through) is None


def test_offsets_of_another_log_do_not_count() -> None:
    through, _ = made()
    through.add_measurement(1000.0, ENDS, BEFORE)
    through.reset()
    through.batch_written(THERE)
    assert behind(through) is None


def test_a_long_backlog_keeps_little() -> None:
    through, clock = made()
    for n in range(100):
        through.add_measurement(1000.0 + n, {("t", 0): n + 1}, {"t": {0: 0}})
    clock.at = 1100.0
    through.batch_written({"t": {0: 100}})
    assert behind(through) == int((100 - MAX_MEASUREMENTS + 1) * 1000)


def test_a_stream_whose_file_cannot_be_read_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("penstock.supervision.unreadable_run.time.monotonic", clock)
    known = UnreadableRun(ProgressRow("s", "a", "i", behind_ms=5000), "why")
    never = UnreadableRun(ProgressRow("s", "a", "i"), "why")
    clock.at += 60.0
    assert known.report().behind_ms == 65_000
    assert never.report().behind_ms is None
