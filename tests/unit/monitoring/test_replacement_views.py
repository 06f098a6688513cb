"""What the operator page shows of replacements."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import orjson
import pytest

from penstock.control import Actor, Control, tables
from penstock.monitoring.dashboard.alarms import PAST_FOR
from penstock.monitoring.dashboard.answers import parts
from penstock.monitoring.dashboard.overview import overview
from penstock.monitoring.dashboard.replacements import replacement_views
from penstock.monitoring.dashboard.snapshot import read
from penstock.monitoring.dashboard.states import StateLimits
from penstock.supervision.replacement_options import replacement_options
from tests.unit.monitoring.page_moments import moment
from tests.unit.monitoring.replacement_rows import FIGURES, NOW, ROW


@pytest.mark.parametrize(
    ("changes", "actions"),
    [
        ({"state": "queued"}, ["cancel"]),
        ({"state": "building"}, ["cancel"]),
        ({}, ["cut", "cancel"]),
        ({"cut_requested_at": NOW}, ["cancel"]),
        ({"options": replacement_options()}, ["cancel"]),
        ({"state": "cutting"}, []),
        ({"state": "cut"}, ["confirm", "back"]),
        ({"state": "confirmed"}, []),
        ({"state": "cancelled"}, []),
        ({"state": "failed"}, []),
    ],
)
def test_each_state_has_its_actions(changes: dict[str, Any], actions: list[str]) -> None:
    [view] = replacement_views([replace(ROW, **changes)], NOW)
    assert view.actions == actions


@pytest.mark.parametrize(
    ("changes", "done", "rate"),
    [
        ({}, 0.25, 250.0),
        ({"figures": {}}, None, None),
        ({"figures": {"records": 7, "total": 0}}, None, None),
        ({"figures": {"records": 9, "total": 6, "rate": 1.0}}, 1.0, 1.0),
        ({"state": "cut"}, 1.0, None),
        ({"state": "failed"}, 0.25, None),
    ],
)
def test_progress(changes: dict[str, Any], done: float | None, rate: float | None) -> None:
    [view] = replacement_views([replace(ROW, **changes)], NOW)
    assert (view.done, view.rate) == (done, rate)


def test_the_newest_of_each_stream_is_shown_and_the_one_to_go_back_from() -> None:
    states: list[Any] = [("c", "cancelled"), ("b", "cut"), ("a", "confirmed")]
    rows = [replace(ROW, id=identity, state=state) for identity, state in states]
    other = replace(ROW, id="d", name="summaries", state="confirmed")
    assert [view.id for view in replacement_views([*rows, other], NOW)] == ["c", "b", "d"]


def test_a_cut_is_not_confirmed_while_another_replacement_follows_it() -> None:
    rows = [replace(ROW, id="b", state="building"), replace(ROW, id="a", state="cut")]
    assert [view.actions for view in replacement_views(rows, NOW)] == [["cancel"], []]


def test_a_page_of_replacements_has_the_same_actions(control: Control) -> None:
    with control.begin() as c:
        for identity, state in (("a", "cut"), ("b", "building"), ("c", "cut")):
            row = {**asdict(ROW), "id": identity, "name": "others" if identity == "c" else ROW.name, "state": state}
            c.execute(tables.replacement.insert().values(**row))
    data = moment([], replacements=control.replacements())
    shown = parts.replacement_list(data, control, 1)["replacements"]
    assert {one.id: one.actions for one in shown} == {"a": [], "b": ["cancel"], "c": ["confirm", "back"]}


def test_a_page_read_right_after_the_cut_has_the_actions_of_the_cut(control: Control) -> None:
    """What the rows are read with may be up to a second older than they are."""
    before = replace(ROW, id="before", state="following")
    with control.begin() as c:
        c.execute(tables.replacement.insert().values(**asdict(replace(ROW, id="now", state="cut"))))
    [shown] = parts.replacement_list(moment([], replacements=[before]), control, 1)["replacements"]
    assert shown.actions == ["confirm", "back"]


def test_one_that_failed_lately_is_an_alarm() -> None:
    rows = [replace(ROW, name=str(ago), state="failed", ended_at=NOW - ago) for ago in (PAST_FOR, PAST_FOR + 1)]
    assert [view.alarm for view in replacement_views(rows, NOW)] == [True, False]


@pytest.mark.parametrize(
    ("options", "way"),
    [({}, ""), ({"in_place": True}, "in place"), ({"back": True}, "back to the version before")],
)
def test_its_way_is_named(options: dict[str, Any], way: str) -> None:
    [view] = replacement_views([replace(ROW, options={**ROW.options, **options})], NOW)
    assert view.way == way


def test_the_overview_has_replacements_without_their_rows(control: Control) -> None:
    with control.begin() as c:
        c.execute(tables.app.insert().values(name="metrics", release_seq=0, restarts=0))
    control.release("metrics", Actor("me", "cli"), digest="old")
    control.request_replacement("bundles", "metrics", "new", "old", Actor("ann", "cli"), replacement_options())
    row = control.replacement_of("bundles")
    assert row
    control.report_replacement(row.id, figures=FIGURES)
    view = overview(read(control), StateLimits())
    [shown] = asdict(view)["replacements"]
    assert (shown["name"], shown["actor"], shown["equal"], shown["examples"]) == ("bundles", "ann", 10, 1)
    assert b"secret" not in orjson.dumps(view), "a viewer must not see records"
