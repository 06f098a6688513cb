"""Views of the operator page in each state of what they show, by rows of the control database as drivers write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from penstock.control.repositories.data_loss import DataLoss
from tests.browser.conftest import View
from tests.browser.layout import OVERLAPS
from tests.browser.scene import Scene

pytestmark = pytest.mark.browser
Visit = Callable[..., View]

# Of each kind, the stream that is brought into a state, and its app.
ONE = {"stream": ("bundles", "metrics"), "capture": ("accounts", "captures"), "sink": ("shop-points", "sinks")}
# By state: what its driver reports of it, and what the page says.
STATES: dict[str, tuple[dict[str, Any], str]] = {
    "well": ({"state": "running"}, ""),
    "failing": (
        {"state": "failing", "error": "ValueError: no <b>number</b>\n  at line 3"},
        "ValueError: no <b>number</b>",
    ),
    "blocked": ({"state": "blocked", "error": "records are lost\n  go-on"}, "records are lost"),
    "waiting": ({"state": "waiting", "error": "its store is away"}, "its store is away"),
    "queued": ({}, "2 of 4 cores are free"),
}
# By view: the kind that it shows, and its row there.
ROWS = {"streams": ("stream", "tr.stream"), "captures": ("capture", "tr.capture"), "sinks": ("sink", "tr.sink")}


@contextmanager
def brought(scene: Scene, kind: str, state: str) -> Iterator[str]:
    """The scene with a stream, or for `queued` with the driver of its app, in a state."""
    name, _ = ONE[kind]
    [row] = [one for one in scene.rows if one.name == name]
    before = replace(row)
    changes, why = STATES[state]
    for field, value in changes.items():
        setattr(row, field, value)
    row.error_at = scene.control.now() - 1_000 if "error" in changes else row.error_at
    if kind == "capture":
        row.topics = {}  # It polls a table.
    if state == "queued":
        scene.control.update_driver(row.incarnation, state="queued", reason=why)
    if state == "blocked" and kind == "stream":
        scene.control.report_data_loss(name, [DataLoss(f"{name}-in", "cut", 0, 5, 9, 4)])
    scene.report()
    try:
        yield name
    finally:
        for field in (*STATES["failing"][0], "error_at", "topics"):
            setattr(row, field, getattr(before, field))
        scene.control.update_driver(row.incarnation, state="running", reason=None)
        scene.control.report_data_loss(name, [])
        scene.report()


def shows(view: View, shown: Locator, state: str, why: str) -> None:
    expect(shown.locator(".pill").first).to_have_text("running" if state == "well" else state)
    if why:
        expect(shown).to_contain_text(why)
    assert view.frame.locator("#view").evaluate(OVERLAPS) == []
    assert view.troubles == []


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("at", ROWS)
def test_a_list_shows_each_state(visit: Visit, scene: Scene, at: str, state: str) -> None:
    kind, rows = ROWS[at]
    with brought(scene, kind, state) as name:
        view = visit(at=f"{at}?q={name}")
        shows(
            view,
            view.frame.locator(rows).filter(has_text=name).first,
            state,
            "" if state == "queued" else STATES[state][1],
        )
        # A driver that is queued is a fault of its app, which *Streams* shows, but for the one of the captures.
        counted = "streams" if state == "queued" and kind == "sink" else at
        badge = view.frame.get_by_role("link", name=re.compile(f"^{counted}", re.IGNORECASE)).locator(".badge")
        if state == "well":
            expect(view.frame.locator(f"{rows}[data-state=running]").filter(has_text=name)).to_have_count(1)
        else:
            expect(badge).to_be_visible()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ONE)
def test_a_stream_shows_each_state(visit: Visit, scene: Scene, kind: str, state: str) -> None:
    with brought(scene, kind, state) as name:
        view = visit(at=f"streams/{name}", width=390)
        head = view.frame.locator(".head")
        shows(view, head, state, STATES[state][1].partition("\n")[0])
        expect(view.frame.get_by_role("button", name=f"Let {name} go on")).to_be_visible(
            visible=state == "blocked" and kind == "stream"
        )
        expect(view.frame.get_by_label("Last error")).to_be_visible(visible="error" in STATES[state][0])
        # A capture polls a table.
        text = "A capture polls a table" if kind == "capture" else f"{name}-in"
        expect(view.frame.get_by_role("region", name="Topics")).to_contain_text(text)


@pytest.mark.parametrize("state", [state for state in STATES if state != "well"])
@pytest.mark.parametrize("kind", ONE)
def test_the_overview_names_what_does_not_work(visit: Visit, scene: Scene, kind: str, state: str) -> None:
    app = ONE[kind][1]
    with brought(scene, kind, state) as name:
        view = visit(at="")
        # A driver that is queued is one fault of its app.
        of = app if state == "queued" else name
        fault = view.frame.locator("#faults tbody tr").filter(
            has=view.frame.get_by_role("rowheader", name=re.compile(f"^{of} "))
        )
        shows(view, fault, state, STATES[state][1].partition("\n")[0])
        fault.get_by_role("rowheader").get_by_role("link").click()
        expect(view.frame.get_by_role("heading", level=2)).to_have_text(
            "Streams" if state == "queued" else "Captures" if kind == "capture" else name
        )
