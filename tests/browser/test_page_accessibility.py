"""Every view of the operator page by the rules of WCAG 2.2 AA that axe-core checks."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.accessibility import violations
from tests.browser.scene import Scene
from tests.browser.server import Server

pytestmark = pytest.mark.browser
ADDRESSES = (
    "", "streams", "streams/summaries", "captures", "sinks", "backfills", "replacements", "archives", "views",
    "dead-letters", "catalog", "catalog/orders", "activity",
)  # fmt: skip


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_no_view_violates_a_rule(browser: Browser, server: Server, scene: Scene, theme: str) -> None:
    assert scene.live
    context = browser.new_context(color_scheme="dark" if theme == "dark" else "light")
    context.add_cookies([{"name": "_token", "value": server.token("olga"), "url": server.url}])
    page = context.new_page()
    page.goto(f"{server.url}/penstock/")
    problems = problems_of_views(page, ADDRESSES)
    context.close()
    assert problems == {}


def problems_of_views(page: Page, addresses: Sequence[str]) -> dict[str, list[str]]:
    problems = {}
    for address in addresses:
        page.evaluate("address => { location.hash = `#/${address}`; }", address)
        page.locator("main:not([aria-busy])").wait_for()
        if found := violations(page):
            problems[address] = found
    return problems


@pytest.mark.parametrize(
    ("path", "addresses"),
    [("/api/history", ["streams/summaries"]), pytest.param("/api/", ADDRESSES, marks=pytest.mark.long)],
)
@pytest.mark.usefixtures("scene")
def test_no_view_violates_a_rule_while_the_server_does_not_answer(
    browser: Browser, server: Server, path: str, addresses: Sequence[str]
) -> None:
    context = browser.new_context()
    context.add_cookies([{"name": "_token", "value": server.token("olga"), "url": server.url}])
    page = context.new_page()
    page.goto(f"{server.url}/penstock/")
    page.locator("main:not([aria-busy])").wait_for()
    page.route(re.compile(path), lambda route: route.abort())
    problems = problems_of_views(page, addresses)
    context.close()
    assert problems == {}


@pytest.mark.usefixtures("scene")
def test_an_open_dialog_violates_no_rule(browser: Browser, server: Server) -> None:
    context = browser.new_context()
    context.add_cookies([{"name": "_token", "value": server.token("olga"), "url": server.url}])
    page = context.new_page()
    page.goto(f"{server.url}/penstock/#/streams")
    page.get_by_role("button", name="Release metrics").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []
    context.close()
