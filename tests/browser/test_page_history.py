"""The past of streams, as the page's API gives it."""

from __future__ import annotations

import httpx
import pytest

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
