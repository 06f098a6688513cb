"""Lists of the operator page: archives, views, dead letters and actions; their pages, and what they say when empty."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Page, Route, expect

from penstock.control import Actor, Control
from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import ensure_topics
from penstock.streams import Topic
from tests.browser.conftest import View

pytestmark = pytest.mark.browser
Visit = Callable[..., View]


def test_archives_and_views_are_listed(visit: Visit) -> None:
    view = visit(at="archives")
    archive = view.frame.locator("#archives tbody tr")
    expect(archive).to_have_count(1)
    for figure in ("order-archive", "orders", "bucket:lake/shop/orders", "not running"):
        expect(archive).to_contain_text(figure)
    view.frame.get_by_role("link", name="Views").click()
    served = view.frame.locator("#served-views tbody tr").filter(has_text="minutes-by-shop")
    expect(served).to_contain_text("order-minutes")
    expect(served).to_contain_text("no instance serves it")
    assert view.troubles == []


def test_actions_are_filtered_and_paged(visit: Visit, control: Control) -> None:
    for n in range(130):
        control.record(Actor("pavel", "cli"), "snapshot", "accounts", f"note {n}")
    view = visit(at="activity?actor=pavel")
    rows = view.frame.locator("#actions tbody tr")
    expect(rows).to_have_count(100)
    expect(rows.first).to_contain_text("note 129")
    view.frame.get_by_role("link", name="Earlier").click()
    expect(rows).to_have_count(30)
    expect(rows.last).to_contain_text("note 0")
    expect(view.frame.get_by_role("link", name="Earlier")).to_be_hidden()
    view.frame.get_by_role("link", name="Newest").click()
    expect(rows).to_have_count(100)
    view.frame.get_by_role("searchbox").fill("NOTE 77")
    expect(rows).to_have_count(1)
    expect(view.frame.get_by_role("combobox", name="By anybody")).to_have_value("pavel")
    view.frame.get_by_role("combobox", name="All actions").select_option("stop")
    expect(view.frame.locator("#actions")).to_have_text("No action matches.")
    assert view.troubles == []


@pytest.fixture
def letters(fresh_broker: Broker) -> None:
    """Records that the sink `shop-points` could not read, for two reasons."""
    topic = "shop-points-dead-letter"
    ensure_topics([Topic("shops", partitions=1), Topic(topic, partitions=1)], fresh_broker.bootstrap)
    producer = Producer({"bootstrap.servers": fresh_broker.bootstrap, "log_level": 0})
    for n in range(5):
        producer.produce("shops", b"{broken")
        place = {"topic": "shops", "partition": "0", "offset": str(n), "stream": "shop-points"}
        reason = "not JSON" if n else "<b>no</b> number: it is text"
        headers: list[tuple[str, str | bytes | None]] = [(f"penstock.{name}", text) for name, text in place.items()]
        producer.produce(topic, b"{broken", headers=[*headers, ("penstock.reason", reason)])
    producer.flush()


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_grouped_by_reason_and_replayed(visit: Visit, control: Control) -> None:
    view = visit(at="dead-letters")
    row = view.frame.locator(".letters tbody tr").filter(has_text="topic-quality")
    expect(row.locator("td").first).to_have_text("3")
    row.get_by_role("link", name="Dead letters of topic-quality by reason").click()
    view.page.wait_for_url("**/plugin/penstock#/dead-letters/topic-quality")
    expect(view.frame.locator(".reasons")).to_contain_text("Nothing is left to do in the part")
    view.frame.get_by_role("link", name="of all streams").click()
    view.frame.locator("html").evaluate("() => { location.hash = '#/dead-letters/shop-points'; }")
    groups = view.frame.locator(".reasons article")
    expect(groups).to_have_count(2)
    expect(groups.filter(has_text="<b>no</b> number")).to_contain_text("1 dead letter of shop-points")
    broken = groups.filter(has_text="not JSON")
    broken.locator("summary").click()
    expect(broken.locator("pre").first).to_have_text("{broken")
    broken.get_by_role("button", name="Replay 4 dead letters of shop-points: not JSON").click()
    dialog = view.frame.get_by_role("dialog")
    dialog.get_by_label("Note").fill("the check is fixed")
    dialog.get_by_role("button", name="Replay").click()
    said = re.compile(r"Replay of 4 dead letters of shop-points: \d")
    expect(view.frame.locator("#toast")).to_contain_text(said, timeout=240_000)
    [action] = [one for one in control.actions(5) if one["verb"] == "replay"]
    assert (action["actor"], action["target"]) == ("olga", "shop-points-dead-letter")
    assert action["detail"] == "the check is fixed; places shops[0]@4, shops[0]@3, shops[0]@2, shops[0]@1"
    assert view.troubles == []


def many(route: Route) -> None:
    """A page of ten thousand streams, by its number."""
    answer = route.fetch()
    content: dict[str, Any] = answer.json()
    number = int(re.findall(r"page=(\d+)", route.request.url + "&page=1")[0])
    app = content["apps"][0]
    one = app["streams"][0]
    app["streams"] = [one | {"name": f"stream-{100 * (number - 1) + n:05}"} for n in range(100)]
    content |= {"apps": [app], "page": number, "pages": 100, "matching": 10_000, "total": 10_000}
    route.fulfill(response=answer, json=content)


def test_ten_thousand_streams_are_shown_by_pages(visit: Visit) -> None:
    view = visit(before=lambda page: page.route(re.compile("/penstock/api/streams"), many))
    rows = view.frame.locator("tr.stream")
    expect(rows).to_have_count(100)
    expect(rows.last).to_contain_text("stream-00099")
    expect(view.frame.get_by_role("navigation", name="Pages")).to_contain_text("page 1 of 100")
    view.frame.get_by_role("link", name="Next page").click()
    expect(rows.first).to_contain_text("stream-00100")
    assert view.page.url.endswith("#/streams?page=2")
    view.page.go_back()
    expect(rows.first).to_contain_text("stream-00000")
    view.page.unroute_all(behavior="ignoreErrors")
    assert view.troubles == []


EMPTY: dict[str, tuple[dict[str, Any], str]] = {
    "streams": ({"apps": [], "total": 0, "matching": 0}, "No streams are declared yet"),
    "captures": ({"captures": [], "total": 0, "matching": 0}, "No captures are declared"),
    "sinks": ({"sinks": [], "total": 0, "matching": 0}, "No sinks are declared"),
    "backfills": ({"runs": [], "declared": []}, "No backfills are declared"),
    "replacements": ({"replacements": []}, "No stream is being replaced"),
    "archives": ({"archives": []}, "No archives are declared"),
    "views": ({"views": []}, "No views are declared"),
    "dead-letters": ({"streams": [], "total": 0, "matching": 0}, "No stream has dead letters"),
    "activity": ({"actions": [], "more": False}, "There are no actions yet"),
}


def test_an_empty_list_says_what_it_is_for(visit: Visit) -> None:
    def empty(page: Page) -> None:
        for name in EMPTY:
            page.route(re.compile(f"/penstock/api/{name}$"), nothing)

    def nothing(route: Route) -> None:
        answer = route.fetch()
        content, _ = EMPTY[route.request.url.rpartition("/")[2]]
        route.fulfill(response=answer, json=answer.json() | content)

    view = visit(at="activity", before=empty)
    for name, (_, text) in EMPTY.items():
        view.frame.locator("html").evaluate("(_, name) => { location.hash = `#/${name}`; }", name)
        expect(view.frame.locator("#view")).to_contain_text(text)
    view.page.unroute_all(behavior="ignoreErrors")
    assert view.troubles == []
