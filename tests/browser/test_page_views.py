"""The views of the page's API on a real Airflow api-server: what each is answered, and the search on the server."""

from __future__ import annotations

import httpx
import pytest

from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from tests.browser.letters import send_letters
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
    "archives": {"archives", "archives_total"},
    "views": {"views", "panels"},
    "activity": {"actions", "more", "actors", "verbs"},
    "dead-letters": {"streams", "page", "pages", "matching", "total"},
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


def test_the_source_of_a_stream_is_read_from_its_file(olga: httpx.Client) -> None:
    python = olga.get("/penstock/api/streams/order-minutes/source", timeout=60).json()
    assert (python["language"], python["location"].partition(":")[0]) == ("python", "jobs/shop/orders.py")
    assert python["text"].startswith("def minutes(orders: DataFrame")
    assert python["text"].rstrip().endswith("),")
    assert "order-points" not in python["text"]
    sql = olga.get("/penstock/api/streams/shop-points/source", timeout=60).json()
    assert (sql["language"], sql["first_line"], "SELECT" in sql["text"]) == ("sql", 1, True)
    assert olga.get("/penstock/api/streams/nobody/source", timeout=60).status_code == 404


def test_the_log_of_actions_is_searched(vera: httpx.Client) -> None:
    found = vera.get("/penstock/api/activity", params={"q": "ALERT rules", "actor": "tomas"}).json()
    assert [(a["verb"], a["target"], a["source"]) for a in found["actions"]] == [("stop", "session-alerts", "page")]
    assert {"olga", "tomas", "supervisor"} <= set(found["actors"])
    assert {"stop", "release", "launch"} <= set(found["verbs"])
    assert not any("supervise/" in actor for actor in found["actors"])
    last = found["actions"][0]["id"]
    assert vera.get("/penstock/api/activity", params={"actor": "tomas", "before": last}).json()["actions"] == []


def test_dead_letters_are_grouped_by_reason_and_chosen_ones_replayed(
    olga: httpx.Client, control: Control, fresh_broker: Broker
) -> None:
    reasons = ["no number: 1", "no time", "no number: 3", "no number: 4", "no number: 5"]
    send_letters(fresh_broker.bootstrap, "topic-quality-dead-letter", "topic-quality", ["other: x"])
    send_letters(fresh_broker.bootstrap, "topic-quality-in-dead-letter", "topic-quality", reasons)
    for query in ({"stream": "topic-quality"}, {}):
        answer = olga.get("/penstock/api/dead-letters/reasons", params=query, timeout=30)
        assert answer.status_code == 200, answer.text
        groups = {one["reason"]: one for one in answer.json()["reasons"]}
        assert groups.keys() == {"no number", "no time", "other"}
        group = groups["no number"]
        assert (group["count"], group["newest_at"], group["oldest_at"]) == (4, 1_004, 1_000)
        assert (group["stream"], group["topic"]) == ("topic-quality", "topic-quality-in-dead-letter")
        assert group["places"] == [f"orders[0]@{n}" for n in (4, 3, 2, 0)]
        assert [letter["value"] for letter in group["examples"]] == ["v4", "v3", "v2"]
        assert (group["replayed_by"], group["name"]) == ("letters", "topic-quality-in-dead-letter")
    assert olga.get("/penstock/api/dead-letters/reasons", params={"stream": "nobody"}).status_code == 404

    # Of a stream that the project declares, so that the command knows who reads its topic.
    send_letters(fresh_broker.bootstrap, "orders-dead-letter", "order-minutes", ["a", "b", "c"])
    ready = lambda: olga.get("/penstock/api/overview").json()["declarations_known"]  # noqa: E731
    wait_until(ready, 60, what="declarations are known")
    body = {
        "verb": "replay",
        "kind": "letters",
        "name": "orders-dead-letter",
        "places": ["orders[0]@0", "orders[0]@2"],
        "note": "fixed",
    }
    headers = {"Origin": str(olga.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    answer = olga.post("/penstock/api/actions", json=body, headers=headers, timeout=240)
    assert answer.status_code == 200, answer.text
    assert sum(answer.json()["counts"].values()) == 2
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        "olga", "page", "replay", "orders-dead-letter", "fixed; places orders[0]@0, orders[0]@2",
    ]  # fmt: skip
    answer = olga.post("/penstock/api/actions", json=body | {"places": ["orders[0]@9"]}, headers=headers, timeout=240)
    assert answer.status_code == 409
    assert "has no dead letter of this place; got: orders[0]@9" in answer.json()["detail"]
