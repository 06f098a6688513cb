"""The preview of a stream on the operator page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import View
from tests.browser.server import Server

pytestmark = pytest.mark.browser
Visit = Callable[..., View]
FAILED = "`penstock streams preview bundles` failed; got: x"
ANSWER = {
    "facts": {
        "records": {"orders": 1204}, "columns": [["shop", "string"], ["total", "double"]],
        "output_mode": "EmitFinal: window 1 min, grace 10 s", "state": ["step 1, Aggregate: by shop: string"],
        "release": "the stream continues with its state",
        "masks": [{"output": "order-minutes", "column": "shop", "method": "hashed", "key": "pii"}],
    },
    "rows": [{"output": "order-minutes", "key": "north", "value": '{"total":<b>7</b>}'}],
    "totals": {
        "dead": 1, "late": 3, "violations": {"positive": 4},
        "dead_examples": [{"value": "<i>no JSON", "reason": "no <b>number</b>"}],
    },
}  # fmt: skip


def test_rows_facts_and_counts_are_shown_as_text(visit: Visit, screenshots: Path) -> None:
    view = visit(at="streams/bundles")
    view.page.route("**/penstock/api/preview?stream=bundles", lambda route: route.fulfill(json=ANSWER))
    view.frame.get_by_role("button", name="Try bundles").click()
    dialog = view.frame.get_by_role("dialog", name="Preview of bundles")
    for words in (
        "orders (1,204 records)", "shop string, total double", "the stream continues with its state", "by shop: string",
        "shop hashed", '{"total":<b>7</b>}', "no <b>number</b>", "<i>no JSON",
    ):  # fmt: skip
        expect(dialog).to_contain_text(words)
    expect(dialog.locator("dl div", has_text="Late records")).to_contain_text("3")
    expect(dialog.locator("dl div", has_text="Violations of positive")).to_contain_text("4")
    view.page.screenshot(path=screenshots / "preview.png")
    assert dialog.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert view.troubles == []


def test_a_preview_that_fails_says_why(visit: Visit) -> None:
    def fail(route: Route) -> None:
        route.fulfill(status=409, json={"code": "command", "detail": FAILED})

    view = visit(at="streams/bundles")
    view.page.route("**/penstock/api/preview?stream=bundles", fail)
    view.frame.get_by_role("button", name="Try bundles").click()
    expect(view.frame.get_by_role("dialog")).to_contain_text(FAILED)


def previewed(server: Server, stream: str) -> httpx.Response:
    head = {"Authorization": f"Bearer {server.token('olga')}"}
    return httpx.get(f"{server.url}/penstock/api/preview", params={"stream": stream}, headers=head, timeout=300)


def test_what_is_not_declared_is_not_previewed(server: Server) -> None:
    assert previewed(server, "order-points").status_code == 404, "a sink"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_words_of_the_command_are_passed_on(server: Server) -> None:
    answer = previewed(server, "order-minutes")
    assert answer.status_code == 409
    assert "`penstock streams preview order-minutes" in answer.json()["detail"]
