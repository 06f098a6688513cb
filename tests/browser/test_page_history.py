"""The past of streams, as the page's API gives it."""

from __future__ import annotations

import httpx
import pytest

from tests.browser.scene import APPS

pytestmark = pytest.mark.browser


def test_the_history_is_downsampled(olga: httpx.Client) -> None:
    found = olga.get("/penstock/api/history").json()
    assert len(found["t"]) == 120
    assert {len(s) for stream in found["streams"].values() for s in stream.values()} == {120}
    assert set(found["streams"]) == {name for names in APPS.values() for name in names}


@pytest.mark.parametrize(("span", "points"), [("1h", 120), ("6h", 180), ("24h", 144), ("7d", 168), ("90d", 180)])
def test_the_past_of_a_stream_is_read_by_spans(vera: httpx.Client, span: str, points: int) -> None:
    found = vera.get("/penstock/api/history", params={"stream": "summaries", "span": span}).json()
    assert (len(found["t"]), set(found["streams"])) == (points, {"summaries"})
    assert {len(series) for series in found["streams"]["summaries"].values()} == {points}
    assert any(value is not None for value in found["streams"]["summaries"]["lag"])
    assert vera.get("/penstock/api/history", params={"stream": "summaries", "span": "2h"}).status_code == 422
    assert vera.get("/penstock/api/history", params={"stream": "nothing"}).status_code == 404
