"""Who may see and act: the page's API on a real Airflow api-server, without a browser."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from confluent_kafka import Producer

from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.kafka.admin import ensure_topics
from penstock.settings import PROJECT
from penstock.streams import Topic
from tests.browser.scene import Scene
from tests.browser.server import Server, same_origin

pytestmark = pytest.mark.browser
STOP = {"verb": "stop", "kind": "stream", "name": "bundles", "note": "by test"}


def unchanged(control: Control) -> bool:
    return control.desired("metrics")["bundles"] == "on"


def test_nothing_is_done_without_signing_in(server: Server, control: Control, scene: Scene) -> None:
    assert scene.live
    answer = httpx.post(f"{server.url}/penstock/api/actions", json=STOP, headers={"Origin": server.url})
    assert answer.status_code == 401
    assert unchanged(control)


def test_a_person_at_the_bare_page_is_sent_to_sign_in(server: Server) -> None:
    answer = httpx.get(f"{server.url}/penstock/", headers={"Sec-Fetch-Dest": "document"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/api/v2/auth/login?next=/plugin/penstock"


@pytest.mark.parametrize("path", ["docs", "redoc", "openapi.json", "static/x/../../page.py", "static/x/no.js"])
def test_other_paths_do_not_exist(olga: httpx.Client, path: str) -> None:
    assert olga.get(f"/penstock/{path}").status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {},
    ],
)
def test_a_foreign_or_missing_origin_is_refused(olga: httpx.Client, control: Control, headers: dict[str, str]) -> None:
    answer = olga.post("/penstock/api/actions", json=STOP, headers=headers)
    assert answer.status_code == 403
    assert "Origin" in answer.json()["detail"]
    assert unchanged(control)


def test_a_foreign_site_with_the_right_origin_is_refused(olga: httpx.Client, control: Control) -> None:
    headers = {**same_origin(olga), "Sec-Fetch-Site": "cross-site"}
    assert olga.post("/penstock/api/actions", json=STOP, headers=headers).status_code == 403
    assert unchanged(control)


def test_only_json_is_accepted(olga: httpx.Client, control: Control) -> None:
    headers = {**same_origin(olga), "Content-Type": "text/plain"}
    content = '{"verb": "stop", "kind": "stream", "name": "bundles"}'
    answer = olga.post("/penstock/api/actions", content=content, headers=headers)
    assert answer.status_code == 415
    assert olga.post("/penstock/api/actions", data={"verb": "stop"}, headers=same_origin(olga)).status_code == 415
    assert unchanged(control)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({**STOP, "name": "nobody"}, 404),
        ({**STOP, "kind": "app", "name": "nobody"}, 404),
        ({**STOP, "verb": "release", "kind": "app", "name": "metrics"}, 422),
        ({**STOP, "verb": "drop"}, 422),
        ({**STOP, "note": "x" * 501}, 422),
        ({**STOP, "more": 1}, 422),
        ({"verb": "stop"}, 422),
        ({**STOP, "gaps": ["0" * 32]}, 422),
        ({**STOP, "places": ["orders[0]@1"]}, 422),
        ({**STOP, "kind": "letters"}, 422),
        ({"verb": "replay", "kind": "stream", "name": "bundles"}, 422),
        ({"verb": "replay", "kind": "letters", "name": "bundles-in-dead-letter"}, 422),
        ({"verb": "replay", "kind": "letters", "name": "bundles-in-dead-letter", "places": ["orders[0]@1"] * 101}, 422),
        ({"verb": "replay", "kind": "letters", "name": "bundles-in-dead-letter", "places": ["orders[0]@1; rm"]}, 422),
        ({"verb": "replay", "kind": "letters", "name": "bundles-in-dead-letter", "places": ["0:1"]}, 422),
        ({"verb": "replay", "kind": "letters", "name": "--help", "places": ["orders[0]@1"]}, 404),
        ({"verb": "replay", "kind": "letters", "name": "nothing-dead-letter", "places": ["orders[0]@1"]}, 404),
        ({"verb": "replay", "kind": "sink", "name": "nothing", "places": ["orders[0]@1"]}, 404),
    ],
)
def test_invalid_actions_are_refused(olga: httpx.Client, control: Control, body: dict[str, Any], status: int) -> None:
    before = control.actions(1)[0]["id"]
    answer = olga.post("/penstock/api/actions", json=body, headers=same_origin(olga))
    assert answer.status_code == status
    assert control.actions(1)[0]["id"] == before


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"app": "nobody"}, 404, "no app named 'nobody'"),
        ({"app": "metrics"}, 409, "nothing is declared for app metrics"),
        ({"app": "metrics", "to": "99"}, 409, "app metrics has no release 99; got: releases 0"),
        ({"app": "metrics", "to": "x" * 65}, 422, ""),
        ({"app": "metrics", "note": "a\nb"}, 422, ""),
        ({"app": "metrics", "verb": "release"}, 422, ""),
        ({}, 422, ""),
    ],
)
def test_invalid_releases_are_refused(
    olga: httpx.Client, control: Control, body: dict[str, Any], status: int, detail: str
) -> None:
    before = control.actions(1)[0]["id"]
    answer = olga.post("/penstock/api/releases", json=body, headers=same_origin(olga), timeout=120)
    assert (answer.status_code, detail in str(answer.json()["detail"])) == (status, True), answer.text
    assert control.actions(1)[0]["id"] == before


def sent(server: Server, head: str, body: bytes = b"", *, closed: bool = False) -> tuple[int, bytes]:
    """The status and body of an answer to a request written by hand whose end is never sent. closed: and no more."""
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as s:
        s.sendall(head.replace("\n", "\r\n").encode() + b"\r\n" + body)
        answer = HTTPResponse(s)
        answer.begin()
        return answer.status, answer.read() + (s.recv(1) if closed else b"")


def test_the_body_of_an_unauthenticated_request_is_not_read(server: Server) -> None:
    head = f"POST /penstock/api/actions HTTP/1.1\nHost: {urlsplit(server.url).netloc}\nContent-Type: application/json\n"
    status, text = sent(server, head + "Content-Length: 1000000000\n", b'{"verb": ', closed=True)
    assert (status, text[-1:]) == (401, b"}")


@pytest.mark.parametrize(
    "host", ["evil.example:80", "169.254.169.254", "127.0.0.1.evil.example", "localhost.", "[", ""]
)
def test_another_hosts_name_is_refused(server: Server, host: str) -> None:
    status, body = sent(server, f"GET /penstock/ HTTP/1.1\nHost: {host}\nConnection: close\n")
    assert status == 421
    assert b"evil" not in body


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.9", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_accepted(server: Server, host: str) -> None:
    assert sent(server, f"GET /penstock/ HTTP/1.1\nHost: {host}\nConnection: close\n")[0] == 401


def test_bodies_are_limited_with_and_without_content_length(olga: httpx.Client, control: Control) -> None:
    headers = {**same_origin(olga), "Content-Type": "application/json"}
    large = json.dumps({**STOP, "note": "x" * 2_000_000})
    assert olga.post("/penstock/api/actions", content=large, headers=headers).status_code == 413
    pieces = (b" " * 1000 for _ in range(1_000_000))
    assert olga.post("/penstock/api/actions", content=pieces, headers=headers).status_code == 413
    assert unchanged(control)


@pytest.mark.parametrize(
    "content",
    [
        b'{"verb": "stop", "kind": "stream", "name": "\\ud800"}',
        b'{"verb": "stop", "kind": "stream", "name": "bundles", "note": "\\udfff"}',
        b'{"verb": "stop", "kind": "stream", "name": "bundles", "note": "a\\u0000b\\u001b[2J"}',
        b'{"verb": "stop", "kind": "stream", "name": "\xff\xfe"}',
        b"[" * 10_000,
        b'{"verb": 1e999, "' + b"x" * 15_000 + b'": [1]}',
        b'{"verb": "' + b"x" * 15_000 + b'"}',
        b"",
        b"null",
    ],
)
def test_an_invalid_request_is_a_422_without_its_input(olga: httpx.Client, control: Control, content: bytes) -> None:
    headers = {**same_origin(olga), "Content-Type": "application/json"}
    answer = olga.post("/penstock/api/actions", content=content, headers=headers)
    assert answer.status_code == 422
    assert len(answer.content) < 2_000
    assert unchanged(control)


def test_a_viewer_may_not_act(vera: httpx.Client, control: Control) -> None:
    answer = vera.post("/penstock/api/actions", json=STOP, headers=same_origin(vera))
    assert answer.status_code == 403
    assert unchanged(control)


def test_an_action_is_recorded_under_the_signed_in_name(olga: httpx.Client, control: Control) -> None:
    answer = olga.post("/penstock/api/actions", json=STOP, headers=same_origin(olga))
    assert (answer.status_code, answer.json()) == (200, {"streams": ["bundles"], "desired": "off"})
    last = control.actions(1)[0]
    assert (last["actor"], last["source"], last["verb"], last["detail"]) == ("olga", "page", "stop", "by test")


def test_a_script_with_a_token_of_its_own_needs_no_origin(server: Server, control: Control, scene: Scene) -> None:
    assert scene.live
    headers = {"Authorization": f"Bearer {server.token('olga')}"}
    answer = httpx.post(f"{server.url}/penstock/api/actions", json=STOP, headers=headers)
    assert answer.status_code == 200
    assert control.desired("metrics")["bundles"] == "off"


def test_every_answer_carries_the_security_headers(olga: httpx.Client) -> None:
    for path in ("/penstock/", "/penstock/api/overview", "/penstock/none"):
        headers = olga.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_static_files_are_cached_under_their_version_only(olga: httpx.Client) -> None:
    page = olga.get("/penstock/").text
    version = page.split("static/")[1].split("/")[0]
    assert "immutable" in olga.get(f"/penstock/static/{version}/page.js").headers["cache-control"]
    assert olga.get("/penstock/static/older/page.js").headers["cache-control"] == "no-store"


def test_the_catalog_follows_the_files(vera: httpx.Client, server: Server) -> None:
    def names() -> set[str]:
        answer = vera.get("/penstock/api/catalog", timeout=60)
        assert answer.status_code == 200, answer.text
        return {one["name"] for one in answer.json()["declared"]}

    before = names()
    assert {"order-minutes", "order-points", "shops", "shop-names", "order-archive", "order-replay"} <= before
    more = server.project / "jobs" / "shop" / "more.py"
    more.write_text("from penstock.streams import Archive\nMORE = Archive('more', 'orders', bucket='lake')\n")
    try:
        assert names() == before | {"more"}
        more.write_text("from penstock.streams import Archive\nMORE = Archive('no name', 'orders', bucket='x')\n")
        answer = vera.get("/penstock/api/catalog", timeout=60)
        assert (answer.status_code, answer.json()["wrong"]) == (200, 1)
        assert {one["name"] for one in answer.json()["declared"]} == before
        assert str(server.project) not in answer.text
    finally:
        more.unlink()
    assert names() == before


def test_an_absent_database_is_a_503_with_a_reason(olga: httpx.Client, database: MariaDB, scene: Scene) -> None:
    scene.quiet()
    database.stop()
    try:
        for answer in (
            olga.get("/penstock/api/overview", timeout=20),
            olga.get("/penstock/api/history", timeout=20),
            olga.post("/penstock/api/actions", json=STOP, headers=same_origin(olga), timeout=20),
        ):
            assert answer.status_code == 503
            assert answer.json()["code"] == "control_away"
            assert answer.json()["detail"].startswith("The control database does not answer.")
            assert "pymysql" not in answer.text
        assert olga.get("/penstock/api/catalog", timeout=60).status_code == 200
    finally:
        database.start()
        database.wait()
    assert olga.get("/penstock/api/overview", timeout=20).status_code == 200


def test_the_plugin_is_light_in_processes_that_serve_no_page(tmp_path: Path) -> None:
    heavy = ("fastapi", "penstock.airflow.page", "penstock.airflow.dags")
    code = f"import sys, penstock.airflow.plugin; sys.exit(any(m in sys.modules for m in {heavy}))"
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "AIRFLOW_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def letter(offset: int, stream: str, **more: str) -> list[tuple[str, str | bytes | None]]:
    said = {"topic": "bundles-in", "partition": "0", "offset": str(offset), "stream": stream, **more}
    return [(f"penstock.{name}", text) for name, text in said.items()]


def test_the_newest_letters_of_a_stream_are_shown_as_text(olga: httpx.Client, fresh_broker: Broker) -> None:
    servers, dead = fresh_broker.bootstrap, "bundles-in-dead-letter"
    ensure_topics([Topic(dead, partitions=2), Topic("bundles-late", partitions=1)], servers)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "letters", "log_level": 0})
    producer.init_transactions()
    for n in range(30):
        producer.begin_transaction()
        headers = letter(n, "bundles" if n % 2 else "summaries", reason=f"no number <b>{n}</b>")
        producer.produce(dead, f"v{n}", key="k", partition=n % 4 // 2, headers=headers, timestamp=n + 1)
        producer.commit_transaction()
    producer.begin_transaction()
    headers = letter(99, "bundles", reason="\x1b[2J", partition="0; rm -rf ~ #")
    producer.produce(dead, b"\xff\x00" + b"x" * 800_000, partition=0, headers=headers, timestamp=99)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce("bundles-late", None, partition=0, headers=letter(3, "bundles", **{"late-ms": "1200"}))
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce("bundles-late", "aborted", partition=0, headers=letter(4, "bundles"))
    producer.flush()
    producer.abort_transaction()
    answer = olga.get("/penstock/api/letters", params={"stream": "bundles", "kind": "dead"}, timeout=30)
    first, *rest = answer.json()["letters"]
    assert first["value"].startswith("\\xff\\x00xxx")
    assert len(first["value"]) < 2_010
    assert (first["size"], first["reason"]) == (800_002, "\\x1b[2J")
    assert [one["value"] for one in rest] == [f"v{n}" for n in range(29, 0, -2)]
    assert rest[0]["source"] == "bundles-in, partition 0, offset 29"
    assert rest[0]["replay"] == f"penstock dead-letters replay {dead} --place 'bundles-in[0]@29'"
    assert first["replay"] == "", "what was forged is no command"
    assert rest[0]["reason"] == "no number <b>29</b>"
    late = olga.get("/penstock/api/letters", params={"stream": "bundles", "kind": "late"}, timeout=30)
    assert [one["reason"] for one in late.json()["letters"]] == ["1200 ms after its window was closed"]
    assert late.json()["letters"][0]["value"] is None
    none = olga.get("/penstock/api/letters", params={"stream": "walk-ins", "kind": "dead"}, timeout=30)
    assert none.json() == {"letters": []}
    assert olga.get("/penstock/api/letters", params={"stream": "nobody", "kind": "dead"}).status_code == 404
    wrong = olga.get("/penstock/api/letters", params={"stream": "x" * 5000, "kind": "<script>"})
    assert (wrong.status_code, len(wrong.content) < 1000) == (422, True)


def test_a_drivers_log_is_read_from_its_end_and_from_the_folder_of_logs_only(
    olga: httpx.Client, scene: Scene, control: Control
) -> None:
    scene.logs.mkdir(exist_ok=True)
    (scene.logs / "metrics.log").write_text("".join(f"line {n}\n" for n in range(500)) + "odd \x1b[2J\u2028\n")
    found = olga.get("/penstock/api/log", params={"app": "metrics"}).json()
    lines = [*(f"line {n}" for n in range(301, 500)), "odd \\x1b[2J\\u2028"]
    assert (found["name"], found["lines"]) == ("metrics.log", lines)
    row = control.app("agents")
    assert row
    assert row.incarnation
    before = control.driver(row.incarnation)
    assert before
    try:
        for path in ("/etc/passwd", str(scene.logs / ".." / ".." / "x"), str(scene.logs / "none.log")):
            control.update_driver(row.incarnation, log=path)
            answer = olga.get("/penstock/api/log", params={"app": "agents"})
            assert answer.status_code == 404
            assert "root" not in answer.text
    finally:
        control.update_driver(row.incarnation, log=before.log)


def test_records_and_logs_are_not_for_every_viewer(vera: httpx.Client) -> None:
    paths = (
        "letters?stream=bundles&kind=dead", "log?app=metrics", "changes?app=metrics&before=0", "dead-letters/reasons",
        "streams/order-minutes/source",
    )  # fmt: skip
    assert [vera.get(f"/penstock/api/{path}").status_code for path in paths] == [403] * 5


def test_both_hashes_of_running_code_and_code_on_disk_are_returned(vera: httpx.Client) -> None:
    found = vera.get("/penstock/api/streams").json()
    assert {app["driver"]["spec_hash"] for app in found["apps"] if app["driver"]} == {"5d41402a"}
    assert len(found["disk_hash"]) == 64
