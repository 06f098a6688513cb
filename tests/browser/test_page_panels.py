"""Panels of the operator page, over a real instance of the views: the fleet as jobs/agents/ declares it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, expect

from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.errors import BrokerError
from penstock.monitoring.dashboard.panels import CACHED, VALUES
from penstock.views import runner
from penstock.views.api import freshness
from tests.browser.conftest import View
from tests.browser.instance import Instance
from tests.browser.layout import OVERLAPS
from tests.browser.server import Server
from tests.support.wait import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.long]
Visit = Callable[..., View]

NOW = int(time.time() * 1000)
MINUTE = 60_000
MARKUP = "<img src=x onerror=alert(1)>"
KEYS = [MARKUP, "..", "a/b?c#d%2F&e=f", " ü 😀 ", "\"'`\\", "x" * 4096, "a\u202eb"]


def agent(n: int, **more: Any) -> dict[str, Any]:
    """Half are of account 1; every fifth is offline, and every tenth came or went 20 minutes ago."""
    account, online = "1" if n % 2 else f"acc-{n % 30}", n % 5 != 0
    return {
        "agent": f"agent-{n}", "account": account, "platform": ("linux", "mac", None)[n % 3], "version": f"1.{n % 4}",
        "labels": {"site": f"s{n % 7}"}, "online": online, "timestamp": NOW - 10 * MINUTE,
        "since": NOW - (20 if n % 10 == 0 else 300) * MINUTE, **more,
    }  # fmt: skip


def assigned(n: int, tests: int, **more: Any) -> dict[str, Any]:
    one = {"id": n, "name": "shop", "kind": "http", "target": "https://shop.example", "every_seconds": 300}
    return {
        "agent": f"agent-{n}", "account": "1", "online": True, "tests": [{**one, "id": i} for i in range(tests)],
        "version": 2 * NOW, "timestamp": NOW - 10 * MINUTE, **more,
    }  # fmt: skip


def alert(rule: int, end: int, account: str = "1") -> tuple[str, dict[str, Any]]:
    value = {
        "account": account, "rule": rule, "metric": "pageLoadTime", "comparison": "over", "threshold": 4.5,
        "value": 6.25, "count": 31, "window_start": end - 5 * MINUTE, "window_end": end,
    }  # fmt: skip
    return json.dumps({"account": account, "rule": rule}, separators=(",", ":")), value


@pytest.fixture
def empty(control: Control, broker: Broker, tmp_path: Path) -> Iterator[Instance]:
    """An instance that has begun to read nothing yet."""
    made = Instance(control, broker.bootstrap, tmp_path)
    made.start()
    yield made
    made.close()


@pytest.fixture
def views(empty: Instance) -> Instance:
    empty.load()
    empty.put("agents", {f"agent-{n}": agent(n) for n in range(120)})
    empty.put("assigned", {"agent-7": assigned(7, 3)})
    empty.put("last-alerts", dict([alert(1, NOW - 30 * MINUTE), alert(2, NOW - 5 * MINUTE), alert(1, NOW, "2")]))
    return empty


@pytest.fixture
def ask(server: Server) -> Iterator[Callable[..., Any]]:
    """Answers of the page's server about the fleet, not from its cache."""
    with httpx.Client(base_url=f"{server.url}/penstock/api/", cookies={"_token": server.token("olga")}) as client:

        def get(path: str, **query: str) -> Any:
            if not query:
                time.sleep(CACHED + 0.1)
            answer = client.get(f"panels/fleet{path}", params=query, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer.json()

        yield get


def section(view: View) -> Locator:
    return view.frame.locator("#panel-fleet")


def troubles(counts: Any) -> set[str]:
    """The kinds of trouble of a panel that has nothing else."""
    return {part["trouble"]["kind"] for part in (counts["total"], *counts["dimensions"].values(), counts["changes"])}


def find(view: View, key: str) -> Locator:
    view.frame.get_by_role("searchbox", name="Agent").fill(key)
    view.page.keyboard.press("Enter")
    result = section(view).locator(".panel-result")
    expect(result.locator(".key")).to_have_text(key, use_inner_text=False)
    return result


def dimension(view: View, field: str) -> Locator:
    return section(view).locator(f'[data-field="{field}"]')


def lines(view: View, field: str) -> list[str]:
    return [" ".join(text.split()) for text in dimension(view, field).locator("tbody tr").all_inner_texts()]


@pytest.mark.usefixtures("views")
def test_rows_are_counted_and_a_key_is_found(visit: Visit, screenshots: Path) -> None:
    view = visit(at="views")
    totals = section(view).locator(".tile .value")
    expect(totals).to_have_text(["120", "96", "24", "0", "12"])
    accounts = lines(view, "account")
    assert accounts[0] == "1 48 12 60"
    assert len(accounts) == VALUES + 1
    assert accounts[-1] == "6 others 24 0 24"
    assert lines(view, "platform") == ["linux 32 8 40", "mac 32 8 40", "none 32 8 40"]
    assert sorted(lines(view, "version")) == [f"1.{n} 24 6 30" for n in range(4)]
    expect(section(view).locator(".fresh").first).to_have_text(re.compile("^as of [0-9:]{8}, 0 records behind$"))
    chart = section(view).get_by_role("img", name=re.compile("12 became offline"))
    expect(chart).to_be_visible()

    found = find(view, "agent-7")
    said, tests, alerts = (found.locator("article").nth(n) for n in range(3))
    for one in ("Stateonline", "Since", "Account1", "mac", "1.3", "site = s0", "as of"):
        expect(said).to_contain_text(one)
    expect(said).to_contain_text(re.compile("Checked in([0-9-]{10} )?[0-9:]{8}, [0-9]+m [0-9]{2}s ago"))
    expect(tests).to_contain_text("tests: 3")
    expect(tests.locator("tbody tr")).to_have_count(3)
    expect(tests.locator("tbody tr").first).to_have_text("0 shophttphttps://shop.example5m 00s")
    expect(alerts).to_contain_text("Last alert of each rule, account 1")
    expect(alerts.locator("tbody tr")).to_have_text(
        [re.compile("2pageLoadTime over 4.56.2531$"), re.compile(":[0-9]{2}1pageLoadTime")]
    )
    for n in range(3):
        expect(found.locator("article").nth(n).locator(".fresh")).to_contain_text("0 records behind")
    section(view).screenshot(path=screenshots / "panel.png")

    nobody = find(view, "nobody")
    expect(nobody).to_contain_text("No agent of this name has checked in.")
    expect(nobody).to_contain_text("No test is assigned to this agent.")
    expect(nobody.locator("article")).to_have_count(2)
    assert view.troubles == []


def test_keys_and_values_are_shown_as_text(visit: Visit, views: Instance) -> None:
    odd = {"account": MARKUP, "platform": MARKUP, "version": "x" * 5000, "labels": {MARKUP: "\u202e"}}
    views.put("agents", {key: agent(1, **odd) for key in KEYS})
    views.put("assigned", {key: assigned(1, 70, account=MARKUP) for key in KEYS})
    views.put("last-alerts", dict([alert(9, NOW, MARKUP)]))
    view = visit(at="views")
    expect(dimension(view, "account")).to_contain_text(f"{MARKUP}{len(KEYS)}0{len(KEYS)}")
    for key in KEYS:
        found = find(view, key)
        expect(found).to_contain_text(f"{MARKUP} = ")
        expect(found).to_contain_text("The first 50 are shown.")
        expect(found.locator("article").last).to_contain_text(f"Last alert of each rule, account {MARKUP}")
        expect(found.locator("article").last).to_contain_text("9pageLoadTime")
    root = view.frame.locator("html")
    assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert view.troubles == []


def test_a_panel_without_rows_and_with_one(visit: Visit, empty: Instance) -> None:
    empty.load()
    view = visit(at="views")
    expect(section(view).locator(".tile .value")).to_have_text(["0", "0", "0", "0", "0"])
    expect(dimension(view, "version")).to_contain_text("By version: no agents.as of")
    expect(section(view).locator("> .empty")).to_contain_text("No agent has checked in yet.")
    empty.put("agents", {"a": agent(1, since=NOW, account="", version=None)})
    expect(section(view).locator(".tile .value")).to_have_text(["1", "1", "0", "1", "0"])
    assert lines(view, "account") == ["empty 1 0 1"]
    assert lines(view, "version") == ["none 1 0 1"]
    # Another system's panel, whose view this instance does not serve.
    other = view.frame.locator("#panel-shop-totals")
    expect(other.locator(".panel-trouble")).to_contain_text("The view is not served. View minutes-by-shop:")
    expect(other.locator(".tile .value")).to_have_text(["–"])
    expect(other.get_by_role("searchbox")).to_have_count(0)
    assert view.troubles == []


def test_unknown_counts_are_dashes(visit: Visit, empty: Instance, ask: Callable[..., Any]) -> None:
    assert troubles(ask("")) == {"not-ready"}
    view = visit(at="views")
    trouble = section(view).locator(".panel-trouble")
    expect(trouble).to_contain_text("The views are not ready.")
    expect(section(view).locator(".tile .value")).to_have_text(["–"] * 5)
    expect(dimension(view, "account")).to_have_text("By account: unknown.")
    found = find(view, "agent-7")
    expect(found.get_by_role("alert")).to_have_count(2)
    expect(found).to_contain_text("The views are not ready. View agents:")
    empty.load()
    expect(section(view).locator(".tile .value")).to_have_text(["0"] * 5)
    expect(trouble).to_have_text("")
    empty.server.stop()
    expect(trouble).to_contain_text("The views do not answer")
    expect(section(view).locator(".tile .value")).to_have_text(["–"] * 5)
    expect(find(view, "agent-7")).to_contain_text("The views do not answer")
    assert view.troubles == []


def test_slow_stale_and_missing_views_are_distinguished(
    views: Instance, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with views.stuck():
        assert troubles(ask("")) == {"slow"}
        # Other threads look up keys.
        check_in, assignment, alerts = ask("/cards", key="agent-7")["cards"]
        assert check_in["value"]["account"] == "1"
        assert assignment["count"] == 3
        assert alerts["trouble"]["kind"] == "slow"

    def away(*_: object) -> None:
        raise BrokerError("the broker did not answer")

    monkeypatch.setattr(freshness, "STALE_MS", 500)
    monkeypatch.setattr(runner, "take_snapshot", away)
    wait_until(lambda: ask("/cards", key="agent-7")["cards"][0]["freshness"]["stale"])
    total = ask("")["total"]
    assert total["freshness"]["stale"]
    assert total["on"] == 96
    monkeypatch.undo()
    del views.service.runs["last-alerts"]
    views.service._declared = ["agents", "assigned"]
    alerts = ask("/cards", key="agent-7")["cards"][2]
    assert (alerts["match"], alerts["trouble"]["kind"]) == ("1", "missing")
    assert "no such view" in alerts["trouble"]["detail"]


@pytest.mark.usefixtures("views")
def test_only_users_who_may_act_search_for_a_key(visit: Visit, server: Server) -> None:
    view = visit("vera", at="views")
    expect(section(view).locator(".tile .value").first).to_have_text("120")
    expect(section(view).get_by_role("button", name="Find")).to_be_disabled()
    expect(view.frame.get_by_role("searchbox", name="Agent")).to_be_disabled()
    with httpx.Client(base_url=server.url, cookies={"_token": server.token("vera")}) as client:
        assert client.get("/penstock/api/panels/fleet/cards", params={"key": "agent-7"}).status_code == 403
        assert client.get("/penstock/api/panels/fleet").status_code == 200
    assert httpx.get(f"{server.url}/penstock/api/panels/fleet/cards?key=agent-7").status_code == 401


@pytest.mark.usefixtures("views")
def test_the_panel_fits(visit: Visit, screenshots: Path) -> None:
    for theme, width in (("light", 800), ("dark", 390)):
        view = visit(at="views", theme=theme, width=width)
        find(view, "agent-7")
        root = view.frame.locator("html")
        assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
        assert section(view).evaluate(OVERLAPS) == []
        section(view).screenshot(path=screenshots / f"panel-{theme}-{width}.png")
        assert view.troubles == []
