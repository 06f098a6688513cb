"""What a sink into Elasticsearch drops when its time is over: indexes, and the tombstones of any number of deletes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.sinks.elasticsearch import tombstones
from tests.support.elasticsearch import NOON, Opened, Server, give, row

pytestmark = pytest.mark.integration


def test_indexes_and_tombstones_are_dropped_when_their_time_is_over(opened: Opened, search: Server) -> None:
    early = opened(suffix="day", expire_seconds=2 * 86400)
    days = [NOON - timedelta(days=n) for n in range(4)]
    # What would be dropped at once is not written.
    assert give(early, *[row(str(n), 1, {"n": n}, at=at) for n, at in enumerate(days)], row("gone", 1)) == 3
    search.call("PUT", "things-other")
    search.call("POST", "things-tombstones/_refresh")
    names = {index["index"] for index in search.call("GET", "_cat/indices/things*?format=json&h=index")}
    assert names == {"things-2026.11.22", "things-2026.11.21", "things-2026.11.20", "things-tombstones", "things-other"}
    late = opened(suffix="day", expire_seconds=2 * 86400, now=NOON + timedelta(days=8))
    give(late)
    names = {index["index"] for index in search.call("GET", "_cat/indices/things*?format=json&h=index")}
    assert names == {"things-tombstones", "things-other"}
    assert search.documents("things-tombstones") == {}


def test_an_index_behind_aliases_is_dropped_with_the_last_of_their_times(opened: Opened, search: Server) -> None:
    search.call("PUT", "things-v2", {"aliases": {"things-2026.11.20": {}, "things-2026.11.21": {}}})
    # One with a filter is a part of an index.
    search.call("PUT", "things-all", {"aliases": {"things-2026.11.19": {"filter": {"exists": {"field": "n"}}}}})
    left = []
    for days in (1, 2):
        give(opened(suffix="day", expire_seconds=2 * 86400, now=NOON + timedelta(days=days)))
        left.append({index["index"] for index in search.call("GET", "_cat/indices/things*?format=json&h=index")})
    assert left == [{"things-v2", "things-all"}, {"things-all"}]


@pytest.mark.parametrize("longest_s", [60.0, 0.0])
def test_tombstones_of_many_pages_are_dropped_at_once_or_by_the_next_batches(
    opened: Opened, search: Server, monkeypatch: pytest.MonkeyPatch, longest_s: float
) -> None:
    monkeypatch.setattr(tombstones, "PAGE", 2)
    monkeypatch.setattr(tombstones, "MAX_EXPIRY_S", longest_s)
    give(opened(), *[row(str(n), 1) for n in range(5)])
    search.call("POST", "things-tombstones/_refresh")
    late, left = opened(now=NOON + timedelta(days=8)), list[int]()
    for _ in range(4):
        give(late)
        left.append(len(search.documents("things-tombstones")))
    assert left == ([0] * 4 if longest_s else [3, 1, 0, 0])
    give(late, row("new", 1))
    give(late)
    assert search.documents("things-tombstones").keys() == {"new"}
