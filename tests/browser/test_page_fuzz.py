"""Whatever is sent to the page, it answers: it is refused, or done, and no answer is a fault of the server."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from penstock.control.repositories.captures import Captures
from penstock.devstack.servers.kafka import Broker
from penstock.settings import PROJECT
from tests.browser.scene import Scene
from tests.browser.server import Server
from tests.support.random_cases import tries

pytestmark = pytest.mark.browser
TRIES = tries(300)
READ = [
    "", "static/x/page.js", "api/texts", "api/lags", "api/overview", "api/streams", "api/streams/bundles",
    "api/streams/order-minutes/source", "api/captures", "api/sinks", "api/backfills", "api/replacements",
    "api/archives", "api/views", "api/activity", "api/history", "api/dead-letters", "api/dead-letters/reasons",
    "api/letters", "api/records", "api/log", "api/releases", "api/changes", "api/changed", "api/catalog",
    "api/differences", "api/explain", "api/preview", "api/panels/fleet", "api/panels/fleet/cards",
]  # fmt: skip
ACT, RELEASE, REPLACEMENT = "api/actions", "api/releases", "api/replacements"
WAYS = {("get", path) for path in READ} | {("post", path) for path in (ACT, RELEASE, REPLACEMENT)}
NONE = ["static/", "api/", "api/none"]
QUERIES: dict[str, dict[str, Any]] = {
    "api/streams": {"q": "u", "app": "metrics", "state": "running", "page": 1, "sort": "lag"},
    "api/captures": {"q": "t", "page": 1},
    "api/sinks": {"q": "shop", "page": 1},
    "api/backfills": {"page": 1},
    "api/replacements": {"page": 1},
    "api/activity": {"q": "l", "actor": "olga", "verb": "stop", "before": 10**9},
    "api/dead-letters": {"q": "q", "page": 1},
    "api/dead-letters/reasons": {"stream": "bundles"},
    "api/history": {"stream": "", "span": "6h", "names": "bundles"},
    "api/letters": {"stream": "bundles", "kind": "dead"},
    "api/records": {"stream": "nobody", "topic": "order-minutes", "key": "k"},
    "api/log": {"app": "metrics"},
    "api/releases": {"app": "metrics"},
    "api/differences": {"replacement": "0" * 32},
    "api/changes": {"app": "metrics", "before": "0", "after": "disk"},
    "api/explain": {"sink": "shop-points"},
    "api/preview": {"stream": "nobody"},
    "api/panels/fleet/cards": {"key": "agent-1"},
}
# What QUERIES names there does not exist, as to answer would take a JVM, or a replacement.
ABSENT = {"api/differences", "api/preview", "api/records"}
METHODS = ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "GET", "POST"]
ACTIONS: list[dict[str, Any]] = [
    {"verb": "stop", "kind": "stream", "name": "bundles", "note": "tried"},
    {"verb": "poll", "kind": "capture", "name": "tests", "note": "tried"},
    {"verb": "replay", "kind": "letters", "name": "nothing-dead-letter", "places": ["orders[0]@1"], "note": "tried"},
    {
        "verb": "discard",
        "kind": "letters",
        "name": "nothing-dead-letter",
        "stream": "x",
        "places": ["orders[0]@1"],
        "dry": True,
    },
    {"app": "nobody", "to": "1", "note": "tried"},
    {"verb": "cut", "replacement": "0" * 32, "note": "tried"},
    {"verb": "back", "replacement": "0" * 32, "dry": True},
    {"verb": "replay", "kind": "sink", "name": "nobody", "dry": True},
]
WORDS: list[Any] = [
    "start", "stop", "release", "poll", "reconcile", "snapshot", "continue", "replay", "discard", "go-on", "cut",
    "cancel", "confirm", "back", "stream", "app", "capture", "sink", "dead", "late", "letters", ["orders[0]@1"],
    "bundles", "metrics", "", " ", "x" * 121, "x" * 100_000, "\0", "\n",
    "\ud800", "é", "日本", "'; DROP TABLE stream; --", "<script>", "%00", "../../..", None, True, 0, -1, 10**30, 1.5,
    float("nan"), [], ["stop"], {}, {"verb": "stop"}, [[[[[[]]]]]],
]  # fmt: skip
BODIES = [
    b"", b"{", b"null", b"[]", b"1", b"\xff", b"\x00", b'{"verb": "stop"', b'"stop"', b"{}" * 1000, b"[" * 100_000,
    b'{"a":' * 10_000, b'{"verb": "stop", "verb": "start"}', b"\xef\xbb\xbf{}",
    b'{"name": "\\ud800"}', b"NaN",
]  # fmt: skip
HEADERS = {
    "Content-Type": ["application/json", "application/json", "application/json; charset=utf-7", "text/plain", "",
                     "x" * 2000, "multipart/form-data; boundary=x", "application/json;" * 50],
    "Origin": ["null", "http://evil.example", "http://[", "http://a:b@c:99999", "", "x" * 4000, "\xe9"],
    "Sec-Fetch-Site": ["same-origin", "cross-site", "none", ""],
    "Sec-Fetch-Dest": ["document", "empty"],
    "Authorization": ["Bearer ", "Bearer x", "bearer " + "x" * 4000, "Basic eDp4", "\xe9"],
    "Host": ["evil.example", "", "127.0.0.1:99999", "[", "a b"],
    "Cookie": ["_token=", "_token=x; _token=y", "=", ";;;", "_token=\xe9"],
    "Accept-Encoding": ["gzip", "*;q=nonsense"],
    "Content-Encoding": ["gzip", "x"],
    "Range": ["bytes=0-", "bytes=9-1", "bytes=-", "x"],
    "If-Modified-Since": ["x", "Thu, 01 Jan 1970 00:00:00 GMT"],
}  # fmt: skip


@pytest.fixture
def olga(server: Server, scene: Scene) -> Iterator[httpx.Client]:
    """Signed in, as who may act."""
    assert scene.live
    head = {"Cookie": f"_token={server.token('olga')}"}
    # A connection each: what one request leaves unread must not break the next.
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=server.url, headers=head, timeout=60, limits=limits) as client:
        yield client


def body(chance: random.Random) -> bytes:
    """An action, or nearly one."""
    if chance.random() < 0.2:
        return chance.choice(BODIES)
    given: dict[str, Any] = dict(chance.choice(ACTIONS))
    for name in chance.sample(list(given), chance.choice((0, 1, 1, 2))):
        given[name] = chance.choice(WORDS)
    if chance.random() < 0.1:
        given[chance.choice(["more", "", "\ud800", "__class__"])] = chance.choice(WORDS)
    text = bytearray(json.dumps(given).encode())
    if chance.random() < 0.2:
        text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text)


def asked(chance: random.Random) -> tuple[str, str]:
    """The method, mostly one that fits, and the target of a request."""
    usual, path = chance.choice(
        [*(("GET", path) for path in [*READ, *NONE]), *[("POST", ACT)] * 5, ("POST", RELEASE), ("POST", REPLACEMENT)]
    )
    method = chance.choice(METHODS) if chance.random() < 0.3 else usual
    if path in QUERIES:
        given: dict[str, Any] = dict(QUERIES[path])
        for name in chance.sample(list(given), chance.choice((0, 0, 1))):
            given[name] = chance.choice(WORDS)
        if chance.random() < 0.1:
            given[chance.choice(["stream", "app", "more", ""])] = chance.choice(WORDS)
        path += "?" + urlencode({name: str(value)[:5000] for name, value in given.items()}, errors="surrogatepass")
    if chance.random() < 0.1:
        path += chance.choice(
            ["?a=b", "&stream=x", "/", "%00", "/..%2f..%2fairflow.cfg", "?" + "x" * 4000, "%ff", "//", ";", "%ed%a0%80"]
        )  # fmt: skip
    return method, f"/penstock/{path}"


def headers(chance: random.Random, url: str) -> list[tuple[bytes, bytes]]:
    found = {"Content-Type": "application/json", "Origin": url, "Sec-Fetch-Site": "same-origin"}
    for name in chance.sample(list(HEADERS), chance.choice((0, 0, 1, 1, 2))):
        found[name] = chance.choice(HEADERS[name])
    return [(name.encode(), value.encode("latin-1")) for name, value in found.items()]


def test_every_route_of_the_page_is_tested() -> None:
    folder = PROJECT / "penstock" / "airflow"
    source = "".join(
        (folder / name).read_text() for name in ("page.py", "page_releases.py", "page_views.py", "page_letters.py")
    )
    assert source.count("include_router") == 3
    ways = re.findall(r'@(?:app|router)\.(?!middleware|exception_handler)(\w+)\(\s*"/([^"]*)"', source)
    assert len(ways) == len(re.findall(r"@(?:app|router)\.(?!middleware|exception_handler)", source))
    for method, path in ways:
        like = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path).replace(":path", ""))
        assert any(method == m and re.fullmatch(like, p) for m, p in WAYS), f"{method} {path}"
    verbs = re.findall(r"verb: Literal\[(.*)\]", (folder / "page_requests.py").read_text())
    assert set(re.findall(r'"([^"]+)"', " ".join(verbs))) <= {word for word in WORDS if isinstance(word, str)}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_request_causes_an_internal_error(
    olga: httpx.Client, server: Server, scene: Scene, fresh_broker: Broker
) -> None:
    assert fresh_broker.bootstrap
    # Read once by Spark, it is kept.
    assert olga.get("/penstock/api/explain", params=QUERIES["api/explain"], timeout=240).status_code == 200
    scene.logs.mkdir(exist_ok=True)
    log = scene.logs / "metrics.log"
    log.write_text("a line\n")
    for path in READ:
        answer = olga.get(f"/penstock/{path}", params=QUERIES.get(path), timeout=120)
        assert answer.status_code == (404 if path in ABSENT else 200), (path, answer.text)
    for action in ACTIONS[:2]:
        answer = olga.post(f"/penstock/{ACT}", json=action, headers={"Origin": server.url})
        assert answer.status_code == 200, (action, answer.text)
    chance = random.Random(20261128)
    faults: dict[str, str] = {}
    met: set[int] = set()
    for _ in range(TRIES):
        (method, path), content, head = asked(chance), body(chance), headers(chance, server.url)
        try:
            answer = olga.request(method, path, content=content, headers=head)
        except httpx.LocalProtocolError:
            # What no client of this kind would send.
            continue
        except httpx.TransportError as e:
            # What is no HTTP at all, or more than is read, may be answered by hanging up, and by nothing else.
            if all(name != b"Host" for name, _ in head) and len(content) < 50_000:
                faults[repr(e)] = f"{method} {path[:80]} {head} {content[:200]!r}"
            continue
        met.add(answer.status_code)
        if answer.status_code >= 500:
            faults[f"{answer.status_code} {answer.text[:100]}"] = f"{method} {path[:80]} {head} {content[:200]!r}"
        assert len(answer.content) < 2_000_000
    assert not faults, "\n".join(f"{answer}: {request}" for answer, request in faults.items())
    assert {200, 404, 403, 415, 422} <= met
    captures = Captures(scene.control)
    [(capture, (_, request))] = captures.requests().items()
    captures.answer(capture, request)
    log.unlink()
    assert olga.get("/penstock/api/overview").status_code == 200
