"""The views of the page's API on a real Airflow api-server: what each is answered, and the search on the server."""

from __future__ import annotations

import httpx
import pytest

from tests.support.wait import wait_until

pytestmark = pytest.mark.browser


def test_texts_explain_every_state(vera: httpx.Client) -> None:
    texts = vera.get("/penstock/api/texts").json()
    for kind in ("", "run_", "replacement_"):
        assert texts[f"{kind}remedies"].keys() >= texts[f"{kind}states"].keys()


COMMON = {"now", "viewer", "freshness", "disk_hash", "attention", "declarations_known"}
VIEWS = {
    "overview": {"totals", "faults", "faults_total", "past_faults", "apps", "apps_total", "progress", "beats"},
    "streams": {"apps", "app_names", "page", "pages", "matching", "total"},
    "streams/summaries": {"app", "stream", "declared", "reads_from", "read_by", "replacement", "faults"},
    "captures": {"captures", "page", "pages", "matching", "total"},
    "sinks": {"sinks", "page", "pages", "matching", "total"},
    "backfills": {"runs", "declared", "page", "pages", "matching", "total"},
    "replacements": {"replacements", "page", "pages", "matching", "total"},
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_answered_with_what_all_have(vera: httpx.Client, view: str) -> None:
    answer = vera.get(f"/penstock/api/{view}")
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() >= COMMON | VIEWS[view]
    assert answer.json()["viewer"] == {"name": "vera", "may_operate": False, "may_release": False}


def test_the_first_view_shows_what_needs_a_person_and_what_takes_long(vera: httpx.Client) -> None:
    found = vera.get("/penstock/api/overview").json()
    assert found["totals"]["by_state"]["failing"] == 1
    assert found["totals"]["query_restarts"] == 7
    assert found["apps"][0]["state"] == "hung"
    assert {fault["name"] for fault in found["faults"]} >= {"presence", "summaries", "shop-search"}
    assert found["attention"]["sinks"] == 1
    shown = {(one["kind"], one["name"]) for one in found["progress"]}
    assert shown >= {("capture snapshot", "tests"), ("backfill", "order-replay"), ("backfill", "first-year")}


def test_streams_are_found_on_the_server(vera: httpx.Client) -> None:
    def found(**query: str) -> list[str]:
        answer = vera.get("/penstock/api/streams", params=query)
        return [stream["name"] for app in answer.json()["apps"] for stream in app["streams"]]

    assert len(found()) == 12
    assert found(q="WALK") == ["enriched-walk-ins", "walk-ins"]
    assert found(app="metrics") == ["bundles", "summaries"]
    assert found(state="failing") == ["summaries"]
    assert found(q="walk", page="99") == ["enriched-walk-ins", "walk-ins"]
    for wrong in ({"state": "none"}, {"page": "0"}, {"page": "x"}, {"q": "x" * 201}):
        assert vera.get("/penstock/api/streams", params=wrong).status_code == 422
    assert vera.get("/penstock/api/streams/nobody").status_code == 404


def test_sinks_that_are_declared_and_do_not_run_are_shown_once_that_is_known(vera: httpx.Client) -> None:
    assert vera.get("/penstock/api/catalog", timeout=60).status_code == 200
    wait_until(lambda: vera.get("/penstock/api/sinks").json()["declarations_known"], 60, what="declarations are known")
    sinks = {one["name"]: one for one in vera.get("/penstock/api/sinks").json()["sinks"]}
    assert {name for name, one in sinks.items() if one["health"] != "unknown"} == {"shop-points", "shop-search"}
    assert any(one["stated"] for one in sinks.values())
