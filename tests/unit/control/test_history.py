"""The history of streams: reports, and hours of those that are old."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import func, insert, select

from penstock.control import Control, ProgressRow, tables
from penstock.control.repositories.apps import DeclaredApps
from penstock.control.repositories.history import DAY_MS, HOUR_MS, HOURLY_DAYS

NAMES = ("s", "t")


@pytest.fixture
def control(control: Control) -> Control:
    streams = {name: SimpleNamespace(name=name, app="a") for name in NAMES}
    control.sync(cast("DeclaredApps", SimpleNamespace(apps={"a": None}, supervised=streams)))
    return control


def add(control: Control, name: str, times: Sequence[int], **given: Any) -> None:
    """Reports in the past; `late` rises by one with each."""
    zeros = dict.fromkeys(("rows_per_s", "rows_in", "rows_out", "dead", "restarts"), 0)
    with control.begin() as c:
        for n, at in enumerate(times):
            c.execute(insert(tables.history).values(name=name, at=at, **{**zeros, "late": n, **given}))


def report(control: Control, *names: str) -> None:
    assert control.report([ProgressRow(name, "a", "i") for name in names], keep=True) == {}


def rows_of(control: Control, table: Any) -> int:
    with control.begin() as c:
        return c.execute(select(func.count()).select_from(table)).scalar_one()


def test_old_reports_become_hours_and_every_step_keeps_its_figures(control: Control) -> None:
    now = control.now()
    old = (now - 7 * DAY_MS) // HOUR_MS * HOUR_MS
    times = [old - 2 * HOUR_MS + n * 600_000 for n in range(24)]
    add(control, "s", times, rows_per_s=2.5, lag=7, batch_ms=None)
    before = control.history_steps("s", times[0], HOUR_MS)
    report(control, "s")
    assert rows_of(control, tables.hourly_history) == 2
    after = control.history_steps("s", times[0], HOUR_MS)
    assert after[:-1] == before
    assert [(row["late"], row["lag"], row["batch_ms"]) for row in before] == [
        (5, 7, None), (11, 7, None), (17, 7, None), (23, 7, None)
    ]  # fmt: skip
    assert all(math.isclose(row["rows_per_s"], 2.5) for row in before)
    # Again: an hour that has been folded stays as it is.
    report(control, "s")
    assert control.history_steps("s", times[0], HOUR_MS)[:-1] == before


def test_a_stream_that_is_not_reported_keeps_its_reports_for_a_day_more(control: Control) -> None:
    now = control.now()
    add(control, "t", [now - 8 * DAY_MS - 2 * HOUR_MS, now - 8 * DAY_MS + 2 * HOUR_MS, now])
    report(control, "s")
    assert len(control.history(0, "t")) == 2
    report(control, "t")
    assert len(control.history(0, "t")) == 2, "one, and the new one"
    assert next(row["late"] for row in control.history_steps("t", 0, HOUR_MS)) == 1


def test_hours_are_deleted_in_the_end(control: Control) -> None:
    now = control.now()
    add(control, "s", [now - 7 * DAY_MS - 2 * HOUR_MS])
    report(control, "s")
    with control.begin() as c:
        first = c.execute(select(tables.hourly_history)).mappings().one()
        ancient = now - HOURLY_DAYS * DAY_MS
        c.execute(insert(tables.hourly_history).values(**{**first, "at": ancient - HOUR_MS}))
        c.execute(insert(tables.hourly_history).values(**{**first, "at": ancient + HOUR_MS}))
    report(control, "s")
    assert rows_of(control, tables.hourly_history) == 2


def test_steps_are_as_long_as_asked(control: Control) -> None:
    now = control.now() // 60_000 * 60_000
    add(control, "s", [now - n * 15_000 for n in range(40, 0, -1)], rows_per_s=4.0)
    add(control, "t", [now - 15_000])
    steps = control.history_steps("s", now - 300_000, 60_000)
    assert [(row["at"] - now) // 60_000 for row in steps] == [-5, -4, -3, -2, -1]
    assert [row["late"] for row in steps] == [23, 27, 31, 35, 39]
    assert all(math.isclose(row["rows_per_s"], 4.0) for row in steps)
