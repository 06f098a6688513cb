"""The history of streams: reports, and hours of those that are old."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import func, insert, select, update

from penstock.control import Control, ProgressRow, tables
from penstock.control.repositories.apps import DeclaredApps
from penstock.control.repositories.history import DAY_MS, HOUR_MS, HOURLY_DAYS
from penstock.monitoring.dashboard.history import TotalsHistory, hour_history

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
    before = control.history_steps(["s"], times[0], HOUR_MS)
    report(control, "s")
    assert rows_of(control, tables.hourly_history) == 2
    after = control.history_steps(["s"], times[0], HOUR_MS)
    assert after[:-1] == before
    assert [(row["late"], row["lag"], row["batch_ms"]) for row in before] == [
        (5, 7, None), (11, 7, None), (17, 7, None), (23, 7, None)
    ]  # fmt: skip
    assert all(math.isclose(row["rows_per_s"], 2.5) for row in before)
    # Again: an hour that has been folded stays as it is.
    report(control, "s")
    assert control.history_steps(["s"], times[0], HOUR_MS)[:-1] == before


def test_a_stream_that_is_not_reported_keeps_its_reports_for_a_day_more(control: Control) -> None:
    now = control.now()
    add(control, "t", [now - 8 * DAY_MS - 2 * HOUR_MS, now - 8 * DAY_MS + 2 * HOUR_MS, now])
    report(control, "s")
    assert len(control.history(0, ["t"])) == 2
    report(control, "t")
    assert len(control.history(0, ["t"])) == 2, "one, and the new one"
    assert next(row["late"] for row in control.history_steps(["t"], 0, HOUR_MS)) == 1


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


def test_totals_are_sums_over_streams_whose_counters_rise_between_reports(control: Control) -> None:
    for at, late in ((0, 5), (7, 6), (31, 9), (65, 0), (69, 2)):
        add(control, "s", [at], rows_per_s=float(at), lag=at, watermark_age_ms=at, state_bytes=10)
        with control.begin() as c:
            c.execute(update(tables.history).where(tables.history.c.at == at).values(late=late))
    add(control, "t", [2, 8, 66], rows_per_s=2.0, lag=None, watermark_age_ms=60, state_bytes=1)
    none = dict.fromkeys(("rows_per_s", "lag", "state_bytes", "watermark_age_ms", "late", "dead"))
    assert control.history_totals(60, 10, {"t": 50, "nobody": 9}) == {
        "rows_per_s": 69.0, "lag": 69, "state_bytes": 11, "watermark_age_ms": 69, "late": 2, "dead": 0,
    }  # fmt: skip
    assert control.history_totals(0, 10, {"t": 55})["watermark_age_ms"] == 7
    assert control.history_totals(100, 10, {}) == none
    assert [control.history_totals(at, 30, {})["late"] for at in (0, 30)] == [1 + 1, 3]


def test_totals_that_were_read_are_not_read_again(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    now = control.now() // 30_000 * 30_000
    monkeypatch.setattr(control, "now", lambda: now)
    times = [now - n * 15_000 for n in range(200, 0, -1)]
    add(control, "s", times, rows_per_s=1.0, lag=3)
    totals = TotalsHistory(budget=60.0)
    before = totals.read(control, {})
    read: list[int] = []
    real = control.history_totals

    def counted(at: int, step: int, delays: Mapping[str, int]) -> Mapping[str, Any]:
        read.append((now - at) // step)
        return real(at, step, delays)

    monkeypatch.setattr(control, "history_totals", counted)
    now += 60_000
    add(control, "s", [now - 45_000, now - 15_000], rows_per_s=5.0, lag=8)
    later = totals.read(control, {})
    assert read == [0, 1, 2, 3]
    assert later["t"][:-2] == before["t"][2:]
    assert later["totals"]["lag"][:-3] == before["totals"]["lag"][2:-1]
    assert later["totals"]["rows_per_s"][-4:] == [1.0, 5.0, 5.0, None]
    assert later == TotalsHistory(budget=60.0).read(control, {})
    read.clear()
    totals.read(control, {"s": 1_000})
    assert read == list(range(120)), "other delays, other totals"


def test_the_first_totals_begin_later_if_they_take_long(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    now = control.now()
    monkeypatch.setattr(control, "now", lambda: now)
    add(control, "s", [now - n * 30_000 for n in range(110, 0, -1)], rows_per_s=1.0)
    complete = TotalsHistory(budget=60.0).read(control, {})["totals"]["rows_per_s"]
    assert complete == [None] * 9 + [1.0] * 110 + [None]
    # Time for twelve steps: the newest two, which are read again, and ten more.
    totals = TotalsHistory(11.5, itertools.count(0.0, 1.0).__next__)
    for n in range(12, 122, 10):
        rates = totals.read(control, {})["totals"]["rows_per_s"]
        assert rates == [None] * (120 - n) + complete[120 - n :]


def test_sparks_are_means_and_maxima_of_the_streams_that_are_named(control: Control) -> None:
    now = control.now()
    for lag, rate in ((3, 1.0), (9, 2.0)):
        add(control, "s", [now - 60_000], rows_per_s=rate, lag=lag)
    add(control, "t", [now - 60_000], lag=1)
    found = hour_history(control, ["s", "nobody"])
    assert found["streams"].keys() == {"s"}
    at = found["t"].index((now - 60_000) // 30_000 * 30)
    assert {name: series[at] for name, series in found["streams"]["s"].items()} == {"rows_per_s": 1.5, "lag": 9}
    assert {len(series) for series in found["streams"]["s"].values()} == {len(found["t"])} == {120}


def test_steps_are_as_long_as_asked(control: Control) -> None:
    now = control.now() // 60_000 * 60_000
    add(control, "s", [now - n * 15_000 for n in range(40, 0, -1)], rows_per_s=4.0)
    add(control, "t", [now - 15_000])
    steps = control.history_steps(["s"], now - 300_000, 60_000)
    assert [(row["at"] - now) // 60_000 for row in steps] == [-5, -4, -3, -2, -1]
    assert [row["late"] for row in steps] == [23, 27, 31, 35, 39]
    assert all(math.isclose(row["rows_per_s"], 4.0) for row in steps)
