"""The past of streams, as the page's API gives it."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import View
from tests.browser.scene import APPS

pytestmark = pytest.mark.browser


ALL = [name for names in APPS.values() for name in names]


def test_sparks_are_those_of_the_streams_that_are_named(olga: httpx.Client) -> None:
    found = olga.get("/penstock/api/history", params={"names": ["bundles", "walk-ins", "nobody"]}).json()
    assert len(found["t"]) == 120
    assert {len(s) for stream in found["streams"].values() for s in stream.values()} == {120}
    assert set(found["streams"]) == {"bundles", "walk-ins"}
    assert olga.get("/penstock/api/history", params={"names": ["bundles"] * 101}).status_code == 422


def test_the_totals_are_those_of_all_streams(olga: httpx.Client) -> None:
    found = olga.get("/penstock/api/history").json()
    assert {len(series) for series in found["totals"].values()} == {120}
    assert set(found["totals"]) == {"rows_per_s", "lag", "watermark_age_ms", "state_bytes", "late", "dead"}
    of_each = olga.get("/penstock/api/history", params={"names": ALL}).json()
    at = of_each["t"].index(found["t"][60])
    assert found["totals"]["lag"][60] == sum(series["lag"][at] for series in of_each["streams"].values()) > 0


@pytest.mark.parametrize(("span", "points"), [("1h", 120), ("6h", 180), ("24h", 144), ("7d", 168), ("90d", 180)])
def test_the_past_of_a_stream_is_read_by_spans(vera: httpx.Client, span: str, points: int) -> None:
    found = vera.get("/penstock/api/history", params={"stream": "summaries", "span": span}).json()
    assert (len(found["t"]), set(found["streams"])) == (points, {"summaries"})
    assert {len(series) for series in found["streams"]["summaries"].values()} == {points}
    assert any(value is not None for value in found["streams"]["summaries"]["lag"])
    assert vera.get("/penstock/api/history", params={"stream": "summaries", "span": "2h"}).status_code == 422
    assert vera.get("/penstock/api/history", params={"stream": "nothing"}).status_code == 404


def begun(steps: int) -> Callable[[Page], None]:
    """A platform whose history has so many steps of half a minute by now."""

    def younger(route: Route) -> None:
        answer = route.fetch()
        history = answer.json()
        for name, values in history["totals"].items():
            known = values[len(values) - steps :] if steps else []
            history["totals"][name] = [None] * (len(values) - steps) + [value or 0 for value in known]
        route.fulfill(response=answer, json=history)

    def before(page: Page) -> None:
        page.route(re.compile("/penstock/api/history$"), younger)

    return before


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    ("steps", "counted", "drawn"),
    [
        (0, "no history yet", "There is no history yet"),
        (1, "in 1 min", "The last hour, known since "),
        (9, "in 4 min", "The last hour, known since "),
        (120, "in the last hour", "The last hour"),
    ],
)
def test_the_totals_of_a_new_platform_say_since_when(
    visit: Callable[..., View], steps: int, counted: str, drawn: str
) -> None:
    view = visit(at="", before=begun(steps))
    late = view.frame.locator("#totals .tile").filter(has=view.frame.get_by_text("Late", exact=True))
    expect(late).to_contain_text(counted)
    rate = view.frame.locator("#totals .tile").filter(has=view.frame.get_by_text("Rows/s", exact=True))
    expect(rate.locator(".note")).to_have_attribute("title", re.compile(f"^{drawn}"))
    assert view.troubles == []


@pytest.mark.usefixtures("scene")
def test_charts_that_begin_later_than_their_span_say_so(visit: Callable[..., View]) -> None:
    view = visit(at="streams/bundles")
    begins = view.frame.get_by_text("Nothing is known before")
    expect(view.frame.locator(".charts canvas").first).to_be_visible()
    expect(begins).to_be_hidden()
    view.frame.get_by_role("button", name="The last 6 hours").click()
    expect(begins).to_be_visible()
    assert view.troubles == []
