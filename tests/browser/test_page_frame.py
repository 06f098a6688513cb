"""What all views of the operator page share: the navigation, the way back, and lists that fold what repeats."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from penstock.control import Actor, Control
from tests.browser.conftest import View
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser
Visit = Callable[..., View]
# JavaScript: keeps the texts that are drawn.
DRAWN = """(() => {
  window.drawn = [];
  const plain = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
    window.drawn.push(text);
    return plain.call(this, text, ...at);
  };
})()"""


def test_every_view_is_seen_in_the_navigation_of_a_phone(visit: Visit) -> None:
    view = visit(at="", width=390, height=800)
    links = view.frame.get_by_role("navigation", name="Views of Penstock").get_by_role("link")
    expect(links).to_have_count(11)
    for n in range(11):
        expect(links.nth(n)).to_be_in_viewport(ratio=1)


def test_the_navigation_can_be_skipped(visit: Visit) -> None:
    view = visit(at="captures")
    view.frame.locator("body").press("Tab")
    skip = view.frame.get_by_role("button", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    skip.press("Enter")
    expect(view.frame.get_by_role("heading", name="Captures")).to_be_focused()
    assert view.page.url.endswith("#/captures")


def test_back_leads_to_the_same_rows(visit: Visit) -> None:
    view = visit(height=500)
    html = view.frame.locator("html")
    expect(view.frame.locator("tr.stream")).to_have_count(12)
    link = view.frame.locator("tr.stream").nth(8).get_by_role("link").first
    link.scroll_into_view_if_needed()
    html.evaluate("() => window.scrollBy(0, 40)")
    left = html.evaluate("() => window.scrollY")
    assert left > 0
    link.click()
    expect(view.frame.locator(".head")).to_be_visible()
    assert html.evaluate("() => window.scrollY") == 0
    view.page.go_back()
    expect(view.frame.locator("tr.stream")).to_have_count(12)
    # Rows that say more now move the others.
    wait_until(lambda: abs(html.evaluate("() => window.scrollY") - left) < 60, 30, what="the rows are where they were")
    expect(link).to_be_in_viewport()
    view.frame.get_by_role("link", name="Captures").click()
    expect(view.frame.locator("tr.capture")).to_have_count(2)
    assert html.evaluate("() => window.scrollY") == 0
    assert view.troubles == []


def test_repeated_actions_of_supervisors_are_folded(visit: Visit, control: Control) -> None:
    for n in range(9):
        control.record(Actor(f"streams_app{n % 3}/run/1", "supervisor"), "adopt", f"app{n % 3}", f"driver {n}")
    view = visit(at="activity?verb=adopt")
    rows = view.frame.locator("#actions tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(re.compile("adopt 9 times.*app2, app1, app0"))
    expect(rows.locator("li").first).to_be_hidden()
    rows.locator("summary").click()
    expect(rows.locator("li")).to_have_count(9)
    expect(rows.locator("li").first).to_contain_text("app2: driver 8")
    assert view.troubles == []


def test_an_axis_of_times_has_round_steps(visit: Visit) -> None:
    def slow(route: Route) -> None:
        answer = route.fetch()
        content = answer.json()
        for series in content["streams"].values():
            series["batch_age_ms"] = [n * 50_000 for n in range(len(content["t"]))]
        route.fulfill(response=answer, json=content)

    view = visit(
        at="streams/bundles",
        before=lambda page: (page.add_init_script(DRAWN), page.route(re.compile("/api/history"), slow))[0],
    )
    html = view.frame.locator("html")

    def drawn() -> list[str]:
        return list(html.evaluate("() => window.drawn"))

    wait_until(lambda: any("h 00m" in text for text in drawn()), 30, what="hours are drawn")
    steps = [text for text in drawn() if re.fullmatch(r"\d+m \d\ds|\dh \d\dm", text)]
    assert steps
    assert [text for text in steps if not re.fullmatch(r"(\d+m 00s|\dh (00|30)m)", text)] == []
