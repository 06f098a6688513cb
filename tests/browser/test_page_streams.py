"""Late streams on the operator page: found first, and with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import View
from tests.browser.scene import Scene
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser
Visit = Callable[..., View]


@pytest.fixture
def late(scene: Scene) -> Iterator[str]:
    """The name of a stream that is an hour behind, with a hundred thousand records."""
    [row] = [one for one in scene.rows if one.name == "bundles"]
    before = replace(row)
    scene.ahead[row.name] = -60 * 60_000
    row.lag, row.rows_per_s = 100_000, 90.0
    row.topics = {"bundles-in": {**row.topics["bundles-in"], "lag": 100_000}}
    scene.report()
    yield row.name
    row.lag, row.rows_per_s, row.topics = before.lag, before.rows_per_s, before.topics
    scene.ahead.clear()
    scene.report()


def test_streams_are_ordered_by_the_server(vera: httpx.Client, late: str) -> None:
    def ordered(sort: str) -> Any:
        return vera.get("/penstock/api/streams", params={"sort": sort}).json()

    # What is read of the database is shared for a second.
    wait_until(lambda: ordered("watermark")["order"][0] == late, 10)
    by_lag = ordered("lag")
    lags = {one["name"]: one["lag"] for app in by_lag["apps"] for one in app["streams"]}
    assert [lags[name] for name in by_lag["order"]] == sorted(lags.values(), reverse=True)
    assert vera.get("/penstock/api/streams", params={"sort": "name"}).status_code == 422


def test_the_latest_stream_is_first_and_says_why(visit: Visit, late: str) -> None:
    view = visit(at="")
    view.frame.locator("#totals").get_by_role("link", name=late).click()
    expect(view.frame.locator(".head")).to_contain_text(
        re.compile("late: it is behind by 100,000 records, at 90 a second")
    )
    view.frame.get_by_role("link", name="Streams").click()
    view.frame.get_by_role("link", name="Watermark").click()
    rows = view.frame.locator("tr.stream")
    expect(rows.first).to_contain_text(late)
    expect(rows.first).to_contain_text("late: it is behind by 100,000 records")
    expect(rows.first.get_by_role("link", name="metrics")).to_be_visible()
    expect(view.frame.locator("tr.app")).to_have_count(0)
    expect(view.frame.get_by_role("columnheader", name="Watermark")).to_have_attribute("aria-sort", "descending")
    assert view.page.url.endswith("#/streams?sort=watermark")
    view.frame.get_by_role("combobox", name="In order of apps").select_option("By lag")
    expect(view.frame.get_by_role("columnheader", name="Lag")).to_have_attribute("aria-sort", "descending")
    # A filter keeps the order, and a second click on the heading ends it.
    view.frame.get_by_role("searchbox").fill("bun")
    expect(rows).to_have_count(1)
    assert view.page.url.endswith("sort=lag")
    view.frame.get_by_role("link", name="Lag").click()
    expect(view.frame.locator("tr.app")).to_have_count(1)
    assert view.page.url.endswith("#/streams?q=bun")
    assert view.troubles == []
