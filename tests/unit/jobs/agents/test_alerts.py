"""The fold of alerts, batch by batch: sessions that a rule missed are in no window that it tells of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.agents import alerts
from tests.support.alert_records import LATE, LENGTH, SESSION, T
from tests.support.fold_runner import Folding


def session(at: int, value: float, selection: int = 1, *, enabled: bool = True, there: bool = True) -> dict[str, Any]:
    """A session that the rule selects, if the rule is there. at: ms after T."""
    began = T + at // LENGTH * LENGTH
    row = {
        "account": "1",
        "active_rules": [{"rule": 7, "selection": selection}] if enabled and there else [],
        "timestamp": T + at,
    }
    if not there:
        return row
    hit = {
        "rule": 7,
        "selection": selection,
        "enabled": enabled,
        "window_start": began,
        "window_end": began + LENGTH,
        "value": value,
    }
    return row | hit


@pytest.fixture
def windows(tmp_path: Path) -> Folding:
    return Folding(alerts.WINDOWS, SESSION, tmp_path, LATE)


def closed(windows: Folding, until: int = LENGTH) -> list[tuple[int, float]]:
    """count and value of what is told when time has come to `until`, ms after T."""
    rows = windows.take([], clock=T + until + LATE)
    rows += windows.take([])
    return [(r["count"], r["value"]) for r in rows]


def test_a_window_is_emitted_once_with_all_of_its_sessions(windows: Folding) -> None:
    windows.take([session(0, 4.0), session(1, 2.0)])
    windows.take([session(2, 6.0)])
    assert closed(windows) == [(3, 4.0)]
    assert windows.take([session(3, 9.0)], clock=T + 9 * LENGTH) == []
    assert windows.late == 1
    assert windows.state() == []


@pytest.mark.parametrize(
    "missed",
    [
        pytest.param({"enabled": False}, id="disabled"),
        pytest.param({"there": False}, id="removed"),
    ],
)
def test_a_rule_that_was_away_tells_nothing_of_the_windows_that_were_open(
    windows: Folding, missed: dict[str, bool]
) -> None:
    windows.take([session(0, 10.0)])
    windows.take([session(n, 0.0, **missed) for n in (1, 2, 3)])
    windows.take([session(4, 10.0)])
    assert closed(windows) == []
    windows.take([session(LENGTH + 600, 5.0)])
    assert closed(windows, 2 * LENGTH) == [(1, 5.0)]


def test_a_rule_that_was_disabled_before_its_first_session_missed_some_too(windows: Folding) -> None:
    windows.take([session(n, 0.0, enabled=False) for n in (1, 2, 3)])
    windows.take([session(4, 10.0), session(5, 10.0)])
    assert closed(windows) == []


def test_a_rule_that_was_changed_and_put_back_begins_anew(windows: Folding) -> None:
    windows.take([session(0, 10.0), session(1, 20.0)])
    windows.take([session(2, 1.0, selection=2)])
    windows.take([session(3, 30.0), session(4, 50.0)])
    assert closed(windows) == [(2, 40.0)]


def test_a_rule_whose_selection_changes_starts_from_nothing(windows: Folding) -> None:
    windows.take([session(0, 10.0), session(1, 20.0)])
    # A session of the account that the rule does not select now.
    windows.take([{**session(2, 0.0, there=False), "active_rules": [{"rule": 7, "selection": 2}]}])
    windows.take([session(3, 30.0, selection=2)])
    assert closed(windows) == [(1, 30.0)]


def test_nothing_is_missed_while_no_session_comes(windows: Folding) -> None:
    windows.take([session(0, 4.0)])
    windows.take([], clock=T + 100)
    windows.take([{**session(5, 9.0, there=False), "account": "2"}])
    windows.take([session(6, 8.0)])
    assert closed(windows) == [(2, 6.0)]
