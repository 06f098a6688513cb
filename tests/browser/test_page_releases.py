"""Releases on the page: which runs, and what differs from the disk."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import View
from tests.browser.scene import Scene
from tests.browser.server import Server

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("scene")]


def get(server: Server, user: str, path: str, **params: str) -> httpx.Response:
    cookies = {"_token": server.token(user)}
    return httpx.get(f"{server.url}/penstock/api/{path}", params=params, cookies=cookies, timeout=30)


def test_the_code_on_the_disk_is_compared_with_a_release(server: Server) -> None:
    said = get(server, "vera", "releases", app="metrics").json()
    assert [(r["number"], r["actor"], r["on_disk"]) for r in said["releases"] if r["digest"]] == [(0, "olga", False)]
    assert get(server, "vera", "releases", app="none").status_code == 404
    assert get(server, "vera", "changes", app="metrics", before="0").status_code == 403, "that is code"
    changed = get(server, "olga", "changes", app="metrics", before="0").json()
    by_path = {file["path"]: file for file in changed["files"]}
    assert by_path["jobs/metrics/before.py"]["diff"] == ["@@ -1 +0,0 @@", "-RATE = 1"]
    answer = get(server, "olga", "changes", app="metrics", before="99")
    assert (answer.status_code, answer.json()["code"]) == (409, "release_refused")


def test_releases_are_listed_with_what_changed(visit: Callable[..., View], scene: Scene) -> None:
    assert scene.live
    view = visit()
    view.frame.get_by_role("button", name="Releases of metrics").click()
    dialog = view.frame.get_by_role("dialog", name="Releases of metrics")
    expect(dialog.locator("[data-release]")).to_have_count(2)
    expect(dialog.locator('[data-release="1"]')).to_contain_text("p90 by nearest rank")
    expect(dialog.locator('[data-release="0"]')).to_contain_text("by olga")
    dialog.get_by_text("Changes on the disk since release 0").click()
    expect(dialog.locator('.diff [data-line="removed"]').first).to_contain_text("-RATE = 1")
    assert view.troubles == []
