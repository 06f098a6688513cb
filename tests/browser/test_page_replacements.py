"""Replacements on the page: progress, differences, and what an operator decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Route, expect

from penstock.control import Actor, Control, ReplacementRow, tables
from penstock.model.declaration import replacement_app
from penstock.supervision.replacement_options import replacement_options
from tests.browser.conftest import View
from tests.browser.layout import OVERLAPS
from tests.browser.server import Server

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("scene")]
ANN = Actor("ann", "cli")
MARKUP = "<img src=x onerror=alert(1)>"
FIGURES = {
    "records": 301_500, "total": 804_000, "rate": 11_240.0, "remaining_ms": 45_000, "lag": 4500, "compared": 12,
    "equal": 10, "different": 1, "only_new": 1, "only_running": 0,
    "examples": [
        {"output": "bundles", "outcome": "different", "key": "shop-1", "new": MARKUP, "running": '{"total": 5}'},
        {"output": "bundles", "outcome": "only_new", "key": "shop-2", "new": '{"total": 1}', "running": None},
    ],
}  # fmt: skip


@pytest.fixture
def row(control: Control) -> Iterator[ReplacementRow]:
    """A replacement of `bundles` that has caught up and waits for its cut."""
    app = control.app("metrics")
    assert app
    before = app.digest
    made = control.request_replacement(
        "bundles", "metrics", "new", before or "", ANN, replacement_options(cut="manual")
    )
    control.move_replacement(made.id, "building")
    control.move_replacement(made.id, "following")
    control.report_replacement(made.id, figures=FIGURES)
    yield made
    with control.begin() as c:
        c.execute(tables.replacement.delete())
        for t in (tables.stream, tables.app):
            c.execute(t.delete().where(t.c.name == replacement_app("bundles")))


def post(server: Server, user: str, **body: str | bool) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.token(user)}"}
    return httpx.post(f"{server.url}/penstock/api/replacements", json=body, headers=headers, timeout=60)


def test_a_change_is_recorded_or_refused_with_the_reason(server: Server, control: Control, row: ReplacementRow) -> None:
    def state() -> str:
        found = control.replacement(row.id)
        assert found
        return found.state

    for verb in ("confirm", "back"):
        for dry in (False, True):
            answer = post(server, "olga", verb=verb, replacement=row.id, dry=dry)
            assert (answer.status_code, answer.json()["code"]) == (409, "release_refused")
            assert "it is following; hint: it must be cut" in answer.json()["detail"]
    recorded = control.actions(1)
    would = post(server, "olga", verb="cut", replacement=row.id, dry=True).json()["would"]
    assert "Of 12 rows that were compared: 10 equal, 1 different, 1 only in the new version." in would
    assert post(server, "otto", verb="cut", replacement=row.id, dry=True).status_code == 403
    assert (state(), control.actions(1)) == ("following", recorded)
    assert post(server, "olga", verb="cut", replacement="nosuch").status_code == 404
    assert post(server, "olga", verb="drop", replacement=row.id).status_code == 422
    assert post(server, "otto", verb="cut", replacement=row.id).status_code == 403
    assert post(server, "olga", verb="cut", replacement=row.id, note="as expected").json() == {"replacement": row.id}
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        "olga", "page", "cut", "bundles", "as expected",
    ]  # fmt: skip
    with control.begin() as c:
        c.execute(tables.replacement.update().values(state="cut"))
    answer = post(server, "olga", verb="back", replacement=row.id)
    assert (answer.status_code, answer.json()["code"]) == (409, "release_refused")
    assert "app metrics was released since stream bundles was replaced" in answer.json()["detail"]
    assert post(server, "olga", verb="confirm", replacement=row.id).status_code == 200
    assert state() == "confirmed"


def test_an_operator_compares_and_ends_a_replacement(
    visit: Callable[..., View], control: Control, row: ReplacementRow, screenshots: Path
) -> None:
    def declared(route: Route) -> None:
        answer = route.fetch()
        content: dict[str, Any] = answer.json()
        content["stream"]["replaceable"] = True
        route.fulfill(response=answer, json=content)

    view = visit(at="replacements", before=lambda page: page.route("**/penstock/api/streams/bundles", declared))
    section = view.frame.locator("#view")
    shown = section.locator("tr.replacement")
    for said in (
        "bundles",
        "following",
        "waits for the cut",
        "302k of 804k",
        "10 of 12",
        "1 only new",
        "ann",
    ):
        expect(shown).to_contain_text(said)
    assert shown.locator("progress").evaluate("bar => bar.value") == pytest.approx(0.375)
    section.screenshot(path=screenshots / "replacements.png")
    shown.locator(".pill").click()
    dialog = view.frame.get_by_role("dialog")
    expect(dialog).to_contain_text("penstock replacements cut bundles")
    view.page.keyboard.press("Escape")
    section.get_by_role("button", name="Differences of bundles").click()
    expect(dialog.locator("article")).to_have_count(2)
    for said in (MARKUP, "shop-2 only in the new version", "no row"):
        expect(dialog).to_contain_text(said)
    view.page.keyboard.press("Escape")
    for verb, title, would in (
        ("Cut now", "Cut over bundles?", "The cut begins when it has read the 4,500 records"),
        ("Cancel", "Cancel the replacement of bundles?", "Dropped: what the new version made of 301,500 records."),
    ):
        section.get_by_role("button", name=f"{verb}: replacement of bundles").click()
        asked = view.frame.get_by_role("dialog", name=title)
        expect(asked.get_by_role("listitem").first).to_contain_text(would)
        asked.get_by_label("Note").fill("by test")
        view.page.keyboard.press("Enter")
        expect(asked).to_have_count(0)
    expect(shown).to_contain_text("cancelled by olga: by test")
    found = control.replacement(row.id)
    assert found
    assert (found.state, found.cut_requested_at is not None) == ("cancelled", True)
    expect(section.locator("[data-verb]:visible")).to_have_count(0)
    view.page.set_viewport_size({"width": 390, "height": 800})
    section.screenshot(path=screenshots / "replacements-390.png")
    assert section.evaluate(OVERLAPS) == []
    shown.get_by_role("link", name="bundles").click()
    link = view.frame.get_by_role("link", name="Replace bundles, in Airflow")
    expect(link).to_have_attribute("href", "http://" + view.page.url.split("/")[2] + "/dags/replace_stream")
    view.page.unroute_all(behavior="ignoreErrors")
    assert view.troubles == []


def test_whoever_may_not_release_sees_no_rows_and_decides_nothing(
    visit: Callable[..., View], server: Server, row: ReplacementRow
) -> None:
    view = visit("vera", at="replacements")
    for name in ("Differences of bundles", "Cut now: replacement of bundles", "Cancel: replacement of bundles"):
        expect(view.frame.get_by_role("button", name=name)).to_be_disabled()
    view.frame.locator("tr.replacement").get_by_role("link", name="bundles").click()
    expect(view.frame.get_by_role("button", name="Log of the driver of bundles")).to_be_visible()
    expect(view.frame.get_by_role("link", name="Replace bundles, in Airflow")).to_be_hidden()
    cookies = {"_token": server.token("vera")}
    assert httpx.get(
        f"{server.url}/penstock/api/differences", params={"replacement": row.id}, cookies=cookies, timeout=30
    ).status_code == 403  # fmt: skip
    assert view.troubles == []
