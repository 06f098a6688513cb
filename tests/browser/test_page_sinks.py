"""The section Sinks of the operator page, and what it lets one ask."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from playwright.sync_api import Locator, expect

from penstock.control import Control
from penstock.devstack.servers.influxdb import InfluxDBServer
from penstock.devstack.servers.kafka import Broker
from penstock.errors import HostError
from penstock.kafka.admin import ensure_topics
from penstock.streams import Topic
from tests.browser.conftest import View
from tests.browser.layout import OVERLAPS
from tests.browser.server import Server
from tests.support.influxdb import asked

pytestmark = pytest.mark.browser
Visit = Callable[..., View]


def sink(view: View, name: str) -> Locator:
    return view.frame.locator("tr.sink").filter(has=view.frame.get_by_role("button", name=name, exact=True))


def unfolded(view: View, name: str) -> Locator:
    """The unfolded view of a sink, below its row."""
    sink(view, name).get_by_role("button", name=name, exact=True).click()
    return view.frame.locator("#sinks tr.unfolded:not([hidden])")


def cells(row: Locator) -> list[str]:
    found: list[str] = row.locator("td.n").all_inner_texts()
    return [" ".join(text.split()) for text in found]


def test_sinks_show_their_metrics_and_the_health_of_their_stores(visit: Visit) -> None:
    view = visit(at="sinks")
    # Of the control database two, and one that is declared and was never started.
    expect(view.frame.locator("tr.sink")).to_have_count(3)
    well = sink(view, "shop-points")
    expect(well.locator(".pill")).to_have_text("running")
    expect(well).to_contain_text("feeds influxdb:shop.names · sinks")
    store, *figures = cells(well)
    assert re.fullmatch(r"reachable [0-9]+ s ago", store)
    assert figures == ["1.24k 41.2M in total", "336", "12", "613", "0"]
    away = sink(view, "shop-search")
    expect(away.locator(".pill")).to_have_text("waiting")
    expect(away.locator("td.n").first).to_contain_text(re.compile("^awayfor [0-9]+m "))
    expect(away.locator("td[data-warn]")).to_have_count(2)
    expect(away).to_contain_text("does not answer; got: <img src=x onerror=alert(1)>")
    new = sink(view, "order-points")
    expect(new).to_contain_text("feeds influxdb:shop.orders · shop")
    expect(new).to_contain_text("not started yet")
    assert cells(new)[:2] == ["–", "–"]
    assert view.troubles == []


def test_a_sink_is_found_by_what_it_feeds_and_says_what_it_reads(visit: Visit) -> None:
    view = visit(at="sinks")
    view.frame.get_by_role("searchbox").fill("shop.orders")
    expect(view.frame.locator("tr.sink")).to_have_count(1)
    found = sink(view, "order-points")
    expect(found).to_contain_text("reads order-minutes stream")
    found.get_by_role("link", name="order-minutes").click()
    view.page.wait_for_url("**/plugin/penstock#/catalog/order-minutes")
    assert view.troubles == []


def test_a_row_unfolds_into_metrics_and_the_last_error_and_stays_unfolded(visit: Visit) -> None:
    view = visit(at="sinks")
    detail = unfolded(view, "shop-search")
    expect(detail.locator("dl")).to_contain_text("Retried4,410")
    expect(detail.locator("dl")).to_contain_text("Asked to wait31 times")
    expect(detail.get_by_label("Last error")).to_contain_text("x" * 400)
    expect(detail.get_by_role("button", name="Explain")).to_have_count(0)
    view.page.wait_for_timeout(3_500)  # a refresh
    expect(detail).to_be_visible()
    sink(view, "shop-search").get_by_role("button", name="shop-search", exact=True).click()
    expect(detail).to_have_count(0)
    assert view.troubles == []


EXPLAINED = """shop-points: shops -> upsert into influxdb.shop.names
  id: the values of name, at
  seen bigint
Spark's plan: <b>no markup</b>"""


@pytest.mark.parametrize("canned", [True, pytest.param(False, marks=[pytest.mark.long, pytest.mark.timeout(400)])])
def test_a_statement_is_explained_as_the_command_does(visit: Visit, screenshots: Path, canned: bool) -> None:
    """canned: the answer of the server; the real one takes a JVM."""
    view = visit(at="sinks")
    if canned:
        view.page.route(
            "**/penstock/api/explain?sink=shop-points", lambda route: route.fulfill(json={"text": EXPLAINED})
        )
    unfolded(view, "shop-points").get_by_role("button", name="Explain shop-points").click()
    dialog = view.frame.get_by_role("dialog", name="Explanation of shop-points")
    text = dialog.locator("pre")
    expect(text).to_contain_text("shop-points: shops -> upsert into influxdb.shop.names", timeout=240_000)
    for part in ("id: the values of name, at", "seen bigint", "Spark's plan"):
        expect(text).to_contain_text(part)
    view.page.screenshot(path=screenshots / "sinks-explain.png")
    assert view.troubles == []


def put_aside(broker: Broker) -> None:
    """Two records of `shops` and the letters of the sink that put them aside: one it still cannot take."""
    ensure_topics([Topic("shops", partitions=1), Topic("shop-points-dead-letter", partitions=1)], broker.bootstrap)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    values = [json.dumps({"name": name, "seen": 1_700_000_000_000}).encode() for name in ("mill", "")]
    values[1] = b"<b>no JSON</b>"
    for offset, value in enumerate(values):
        producer.produce("shops", value, key=f"{offset}", partition=0)
        said = {
            "topic": "shops", "partition": "0", "offset": str(offset), "stream": "shop-points",
            "reason": "no <b>room</b>", "output": "influxdb:shop.names",
        }  # fmt: skip
        headers: list[tuple[str, str | bytes | None]] = [(f"penstock.{name}", text) for name, text in said.items()]
        producer.produce("shop-points-dead-letter", value, key=f"{offset}", headers=headers)
        producer.flush()


@pytest.fixture
def influx(influx_port: int, tmp_path: Path) -> InfluxDBServer:
    part = InfluxDBServer(tmp_path, port=influx_port)
    try:
        part.command()
    except HostError as e:
        pytest.skip(f"InfluxDB cannot be had here: {e}")
    return part


@pytest.mark.long
@pytest.mark.timeout(600)
def test_dead_letters_of_a_sink_are_replayed_to_its_store(
    visit: Visit, fresh_broker: Broker, influx: InfluxDBServer, control: Control, screenshots: Path
) -> None:
    put_aside(fresh_broker)
    view = visit(at="sinks")
    detail = unfolded(view, "shop-points")
    detail.get_by_role("button", name="Dead letters of sink shop-points").click()
    letters = view.frame.get_by_role("dialog", name="Dead letters of shop-points")
    expect(letters.locator("article")).to_have_count(2)
    expect(letters).to_contain_text("penstock sinks replay shop-points --place 'shops[0]@1'")
    expect(letters).to_contain_text("no <b>room</b>")
    letters.get_by_role("button", name="Close").click()

    def replay() -> Locator:
        detail.get_by_role("button", name="Replay shop-points").click()
        asks = view.frame.get_by_role("dialog", name="Replay the dead letters of shop-points?")
        asks.get_by_label("Note").fill("there is room now")
        asks.get_by_role("button", name="Replay").click()
        return asks

    detail.get_by_role("button", name="Replay shop-points").click()
    asks = view.frame.get_by_role("dialog", name="Replay the dead letters of shop-points?")
    # A dry run needs no store.
    asks.get_by_role("button", name="Dry run").click()
    expect(asks.get_by_role("listitem")).to_contain_text(
        ["1 would be written, if the store takes it, 1 refused again.", "shops[0]@1: refused again: "], timeout=240_000
    )
    asks.get_by_role("button", name="Close").click()
    asks = replay()
    expect(asks.get_by_role("alert")).to_contain_text("InfluxDB cannot take anything at present", timeout=240_000)
    asks.get_by_role("button", name="Close").click()
    with influx:
        replay()
        done = view.frame.get_by_role("dialog", name="Replay of shop-points")
        expect(done).to_contain_text("1 written, 1 refused again", timeout=240_000)
        expect(done.locator("article")).to_have_count(1)
        expect(done.locator("article")).to_contain_text("shops[0]@1")
        view.page.screenshot(path=screenshots / "sinks-replayed.png")
        [series] = asked(influx, 'SELECT seen FROM "names" GROUP BY "name"', "shop")["series"]
    assert (series["tags"], series["values"]) == ({"name": "mill"}, [[1_700_000_000_000, 1_700_000_000_000]])
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        "olga", "page", "replay", "shop-points", "there is room now",
    ]  # fmt: skip


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_section_fits_at_every_width(visit: Visit, theme: str, screenshots: Path) -> None:
    view = visit(at="sinks", theme=theme)
    detail = unfolded(view, "shop-search")
    root = view.frame.locator("html")
    for width in (390, 800, 1280):
        view.page.set_viewport_size({"width": width, "height": 1000})
        assert root.evaluate("node => node.scrollWidth <= node.clientWidth"), width
        assert view.frame.locator("#view").evaluate(OVERLAPS) == [], width
        assert view.frame.locator("#sinks").evaluate("node => node.scrollWidth <= node.clientWidth"), width
        view.frame.locator("#sinks").screenshot(path=screenshots / f"sinks-{theme}-{width}.png")
        detail.get_by_role("button", name="Replay shop-search").click(trial=True)
    assert view.troubles == []


def test_a_viewer_may_not_act_on_a_sink(visit: Visit) -> None:
    view = visit("vera", at="sinks")
    detail = unfolded(view, "shop-points")
    for name in ("Explain shop-points", "Replay shop-points", "Dead letters of sink shop-points"):
        expect(detail.get_by_role("button", name=name)).to_be_disabled()


def test_only_declared_sinks_are_explained_and_replayed_by_users_who_may_act(server: Server, control: Control) -> None:
    def client(user: str) -> httpx.Client:
        return httpx.Client(base_url=server.url, headers={"Cookie": f"_token={server.token(user)}"}, timeout=60)

    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    replay = {"verb": "replay", "kind": "sink", "name": "shop-points"}
    before = control.actions(1)[0]["id"]
    with client("vera") as vera:
        assert vera.get("/penstock/api/explain?sink=shop-points").status_code == 403
        assert vera.post("/penstock/api/actions", json=replay, headers=own).status_code == 403
    with client("olga") as olga:
        # The last is a sink without a statement.
        for name in ("nobody", "--help", "bundles", "../shop-points", "order-points"):
            assert olga.get("/penstock/api/explain", params={"sink": name}).status_code == 404
        for changed, status in (
            ({"name": "nobody"}, 404), ({"name": "bundles"}, 404), ({"name": "--help"}, 404), ({"kind": "stream"}, 422),
            ({"verb": "stop"}, 422),
        ):  # fmt: skip
            answer = olga.post("/penstock/api/actions", json=replay | changed, headers=own)
            assert answer.status_code == status
    assert httpx.get(f"{server.url}/penstock/api/explain?sink=shop-points").status_code == 401
    assert control.actions(1)[0]["id"] == before
