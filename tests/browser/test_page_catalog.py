"""The view Catalog of the operator page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import View
from tests.browser.server import Server

pytestmark = pytest.mark.browser
Visit = Callable[..., View]

LISTED = {
    "shops": "capture",
    "order-counts": "stream",
    "order-minutes": "stream",
    "order-points": "sink",
    "shop-points": "sink",
    "agents": "view",
    "assigned": "view",
    "last-alerts": "view",
    "fleet": "panel",
    "shop-totals": "panel",
    "minutes-by-shop": "view",
    "shop-names": "view",
    "order-archive": "archive",
    "first-year": "backfill",
    "order-replay": "backfill",
}


def node(view: View, kind: str, name: str) -> Locator:
    return view.frame.locator(f'#catalog-graph .node[data-kind="{kind}"][data-name="{name}"]')


def row(view: View, name: str) -> Locator:
    return view.frame.locator("#catalog tbody tr").filter(has=view.frame.get_by_role("button", name=name, exact=True))


def test_everything_declared_is_listed_and_drawn(visit: Visit, server: Server) -> None:
    view = visit(at="catalog")
    expect(view.frame.locator("#catalog tbody tr")).to_have_count(len(LISTED))
    for name, kind in LISTED.items():
        expect(row(view, name).locator("td").first).to_have_text(kind)
        expect(node(view, kind, name)).to_have_count(1)
    expect(row(view, "order-points")).to_contain_text("influxdb:shop.orders")
    expect(row(view, "order-minutes")).to_contain_text("EmitFinal: window 1 min, grace 10 s")
    expect(row(view, "first-year")).to_contain_text("declared only")
    expect(row(view, "order-minutes").locator("td").last).to_have_text("yes")
    for kind, name in (("table", "till:towns"), ("pattern", "order.*"), ("store", "influxdb:shop.orders")):
        expect(node(view, kind, name)).to_have_count(1)
    # Two topics of the project match the pattern, and the dead letters of one and of a sink.
    expect(view.frame.locator("#catalog-graph .edge.matches")).to_have_count(4)
    assert view.troubles == []
    assert [url for url in view.requests if not url.startswith((f"{server.url}/", "data:", "blob:"))] == []


def test_lines_meet_their_boxes_and_boxes_do_not_overlap(visit: Visit) -> None:
    view = visit(at="catalog")
    expect(node(view, "topic", "orders")).to_be_visible()
    boxes = view.frame.locator("#catalog-graph rect").evaluate_all(
        "nodes => nodes.map(n => [n.x, n.y, n.width, n.height].map(v => v.baseVal.value))"
    )
    for n, (x, y, width, height) in enumerate(boxes):
        for x2, y2, width2, height2 in boxes[:n]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
    ends = view.frame.locator("#catalog-graph .edge").evaluate_all(
        "nodes => nodes.map(n => [0, n.getTotalLength()].map(at => n.getPointAtLength(at)).map(p => [p.x, p.y]))"
    )
    assert len(ends) > len(boxes) / 2
    for (x, y), (x2, y2) in ends:
        assert any(x == pytest.approx(b[0] + b[2]) and b[1] < y < b[1] + b[3] for b in boxes)
        assert any(x2 == pytest.approx(b[0], abs=6) and b[1] < y2 < b[1] + b[3] for b in boxes)
    within = "svg => { const b = svg.getBBox(); return b.x >= 0 && b.x + b.width <= svg.width.baseVal.value"
    within += " && b.y >= 0 && b.y + b.height <= svg.height.baseVal.value; }"
    assert view.frame.locator("#catalog-graph > svg").evaluate(within)


def test_names_stay_within_their_boxes(visit: Visit) -> None:
    view = visit(at="catalog")
    expect(node(view, "topic", "orders")).to_be_visible()
    wide = "nodes => nodes.filter(n => [...n.querySelectorAll('text')].some("
    wide += (
        "t => t.getComputedTextLength() > n.querySelector('rect').width.baseVal.value - 16)).map(n => n.dataset.name)"
    )
    assert view.frame.locator("#catalog-graph .node").evaluate_all(wide) == []


def test_a_picked_name_is_marked_with_upstream_and_downstream(visit: Visit) -> None:
    view = visit(at="catalog")
    button = row(view, "shop-names").get_by_role("button")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    view.page.wait_for_url("**/plugin/penstock#/catalog/shop-names")
    off = view.frame.locator("#catalog-graph .node.off")
    names = view.frame.locator("#catalog-graph .node:not(.off)").evaluate_all("nodes => nodes.map(n => n.dataset.name)")
    assert sorted(names) == ["shop-names", "shops", "shops", "till:shops", "till:towns"]
    node(view, "view", "minutes-by-shop").click(force=True)
    expect(button).to_have_attribute("aria-pressed", "false")
    expect(node(view, "topic", "orders")).not_to_have_class("node off")
    expect(node(view, "view", "shop-names")).to_have_class("node off")
    row(view, "minutes-by-shop").get_by_role("button").click()
    expect(off).to_have_count(0)
    assert view.troubles == []


def test_a_name_that_is_searched_is_shown_large_enough_to_read(visit: Visit) -> None:
    view = visit(at="catalog", width=800)
    search = view.frame.get_by_role("combobox", name="Name to mark")
    search.fill("minutes-by")
    search.press("Enter")
    view.page.wait_for_url("**/plugin/penstock#/catalog/minutes-by-shop")
    expect(row(view, "minutes-by-shop").get_by_role("button")).to_have_attribute("aria-pressed", "true")
    picked = node(view, "view", "minutes-by-shop")
    expect(picked).to_be_in_viewport(ratio=1)
    scale = "text => text.getBoundingClientRect().height / text.getBBox().height"
    assert picked.locator("text").first.evaluate(scale) >= 0.99
    search.fill("nothing like it")
    search.press("Enter")
    expect(view.frame.locator(".filters [role=status]")).to_have_text("Nothing is named like nothing like it.")
    search.fill("shops")
    view.page.wait_for_url("**/plugin/penstock#/catalog/shops")
    view.frame.get_by_role("button", name="Fit into the frame").click()
    assert view.troubles == []


def test_lines_have_the_lag_of_what_reads(visit: Visit) -> None:
    lags = {"shop-points": {"shops": 1_234}, "order-minutes": {"orders": 5}}
    view = visit(
        at="catalog",
        before=lambda page: page.route(
            "**/api/lags",
            lambda route: route.fulfill(response=(answer := route.fetch()), json=answer.json() | {"lags": lags}),
        ),
    )
    expect(view.frame.locator("#catalog-graph .lag:not(:empty)")).to_have_count(2)
    drawn = view.frame.locator("#catalog-graph .lag", has_text="1.23k")
    assert drawn.evaluate("text => text.getBBox().x > 0")
    expect(drawn.locator("title")).to_have_text("1,234 records of shops that shop-points has not read")
    assert view.troubles == []


def test_invalid_declarations_are_reported(visit: Visit, server: Server) -> None:
    broken = server.project / "jobs" / "shop" / "broken.py"
    broken.write_text("nothing.of_the_kind\n")
    try:
        view = visit(at="catalog")
        expect(view.frame.locator("#catalog-error")).to_contain_text("`penstock catalog` shows the errors")
        expect(row(view, "order-replay")).to_be_visible()
    finally:
        broken.unlink()


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_graph_scrolls_within_its_box(visit: Visit, theme: str, screenshots: Path) -> None:
    view = visit(at="catalog", theme=theme)
    graph, table = view.frame.locator("#catalog-graph"), view.frame.locator("#catalog")
    expect(row(view, "order-replay")).to_be_visible()
    ink, paper = (
        ("rgb(27, 29, 33)", "rgb(255, 255, 255)") if theme == "light" else ("rgb(232, 233, 235)", "rgb(24, 25, 28)")
    )
    assert graph.evaluate("node => getComputedStyle(node).backgroundColor") == paper
    assert graph.locator(".name").first.evaluate("node => getComputedStyle(node).fill") == ink
    for width in (1280, 390):
        view.page.set_viewport_size({"width": width, "height": 1000})
        table.scroll_into_view_if_needed()
        view.page.screenshot(path=screenshots / f"catalog-{theme}-{width}.png")
        fits = "node => node.getBoundingClientRect().right <= document.documentElement.clientWidth"
        for box in (graph, table):
            assert box.evaluate(fits)
    for box in (graph, table):
        assert box.evaluate("node => node.scrollWidth > node.clientWidth")
    graph.evaluate("node => node.scrollTo(300, 0)")
    view.page.screenshot(path=screenshots / f"catalog-{theme}-390-right.png")
    assert view.troubles == []
