"""Runs of backfills: how they are kept in the control database, and what is said of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy import update

from penstock.control import Control
from penstock.control import tables as s
from penstock.control.repositories.backfills import KEEP_MS, BackfillRow
from penstock.monitoring.dashboard.alarms import PAST_FOR, SILENT_MS
from penstock.monitoring.dashboard.backfills import RUN_REMEDIES, RUN_STATES, run_view
from penstock.monitoring.dashboard.faults import current_faults
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import StateLimits
from penstock.settings import PROJECT

NOW = 1_800_000_000_000
RUN = "counts 2026-01-01T00..2026-01-02T00 -> counts"
ROW = BackfillRow(
    RUN, "counts", 1_767_225_600_000, 1_767_312_000_000, "counts", dry=False, state="running", why="", files=24,
    files_done=6, rows=1000, rows_done=400, rate=12.5, remaining_ms=48_000, verified="", attempts=1, owner="me@pond",
    started_at=NOW - 90_000, reported_at=NOW - 2_000, ended_at=None,
)  # fmt: skip


def begin(control: Control, run: str = RUN, **given: Any) -> int:
    whole: dict[str, Any] = {"name": "counts", "target": "counts", "owner": "me@pond", "files": 24, "rows": 1000}
    return control.begin_backfill(run, **whole | given)


def only(control: Control) -> BackfillRow:
    [row] = control.backfill_runs()
    return row


def test_a_run_has_one_row_when_it_is_reported_ended_and_resumed(control: Control) -> None:
    assert begin(control, begin=ROW.begin, end=ROW.end) == 1
    control.report_backfill(RUN, files_done=6, rows_done=400, rate=12.5, remaining_ms=48_000)
    at = only(control)
    times: dict[str, Any] = {"started_at": at.started_at, "reported_at": at.reported_at}
    assert at == replace(ROW, **times)
    assert abs(at.started_at - control.now()) < 60_000
    control.report_backfill(RUN, state="waiting", why="for counts to be stopped")
    control.report_backfill(RUN, rows_done=401)
    waits = only(control)
    assert (waits.state, waits.why, waits.files_done, waits.rows_done) == (
        "waiting",
        "for counts to be stopped",
        6,
        401,
    )
    control.report_backfill(RUN, state="verifying")
    assert (only(control).state, only(control).why) == ("verifying", "")
    control.end_backfill(RUN, "failed", "x" * 9000, verified="2 records differ")
    control.end_backfill(RUN, "done")
    control.report_backfill(RUN, state="running", rows_done=500)
    failed = only(control)
    assert (failed.state, failed.why, failed.verified, failed.rows_done) == (
        "failed",
        "x" * 4000,
        "2 records differ",
        401,
    )
    assert (failed.rate, failed.remaining_ms) == (0.0, None)
    assert failed.ended_at is not None
    assert begin(control, owner="backfill_counts/run", dry=True, files_done=6, rows_done=400) == 2
    again = only(control)
    assert (again.state, again.why, again.verified, again.ended_at) == ("running", "", "", None)
    assert (again.attempts, again.owner, again.dry, again.rows_done) == (2, "backfill_counts/run", True, 400)


def test_runs_are_newest_first_and_old_ones_are_removed(control: Control) -> None:
    for run in ("a", "b", "c", "d"):
        begin(control, run)
    t, now = s.backfill_run, control.now()
    with control.engine.begin() as c:
        for run, began, heard in (
            ("a", 9_000, 100),
            ("b", 8_000, 8_000),
            ("c", 7_000, 300),
            ("d", 0, KEEP_MS + 60_000),
        ):
            c.execute(update(t).where(t.c.run == run).values(started_at=now - began, reported_at=now - heard))
    assert [row.run for row in control.backfill_runs(limit=2)] == ["c", "a"]
    assert [row.run for row in control.backfill_runs()] == ["d", "c", "b", "a"]
    begin(control, "e")
    assert [row.run for row in control.backfill_runs()] == ["e", "c", "b", "a"]


ENDED = NOW - 5_000


@pytest.mark.parametrize(
    ("changes", "state", "why", "alarm"),
    [
        ({}, "running", "", ""),
        ({"state": "waiting", "why": "for it"}, "waiting", "for it", ""),
        ({"reported_at": NOW - SILENT_MS}, "running", "", ""),
        (
            {"reported_at": NOW - SILENT_MS - 60_000},
            "silent",
            "its process has not reported for 3 min; run it again",
            "y",
        ),
        ({"reported_at": NOW - PAST_FOR - 1_000}, "silent", "its process has not reported for 1 h", ""),
        ({"state": "failed", "why": "boom\nat x", "ended_at": ENDED}, "failed", "boom\nat x", "failed: boom"),
        ({"state": "failed", "ended_at": NOW - PAST_FOR - 1_000}, "failed", "", ""),
        ({"state": "done", "reported_at": NOW - 10 * SILENT_MS, "ended_at": NOW - 10 * SILENT_MS}, "done", "", ""),
        ({"state": "stopped", "ended_at": ENDED}, "stopped", "", ""),
    ],
)
def test_states_and_alarms_of_a_run(changes: dict[str, Any], state: str, why: str, alarm: str) -> None:
    view = run_view(replace(ROW, **changes), NOW)
    assert (view.state, view.why[: len(why)]) == (state, why)
    assert view.alarm == (view.why if alarm == "y" else alarm)
    goes_on = state in ("running", "waiting")
    assert (view.rate, view.remaining_ms) == ((12.5, 48_000) if goes_on else (None, None))


@pytest.mark.parametrize(
    ("changes", "done"),
    [
        ({}, 0.4),
        ({"rows": 0}, 0.25),
        ({"rows": 0, "files": 0}, None),
        ({"rows_done": 1200}, 1.0),
        ({"state": "done", "rows": 0, "files": 0, "ended_at": NOW}, 1.0),
    ],
)
def test_progress_of_a_run(changes: dict[str, Any], done: float | None) -> None:
    assert run_view(replace(ROW, **changes), NOW).done == done


def test_times_of_a_run() -> None:
    live, ended = run_view(ROW, NOW), run_view(replace(ROW, state="done", ended_at=NOW - 30_000), NOW)
    assert (live.took_ms, live.reported_age_ms, live.ended_age_ms) == (88_000, 2_000, None)
    assert (ended.took_ms, ended.ended_age_ms) == (60_000, 30_000)


def test_the_overview_has_the_runs(control: Control) -> None:
    begin(control)
    [run] = asdict(overview(read(control), StateLimits()))["runs"]
    assert (run["run"], run["state"], run["done"], run["attempts"]) == (RUN, "running", 0.0, 1)


def test_remedies_are_those_of_the_docs() -> None:
    section = (
        (PROJECT / "docs" / "operations.md").read_text().partition("## Backfills\n")[2].partition("\nPrometheus")[0]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert {state: cure for state, _, cure in rows[2:]} == RUN_REMEDIES
    assert RUN_STATES.keys() == RUN_REMEDIES.keys()


def test_a_failed_run_is_a_fault_unless_it_was_dry() -> None:
    failed = replace(ROW, state="failed", why="no archive", ended_at=NOW - 1_000)
    runs = [run_view(replace(failed, dry=dry), NOW) for dry in (True, False)]
    assert [len(current_faults([], [run], [])) for run in runs] == [0, 1]
