"""Violations of expectations by rule and minute, from a batch to what is shown."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.control import ProgressRow
from penstock.engine.progress.metrics import StreamMetrics
from penstock.engine.progress.violation_counts import MINUTE_MS, add_violations, declared_counts
from penstock.monitoring.dashboard.expectations import expectation_views
from penstock.streams import Expectation

RULES = (Expectation("a", "x > 0", on_violation="keep"), Expectation("b", "x > 1", on_violation="dead letter"))
T = 1_800_000_000_000


def shown(counts: Any, now: int) -> list[tuple[str, str, int, int, list[tuple[int, int]]]]:
    views = expectation_views(counts, now)
    return [(v.name, v.action, v.violations, v.last_hour, v.minutes) for v in views]


def test_a_stream_without_rules_counts_none() -> None:
    assert declared_counts((), {"a": {}}) is None
    assert add_violations(None, {}, T) is None
    assert shown(None, T) == []


def test_violations_are_counted_by_rule_and_minute() -> None:
    counts = declared_counts(RULES, None)
    for at, violations in ((T, {"a": 2, "b": 0}), (T + 1, {"a": 1, "b": 4}), (T + MINUTE_MS, {"a": 5, "b": 0})):
        counts = add_violations(counts, violations, at)
    assert shown(counts, T + MINUTE_MS) == [
        ("a", "keep", 8, 8, [(T, 3), (T + MINUTE_MS, 5)]),
        ("b", "dead letter", 4, 4, [(T, 4)]),
    ]


def test_an_hour_of_minutes_is_kept_and_the_count_goes_on() -> None:
    counts = declared_counts(RULES, None)
    for minute in range(200):
        counts = add_violations(counts, {"a": 1}, T + minute * MINUTE_MS)
    last = T + 199 * MINUTE_MS
    assert len((counts or {})["a"]["minutes"]) == 60
    assert shown(counts, last)[0][2:4] == (200, 60)
    # Without a batch nothing is removed, and what is older than an hour is not shown.
    assert shown(counts, last + 30 * MINUTE_MS)[0][2:4] == (200, 30)
    assert shown(counts, last + 90 * MINUTE_MS)[0][2:] == (200, 0, [])


def test_a_release_keeps_the_counts_of_its_rules() -> None:
    before = add_violations(declared_counts(RULES, None), {"a": 3, "b": 4}, T)
    changed = (RULES[0], Expectation("b", "x > 1", on_violation="fail"), Expectation("c", "x < 9", on_violation="keep"))
    assert shown(declared_counts(changed, before), T) == [
        ("a", "keep", 3, 3, [(T, 3)]),
        ("b", "fail", 0, 0, []),
        ("c", "keep", 0, 0, []),
    ]
    assert [one[0] for one in shown(declared_counts(RULES[:1], before), T)] == ["a"]


def test_a_report_is_of_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: T / 1000)
    figures = StreamMetrics(ProgressRow("s", "a", "i", expectations=declared_counts(RULES, None)))
    figures.add_violations({"a": 1, "b": 0})
    first = figures.snapshot()
    figures.add_violations({"a": 1, "b": 2})
    assert [one[2] for one in shown(first.expectations, T)] == [1, 0]
    assert [one[2] for one in shown(figures.snapshot().expectations, T)] == [2, 2]
