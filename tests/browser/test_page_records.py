"""Records of a stream's output on the operator page, and dead letters that are discarded."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.streams import Topic
from penstock.testing import Record, create, send
from penstock.views.cluster.partition_assignment import partition_of
from tests.browser.conftest import View
from tests.browser.letters import send_letters
from tests.browser.server import same_origin
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser
Visit = Callable[..., View]


@pytest.fixture
def known(olga: httpx.Client) -> None:
    wait_until(
        lambda: olga.get("/penstock/api/overview").json()["declarations_known"], 60, what="declarations are known"
    )


@pytest.mark.usefixtures("known")
def test_records_are_those_of_a_declared_output(olga: httpx.Client, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, Topic("order-minutes", partitions=2))
    send(fresh_broker.bootstrap, [Record("order-minutes", key, key * 2, partition_of(key, 2)) for key in "abcab"])
    found = olga.get("/penstock/api/records", params={"stream": "order-minutes"}).json()
    assert (found["topic"], found["partitions"], len(found["records"])) == ("order-minutes", 2, 5)
    found = olga.get("/penstock/api/records", params={"stream": "order-minutes", "key": "b"}).json()
    assert [(one["key"], one["value"]) for one in found["records"]] == [("b", "bb")] * 2
    for params in ({"stream": "order-minutes", "topic": "orders"}, {"stream": "nobody"}):
        assert olga.get("/penstock/api/records", params=params).status_code == 404


def writes(page: Page) -> None:
    """The scene runs no stream that the project declares: the page asks for the output of one that it does."""

    def declared(route: Route) -> None:
        answer = route.fetch()
        output = {"writes": [{"kind": "topic", "name": "order-minutes"}]}
        route.fulfill(response=answer, json=answer.json() | {"declared": output})

    page.route("**/api/streams/bundles", declared)
    ask = "**/api/records?stream=bundles*"
    page.route(ask, lambda route: route.continue_(url=route.request.url.replace("bundles", "order-minutes")))


@pytest.mark.usefixtures("known")
def test_a_key_is_searched_in_the_output_of_a_stream(visit: Visit, fresh_broker: Broker) -> None:
    create(fresh_broker.bootstrap, Topic("order-minutes", partitions=2))
    send(
        fresh_broker.bootstrap, [Record("order-minutes", key, f"<b>{key}</b>", partition_of(key, 2)) for key in "abcab"]
    )
    view = visit(at="streams/bundles", before=writes)
    view.frame.get_by_role("button", name="Records of bundles", exact=True).click()
    dialog = view.frame.get_by_role("dialog", name="Records of bundles", exact=True)
    expect(dialog.locator("article")).to_have_count(5)
    dialog.get_by_label("Key").fill("b")
    dialog.get_by_role("button", name="Find").click()
    expect(dialog.locator("article")).to_have_count(2)
    expect(dialog).to_contain_text("<b>b</b>")
    expect(dialog).to_contain_text("which is all that the partition has")
    dialog.get_by_label("Key").fill("bb")
    dialog.get_by_role("button", name="Find").click()
    expect(dialog).to_contain_text("No record with this key was found.")
    assert view.troubles == []


@pytest.mark.usefixtures("known")
def test_dead_letters_of_a_reason_are_discarded(
    visit: Visit, olga: httpx.Client, control: Control, fresh_broker: Broker
) -> None:
    send_letters(
        fresh_broker.bootstrap,
        "topic-quality-in-dead-letter",
        "topic-quality",
        ["no number: 1", "no time", "no number: 3"],
    )
    view = visit(at="dead-letters/topic-quality")
    group = view.frame.locator(".reasons article").filter(has_text="no number")
    group.get_by_role("button", name="Discard 2 dead letters of topic-quality: no number").click()
    dialog = view.frame.get_by_role("dialog", name="Discard 2 dead letters of topic-quality?")
    expect(dialog.locator("#confirm-would")).to_contain_text("2 are noted as discarded.")
    dialog.get_by_label("Note").fill("from a test till")
    dialog.get_by_role("button", name="Discard").click()
    expect(view.frame.locator("#toast")).to_have_text("2 dead letters of topic-quality are discarded.")
    expect(view.frame.locator(".reasons article")).to_have_count(1)
    assert view.troubles == []
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        "olga", "page", "discard", "topic-quality-in-dead-letter",
        "of topic-quality; from a test till; places orders[0]@2, orders[0]@0",
    ]  # fmt: skip
    found = olga.get("/penstock/api/letters", params={"stream": "topic-quality", "kind": "dead"}).json()["letters"]
    assert [one["ended"] for one in found] == ["discarded", "", "discarded"]
    body = {
        "verb": "discard",
        "kind": "letters",
        "name": "topic-quality-in-dead-letter",
        "stream": "topic-quality",
        "places": ["orders[0]@0", "orders[0]@1"],
    }
    answer = olga.post("/penstock/api/actions", json=body, headers=same_origin(olga))
    assert answer.json() == {"counts": {"discarded before": 1, "discarded": 1}}
    for changes, status in (
        ({"stream": ""}, 422),
        ({"kind": "sink"}, 422),
        ({"places": []}, 422),
        ({"name": "nothing"}, 404),
    ):
        assert olga.post("/penstock/api/actions", json=body | changes, headers=same_origin(olga)).status_code == status
