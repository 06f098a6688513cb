"""What is a fault, and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.control import Fault, FaultRow
from penstock.monitoring.dashboard.faults import ALARM_REMEDY, current_faults, fault_views, page_address
from tests.unit.monitoring.overviews import ENDED, NOW, OFF, driver, row, seen

ERROR = "Job aborted\nat line 2"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"row": row(state="failing", error=ERROR)}, [("stream", "bundles", "failing", "Job aborted")]),
        ({"row": row(state="blocked", error=ERROR)}, [("stream", "bundles", "blocked", "Job aborted")]),
        ({"driver": ENDED}, [("app", "metrics", "down", "its driver ended 4 s ago: exit code 137")]),
        (
            {"driver": driver(state="queued", reason="too few cores")},
            [("app", "metrics", "queued", "too few cores")],
        ),
        ({"before": {"late": 0, "dead": 1}}, [("stream", "bundles", "alarm", "late records in the last 10 min: 3")]),
        ({"row": row(state="failing", error=ERROR), "desired": OFF}, []),
        (
            {"row": row(store={"destination": "x"}, state="waiting", error=ERROR)},
            [("sink", "bundles", "waiting", "Job aborted")],
        ),
    ],
)
def test_what_does_not_work_is_a_fault(given: dict[str, Any], expected: list[tuple[str, ...]]) -> None:
    view = seen(**given)
    found = current_faults(view.apps, view.runs, view.replacements)
    assert [(fault.kind, fault.name, fault.state, fault.reason) for fault in found] == expected
    assert [fault.name for fault in view.faults] == [name for _, name, *_ in expected]


def test_a_fault_is_shown_with_its_time_and_what_to_do() -> None:
    view = seen(row=row(state="blocked", error=ERROR))
    [fault] = current_faults(view.apps, [], [])
    since = FaultRow(**vars(fault), since=NOW - 60_000, ended_at=None)
    over = replace(since, since=NOW - 90_000, ended_at=NOW - 70_000)
    [lasting], [past] = fault_views([fault], [since, over], NOW)
    assert (lasting.since, lasting.lasted_ms, lasting.ended_at) == (NOW - 60_000, 60_000, None)
    assert (past.lasted_ms, past.ended_at) == (20_000, NOW - 70_000)
    assert "last error" in lasting.remedy
    [new], _ = fault_views([fault], [over], NOW)
    assert (new.since, new.lasted_ms) == (None, None)


def test_a_remedy_names_the_app() -> None:
    view = seen(driver=ENDED)
    assert "streams_metrics" in view.faults[0].remedy
    assert seen(before={"late": 0, "dead": 1}).faults[0].remedy == ALARM_REMEDY


@pytest.mark.parametrize(
    ("fault", "address"),
    [
        (Fault("app", "metrics", "metrics", "down", ""), "#/streams?app=metrics"),
        (Fault("stream", "per day/hour", "metrics", "failing", ""), "#/streams/per%20day%2Fhour"),
        (Fault("sink", "shops", "sinks", "waiting", ""), "#/streams/shops"),
        (Fault("backfill", "replay", "", "failed", ""), "#/backfills"),
    ],
)
def test_a_fault_has_an_address_on_the_page(fault: Fault, address: str) -> None:
    assert page_address(fault) == address
