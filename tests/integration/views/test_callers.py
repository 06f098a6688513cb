"""Hostile callers of the views: each gets a clear answer, memory is bounded, and others are served meanwhile."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.model.view import View
from penstock.views.store.columns import ViewLayout
from tests.support.random_cases import tries
from tests.support.view_instances import AGENT, BY, TOPIC, Fleet, agent, serving
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

TRIES = tries(200)
ROWS = 400
WIDE = "x" * 20_000
MEMORY = 256 << 20


@pytest.fixture(scope="module")
def fleet(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with serving(tmp_path_factory.mktemp("callers"), broker.bootstrap, 1) as one:
        value = {"account": "a", "platform": WIDE, "labels": {"site": "s"}, "online": True, "seen": 1, "load": 1.0}
        one.put(agent(f"k{n}", value) for n in range(ROWS))
        one.start(1)
        one.known(1)
        yield one


@contextlib.contextmanager
def bounded(fleet: Fleet, memory: int = MEMORY) -> Iterator[None]:
    """Memory stays within what it was, and the instance answers another caller all right behind it."""
    row = fleet.drivers.row(fleet.rows[1].incarnation)
    assert row.pid
    process = psutil.Process(row.pid)
    before = process.memory_info().rss
    yield
    assert fleet.row(1, "k1")["account"] == "a"
    assert fleet.status(1, "/v1/live") == 200
    assert process.memory_info().rss - before < memory


def connected(fleet: Fleet) -> socket.socket:
    url = httpx.URL(fleet.url(1))
    return socket.create_connection((url.host, url.port or 0), timeout=30)


def said(of: socket.socket) -> bytes:
    """All that is sent until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := of.recv(65536):
            found += piece
    return found


def test_a_head_without_end_is_refused(fleet: Fleet) -> None:
    with bounded(fleet), connected(fleet) as one:
        one.sendall(b"GET /v1/views/fleet/rows/")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                one.sendall(b"x" * 65536)
        found = said(one)
        # Who goes on sending may lose the answer with the connection.
        assert not found or found.startswith(b"HTTP/1.1 431 "), found[:200]


def test_a_key_of_a_megabyte_is_refused(fleet: Fleet) -> None:
    with bounded(fleet), connected(fleet) as one:
        one.sendall(b"GET /v1/views/fleet/rows/" + b"x" * 100_000)
        found = said(one)
        assert found.startswith(b"HTTP/1.1 431 "), found[:200]
        assert b"application/problem+json" in found
        assert fleet.ask(1, "batch", {"keys": ["x" * (1 << 20)]}).status_code == 413


def test_who_sends_slowly_is_cut_off(fleet: Fleet) -> None:
    with bounded(fleet), connected(fleet) as one:
        one.sendall(b"GET /v1/ready HTTP/1.1\r\n")
        found = said(one)
        assert found.startswith(b"HTTP/1.1 408 "), found[:200]


def test_who_reads_slowly_is_cut_off_and_keeps_nobody_waiting(fleet: Fleet) -> None:
    body = json.dumps({"limit": 1000}).encode()
    head = f"POST /v1/views/fleet/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    with bounded(fleet), contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(fleet)) for _ in range(6)]
        for one in slow:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        assert fleet.row(1, "k2")["account"] == "a"
        row = fleet.drivers.row(fleet.rows[1].incarnation)
        assert row.pid
        process, ports = psutil.Process(row.pid), {one.getsockname()[1] for one in slow}

        def left() -> set[int]:
            return {c.raddr.port for c in process.net_connections("tcp") if c.raddr} & ports

        wait_until(lambda: not left(), what="slow readers are cut off")


def test_answers_that_nobody_takes_do_not_fill_the_memory(fleet: Fleet) -> None:
    body = json.dumps({"limit": 1000}).encode()
    head = f"POST /v1/views/fleet/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    # Not taken are 128 MiB at most; as much again lies in what answers are made of.
    with contextlib.ExitStack() as stack, bounded(fleet, MEMORY * 3 // 2):
        for n in range(120):
            one = stack.enter_context(connected(fleet))
            one.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            assert one.recv(15) == b"HTTP/1.1 200 OK", n


def test_five_hundred_callers_at_once_are_answered_or_told_to_come_again(fleet: Fleet) -> None:
    with bounded(fleet), contextlib.ExitStack() as stack:
        many = [stack.enter_context(connected(fleet)) for _ in range(500)]
        body = json.dumps({"limit": 1, "order": "seen", "where": {"online": True}}).encode()
        head = f"POST /v1/views/fleet/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        for one in many:
            one.sendall(f"{head}content-type: application/json\r\nconnection: close\r\n\r\n".encode() + body)
        answers = [said(one) for one in many]
        statuses = {answer.split(b" ", 2)[1] for answer in answers}
        assert statuses <= {b"200", b"503"}
        assert b"200" in statuses
        assert all(b"retry-after: 1" in answer.lower() for answer in answers if b" 503 " in answer[:16])


def test_a_foreign_name_of_this_server_is_refused(fleet: Fleet) -> None:
    found = fleet.get(1, "/v1/views", headers={"host": "evil.example"})
    assert (found.status_code, found.headers["content-type"]) == (421, "application/problem+json")


STORE = ViewLayout(View("fleet", TOPIC, AGENT, query_by=BY)).version
PATHS = ["/v1/views", "/v1/views/fleet", "/v1/views/none", "/v1/views/fleet/rows/k1", "/v1/views/fleet/rows"]
BODIES: dict[str, dict[str, Any]] = {
    "search": {"where": {"account": "a", "seen": {"ge": 1}, "labels.site": ["s"]}, "order": "seen", "limit": 2},
    "counts": {"by": ["account", "online"], "where": {"online": True}},
    "batch": {"keys": ["k1", "nobody"]},
    # As another instance asks.
    "search?": {"partitions": [0, 1], "store": STORE, "cursor": None, "order": "seen"},
    "counts?": {"partitions": [0, 1], "store": STORE, "by": ["account"], "per": {}},
}
WORDS: list[Any] = [
    "", " ", "a", "x" * 5000, "\0", "\n", "\ud800", "é", "'; DROP TABLE rows; --", '"', "%", None, True, 0, -1, 10**30,
    1 << 63, base64.urlsafe_b64encode(b'["seen",false,9223372036854775808,"k"]').decode(), [0] * 20_000, [-1],
    "a" * 70_000, 1.5, float("nan"), 1e308, [], ["a"], [[]], {}, {"eq": 1}, {"ge": None}, {"in": []}, {"x": 1},
    [None] * 2000,
    {str(n): n for n in range(100)}, "key", "account", "seen", "labels", "labels.site", "account.ge", "labels.", ".",
]  # fmt: skip
RAW = [b"", b"{", b"null", b"[]", b"\xff", b"[" * 100_000, b'{"where":' * 10_000, b'{"where": {"a": NaN}}', b"{}{}"]
HEADERS = {
    "content-type": ["text/plain", "", "application/json; charset=utf-7"],
    "penstock-deadline-ms": ["0", "-1", "1", "x", "9" * 50, "30001", "\xb2"],
    "penstock-forwarded": ["views-1", ""],
    "authorization": ["Bearer x", "\xe9"],
    "host": ["evil.example", "", "[", "127.0.0.1:x"],
}


def nearly(chance: random.Random, of: dict[str, Any]) -> bytes:
    """A body, or something like it."""
    if chance.random() < 0.15:
        return chance.choice(RAW)
    given = json.loads(json.dumps(of))
    for name in chance.sample(list(given), chance.choice((0, 1, 1, 2)) if len(given) > 1 else 1):
        given[name] = chance.choice(WORDS)
    if isinstance(where := given.get("where"), dict) and chance.random() < 0.5:
        where[str(chance.choice(WORDS))[:3000]] = chance.choice(WORDS)
    if chance.random() < 0.1:
        given[str(chance.choice(WORDS))[:3000]] = chance.choice(WORDS)
    return json.dumps(given).encode()


@pytest.mark.timeout(1800)
def test_whatever_is_sent_is_answered(fleet: Fleet) -> None:
    chance = random.Random(int(os.environ.get("SEED", "17")))
    with bounded(fleet), httpx.Client(base_url=fleet.url(1), timeout=60, trust_env=False) as client:
        for _ in range(TRIES):
            head = {"content-type": "application/json"}
            for given in chance.sample(list(HEADERS), chance.choice((0, 0, 0, 1, 2))):
                head[given] = chance.choice(HEADERS[given])
            raw = [(given.encode(), said_so.encode("latin-1")) for given, said_so in head.items()]
            if chance.random() < 0.6:
                what = chance.choice(list(BODIES))
                method, path, content = "POST", f"/v1/views/fleet/{what.rstrip('?')}", nearly(chance, BODIES[what])
                if what.endswith("?"):
                    raw.append((b"penstock-forwarded", b"views-2"))
            else:
                method, path, content = chance.choice(["GET", "GET", "GET", "PUT", "HEAD"]), chance.choice(PATHS), b""
                name, value = (quote(str(chance.choice(WORDS))[:2000], errors="replace") for _ in range(2))
                if chance.random() < 0.7:
                    path += f"?{name}={value}"
            found = client.request(method, path, content=content, headers=raw)
            asked = (method, path[:300], content[:300], head, found.text[:500])
            assert found.status_code < 500 or found.status_code in (503, 504), asked
            assert found.elapsed.total_seconds() < 10, asked
            if found.status_code >= 400 and method != "HEAD":
                assert found.headers["content-type"] == "application/problem+json", asked
                assert found.json()["status"] == found.status_code, asked
