"""Faults in the control database: they begin, change, end, and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from penstock.control import Control, Fault, tables
from penstock.control.repositories.faults import PAST_DAYS, PAUSE_MS
from penstock.control.repositories.history import DAY_MS

DOWN = Fault("app", "metrics", "metrics", "down", "its driver ended")
BLOCKED = Fault("stream", "minutes", "metrics", "blocked", "records are gone")


def passed(control: Control, ms: int) -> None:
    """Let all that is noted be older."""
    f = tables.fault.c
    with control.begin() as c:
        c.execute(update(tables.fault).values(since=f.since - ms, ended_at=f.ended_at - ms))


def test_a_fault_lasts_until_it_is_gone(control: Control) -> None:
    assert control.note_faults([DOWN, BLOCKED]) == ([DOWN, BLOCKED], [])
    passed(control, 5_000)
    worse = replace(BLOCKED, reason="more records are gone")
    begun, ended = control.note_faults([worse])
    assert (begun, [(row.name, row.ended_at) for row in ended]) == ([], [("metrics", None)])
    lasting, over = control.faults()
    assert (lasting.name, lasting.reason, lasting.ended_at) == ("minutes", "more records are gone", None)
    assert over.name == "metrics"
    assert over.ended_at is not None
    assert over.ended_at - over.since >= 5_000
    assert control.note_faults([worse]) == ([], [])


@pytest.mark.parametrize(("later", "count"), [(PAUSE_MS // 2, 1), (2 * PAUSE_MS, 2)], ids=["goes on", "is another"])
def test_a_fault_that_comes_back(control: Control, later: int, count: int) -> None:
    control.note_faults([DOWN])
    passed(control, 1_000)
    control.note_faults([])
    passed(control, later)
    begun, _ = control.note_faults([DOWN])
    assert len(control.faults()) == count
    assert len(begun) == count - 1
    assert [row.ended_at is None for row in control.faults()] == [True, False][:count]


def test_past_faults_are_limited_and_deleted_in_the_end(control: Control) -> None:
    for n in range(4):
        control.note_faults([replace(DOWN, name=f"app-{n}")])
        control.note_faults([])
        passed(control, 2 * PAUSE_MS)
    assert [row.name for row in control.faults(past=2)] == ["app-3", "app-2"]
    passed(control, PAST_DAYS * DAY_MS)
    control.note_faults([])
    assert control.faults() == []
