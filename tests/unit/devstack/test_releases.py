"""What `make up` and `up --watch` release."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from penstock.catalog import Catalog, build
from penstock.control import Actor, Control, tables
from penstock.devstack import releases
from penstock.devstack.releases import release_what_changed, watch_and_release
from penstock.errors import ReleaseRefused
from penstock.settings import settings
from penstock.supervision import released_code

NONE: Catalog = build([])


class Project:
    """Two apps, released as they are on the disk; `notes` of the releases that follow."""

    def __init__(self, control: Control, folder: Path) -> None:
        self.control, self.folder, self.notes = control, folder, list[str]()
        self.refused = ""
        for app in ("bank", "shop"):
            self.edit(f"jobs/{app}/declared.py", "import common")
        self.edit("common/__init__.py", "")
        digest = released_code.take(control)
        with control.begin() as c:
            for app in ("bank", "shop", "new"):
                row = {"name": app, "release_seq": 0, "restarts": 0, "digest": None if app == "new" else digest}
                c.execute(tables.app.insert().values(row))

    def edit(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def release(self, control: Control, app: str, actor: Actor, note: str) -> int:
        if app == self.refused:
            raise ReleaseRefused(f"the code of app {app} cannot be read")
        self.notes.append(note)
        return control.release(app, actor, note, digest=released_code.take(control))


@pytest.fixture
def project(control: Control, home: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PENSTOCK_PROJECT", str(home.parent / "project"))
    settings.cache_clear()
    made = Project(control, home.parent / "project")
    monkeypatch.setattr(releases, "release", made.release)
    return made


def test_apps_are_released_whose_files_have_changed(project: Project) -> None:
    def released(*new: str, broken: Collection[str] = ()) -> dict[str, list[str]]:
        return release_what_changed(project.control, NONE, {*new}, broken).apps

    assert released() == {}
    project.edit("jobs/shop/declared.py", "import common  # now")
    assert released(broken={"shop"}) == {}, "a file of it cannot be read"
    assert released() == {"changed files": ["shop"]}
    assert project.notes == ["changed: jobs/shop/declared.py"]
    assert released() == {}
    project.edit("common/__init__.py", "RATE = 1")
    assert released() == {"changed files": ["bank", "shop"]}, "and not the app that never ran"


def test_an_app_of_which_a_stream_is_replaced_is_not_released_meanwhile(project: Project) -> None:
    """The files on the disk are then those of the new version."""
    digest = released_code.take(project.control)
    project.edit("common/__init__.py", "RATE = 1")
    me = Actor("me", "cli")
    row = project.control.request_replacement("totals", "bank", digest, digest, me, {})
    result = release_what_changed(project.control, NONE, set(), ())
    assert (result.apps, result.problems) == ({"changed files": ["shop"]}, [])
    project.control.move_replacement(row.id, "cancelled", actor=me)
    assert release_what_changed(project.control, NONE, set(), ()).apps == {"changed files": ["bank"]}


def test_an_app_that_is_refused_keeps_no_other_from_its_release(project: Project) -> None:
    project.edit("common/__init__.py", "RATE = 1")
    project.refused = "bank"
    result = release_what_changed(project.control, NONE, set(), ())
    assert result.apps == {"changed files": ["shop"]}
    assert "the code of app bank cannot be read" in str(result.problems[0])


def test_a_change_of_code_is_released_and_no_other(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes(folder: Path, **_: Any) -> Iterator[set[Any]]:
        assert folder == project.folder
        for path in ("README.md", "jobs/shop/declared.py", "tests/test_shop.py"):
            project.edit(path, "x = 1")
            yield {path}

    monkeypatch.setattr(watchfiles, "watch", changes)
    monkeypatch.setattr(releases, "_release_in_process", lambda: iter(["released"]))
    assert list(watch_and_release()) == ["files have changed; their code is checked and then released", "released"]
