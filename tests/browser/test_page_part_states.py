"""Archives, views, backfills and replacements in each of their states, by rows of the control database.

Each case says what a person must see of it, and what must not be there. In each, axe finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from sqlalchemy import insert, update

from penstock.control import Actor, Control, ProgressRow, ReplacementState, tables
from penstock.control.repositories.backfills import BackfillCounts, FinalRunState, OpenRunState
from penstock.model.declaration import replacement_app
from penstock.supervision.replacement_options import replacement_options
from tests.browser.accessibility import violations
from tests.browser.conftest import View
from tests.browser.layout import OVERLAPS
from tests.browser.scene import Scene
from tests.support.long_cases import quick

pytestmark = pytest.mark.browser
Visit = Callable[..., View]
MARKUP = "<img src=x onerror=alert(1)>"


class Seen(NamedTuple):
    """sees: texts that a person must see; not_there: those that must not be there."""

    sees: Sequence[str]
    not_there: Sequence[str] = ()


def check(view: View, shown: Locator, case: Seen) -> None:
    for said in case.sees:
        expect(shown).to_contain_text(said, use_inner_text=True)
    for said in case.not_there:
        expect(shown).not_to_contain_text(said, use_inner_text=True)
    assert view.frame.locator("#view").evaluate(OVERLAPS) == []
    assert violations(view.page.frames[1]) == []
    assert view.troubles == []


def answered(at: str, **changes: Any) -> Callable[[Page], None]:
    """A page whose server answers a view as if there were other declarations."""

    def other(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), **changes})

    def before(page: Page) -> None:
        page.route(re.compile(f"/penstock/api/{at}([?]|$)"), other)

    return before


# Archives, and instances of views: what their app runs.

OF_APP = {"archives": ("archives", "order-archive"), "views": ("views-1", "minutes-by-shop@1")}
HOSTED: dict[str, tuple[dict[str, Any], Seen]] = {
    "running": ({}, Seen(["running", "336"], ["not running", "no instance serves it", "desired off"])),
    "failing": (
        {"state": "failing", "error": f"ValueError: {MARKUP}\n  at line 3"},
        Seen(["failing", f"ValueError: {MARKUP}"], ["at line 3"]),
    ),
    "blocked": ({"state": "blocked", "error": "records are lost\n  go-on"}, Seen(["blocked", "records are lost"])),
    "waiting": ({"state": "waiting", "error": "its store is away"}, Seen(["waiting", "its store is away"])),
    "loading": (
        {"state": "loading", "lag": 8_000, "topics": {"a": {"lag": 8_000, "offsets": {"0": 2_000}}}},
        Seen(["loading", "2,000 of 10,000 records"], ["no instance serves it"]),
    ),
    "queued": ({}, Seen(["queued", "2 of 4 cores are free"])),
    "down": ({}, Seen(["down", "its driver ended"], ["running", "840"])),
    "stopped": ({"state": "stopped"}, Seen(["stopped"], ["running", "840"])),
}


@contextmanager
def hosted(scene: Scene, at: str, state: str) -> Iterator[ProgressRow]:
    app, name = OF_APP[at]
    with scene.app_of(app, name) as row:
        for field, value in HOSTED[state][0].items():
            setattr(row, field, value)
        row.error_at = scene.control.now() - 1_000 if row.error else None
        scene.report()
        if state == "queued":
            scene.control.update_driver(row.incarnation, state="queued", reason="2 of 4 cores are free")
        elif state == "down":
            scene.control.update_driver(row.incarnation, state="ended", reason="it was killed")
        elif state == "stopped":
            scene.control.set_desired([name], "off", Actor("tests", "cli"))
        yield row


@pytest.mark.parametrize("state", quick(HOSTED, "running", "failing", "loading"))
@pytest.mark.parametrize("at", OF_APP)
def test_archives_and_views_show_each_state(visit: Visit, scene: Scene, at: str, state: str) -> None:
    with hosted(scene, at, state) as row:
        view = visit(at=at)
        shown = view.frame.locator("tbody tr", has=view.frame.get_by_text(row.name.partition("@")[0], exact=True)).first
        check(view, shown, HOSTED[state][1])
        shown.get_by_role("link", name=row.name, exact=True).click()
        expect(view.frame.get_by_role("heading", level=2)).to_have_text(row.name)
        expect(view.frame.locator(".head .pill")).to_have_text(state)


def test_an_archive_says_which_hour_is_closed(visit: Visit, scene: Scene) -> None:
    event = {
        "name": "order-archive", "partition_key": "2026-01-02T03", "revision": 1, "state": "known", "changed_at": 1,
        "attempts": 0, "reset_id": "",
    }  # fmt: skip
    with scene.control.begin() as c:
        c.execute(insert(tables.partition_event).values(event))
    view = visit(at="archives")
    # Nothing has released it.
    shown = view.frame.locator("#archives tbody tr", has_text="order-archive")
    check(view, shown, Seen(["orders", "lake", "not running", "2026-01-02T03"], ["null", "undefined"]))
    expect(shown.get_by_role("link")).to_have_count(0)
    with scene.control.begin() as c:
        c.execute(tables.partition_event.delete())


def test_a_view_that_nothing_serves_says_so(visit: Visit) -> None:
    view = visit(at="views")
    shown = view.frame.locator("#served-views tbody tr", has_text="shop-names")
    check(view, shown, Seen(["shops", "no instance serves it"], ["undefined"]))
    # Its panel cannot count what no instance serves.
    expect(view.frame.locator("#panel-shop-totals [role=status]")).to_contain_text("minutes-by-shop")


NONE: dict[str, tuple[dict[str, Any], str]] = {
    "archives": ({"archives": [], "archives_total": 0}, "No archives are declared"),
    "views": ({"views": [], "panels": []}, "No views are declared"),
    "backfills": ({"declared": [], "runs": []}, "No backfills are declared"),
    "sinks": ({"sinks": [], "matching": 0, "total": 0}, "No sinks are declared"),
}


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("at", quick(NONE, "views"))
def test_what_is_empty_says_what_it_is_for(visit: Visit, at: str) -> None:
    changes, said = NONE[at]
    view = visit(at=at, before=answered(at, **changes))
    check(view, view.frame.locator("#view"), Seen([said, f"docs/{at}.md"], ["not known yet"]))


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("at", quick([*NONE, "streams/bundles"], "archives", "streams/bundles"))
def test_what_is_not_known_yet_is_not_said_to_be_empty(visit: Visit, at: str) -> None:
    changes = {**NONE.get(at, ({}, ""))[0], "declarations_known": False, "declared": [] if at == "backfills" else None}
    view = visit(at=at, before=answered(at, **changes))
    check(view, view.frame.locator("#view"), Seen(["not known yet"], ["are declared:", "nothing that is declared"]))


def test_what_a_fault_affects_is_not_known_before_the_declarations(visit: Visit, scene: Scene) -> None:
    fault = {
        "kind": "stream", "name": "bundles", "app": "metrics", "state": "failing", "reason": "x", "remedy": "",
        "address": "#/streams", "since": scene.control.now(), "lasted_ms": 1, "ended_at": None, "tried": "",
        "affects": [], "affects_total": 0,
    }  # fmt: skip
    view = visit(at="", before=answered("overview", declarations_known=False, faults=[fault]))
    check(view, view.frame.locator("#faults tbody tr"), Seen(["bundles", "not known yet"], ["nothing else"]))


# Backfills

DAY = 1_767_225_600_000
PLACES: dict[str, Any] = {
    "name": "order-replay",
    "target": "orders",
    "owner": "olga@pond",
    "files": 24,
    "rows": 804_000,
}
RATE: dict[str, Any] = {"rate": 11_240.0, "remaining_ms": 45_000}
# As a run that waits reports it.
STANDS: dict[str, Any] = {"rate": 0.0, "remaining_ms": None}
RUNS: dict[str, Seen] = {
    "running": Seen(["running", "9 of 24", "302k of 804k", "37 %", "11.2k", "45 s", "for "], ["took", "whole reason"]),
    "waiting": Seen(["waiting", "for order-minutes to be stopped", "9 of 24"], ["11.2k", "45 s", "took"]),
    "verifying": Seen(["verifying", "302k of 804k", "45 s"], ["took"]),
    "silent": Seen(["silent", "has not reported for", "run it again"], ["11.2k", "45 s"]),
    "failed": Seen(["failed", f"no file {MARKUP}", "The whole reason", "took"], ["45 s", "11.2k"]),
    "stopped": Seen(["stopped", "by an operator", "took"], ["45 s", "11.2k"]),
    "done": Seen(["done", "804k of 804k", "100 %", "each as in the archive", "took"], ["11.2k", "45 s"]),
}
SAID: dict[str, tuple[OpenRunState, str]] = {
    "running": ("running", ""),
    "waiting": ("waiting", "for order-minutes to be stopped"),
    "verifying": ("verifying", ""),
}
ENDED: dict[str, tuple[FinalRunState, str]] = {
    "failed": ("failed", f"no file {MARKUP}\n  hint: put it back"),
    "stopped": ("stopped", "by an operator"),
    "done": ("done", ""),
}
COUNTS: dict[str, BackfillCounts] = {
    "done": {"files_done": 24, "rows_done": 804_000, "verified": "each as in the archive"}
}


@pytest.fixture
def runs(scene: Scene) -> Iterator[Mapping[str, str]]:
    """A run in each state, by its state, and no other."""
    c, t = scene.control, tables.backfill_run
    with c.begin() as db:
        before = [dict(row) for row in db.execute(t.select()).mappings()]
        db.execute(t.delete())
    made = {state: f"order-replay {state}" for state in RUNS}
    for number, (state, run) in enumerate(made.items()):
        c.begin_backfill(run, **PLACES, begin=DAY + number * 3_600_000, end=DAY + (number + 1) * 3_600_000)
        c.report_backfill(run, files_done=9, rows_done=301_500, **RATE)
        if state in SAID:
            told, why = SAID[state]
            c.report_backfill(run, state=told, why=why, **(STANDS if state == "waiting" else RATE))
        elif state in ENDED:
            c.end_backfill(run, *ENDED[state], **COUNTS.get(state, {}))
    with c.begin() as db:
        db.execute(update(t).where(t.c.run == made["silent"]).values(reported_at=tables.now_ms() - 300_000))
    yield made
    with c.begin() as db:
        db.execute(t.delete())
        db.execute(insert(t), before)


@pytest.mark.parametrize("state", quick(RUNS, "running", "waiting", "failed"))
def test_a_backfill_shows_each_state(visit: Visit, runs: Mapping[str, str], state: str) -> None:
    view = visit(at="backfills", width=390 if state in ("running", "failed") else 1280)
    shown = view.frame.locator("tr.run", has=view.frame.locator(f'[title="{runs[state]}"]'))
    check(view, shown, RUNS[state])
    bar = shown.locator("progress")
    assert bar.evaluate("bar => bar.value") == pytest.approx(1 if state == "done" else 0.375)
    expect(view.frame.locator("#backfills tbody tr", has_text="order-replay")).to_contain_text("done")
    # What is not over is under way on the overview, and what failed or is silent is a fault.
    view = visit(at="")
    under_way = view.frame.locator("#progress tr", has_text=runs[state])
    expect(under_way).to_have_count(1 if state in SAID else 0)
    if state == "waiting":
        expect(under_way).to_contain_text("waits for order-minutes to be stopped")
        expect(under_way).not_to_contain_text("45 s")


@pytest.mark.usefixtures("runs")
def test_backfills_without_a_run_say_how_one_begins(visit: Visit) -> None:
    view = visit(at="backfills", before=answered("backfills", runs=[]))
    check(view, view.frame.locator("#runs"), Seen(["There are no runs yet", "Start"], ["undefined"]))


# Replacements

ANN = Actor("ann", "cli")
BUILT: dict[str, Any] = {"records": 301_500, "total": 804_000, "rate": 11_240.0, "remaining_ms": 45_000, "lag": 502_500}
COMPARED: dict[str, Any] = {
    **BUILT, "records": 804_000, "remaining_ms": 0, "lag": 12, "compared": 12, "equal": 10, "different": 2,
    "examples": [{"output": "bundles", "outcome": "different", "key": "a", "new": MARKUP, "running": "1"}],
}  # fmt: skip


class Replacement(NamedTuple):
    """A replacement of `bundles`: the states that it went through, and what its driver reported in the last."""

    states: Sequence[ReplacementState]
    seen: Seen
    buttons: Sequence[str] = ()
    figures: Mapping[str, Any] = COMPARED
    why: str = ""
    cut: str = "auto"
    asked: bool = False


REPLACED = {
    "queued": Replacement(
        (), Seen(["queued", "2 GB of memory are free"], ["left", "of 804k"]), ["Cancel"], {}, "2 GB of memory are free"
    ),
    "building": Replacement(
        ["building"],
        Seen(["building", "302k of 804k", "11.2k", "45 s left", "not compared"], ["waits for the cut", "paused"]),
        ["Cancel"],
        BUILT,
    ),
    "following": Replacement(
        ["building", "following"],
        Seen(["following", "10 of 12", "2 different"], ["waits for the cut", "left", "not compared"]),
        ["Differences of", "Cancel"],
    ),
    "ready to cut": Replacement(
        ["building", "following"],
        Seen(["following", "waits for the cut", "10 of 12"], ["left", "cut is requested"]),
        ["Differences of", "Cut now", "Cancel"],
        cut="manual",
    ),
    "cut requested": Replacement(
        ["building", "following"],
        Seen(["following", "cut is requested"], ["waits for the cut"]),
        ["Differences of", "Cancel"],
        cut="manual",
        asked=True,
    ),
    "cutting": Replacement(
        ["building", "following", "cutting"],
        Seen(["cutting"], ["waits for the cut", "left", "output paused"]),
        ["Differences of"],
    ),
    "cut": Replacement(
        ["building", "following", "cutting", "cut"],
        Seen(["cut", "output paused 2.4 s", "10 of 12"], ["left", "waits for the cut", "11.2k"]),
        ["Differences of", "Confirm", "Go back"],
        {**COMPARED, "pause_ms": 2_400},
    ),
    "confirmed": Replacement(
        ["building", "following", "cutting", "cut", "confirmed"],
        Seen(["confirmed", "as agreed"], ["left", "11.2k"]),
        ["Differences of"],
        why="as agreed",
    ),
    "cancelled": Replacement(
        ["building", "cancelled"], Seen(["cancelled", "by olga"], ["left", "11.2k"]), (), BUILT, "cancelled by olga"
    ),
    "failed": Replacement(
        ["building", "failed"],
        Seen(["failed", f"it is not equal {MARKUP}"], ["left", "11.2k", "hint"]),
        (),
        BUILT,
        f"it is not equal {MARKUP}\n  hint: look",
    ),
}


@contextmanager
def replaced(control: Control, of: Replacement) -> Iterator[str]:
    app = control.app("metrics")
    assert app
    options = replacement_options(cut=of.cut)
    row = control.request_replacement("bundles", "metrics", "new", app.digest or "", ANN, options)
    for state in of.states:
        control.report_replacement(row.id, figures=of.figures)
        assert control.move_replacement(row.id, state, why=of.why)
    control.report_replacement(row.id, why=of.why, figures=of.figures)
    if of.asked:
        assert control.request_cut(row.id, ANN)
    try:
        yield of.states[-1] if of.states else "queued"
    finally:
        with control.begin() as c:
            c.execute(tables.replacement.delete())
            for t in (tables.stream, tables.app):
                c.execute(t.delete().where(t.c.name == replacement_app("bundles")))


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("case", quick(REPLACED, "building", "ready to cut", "cut", "failed"))
def test_a_replacement_shows_each_state(visit: Visit, control: Control, case: str) -> None:
    of = REPLACED[case]
    with replaced(control, of) as state:
        view = visit(at="replacements", width=390 if case in ("building", "failed") else 1280)
        shown = view.frame.locator("tr.replacement")
        check(view, shown, of.seen)
        expect(shown.locator("[data-warn]")).to_have_count(1 if of.figures.get("different") else 0)
        labels = [button.get_attribute("aria-label") or "" for button in shown.locator(".buttons button:visible").all()]
        assert [label.partition(": ")[0].replace(" bundles", "") for label in labels] == list(of.buttons)
        # The view of the stream names it, and the overview what is under way or has failed.
        view = visit(at="streams/bundles")
        expect(view.frame.locator(".head")).to_contain_text(f"replacement {state}")
        view.frame.get_by_role("link", name=f"replacement {state}").click()
        expect(view.frame.get_by_role("heading", level=2)).to_have_text("Replacements")
        view = visit(at="")
        is_open = state in ("queued", "building", "following", "cutting")
        expect(view.frame.locator("#progress tr", has_text="replacement")).to_have_count(1 if is_open else 0)
        fault = view.frame.locator(
            "#faults tr", has=view.frame.get_by_role("rowheader", name=re.compile("^bundles replacement"))
        )
        expect(fault).to_have_count(1 if state == "failed" else 0)
        if state == "building":
            expect(view.frame.locator("#progress tr", has_text="replacement")).to_contain_text("45 s")


def test_a_replacement_whose_driver_is_silent_has_no_time_left(visit: Visit, control: Control) -> None:
    with replaced(control, REPLACED["building"]):
        with control.begin() as c:
            c.execute(update(tables.replacement).values(reported_at=tables.now_ms() - 300_000))
        view = visit(at="replacements")
        check(view, view.frame.locator("tr.replacement"), Seen(["building", "last report 5m 0"], ["left", "11.2k"]))


@pytest.mark.usefixtures("scene")
def test_no_replacement_says_what_one_is_for(visit: Visit) -> None:
    view = visit(at="replacements")
    check(view, view.frame.locator("#view"), Seen(["No stream is being replaced", "docs/operations.md"]))
