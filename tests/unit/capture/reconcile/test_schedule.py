"""When captures are compared: spread over the day, and soon after a start that comes late."""

from __future__ import annotations

from datetime import timedelta

from penstock.capture.reconcile.schedule import START_SPREAD_SECONDS, due

DAY = timedelta(days=1)
NOW = 1_800_000_000.0
NAMES = [f"table_{n}" for n in range(20)]


def test_captures_that_were_opened_together_do_not_begin_together() -> None:
    times = sorted(due(name, DAY, NOW, NOW) for name in NAMES)
    assert times[0] >= NOW + 0.75 * DAY.total_seconds()
    assert times[-1] <= NOW + DAY.total_seconds()
    assert times[-1] - times[0] > 0.15 * DAY.total_seconds()
    assert len({round(t / 60) for t in times}) > 15


def test_what_is_overdue_at_a_start_begins_within_minutes() -> None:
    for compared in (0.0, NOW - 3 * DAY.total_seconds()):
        times = [due(name, DAY, compared, NOW) for name in NAMES]
        assert NOW <= min(times) < max(times) <= NOW + START_SPREAD_SECONDS
        assert max(times) - min(times) > START_SPREAD_SECONDS / 2


def test_a_restart_does_not_begin_a_comparison_that_is_not_due() -> None:
    compared = NOW - DAY.total_seconds() / 2
    assert {due(name, DAY, compared, NOW) for name in NAMES} == {due(name, DAY, compared, 0.0) for name in NAMES}
