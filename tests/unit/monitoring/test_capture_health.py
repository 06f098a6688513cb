"""When a capture is called well, lagging or broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.catalog import Catalog
from penstock.control import Actor, Control
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.model.capture import parse
from penstock.monitoring.dashboard.captures import health
from tests.support import captures

ME = Actor("somebody", "cli")
DRIFT = {"missing": 1, "differing": 2, "extra": 3, "rows": 9, "ended": 4e9}


@pytest.fixture
def running(control: Control) -> Control:
    """A control database that knows the capture `shop` and its driver."""
    captures.known(control, "shop")
    return control


def reported(control: Control, state: str = "idle", behind: float = 0.0, **row: Any) -> None:
    error = "the query failed" if state == "failing" else None
    captures.reported(control, "shop", state, error, behind, **row)


def test_one_that_polls_is_well(running: Control) -> None:
    reported(running, phase="polling")
    found = health(running, "shop")
    assert (found.fault, found.warnings) == ("", [])
    assert found.figures["phase"] == "polling"


def test_one_that_fails_says_why(running: Control) -> None:
    reported(running, "failing")
    assert health(running, "shop").fault == "failing: the query failed"


def test_one_that_nobody_knows(running: Control) -> None:
    assert "not in the control database" in health(running, "other").fault


def test_one_that_is_stopped_is_no_fault(running: Control) -> None:
    reported(running, "failing")
    running.set_desired(["shop"], "off", ME)
    found = health(running, "shop")
    assert found.fault == ""
    assert found.warnings == ["its desired state is off"]


@pytest.mark.parametrize(
    ("behind", "row", "warning"),
    [
        (60.0, {}, "it is 60 s behind its database"),
        (0.0, {"oldest_at": 1}, "a transaction is open for"),
        (0.0, {"skipped_until": 1}, "open longer than HOLD"),
        (0.0, {"phase": "waiting", "why": "others"}, "its snapshot waits for others"),
        (
            0.0,
            {"drift": {"missing": 1, "differing": 2, "extra": 3, "rows": 9, "ended": 4e9}},
            "1 missing, 2 differing and 3 extra of 9",
        ),
        (
            0.0,
            {
                "drift": {
                    "missing": 0,
                    "differing": 2,
                    "extra": 0,
                    "rows": 9,
                    "why": "a new snapshot",
                    "explained": True,
                    "ended": 4e9,
                }
            },
            "2 differing and 0 extra of 9 rows; the reason of the comparison: a new snapshot",
        ),
        (0.0, {"dead_letter_rows": {"rows": 3, "first": '{"id":7}'}}, "3 rows are dead letters and not in its topic"),
    ],
)
def test_what_is_not_as_it_should_be_warns(running: Control, behind: float, row: dict[str, Any], warning: str) -> None:
    reported(running, behind=behind, **row)
    found = health(running, "shop")
    assert found.fault == ""
    assert len(found.warnings) == 1
    assert warning in found.warnings[0]


def test_requests_are_answered_once(control: Control) -> None:
    mine, other = Captures(control), Captures(control)
    assert other.requests() == {}
    first = mine.ask("shop", "poll", ME)
    second = mine.ask("shop", "reconcile", ME, "because")
    assert Captures(control).requests() == {"shop": ("reconcile", second)}
    mine.answer("shop", first)
    assert Captures(control).requests() == {"shop": ("reconcile", second)}
    mine.answer("shop", second, "cannot")
    assert Captures(control).requests() == {}
    mine.report(CaptureRow("shop", phase="polling"))
    row = mine.rows()["shop"]
    assert (row.phase, row.requested, row.answered_request_id, row.answer) == ("polling", "reconcile", second, "cannot")
    assert [(a["verb"], a["detail"]) for a in control.actions()] == [("reconcile", "because"), ("poll", None)]


def test_a_comparison_that_does_not_come_to_its_end_is_told(running: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "CAPTURE INTO shop FROM sqlite x KEY id CURSOR c RECONCILE EVERY 1 HOUR AS SELECT * FROM t"
    catalog = Catalog({}, {}, {"shop": parse(text, Path("shop.sql"))})
    monkeypatch.setattr("penstock.monitoring.dashboard.captures.partial_catalog", lambda: (catalog, []))
    for hours, warned in ((1.5, False), (3.0, True)):
        ended = running.now() / 1000 - hours * 3600
        reported(running, drift={"missing": 0, "differing": 0, "extra": 0, "rows": 9, "ended": ended})
        assert any("last compared 3 h ago" in said for said in health(running, "shop").warnings) == warned
