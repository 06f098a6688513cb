"""Who may see and act: the page's API on a real Airflow api-server, without a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.control import Control
from penstock.local.parts import MariaDB
from penstock.settings import PROJECT
from tests.browser.scene import Scene
from tests.browser.server import Server

pytestmark = pytest.mark.browser
STOP = {"verb": "stop", "kind": "stream", "name": "bundles", "note": "by test"}


@pytest.fixture
def olga(server: Server, scene: Scene) -> Iterator[httpx.Client]:
    """As Olga's browser would: with Airflow's cookie."""
    assert scene.live
    with httpx.Client(base_url=server.url, cookies={"_token": server.token("olga")}) as client:
        yield client


@pytest.fixture
def vera(server: Server, scene: Scene) -> Iterator[httpx.Client]:
    assert scene.live
    with httpx.Client(base_url=server.url, cookies={"_token": server.token("vera")}) as client:
        yield client


def same_origin(client: httpx.Client) -> dict[str, str]:
    return {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}


def unchanged(control: Control) -> bool:
    return control.desired("metrics")["bundles"] == "on"


@pytest.mark.parametrize(
    "path",
    [
        "/penstock/",
        "/penstock/api/overview",
        "/penstock/api/history",
        "/penstock/api/catalog",
        "/penstock/static/x/page.js",
    ],
)
def test_nothing_is_shown_without_signing_in(server: Server, path: str) -> None:
    assert httpx.get(server.url + path).status_code == 401
    assert httpx.get(server.url + path, cookies={"_token": "forged"}).status_code in (401, 403)


def test_nothing_is_done_without_signing_in(server: Server, control: Control, scene: Scene) -> None:
    assert scene.live
    answer = httpx.post(f"{server.url}/penstock/api/actions", json=STOP, headers={"Origin": server.url})
    assert answer.status_code == 401
    assert unchanged(control)


def test_a_person_at_the_bare_page_is_sent_to_sign_in(server: Server) -> None:
    answer = httpx.get(f"{server.url}/penstock/", headers={"Sec-Fetch-Dest": "document"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/api/v2/auth/login?next=/plugin/penstock"


@pytest.mark.parametrize("path", ["docs", "redoc", "openapi.json", "static/x/../../penstock_page.py", "static/x/no.js"])
def test_there_is_nothing_else(olga: httpx.Client, path: str) -> None:
    assert olga.get(f"/penstock/{path}").status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
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


def test_only_json_is_taken(olga: httpx.Client, control: Control) -> None:
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
        ({**STOP, "verb": "release"}, 422),
        # Nothing of the project declares this app.
        ({**STOP, "verb": "release", "kind": "app", "name": "metrics"}, 409),
        ({**STOP, "verb": "drop"}, 422),
        ({**STOP, "note": "x" * 501}, 422),
        ({**STOP, "more": 1}, 422),
        ({"verb": "stop"}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(
    olga: httpx.Client, control: Control, body: dict[str, Any], status: int
) -> None:
    before = control.actions(1)[0]["id"]
    answer = olga.post("/penstock/api/actions", json=body, headers=same_origin(olga))
    assert answer.status_code == status
    assert control.actions(1)[0]["id"] == before


def test_a_viewer_may_look_but_not_act(vera: httpx.Client, control: Control) -> None:
    assert vera.get("/penstock/api/overview").json()["viewer"] == {"name": "vera", "may_act": False}
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


def test_static_files_are_kept_under_their_version_only(olga: httpx.Client) -> None:
    page = olga.get("/penstock/").text
    version = page.split("static/")[1].split("/")[0]
    assert "immutable" in olga.get(f"/penstock/static/{version}/page.js").headers["cache-control"]
    assert olga.get("/penstock/static/older/page.js").headers["cache-control"] == "no-store"


def test_the_history_is_downsampled(olga: httpx.Client) -> None:
    found = olga.get("/penstock/api/history").json()
    assert len(found["t"]) == 120
    assert {len(s) for stream in found["streams"].values() for s in stream.values()} == {120}
    assert set(found["streams"]) == {"agent-offline", "assignments", "bundles", "summaries", "enriched-walk-ins",
                                     "walk-ins", "topic-quality", "session-alerts"}  # fmt: skip


def test_the_catalog_is_what_the_files_now_say(vera: httpx.Client, server: Server) -> None:
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


def test_a_database_that_is_away_is_a_503_that_says_so(olga: httpx.Client, database: MariaDB, scene: Scene) -> None:
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
    code = "import sys, penstock_plugin; sys.exit(any(m in sys.modules for m in ('fastapi', 'penstock_page')))"
    env = {**os.environ, "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}", "AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
