"""The control database with more apps than a handful: nobody is lost behind a limit, and no look reads all rows."""

from __future__ import annotations

from sqlalchemy import inspect

from penstock.control import Control
from penstock.monitoring.dashboard.snapshot import read
from penstock.supervision.decision.facts import facts_of
from tests.bench.rows import Catalog, filled


def test_all_of_a_hundred_drivers_are_read(control: Control) -> None:
    filled(control, Catalog(1_010), history_ms=1)
    assert len(control.drivers()) == 101
    snap = read(control)
    assert len(snap.drivers) == len(snap.desired) == 101
    assert all(len(streams) == 10 for streams in snap.desired.values())
    assert {name for streams in snap.desired.values() for name in streams} == snap.progress.keys()
    for driver in control.drivers():
        control.end_driver(driver.incarnation, f"the end of {driver.app}")
    for app in ("app-00000", "app-00100"):
        found = facts_of(control, app)
        assert found is not None
        assert [d.reason for d in found.recent] == [f"the end of {app}"]


def test_what_an_app_asks_for_has_an_index(control: Control) -> None:
    with control.begin() as c:
        assert "ix_progress_app" in {index["name"] for index in inspect(c).get_indexes("progress")}
