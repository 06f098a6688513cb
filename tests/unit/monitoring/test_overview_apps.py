"""What the page says of apps that are down, of lag that is not known, and of streams that no driver knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from penstock.control import AppRow, Desired, DriverRow, ProgressRow
from penstock.monitoring.dashboard.model import Overview
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.snapshot import Snapshot
from penstock.monitoring.dashboard.states import State, StateLimits
from tests.unit.monitoring.overviews import APP, DRIVER, NOW, OFF, ROW, driver, row, seen, state_of


def fleet(
    *rows: ProgressRow, app: AppRow = APP, driver: DriverRow = DRIVER, changed: Mapping[str, int] | None = None
) -> Overview:
    """App `metrics` with the streams `bundles` and `fresh`, of which these rows are known."""
    wanted: dict[str, Desired] = {"bundles": "on", "fresh": "on"}
    progress = {one.name: one for one in rows}
    snap = Snapshot(NOW, [app], {"metrics": wanted}, {"d1": driver}, progress, changed=dict(changed or {}))
    return overview(snap, StateLimits())


def test_an_app_that_is_down_is_reported_as_down_and_not_only_as_old() -> None:
    ended = driver(state="ended", ended_at=NOW - 30_000, reason="exit code 137")
    view = fleet(row(reported_at=NOW - 30_000), row(name="fresh", reported_at=NOW - 30_000), driver=ended)
    assert view.freshness.title == "App metrics is down"
    assert view.freshness.message == "metrics: its driver ended 30 s ago: exit code 137."
    assert (view.freshness.old, view.freshness.down) == ("all", ["metrics"])
    silent = driver(alive_at=NOW - 60_000)
    assert fleet(row(reported_at=NOW - 60_000), driver=silent).freshness.title == "App metrics is hung"
    assert fleet(ROW, row(name="fresh")).freshness.title == ""
    assert fleet(ROW, row(name="fresh", reported_at=NOW - 20_000)).freshness.title == "Some metrics are old"


def test_unknown_lag_is_not_summed_as_zero() -> None:
    def lag(view: Overview) -> tuple[int | None, int]:
        return view.totals.lag, view.totals.lag_unknown

    assert lag(fleet(ROW, row(name="fresh", lag=3))) == (20, 0)
    assert lag(fleet(ROW, row(name="fresh", lag=None))) == (17, 1)
    assert lag(fleet(ROW, row(name="fresh", reported_at=NOW - 20_000))) == (17, 1)
    assert lag(fleet(ROW)) == (17, 1)
    assert lag(fleet(row(lag=None))) == (None, 2)
    assert lag(seen(desired=OFF)) == (0, 0)


def test_remaining_records_of_tables_are_not_shown_if_unknown() -> None:
    loading = row(state="loading", lag=None, topics={"shops": {"lag": None, "offsets": {"0": 700}}})
    assert state_of(seen(row=loading)) == ("loading", "700 records of its tables are read")


@pytest.mark.parametrize(
    ("app", "changed", "state", "why"),
    [
        (APP, {"fresh": NOW - 30_000}, "starting", "its driver has not started it yet"),
        (
            replace(APP, refused_at=NOW - 5_000, refused="new to its driver: fresh: cannot be read\n more"),
            {"fresh": NOW - 30_000},
            "failing",
            "the release that contains it was refused 5 s ago: new to its driver: fresh: cannot be read",
        ),
        (APP, {"fresh": NOW - 600_000}, "down", "its driver does not know it; release its app"),
        (APP, {}, "down", "its driver does not know it; release its app"),
    ],
    ids=["on its way", "refused", "nobody releases", "of an older version"],
)
def test_a_stream_that_its_driver_does_not_know_becomes_down(
    app: AppRow, changed: dict[str, int], state: State, why: str
) -> None:
    view = fleet(ROW, app=app, changed=changed)
    assert state_of(view, "fresh") == (state, why)
    assert state_of(view, "bundles")[0] == "running"
    [stream] = [s for s in view.apps[0].streams if s.name == "fresh"]
    assert (stream.error, stream.error_age_ms) == ((app.refused, 5_000) if app.refused else (None, None))
