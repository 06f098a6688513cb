"""States, freshness and totals of the page's data model; the downsampled history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.control import Actor, AppRow, Control, Desired
from penstock.control.repositories.captures import CaptureRow
from penstock.control.repositories.history import BATCH_PARTS
from penstock.errors import ControlError
from penstock.monitoring.dashboard.history import POINTS, downsample
from penstock.monitoring.dashboard.model import CaptureView
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import Snapshot, read
from penstock.monitoring.dashboard.states import REMEDIES, STATES, State, StateLimits
from penstock.monitoring.humanize import duration, first_line
from penstock.settings import PROJECT, Settings
from penstock.supervision.decision.decide import START_TIMEOUT
from tests.unit.monitoring.overviews import APP, DRIVER, ENDED, NOW, OFF, ROW, driver, row, seen, state_of


@pytest.mark.parametrize(
    ("given", "state", "why"),
    [
        ({}, "running", ""),
        ({"row": row(state="idle")}, "idle", ""),
        ({"row": row(state="failing", error="boom\n  at x")}, "failing", "boom"),
        ({"row": row(state="failing")}, "failing", "no error was reported"),
        ({"row": row(state="blocked", error="a gap")}, "blocked", "a gap"),
        (
            {"row": row(state="waiting", error="no answer", error_at=NOW - 90_000)},
            "waiting",
            "for 1 min 30 s: no answer",
        ),
        (
            {"row": row(state="loading", lag=250, topics={"shops": {"lag": 250, "offsets": {"0": 700, "1": 50}}})},
            "loading",
            "750 of 1,000 records of its tables are read",
        ),
        ({"row": row(state="starting")}, "starting", "its driver has not finished its first batch yet"),
        ({"row": row(state="stopped")}, "starting", "its driver has not finished its first batch yet"),
        ({"row": row(incarnation="d0")}, "starting", "its driver has not finished its first batch yet"),
        ({"row": None}, "starting", "its driver has not started it yet"),
        ({"row": row(reported_at=NOW - 12_000)}, "unknown", "its driver runs, but has not reported on it for 12 s"),
        ({"driver": driver(alive_at=NOW - 14_000)}, "unknown", "its driver last reported 14 s ago"),
        (
            {"driver": driver(alive_at=NOW - 31_000)},
            "hung",
            "its driver on pond has not reported for 31 s",
        ),
        ({"driver": None, "app": replace(APP, incarnation=None)}, "down", "no driver was launched yet"),
        (
            {"driver": None, "app": replace(APP, incarnation=None), "changed": NOW - 181_000},
            "down",
            "no driver was launched yet",
        ),
        (
            {"driver": None, "app": replace(APP, incarnation=None), "changed": NOW - 50_000},
            "starting",
            "no driver was launched yet",
        ),
        ({"driver": ENDED}, "down", "its driver ended 4 s ago: exit code 137"),
        (
            {"driver": ENDED, "app": replace(APP, release_seq=1)},
            "starting",
            "the driver of release 0 has drained; the next one is launched",
        ),
        (
            {"driver": driver(state="launching", launched_at=NOW - 50_000, alive_at=NOW - 50_000), "row": None},
            "starting",
            "its driver was launched 50 s ago",
        ),
        (
            {"driver": driver(state="launching", alive_at=NOW - 181_000)},
            "hung",
            "its driver on pond has not reported for 3 min 1 s",
        ),
        ({"driver": driver(state="draining")}, "draining", "its driver drains"),
        (
            {"app": replace(APP, release_seq=3)},
            "draining",
            "release 3 starts when release 0 has drained",
        ),
        (
            {"app": replace(APP, release_seq=3, standby_for=3)},
            "draining",
            "it works until the driver of release 3, which starts, is ready",
        ),
        (
            {"app": replace(APP, release_seq=3, standby_for=3), "driver": driver(state="draining")},
            "draining",
            "release 3 starts when release 0 has drained",
        ),
        ({"desired": OFF}, "draining", "stopped by an operator"),
        ({"desired": OFF, "row": row(state="stopped")}, "stopped", ""),
        ({"desired": OFF, "row": row(incarnation="d0")}, "stopped", ""),
        ({"desired": OFF, "row": None}, "stopped", ""),
        ({"desired": OFF, "driver": ENDED}, "stopped", ""),
        (
            {"desired": OFF, "driver": driver(alive_at=NOW - 31_000)},
            "hung",
            "its driver on pond has not reported for 31 s",
        ),
        (
            {"desired": OFF, "driver": driver(alive_at=NOW - 31_000), "row": row(state="stopped")},
            "stopped",
            "",
        ),
    ],
)
def test_state_of_a_stream_and_the_reason(given: dict[str, Any], state: State, why: str) -> None:
    assert state_of(seen(**given)) == (state, why)
    assert state in STATES


@pytest.mark.parametrize(
    ("state", "age", "told"),
    [("idle", 60_000, 60_000), ("running", 3_700_000, None), ("failing", 3_700_000, 3_700_000)],
)
def test_a_past_error_is_shown_for_an_hour(state: str, age: int, told: int | None) -> None:
    stream = seen(row=row(state=state, error="boom", error_at=NOW - age)).apps[0].streams[0]
    assert (stream.error, stream.error_age_ms) == ("boom" if told else None, told)


def test_an_app_has_the_state_of_its_worst_active_stream() -> None:
    desired: dict[str, Desired] = {"bundles": "on", "summaries": "off"}
    assert seen(desired=desired).apps[0].state == "running"
    assert seen(desired=desired, row=row(state="failing")).apps[0].state == "failing"
    assert seen(desired=desired, driver=ENDED).apps[0].state == "down"


def test_an_app_with_all_streams_off_drains_until_its_driver_ends() -> None:
    assert seen(desired=OFF, row=row(state="stopped")).apps[0].state == "draining"
    assert seen(desired=OFF, driver=ENDED).apps[0].state == "stopped"
    assert seen(desired=OFF, driver=None, app=replace(APP, incarnation=None)).apps[0].state == "stopped"


def test_ages_are_by_the_databases_clock_and_never_negative() -> None:
    stream = seen(row=row(reported_at=NOW + 40, batch_at=NOW + 40)).apps[0].streams[0]
    assert (stream.reported_age_ms, stream.batch_age_ms) == (0, 0)
    assert stream.watermark_age_ms == 9_000


def test_a_watermark_of_zero_is_none_yet() -> None:
    stream = seen(row=row(watermark=0)).apps[0].streams[0]
    assert (stream.watermark, stream.watermark_age_ms) == (None, None)


def test_offsets_are_in_order_of_partition() -> None:
    topic = seen().apps[0].streams[0].topics[0]
    assert (topic.name, topic.lag, topic.partitions, [p for p, _ in topic.in_order]) == ("receipts", 17, 2, ["2", "10"])


def test_metrics_are_current_while_streams_report() -> None:
    view = seen()
    assert (view.freshness.old, view.freshness.message, view.freshness.newest_age_ms) == ("no", "", 1_500)
    assert view.totals.rows_per_s == 120.0


def test_all_metrics_are_old_if_no_stream_reports() -> None:
    view = seen(row=row(reported_at=NOW - 250_000))
    assert view.freshness.old == "all"
    assert "No stream with desired state on has reported for 4 min 10 s" in view.freshness.message
    stream = view.apps[0].streams[0]
    assert stream.stale
    assert stream.rows_per_s is None
    assert (view.totals.rows_per_s, view.totals.lag, view.totals.late) == (0.0, None, 3)


def test_streams_with_old_metrics_are_named() -> None:
    snap = Snapshot(
        NOW,
        [APP],
        {"metrics": {"bundles": "on", "summaries": "on"}},
        {"d1": DRIVER},
        {"bundles": ROW, "summaries": row(name="summaries", reported_at=NOW - 20_000)},
    )
    view = overview(snap, StateLimits())
    assert view.freshness.old == "some"
    assert "summaries (20 s)" in view.freshness.message
    assert "bundles" not in view.freshness.message
    assert (view.totals.wanted, view.totals.healthy) == (2, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"before": {"late": 3, "dead": 1}}, []),
        ({"before": {"late": 1, "dead": 1}}, ["late records in the last 10 min: 2"]),
        ({"before": {"late": 3, "dead": 0}}, ["dead letters in the last 10 min: 1"]),
        ({"row": row(watermark=NOW + 9_000)}, []),
        (
            {"row": row(watermark=NOW + 240_000)},
            ["its watermark is 4 min ahead of the clock; until then records are late"],
        ),
        ({"row": row(state="stopped"), "desired": OFF, "before": {"late": 0, "dead": 0}}, []),
    ],
)
def test_alarms_of_a_stream_that_runs(given: dict[str, Any], said: list[str]) -> None:
    view = seen(**given)
    assert view.apps[0].streams[0].alarms == said
    assert state_of(view)[1] == "; ".join(said)


def test_earlier_counts(control: Control) -> None:
    with control.begin() as c:
        c.exec_driver_sql("INSERT INTO stream (name, app, desired) VALUES ('bundles', 'metrics', 'on')")
    control.report([row(late=late) for late in (4, 7)], keep=True)
    assert read(control).before == control.counts(control.now() - 60_000) == {"bundles": {"late": 4, "dead": 1}}
    assert control.counts(control.now() + 1) == {}


def test_a_stopped_stream_is_not_old() -> None:
    view = seen(desired=OFF, driver=ENDED, row=row(reported_at=NOW - 900_000, state="stopped"))
    assert view.freshness.old == "no"
    assert not view.apps[0].streams[0].stale


def test_a_snapshot_reads_everything(control: Control) -> None:
    _declare(control)
    first = control.claim("metrics", None, host="pond", spec_hash="x", owner="o", log="/l")
    assert first is not None
    control.end_driver(first, "killed")
    control.report([row(incarnation=first, batch_at=None)], keep=True)
    control.record_heartbeat("receipts", control.now() - 2_000, 4, "triggerer")
    control.hold_heartbeats("receipts", control.now() - 9_000, "bundles is down")
    control.hold_heartbeats("silent", None, "bundles is down")
    control.set_desired(["bundles"], "off", Actor("olga", "cli"), "for the night")
    view = overview(read(control), StateLimits())
    assert view.apps[0].driver is not None
    assert view.apps[0].driver.reason == "killed"
    assert view.apps[0].streams[0].state == "stopped"
    assert view.beats[0]["topic"] == "receipts"
    assert 1_900 < view.beats[0]["age_ms"] < 60_000
    assert (view.beats[0]["held"], view.beats[0]["held_at"] < control.now()) == ("bundles is down", True)
    assert [view.beats[1][key] for key in ("topic", "at", "age_ms", "held_at")] == ["silent", None, None, None]


def test_a_snapshot_of_an_absent_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ControlError):
        read(Control(f"sqlite:///{tmp_path}/empty.db"))


def test_limits_follow_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STUCK_AFTER", "45")
    monkeypatch.setenv("PENSTOCK_PROGRESS_EVERY", "4")
    assert StateLimits.of(Settings()) == StateLimits(
        stuck_ms=45_000, start_ms=int(START_TIMEOUT * 1000), fresh_ms=20_000
    )


def _declare(control: Control) -> None:
    from penstock.control import tables as s

    with control.engine.begin() as c:
        c.execute(s.app.insert().values(name="metrics", release_seq=0, restarts=0))
        c.execute(s.stream.insert().values(name="bundles", app="metrics", desired="on"))


# History


def past(at: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "bundles", "at": at, "rows_per_s": 10.0, "batch_ms": 5, "batch_age_ms": 1, "lag": 2,
        **dict.fromkeys(BATCH_PARTS, 1),
        "watermark_age_ms": 3, "state_rows": 4, "state_bytes": 5, "rows_in": 6, "rows_out": 7, "late": 0, "dead": 0,
        "restarts": 0, **changes,
    }  # fmt: skip


def test_an_hour_fits_in_120_points_for_any_number_of_rows() -> None:
    found = downsample((past(NOW - i * 500) for i in range(7_200, -1, -1)), NOW)
    assert len(found["t"]) == POINTS == 120
    assert {len(values) for values in found["streams"]["bundles"].values()} == {120}
    assert None not in found["streams"]["bundles"]["lag"][1:]
    assert found["t"][-1] * 1000 <= NOW < found["t"][-1] * 1000 + found["step_ms"]


def test_each_series_is_reduced_in_its_own_way() -> None:
    rows = [
        past(NOW, rows_per_s=10.0, lag=5, state_rows=1, late=100),
        past(NOW + 1, rows_per_s=20.0, lag=9, state_rows=2, late=103),
        past(NOW + 2, rows_per_s=30.0, lag=None, state_rows=3, late=104),
    ]
    series = downsample(rows, NOW + 2)["streams"]["bundles"]
    assert [series[k][-1] for k in ("rows_per_s", "lag", "state_rows", "late")] == [20.0, 9, 3, 4]


def test_a_counter_rises_between_steps_and_never_falls() -> None:
    rows = [past(NOW - 90_000, dead=2), past(NOW - 60_000, dead=7), past(NOW - 30_000, dead=0)]
    assert downsample(rows, NOW)["streams"]["bundles"]["dead"][-4:] == [0, 5, 0, None]


def test_a_step_without_a_report_is_a_gap() -> None:
    series = downsample([past(NOW - 120_000), past(NOW)], NOW)["streams"]["bundles"]["lag"]
    assert series[-5:] == [2, None, None, None, 2]


def test_rows_outside_the_hour_are_left_out() -> None:
    assert downsample([past(NOW - 7_200_000)], NOW)["streams"] == {}


# Words


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (59_999, "59 s"), (60_000, "1 min"), (250_000, "4 min 10 s"),
     (3_600_000, "1 h"), (11_100_000, "3 h 5 min"), (176_400_000, "2 d 1 h")],
)  # fmt: skip
def test_duration(ms: int, words: str) -> None:
    assert duration(ms) == words


def test_first_line_skips_empty_lines_and_is_cut() -> None:
    assert first_line("\n\n  boom \nmore") == "boom"
    assert first_line(None) == ""
    assert first_line("x" * 300) == "x" * 199 + "…"


def test_remedies_are_those_of_the_docs() -> None:
    section = (PROJECT / "docs" / "operations.md").read_text().partition("## States\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[3:] if line[:1] == "|"
    ]
    said = {state: cure for state, _, cure in rows}
    assert said == {state: REMEDIES[state] for state in said}
    assert said.keys() == STATES.keys() <= REMEDIES.keys()


def captured(**changes: Any) -> CaptureView:
    given = CaptureRow("accounts", phase="polling", drift={"missing": 0, "differing": 2, "extra": 0, "rows": 9})
    figures = row(name="accounts", app="captures", watermark=NOW - 700)
    drivers = {"d1": driver(app="captures")}
    app = AppRow("captures", release_seq=0, incarnation="d1", restarts=0)
    wanted: dict[str, dict[str, Desired]] = {"captures": {"accounts": "on", "late": "on"}}
    captures = {"accounts": replace(given, **changes)}
    view = overview(Snapshot(NOW, [app], wanted, drivers, {"accounts": figures}, captures=captures), StateLimits())
    known, unknown = view.captures
    assert (unknown.name, unknown.phase, unknown.lag_ms, unknown.drift, unknown.asked) == ("late", "", None, None, None)
    return known


def test_a_capture_is_shown_with_its_report() -> None:
    plain = captured()
    assert (plain.state, plain.phase, plain.lag_ms, plain.rows_in, plain.rows_out) == (
        "running",
        "polling",
        700,
        1000,
        40,
    )
    assert (plain.snapshot, plain.open_ms, plain.skipped_transactions, plain.poll_age_ms) == (None, None, False, 2_000)
    assert plain.drift
    assert plain.drift["differing"] == 2
    assert plain.dead_letter_rows is None
    assert captured(dead_letter_rows={"rows": 2, "first": "k"}).dead_letter_rows == {"rows": 2, "first": "k"}
    reading = captured(phase="snapshot", snapshot_rows=5, snapshot_total=20, oldest_at=NOW - 90_000, skipped_until=NOW)
    assert (reading.snapshot, reading.open_ms, reading.skipped_transactions) == ((5, 20), 90_000, True)
    assert captured(phase="snapshot", snapshot_rows=5).snapshot is None, "of how many is not known yet"


def test_a_request_to_a_capture_is_shown_until_it_is_answered() -> None:
    asked = {"requested": "reconcile", "request_id": "b", "answer": "of before"}
    assert (captured(**asked, answered_request_id="a").asked, captured(**asked, answered_request_id="a").answer) == (
        "reconcile",
        "",
    )
    done = captured(requested="reconcile", request_id="b", answered_request_id="b", answer="no such table")
    assert (done.asked, done.answer) == (None, "no such table")


def test_streams_of_other_apps_are_no_captures() -> None:
    assert seen().captures == []
