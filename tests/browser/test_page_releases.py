"""Releases on the page: which runs, and what differs from the disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Route, expect
from sqlalchemy import delete, update

from penstock.control import Actor, tables
from tests.browser.conftest import View
from tests.browser.scene import CODE, Scene
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


def test_the_disk_differs_by_files_of_the_app_alone(server: Server) -> None:
    def changed() -> dict[str, int]:
        answer = get(server, "vera", "changed")
        assert answer.status_code == 200, answer.text
        found: dict[str, int] = answer.json()
        return found

    # The release has this file alone.
    path = server.project / "jobs" / "metrics" / "before.py"
    assert changed() == {"metrics": 1}
    path.parent.mkdir()
    try:
        path.write_bytes(CODE["jobs/metrics/before.py"])
        [row] = [r for r in get(server, "vera", "releases", app="metrics").json()["releases"] if r["digest"]]
        assert not row["on_disk"], "the disk has files of other apps"
        assert changed() == {}
        (path.parent / "after.py").write_text("import jobs.metrics.before")
        assert changed() == {"metrics": 1}
    finally:
        shutil.rmtree(path.parent)
    assert changed() == {"metrics": 1}


def test_a_release_offers_the_code_of_earlier_ones(visit: Callable[..., View]) -> None:
    asked: list[Any] = []

    def answer(route: Route) -> None:
        if route.request.method != "POST":
            route.fallback()
            return
        body: dict[str, Any] = route.request.post_data_json or {}
        asked.append(body)
        route.fulfill(json={"would": [f"runs {body['to'] or 'the disk'}"]} if body.get("dry") else {"release": 2})

    view = visit(before=lambda page: page.route("**/penstock/api/releases*", answer))
    view.frame.get_by_role("button", name="Release metrics", exact=True).click()
    dialog = view.frame.get_by_role("dialog", name="Release metrics?")
    code = dialog.get_by_label("Code")
    expect(code.locator("option")).to_have_count(2)
    expect(code).to_have_value("")
    expect(code.locator("option").nth(1)).to_contain_text("of release 0")
    code.select_option("0")
    dialog.get_by_label("Note").fill("back")
    expect(dialog.locator("#confirm-would")).to_have_text("runs 0")
    dialog.get_by_role("button", name="Release").click()
    expect(dialog).to_have_count(0)
    view.frame.get_by_role("button", name="Release metrics", exact=True).click()
    dialog.get_by_role("button", name="Release").click()
    expect(dialog).to_have_count(0)
    view.frame.get_by_role("button", name="Stop bundles").click()
    expect(view.frame.get_by_label("Code")).to_be_hidden()
    done = [body for body in asked if not body.get("dry")]
    assert done == [{"app": "metrics", "to": "0", "note": "back"}, {"app": "metrics", "to": "", "note": ""}]
    assert [body["to"] for body in asked if body.get("dry")] == ["", "0", ""]
    assert view.troubles == []


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


def test_each_earlier_release_can_be_returned_to(visit: Callable[..., View], scene: Scene) -> None:
    """One with the code that runs too: whoever returns wants what ran then, whatever it is called."""
    control = scene.control
    numbers = [control.release("metrics", Actor("olga", "cli"), f"release {n} of a test") for n in (2, 3)]
    try:
        view = visit()
        head = view.frame.locator("tr.app", has_text="metrics")
        expect(head).to_contain_text(f"release 1 drains, release {numbers[-1]} is next")
        view.frame.get_by_role("button", name="Releases of metrics").click()
        dialog = view.frame.get_by_role("dialog", name="Releases of metrics")
        expect(dialog.locator('[data-release="1"]')).to_contain_text(f"runs, drains for release {numbers[-1]}")
        expect(dialog.locator(f'[data-release="{numbers[-1]}"]')).to_contain_text("is next")
        # The same code, under another number.
        back = dialog.get_by_role("button", name=f"Return metrics to release {numbers[0]}")
        expect(dialog.get_by_role("button", name=re.compile("^Return"))).to_have_count(2)
        back.click()
        release = view.frame.get_by_role("dialog", name="Release metrics?")
        expect(release.get_by_label("Code")).to_have_value(str(numbers[0]))
        expect(release.get_by_label("Code").locator("option")).to_have_count(4)
        expect(release.locator("#confirm-would")).to_contain_text("Restarted with the code of release")
        release.get_by_role("button", name="Close").click()
        view.frame.get_by_role("link", name="Overview").click()
        expect(view.frame.locator("#apps tr", has_text="metrics")).to_contain_text(f"1 → {numbers[-1]}")
        assert view.troubles == []
    finally:
        with control.begin() as c:
            c.execute(delete(tables.release).where(tables.release.c.number.in_(numbers)))
            c.execute(update(tables.app).where(tables.app.c.name == "metrics").values(release_seq=1))
