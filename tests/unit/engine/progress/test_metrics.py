"""What a stream's row of progress takes of what Spark tells."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.control import ProgressRow
from penstock.engine.progress.metrics import StreamMetrics


def progress(batch: int, rows: int, at: str, **durations: int) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "timestamp": f"2026-01-01T00:00:{at}.000Z",
        "durationMs": durations,
        "stateOperators": [],
    }


def test_beats_are_no_rows() -> None:
    figures = StreamMetrics(ProgressRow("s", "a", "i"))
    told = {
        **progress(0, 9, "00", addBatch=1),
        "observedMetrics": {"bad_a": {"n": 0, "beats": 2}, "beats_b": {"beats": 3}},
    }
    assert figures.add_progress(told)
    assert figures.row.rows_in == 4


def test_records_that_spark_reads_once_for_each_branch_are_counted_once() -> None:
    figures = StreamMetrics(ProgressRow("s", "a", "i"))
    told = {
        **progress(0, 18, "00", addBatch=1),
        "observedMetrics": {"bad_a": {"n": 0, "beats": 2, "rows": 6}, "beats_b": {"beats": 0, "rows": 3}},
    }
    assert figures.add_progress(told)
    assert figures.row.rows_in == 7


def test_what_a_sink_writes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, now = StreamMetrics(ProgressRow("s", "a", "i")), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert figures.snapshot().store is None, "it is no sink"
    found = []
    for written, retried in ((0, 0), (300, 60), (300, 60)):
        figures.set(store={"destination": "shelf:search", "written": written, "retried": retried})
        store = figures.snapshot().store or {}
        found.append((store["destination"], store["written_per_s"], store["retried_per_s"]))
        now[0] += 10.0
    assert found == [("shelf:search", *rates) for rates in ((0.0, 0.0), (30.0, 6.0), (0.0, 0.0))]


def test_lag_is_not_known_without_offsets() -> None:
    figures = StreamMetrics(ProgressRow("s", "a", "i"))
    figures.set_lag({}, {})
    assert figures.row.lag is None
    figures.set_lag({"t": {0: 5}}, {("t", 0): 1005})
    assert figures.row.lag == 1000


def test_what_lies_behind_an_open_transaction_waits_and_is_told_if_it_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures, now = StreamMetrics(ProgressRow("s", "a", "i")), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def opened(end: int, stable: int, passes: float) -> dict[str, int]:
        now[0] += passes
        figures.set_lag({"t": {0: 5, 1: 0}}, {("t", 0): end, ("t", 1): 0}, {("t", 0): stable, ("t", 1): 0})
        found: dict[str, int] = figures.row.topics["t"]["open"]
        return found

    assert opened(15, 5, 0) == {}
    assert figures.row.lag == 10
    assert opened(15, 5, 9) == {}
    assert opened(20, 5, 1) == {"0": 5}
    assert opened(20, 20, 5) == {}, "it has ended"
    assert opened(30, 25, 5) == {}, "another one"
    assert opened(30, 28, 9) == {}, "a third one"


def test_an_idle_query_tells_of_no_batch() -> None:
    """What Spark says of it every ten seconds has the number of the batch that comes next."""
    figures = StreamMetrics(ProgressRow("s", "a", "i"))
    assert figures.add_progress(progress(0, 5, "00", addBatch=900, triggerExecution=1000))
    assert (batch_at := figures.row.batch_at)
    assert not figures.add_progress(progress(1, 0, "12", latestOffset=3, triggerExecution=4))
    assert (figures.row.batch_id, figures.row.batch_ms, figures.row.batch_at) == (0, 1000, batch_at)
    assert figures.add_progress(progress(1, 7, "20", addBatch=100, triggerExecution=200))
    assert (figures.row.batch_id, figures.row.batch_ms, figures.row.rows_in) == (1, 200, 12)
    assert figures.row.batch_at == batch_at + 20_000 - 1000 + 200


def test_the_time_of_a_batch_has_parts() -> None:
    figures = StreamMetrics(ProgressRow("s", "a", "i"))
    durations = {
        "latestOffset": 3, "getBatch": 1, "queryPlanning": 40, "addBatch": 900, "walCommit": 20, "commitOffsets": 30,
    }  # fmt: skip
    figures.add_progress(progress(0, 5, "00", triggerExecution=1000, **durations))
    row = figures.row
    assert (row.offsets_ms, row.planning_ms, row.processing_ms, row.checkpoint_ms) == (4, 40, 900, 50)


def test_a_long_batch_runs_although_none_has_ended() -> None:
    figures = StreamMetrics(ProgressRow("s", "a", "i", state="idle"))
    figures.set_lag({"t": {0: 5}}, {("t", 0): 1005})
    assert figures.snapshot(busy_for=0.1).state == "idle", "a beat"
    assert figures.snapshot(busy_for=5.0).state == "running"
    figures.set_lag({"t": {0: 5}}, {("t", 0): 5})
    assert figures.snapshot(busy_for=5.0).state == "idle"


def test_a_stream_with_a_backlog_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    figures = StreamMetrics(ProgressRow("s", "a", "i", state="idle"))
    states = []
    for end in (5, 6, 5, 9, 9, 9, 5):
        figures.set_lag({"t": {0: 5}}, {("t", 0): end})
        now[0] += 5.0
        states.append(figures.snapshot().state)
    assert states == ["idle", "idle", "idle", "idle", "running", "running", "idle"], "a beat is no backlog"


def test_the_lag_of_a_partition_that_does_not_answer_is_not_known() -> None:
    figures = StreamMetrics(ProgressRow("s", "a", "i", state="idle"))
    figures.set_lag({"t": {0: 5, 1: 5}, "u": {0: 1}}, {("t", 0): 9, ("u", 0): 3})
    row = figures.snapshot()
    assert (row.lag, row.topics["t"]["lag"], row.topics["u"]["lag"]) == (None, None, 2)
