"""Views by REST: two instances as processes of their own over a real broker, and what may happen to them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from penstock import catalog
from penstock.cli import app
from penstock.devstack.servers.kafka import Broker
from penstock.views.cluster.partition_assignment import assigned_partitions, partition_of
from penstock.views.store.columns import ViewLayout
from tests.support.view_instances import PARTITIONS, TOPIC, Fleet, agent, serving
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

AT = 1_700_000_000_000
# A cursor with a number that SQLite does not take.
FAR = base64.urlsafe_b64encode(json.dumps(["seen", False, 1 << 63, "k"]).encode()).decode()
NAMES = [f"agent-{n:03d}" for n in range(200)]


def value(n: int, **more: Any) -> dict[str, Any]:
    """Of an agent: its account, platform, labels and so on follow from its number."""
    labels = {
        "site": f"s{n % 7}",
        "team": "a" if n % 3 else 'b"',
    }
    return {
        "account": f"acc-{n % 5}", "platform": None if n % 50 == 0 else ("linux", "mac")[n % 2], "labels": labels,
        "online": n % 4 != 0, "seen": AT + n * 1000, "load": n / 8, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def two(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two instances that hold two hundred agents."""
    with serving(tmp_path_factory.mktemp("views"), broker.bootstrap, 2) as fleet:
        fleet.put(agent(name, value(n)) for n, name in enumerate(NAMES))
        fleet.start(1, 2)
        fleet.known(1, 2)
        yield fleet


def test_a_key_is_answered_by_its_owner_whichever_instance_is_asked(two: Fleet) -> None:
    own = assigned_partitions(1, PARTITIONS, 2, 0)
    for n, name in enumerate(NAMES[:20]):
        owner = 1 if partition_of(name, PARTITIONS) in own else 2
        for asked in (1, 2):
            found = two.get(asked, f"/v1/views/fleet/rows/{name}")
            assert found.status_code == 200, found.text
            body = found.json()
            assert (body["key"], body["value"], body["instance"]) == (name, value(n), f"views-{owner}")
            assert body["freshness"] == {"lag": 0, "age_ms": int(found.headers["penstock-age-ms"]), "stale": False}
            assert found.headers["penstock-lag"] == "0"
    missing = two.get(1, "/v1/views/fleet/rows/nobody")
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/problem+json"
    assert "penstock-age-ms" in missing.headers


def test_several_keys_are_answered_at_once(two: Fleet) -> None:
    asked = [*NAMES[:50], "nobody", NAMES[0]]
    found = two.ask(2, "batch", {"keys": asked}).json()
    assert found["rows"] == {name: value(n) for n, name in enumerate(NAMES[:50])}
    assert found["missing"] == ["nobody"]
    assert found["freshness"]["lag"] == 0


WHERE: list[tuple[dict[str, Any], Callable[[Any], bool]]] = [
    ({}, lambda _: True),
    ({"account": "acc-1"}, lambda v: v["account"] == "acc-1"),
    ({"account": ["acc-1", "acc-2"], "online": False}, lambda v: v["account"][4] in "12" and not v["online"]),
    ({"platform": None}, lambda v: v["platform"] is None),
    ({"platform": {"in": ["mac", None]}}, lambda v: v["platform"] in ("mac", None)),
    ({"labels.site": "s3"}, lambda v: v["labels"]["site"] == "s3"),
    ({"labels.team": 'b"', "account": "acc-0"}, lambda v: v["labels"]["team"] == 'b"' and v["account"] == "acc-0"),
    ({"labels.site": ["s1", "s2"], "labels.team": "a"},
     lambda v: v["labels"]["site"] in ("s1", "s2") and v["labels"]["team"] == "a"),
    ({"labels.sit": "s3"}, lambda _: False),
    ({"labels.team": "b"}, lambda _: False),
    ({"seen": {"ge": AT + 50_000, "lt": AT + 60_000}}, lambda v: AT + 50_000 <= v["seen"] < AT + 60_000),
    ({"account": "none"}, lambda _: False),
    ({"account": []}, lambda _: False),
]  # fmt: skip


@pytest.mark.parametrize("order", ["key", "seen", "platform"])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_are_found_by_criteria_page_by_page(two: Fleet, order: str, descending: bool) -> None:
    every = {name: value(n) for n, name in enumerate(NAMES)}
    for where, fits in WHERE:
        wanted = [key for key, v in every.items() if fits(v) and (order == "key" or v[order] is not None)]
        wanted.sort(key=lambda key: (0 if order == "key" else every[key][order], key), reverse=descending)
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            body = {"where": where, "order": order, "descending": descending, "limit": 23, "cursor": cursor}
            page = two.ask(1 + pages % 2, "search", body)
            assert page.status_code == 200, page.text
            found += page.json()["rows"]
            cursor, pages = page.json().get("cursor"), pages + 1
        assert [row["key"] for row in found] == wanted, where
        assert all(row["value"] == every[row["key"]] for row in found)
        assert pages == max(1, -(-len(wanted) // 23))
        counted = two.ask(2, "counts", {"where": where}).json()
        assert counted["total"] == sum(fits(v) for v in every.values()), where


def test_rows_are_found_by_a_query_string(two: Fleet) -> None:
    asked = "account=acc-1&account=acc-2&labels.site=s3&online=true&seen.ge=1700000010000&limit=1000"
    found = two.get(1, f"/v1/views/fleet/rows?{asked}").json()["rows"]
    fits = [
        n for n in range(10, 200) if n % 5 in (1, 2) and n % 7 == 3 and n % 4
    ]  # fmt: skip
    assert [row["key"] for row in found] == [NAMES[n] for n in fits]


def test_rows_are_counted_by_dimension(two: Fleet) -> None:
    found = two.ask(1, "counts", {"by": ["platform", "online"], "where": {"account": {"ge": "acc-1"}}}).json()
    wanted: dict[tuple[Any, Any], int] = {}
    for v in (value(n) for n in range(200) if n % 5):
        wanted[v["platform"], v["online"]] = wanted.get((v["platform"], v["online"]), 0) + 1
    assert {(g["platform"], g["online"]): g["count"] for g in found["groups"]} == wanted
    assert found["total"] == 160
    assert abs(found["at"] - time.time() * 1000) < 60_000


REFUSED: list[tuple[str, Any, int, str]] = [
    ("search", {"where": {"nothing": 1}}, 400, "cannot be queried by this field"),
    ("search", {"where": {"account": 5}}, 400, "another type"),
    ("search", {"where": {"seen": True}}, 400, "another type"),
    ("search", {"where": {"seen": 1 << 70}}, 400, "another type"),
    ("search", {"where": {"labels": "x"}}, 400, "queried by its entries"),
    ("search", {"where": {"labels.site": {"gt": "x"}}}, 400, "queried by its entries"),
    ("search", {"where": {"seen": {"ge": [1, 2]}}}, 400, "takes one value"),
    ("search", {"where": {"seen": {"almost": 1}}}, 400, "no such comparison"),
    ("search", {"where": {f"labels.l{n}": "x" for n in range(10_000)}}, 422, "64 items"),
    ("search", {"where": {"labels.site": ["x"] * 10_000}}, 400, "too many values"),
    ("search", {"partitions": [0]}, 422, "partitions"),
    ("counts", {"partitions": [-1]}, 422, "partitions"),
    ("search", {"cursor": FAR, "order": "seen"}, 400, "the cursor is not of these pages"),
    ("search", {"cursor": "beyond"}, 400, "the cursor is not of these pages"),
    ("search", {"limit": 100_000}, 422, "limit"),
    ("search", {"order": "labels"}, 400, "cannot be ordered or counted"),
    ("search", {"wher": {}}, 422, "wher"),
    ("search", [], 422, "object"),
    ("counts", {"by": ["labels"]}, 400, "cannot be ordered or counted"),
    ("batch", {"keys": ["x" * 5000]}, 422, "keys"),
    ("batch", {"keys": ["x"] * 1001}, 422, "keys"),
    ("batch", {"keys": ["x" * 4000] * 300}, 413, "262144 bytes"),
    ("none", {}, 404, "Not Found"),
]


@pytest.mark.parametrize(("what", "body", "status", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_answered_is_refused_clearly(two: Fleet, what: str, body: Any, status: int, said: str) -> None:
    found = two.ask(1, what, body)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json")
    assert found.json()["status"] == status
    assert said in found.json()["detail"]


def test_a_page_beyond_the_end_is_empty(two: Fleet) -> None:
    page = two.ask(1, "search", {"limit": 1000, "where": {"account": "acc-0"}}).json()
    assert "cursor" not in page
    beyond = base64.urlsafe_b64encode(json.dumps(["key", False, None, "z"]).encode()).decode()
    found = two.ask(1, "search", {"cursor": beyond}).json()
    assert found["rows"] == []
    assert "cursor" not in found


def test_what_was_forwarded_is_not_forwarded_again(two: Fleet) -> None:
    own = assigned_partitions(1, PARTITIONS, 2, 0)
    name = next(name for name in NAMES if partition_of(name, PARTITIONS) not in own)
    head = {"penstock-forwarded": "views-9"}
    assert two.get(1, f"/v1/views/fleet/rows/{name}", headers=head).status_code == 421
    assert two.get(2, f"/v1/views/fleet/rows/{name}", headers=head).status_code == 200
    assert two.ask(1, "batch", {"keys": NAMES}, headers=head).status_code == 421
    store = {"store": ViewLayout(catalog.load().views["fleet"]).version}
    assert two.ask(1, "search", {"partitions": own, **store}, headers=head).status_code == 200
    assert two.ask(1, "search", {"partitions": [0, 1], **store}, headers=head).status_code == 421
    assert two.ask(1, "search", {"partitions": own}, headers=head).status_code == 421
    assert two.ask(1, "counts", {}, headers=head).status_code == 421


def test_a_request_has_a_deadline_and_an_age(two: Fleet) -> None:
    late = two.ask(1, "search", {}, headers={"penstock-deadline-ms": "1"})
    assert late.status_code in (503, 504)
    assert two.ask(1, "search", {}, headers={"penstock-deadline-ms": "soon"}).status_code == 400
    assert two.get(1, f"/v1/views/fleet/rows/{NAMES[0]}?max_age_ms=60000").status_code == 200
    assert two.get(1, f"/v1/views/fleet/rows/{NAMES[0]}?max_age_ms=0").status_code in (200, 503)


def test_an_instance_describes_itself(two: Fleet) -> None:
    paths = two.get(1, "/v1/openapi.json").json()["paths"]
    assert {"/v1/views", "/v1/views/{view}/search", "/v1/views/{view}/rows/{key}"} <= paths.keys()
    (found,) = two.get(2, "/v1/views").json()["views"]
    assert (found["name"], found["topic"]) == ("fleet", TOPIC)
    assert found["state"] in ("idle", "running")
    assert found["bytes"] > 0
    assert sorted(found["partitions"]) == [str(p) for p in assigned_partitions(2, PARTITIONS, 2, 0)]
    assert found["owners"] == {
        str(p): ["views-1" if p in assigned_partitions(1, PARTITIONS, 2, 0) else "views-2"] for p in range(4)
    }
    assert two.status(1, "/v1/live") == 200
    rows = two.control.progress("views-1")
    assert list(rows) == ["fleet@1"]
    assert rows["fleet@1"].lag == 0


def test_what_changes_is_seen(two: Fleet) -> None:
    """An update, a tombstone and a return; of a value that is none the key stays as it was, and it is counted."""
    name = "changing"
    for given in (value(1), value(2), None, value(3)):
        two.put([agent(name, given)])
        wait_until(lambda given=given: two.row(1, name) == (404 if given is None else given))  # type: ignore[misc]
    two.put([agent(name, '{"seen": 5}'), agent(name, "{"), agent("after", value(4))])
    for asked in (1, 2):
        wait_until(lambda asked=asked: two.row(asked, "after") == value(4))  # type: ignore[misc]
        assert two.row(asked, name) == value(3)
    owner = 1 if partition_of(name, PARTITIONS) in assigned_partitions(1, PARTITIONS, 2, 0) else 2
    wait_until(lambda: two.get(owner, "/v1/views/fleet").json()["dead"] == 2)
    assert two.get(owner, "/v1/views/fleet").json()["reason"]
    two.put([agent(name, None), agent("after", None)])
    wait_until(lambda: two.row(1, name) == two.row(1, "after") == 404)


def test_what_an_open_transaction_hides_makes_an_answer_old(two: Fleet) -> None:
    """What others commit behind it is not seen until it ends: nobody is to take the old value for fresh."""
    name = "hidden"
    partition = partition_of(name, PARTITIONS)
    two.put([agent(name, value(1))])
    wait_until(lambda: two.row(1, name) == value(1))
    fresh = f"/v1/views/fleet/rows/{name}?max_age_ms=3000"
    open_one = Producer({"bootstrap.servers": two.drivers.bootstrap, "transactional.id": "tests.open"})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(TOPIC, b"{}", b"open", partition=partition)
    open_one.flush(30)
    try:
        two.put([agent(name, value(2))])
        wait_until(lambda: two.get(1, fresh).status_code == 503, what="it is older than it may be")
        old = two.get(1, f"/v1/views/fleet/rows/{name}").json()
        assert (old["value"], old["freshness"]["lag"]) == (value(1), 2)
        assert old["freshness"]["age_ms"] > 3000
        other = next(other for other in NAMES if partition_of(other, PARTITIONS) != partition)
        assert two.get(1, fresh.replace(name, other)).status_code == 200
    finally:
        open_one.abort_transaction(30)
    wait_until(lambda: two.get(1, fresh).status_code == 200)
    assert two.row(1, name) == value(2)
    two.put([agent(name, None)])
    wait_until(lambda: two.row(1, name) == 404)


KEYS = ["a/b", "a b", "..", "ü/😀", '{"business":"b","contact":"c"}', "a?b#c", "%2F", "x" * 4000, "é\u0000z"]


def test_a_key_may_be_any_text(two: Fleet) -> None:
    two.put(agent(key, value(n)) for n, key in enumerate(KEYS))
    for n, key in enumerate(KEYS):
        path = quote(key, safe="").replace(".", "%2E")
        wait_until(lambda n=n, path=path: two.row(1, path) == two.row(2, path) == value(n))  # type: ignore[misc]
        assert two.ask(2, "batch", {"keys": [key]}).json()["rows"] == {key: value(n)}
    assert two.get(1, "/v1/views/fleet/rows/%ff").status_code == 400
    assert two.get(1, f"/v1/views/fleet/rows/{'x' * 5000}").status_code == 414
    two.put(agent(key, None) for key in KEYS)
    wait_until(lambda: two.ask(1, "counts", {}).json()["total"] == len(NAMES))


def test_pages_go_on_behind_a_key_of_any_length(two: Fleet) -> None:
    keys = ["é" * 20_000 + str(n) for n in range(3)]
    two.put(agent(key, value(n)) for n, key in enumerate(keys))
    wait_until(lambda: two.ask(1, "counts", {}).json()["total"] == len(NAMES) + 3)
    body: dict[str, Any] = {"descending": True, "limit": 1, "cursor": None}
    for key in reversed([NAMES[-1], *keys]):
        page = two.ask(2, "search", body)
        assert page.status_code == 200, page.text
        assert [row["key"] for row in page.json()["rows"]] == [key]
        body["cursor"] = page.json()["cursor"]
    two.put(agent(key, None) for key in keys)
    wait_until(lambda: two.ask(1, "counts", {}).json()["total"] == len(NAMES))


@pytest.mark.usefixtures("two")
def test_the_command_line_tells_the_same() -> None:
    def told(*words: str) -> Any:
        found = CliRunner().invoke(app, ["views", *words])
        assert found.exit_code == 0, found.output
        return json.loads(found.output)

    assert told("get", "fleet", NAMES[7])["value"] == value(7)
    assert told("show", "fleet")["by"] == ["account", "platform", "online", "labels", "seen"]
    listed = sorted((one["view"], one["instance"]) for one in told("list", "--json"))
    assert listed == [("fleet", "views-1"), ("fleet", "views-2")]
    missing = CliRunner().invoke(app, ["views", "get", "fleet", "nobody"])
    assert missing.exit_code == 1
    assert "there is no such key" in missing.output
    assert "fleet" in CliRunner().invoke(app, ["views", "list"]).output
