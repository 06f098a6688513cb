"""The search in the log of actions."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control import Actor, Control
from penstock.monitoring.dashboard.answers.activity import activity
from penstock.monitoring.dashboard.answers.paging import PAGE
from tests.unit.monitoring.overviews import ROW
from tests.unit.monitoring.page_moments import moment

OLGA, TOMAS = Actor("olga", "page"), Actor("tomas", "cli")


@pytest.fixture
def control(control: Control) -> Control:
    control.record(OLGA, "start", "bundles", "100% sure")
    control.record(TOMAS, "stop", "bundles")
    control.record(OLGA, "stop", "walk-ins", "moved on Monday")
    for n in range(2):
        control.record(Actor(f"streams_a/run-{n}/supervise", "supervisor"), "launch", "agents", "release 1")
    return control


@pytest.mark.parametrize(
    ("chosen", "targets"),
    [
        ({}, ["agents", "agents", "walk-ins", "bundles", "bundles"]),
        ({"text": "BUNDLE"}, ["bundles", "bundles"]), ({"text": "monday"}, ["walk-ins"]), ({"text": "%"}, ["bundles"]),
        ({"text": "_"}, ["agents", "agents"]), ({"text": "olga", "verb": "stop"}, ["walk-ins"]),
        ({"actor": "tomas"}, ["bundles"]), ({"actor": "supervisor"}, ["agents", "agents"]), ({"actor": "tom"}, []),
        ({"verb": "start"}, ["bundles"]),
    ],
)  # fmt: skip
def test_actions_are_searched(control: Control, chosen: dict[str, Any], targets: list[str]) -> None:
    assert [action["target"] for action in control.search_actions(**chosen, limit=10)] == targets


def test_supervisors_are_one_actor(control: Control) -> None:
    assert control.action_names() == (["olga", "supervisor", "tomas"], ["launch", "start", "stop"])
    assert control.action_names(latest=2) == (["supervisor"], ["launch"])


def test_the_log_has_pages_back_to_its_beginning(control: Control) -> None:
    for n in range(PAGE):
        control.record(TOMAS, "poll", f"t-{n}")
    data = moment([ROW])
    first = activity(data, control, "", "", "", None)
    assert (len(first["actions"]), first["more"], first["actions"][0]["target"]) == (PAGE, True, f"t-{PAGE - 1}")
    second = activity(data, control, "", "", "", first["actions"][-1]["id"])
    assert ([action["target"] for action in second["actions"]][-1], second["more"]) == ("bundles", False)
    assert len(second["actions"]) == 5
    assert {"id", "at", "actor", "source", "verb", "target", "detail", "age_ms"} == first["actions"][0].keys()
