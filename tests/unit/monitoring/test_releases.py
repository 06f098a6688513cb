"""What the page shows of releases and of the files that differ between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from penstock.control import Actor, Control, tables
from penstock.errors import ReleaseRefused
from penstock.monitoring.dashboard import releases
from penstock.monitoring.dashboard.releases import app_releases, changes
from penstock.settings import settings
from penstock.supervision.code_snapshot import digest_of, pack
from penstock.supervision.released_code import running_release

ME = Actor("me", "cli")
BEFORE = {"jobs/a.py": b"one\ntwo\n", "jobs/gone.py": b"x\n", "jobs/same.py": b"", "jobs/data.bin": b"\xff"}
AFTER = {"jobs/a.py": b"one\n2\n", "jobs/new.py": b"y\n", "jobs/same.py": b"", "jobs/data.bin": b"\xfe"}


@pytest.fixture
def app(control: Control) -> str:
    """An app of two releases, of which the first runs."""
    with control.begin() as c:
        c.execute(tables.app.insert().values(name="shop", release_seq=0, restarts=0))
    for content in (BEFORE, AFTER):
        control.store_snapshot(digest_of(content), pack(content))
    incarnation = control.claim("shop", None, host="h", owner="o", log="l")
    assert incarnation
    control.update_driver(incarnation, state="running")
    control.report_driver_alive(incarnation)
    control.record_first_code("shop", 0, digest_of(BEFORE), ME)
    assert control.release("shop", ME, "dearer", digest=digest_of(AFTER)) == 1
    return "shop"


def test_releases_say_which_runs_and_which_is_on_the_disk(
    control: Control, app: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = home.parent / "project"
    for path, data in AFTER.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_bytes(data)
    monkeypatch.setenv("PENSTOCK_PROJECT", str(project))
    settings.cache_clear()
    said = app_releases(control, app)
    # The driver of release 0 drains.
    assert [(r["number"], r["note"], r["running"], r["next"], r["on_disk"]) for r in said["releases"]] == [
        (1, "dearer", False, True, True), (0, "first launch", True, False, False),
    ]  # fmt: skip
    assert said["disk"] == digest_of(AFTER)
    assert changes(control, app, "1", "disk")["count"] == 0
    assert changes(control, app, digest_of(BEFORE), "disk") == changes(control, app, "0", "1")
    (project / path).chmod(0o755)
    for before, after, may in (("1", "disk", "may now"), ("disk", "1", "may no longer")):
        [file] = changes(control, app, before, after)["files"]
        assert (file["path"], file["change"], file["note"]) == (path, "changed", f"its owner {may} execute it")


def test_a_release_runs_while_its_driver_is_up(control: Control, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = control.drivers()[0].incarnation
    assert running_release(control, app) == 0
    for state, number in (("launching", None), ("queued", None), ("draining", 0), ("ended", None), ("running", 0)):
        control.update_driver(driver, state=state)
        assert running_release(control, app) == number, state
    at = control.now()
    monkeypatch.setattr(Control, "now", lambda _: at + int(settings().stuck_after * 1000) + 1000)
    assert running_release(control, app) is None, "it may be hung"
    assert running_release(control, "nosuch") is None


def test_changes_are_a_bounded_diff_of_each_file(control: Control, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> list[tuple[Any, ...]]:
        return [tuple(file.values()) for file in changes(control, app, "0", "1")["files"]]

    assert files() == [
        ("jobs/a.py", "changed", ["@@ -1,2 +1,2 @@", " one", "-two", "+2"], ""),
        ("jobs/data.bin", "changed", [], "it is no text"),
        ("jobs/gone.py", "removed", ["@@ -1 +0,0 @@", "-x"], ""),
        ("jobs/new.py", "added", ["@@ -0,0 +1 @@", "+y"], ""),
    ]
    monkeypatch.setattr(releases, "MAX_LINES", 2)
    monkeypatch.setattr(releases, "MAX_FILES", 1)
    said = changes(control, app, "0", "1")
    assert (said["files"][0]["diff"], said["files"][0]["note"]) == (["@@ -1,2 +1,2 @@", " one"], "2 more lines")
    assert (said["count"], said["more"]) == (4, ["jobs/data.bin"])
    monkeypatch.setattr(releases, "MAX_COMPARED", 3)
    assert files()[0][2:] == ([], "8 bytes before, 6 after: too large to compare")


def test_what_cannot_be_compared_is_refused(control: Control, app: str) -> None:
    with pytest.raises(ReleaseRefused, match="no release 7"):
        changes(control, app, "7", "disk")
    with control.begin() as c:
        c.execute(update(tables.code_snapshot).values(content=b""))
    with pytest.raises(ReleaseRefused, match="damaged or missing"):
        changes(control, app, "0", "1")
