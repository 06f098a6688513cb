"""From where polls read when the database's clock is set back, and what is owed to transactions open too long."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.capture.output.position import Position, SkippedTransactions
from penstock.capture.polling.cursors import CursorTracker
from penstock.capture.source.open_transactions import TransactionSnapshot
from penstock.model.capture import parse

NOON = datetime(2026, 1, 1, 12)
ONE_HOUR_BACK = "the database's clock was set back by 1:00:00"
HOUR = timedelta(hours=1)
ONE_HOUR_BACK = "the database's clock was set back by 1:00:00"


class Clocks:
    """A database's clock and this process's own, which go on by as much as a test says. answers: how long the database
    takes to answer."""

    answers = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.here = NOON.replace(tzinfo=UTC).timestamp(), 1000.0
        monkeypatch.setattr("penstock.capture.polling.cursors.time.monotonic", lambda: self.here)

    def clock(self) -> float:
        self.here += self.answers
        return self.database

    def passes(self, seconds: float) -> None:
        self.database += seconds
        self.here += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def cursors(low: Any = None, more: str = "OVERLAP 10 SECONDS") -> CursorTracker:
    text = f"CAPTURE INTO t FROM mysql demo KEY (id) CURSOR c {more} AS SELECT id, c FROM t"
    return CursorTracker(parse(text, Path("t.sql")), low)


def read(made: CursorTracker, clocks: Clocks) -> str:
    now, why = made.clock(clocks)  # type: ignore[arg-type]
    assert now == clocks.database
    return why


@pytest.mark.parametrize("low", [datetime(1, 1, 1), datetime(1, 1, 1, tzinfo=UTC)])
def test_a_clock_set_back_where_every_row_has_the_first_time_of_all(clocks: Clocks, low: datetime) -> None:
    made = cursors(low)
    read(made, clocks)
    clocks.database -= 3600
    assert "set back by 1:00:00" in read(made, clocks)
    assert made.mark.value == low


def test_a_clock_set_back_by_less_than_passed_between_two_polls(clocks: Clocks) -> None:
    made = cursors(NOON)
    assert read(made, clocks) == ""
    clocks.passes(60)
    clocks.database -= 40
    assert read(made, clocks) == "the database's clock was set back by 0:00:40"
    assert made.mark.value == NOON - timedelta(seconds=50)


def test_an_answer_that_took_long_is_no_clock_set_back(clocks: Clocks) -> None:
    made = cursors(NOON)
    read(made, clocks)
    clocks.passes(60)
    clocks.answers = 30
    assert read(made, clocks) == ""
    clocks.answers = 0
    assert read(made, clocks) == ""
    assert made.mark.value == NOON


def test_a_number_as_cursor_stays_where_it_is(clocks: Clocks) -> None:
    made = cursors(500)
    read(made, clocks)
    clocks.database -= 60
    assert "set back" in read(made, clocks)
    assert made.mark.value == 500


def test_a_local_time_of_before_does_not_hide_those_of_after(clocks: Clocks) -> None:
    """A cursor without a zone may be fourteen hours ahead, so which is true must be known from before."""
    made, now = cursors(), clocks.database
    read(made, clocks)
    made.mark.poll_ended(now, None, now, NOON + HOUR)
    assert made.limit(NOON, "12", clocks.database) > NOON + 14 * HOUR
    clocks.database -= 1800
    read(made, clocks)
    assert made.limit(NOON, "12", clocks.database) == NOON + HOUR - timedelta(minutes=30)
    clocks.passes(600)
    assert made.limit(NOON, "12", clocks.database) == NOON + HOUR - timedelta(minutes=20)
    clocks.passes(1200)
    assert made.limit(NOON, "12", clocks.database) > NOON + 14 * HOUR


def test_a_low_mark_yet_to_come_says_that_the_clock_was_set_back(clocks: Clocks) -> None:
    made = cursors(NOON + HOUR)
    assert made.check_clock_at_start(clocks.database, "12", 0.0) == ""
    assert made.check_clock_at_start(clocks.database, "TIMESTAMP", 0.0) == ONE_HOUR_BACK
    assert made.mark.value == NOON - timedelta(seconds=10)
    assert made.check_clock_at_start(clocks.database, "TIMESTAMP", 0.0) == ""
    made = cursors(NOON)
    assert made.check_clock_at_start(clocks.database, "12", clocks.database + 5) == ""
    assert made.check_clock_at_start(clocks.database, "12", clocks.database + 3600) == ONE_HOUR_BACK
    assert made.mark.value == NOON - HOUR - timedelta(seconds=10)


@pytest.mark.parametrize("low", [7, Decimal(7), date(2026, 1, 1), "2026-01-01 12:00:00"])
def test_a_clock_set_back_while_nobody_polled_is_said_whatever_the_cursor_is(clocks: Clocks, low: Any) -> None:
    made = cursors(low)
    assert made.check_clock_at_start(clocks.database, "8", clocks.database + 5) == ""
    assert made.check_clock_at_start(clocks.database, "8", clocks.database + 3600) == ONE_HOUR_BACK
    assert made.mark.value == low
    assert cursors(None).check_clock_at_start(clocks.database, "8", clocks.database + 3600) == "", "all is read"


# Debts

POSITION = Position("f", "t")


def test_what_is_owed_is_owed_until_all_have_ended_that_a_new_process_finds() -> None:
    """A transaction may have looked older to the process before: its statement was seen to wait, or the server was
    started since then."""
    made = cursors(more="HOLD 10 SECONDS")
    owes = replace(POSITION, skipped=SkippedTransactions(5, 100.0))
    oldest, position = made.apply_hold(TransactionSnapshot(200.0, 195.0), owes)
    assert (oldest, position.skipped) == (195.0, SkippedTransactions(5, 200.0))
    # Those that begin later change nothing.
    assert made.apply_hold(TransactionSnapshot(250.0, 245.0), position)[1] == position
    # And what is too old does not shorten it.
    assert made.apply_hold(TransactionSnapshot(202.0, 150.0), position)[1] == position


def test_a_transaction_is_too_long_when_two_polls_far_apart_show_it_so() -> None:
    made = cursors(7, more="HOLD 10 SECONDS EVERY 1 HOUR")
    assert made.apply_hold(TransactionSnapshot(10_000.0, 10_000.0 - 3600), POSITION) == (6400.0, POSITION)
    oldest, position = made.apply_hold(TransactionSnapshot(10_000.0, 10_000.0 - 3620), POSITION)
    assert (oldest, position.skipped) == (6390.0, SkippedTransactions(7, 6390.0))


def test_looks_that_do_not_see_all_any_more_hold_the_low_mark() -> None:
    guess = TransactionSnapshot(110.0, 105.0, complete=False)
    assert cursors(7).check_visibility(guess, POSITION) == (guess, POSITION), "they never did: DELAY stands in"
    made = cursors(7)
    _, position = made.check_visibility(TransactionSnapshot(100.0, 95.0), POSITION)
    assert position.sees_all
    assert made.check_visibility(guess, position)[0].oldest == 95.0
    assert made.blind
    # Another process knows when the last poll of the one before ended.
    assert cursors(7).check_visibility(guess, replace(position, clock=90.0))[0].oldest == 90.0
    # Polls that ended meanwhile had no look behind them, so they do not count.
    made.mark.poll_ended(110.0, 95.0, 111.0, 8)
    assert made.mark.has_candidates
    assert made.check_visibility(TransactionSnapshot(120.0, None), position)[0].oldest is None
    assert (made.blind, made.mark.has_candidates, made.mark.value) == (False, False, 7)
