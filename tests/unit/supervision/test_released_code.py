"""What a supervisor launches after an edit, a crash, a rollback and a damage; with real processes, without Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from penstock.control import ReleaseRow, tables
from penstock.errors import ReleaseRefused
from penstock.settings import settings
from penstock.supervision import code_snapshot, released_code
from penstock.supervision import release as releases
from penstock.supervision.release import release
from tests.support.supervised_platform import ME, Platform
from tests.support.wait import wait_until

# A driver that says which code it runs.
TELL = "import time; from jobs.shop.rate import RATE; print(f'{RATE}.'); time.sleep(600)"


class Shop:
    """A project of one module, on a platform whose checks accept everything."""

    def __init__(self, platform: Platform, project: Path) -> None:
        self.platform, self.project, self.control = platform, project, platform.control
        self.edit(1)

    def edit(self, rate: int) -> None:
        path = self.project / "jobs" / "shop" / "rate.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"RATE = {rate}\n")

    def launched(self) -> str:
        """What the next driver runs."""
        self.platform.supervisor(command=[sys.executable, "-uc", TELL]).tick()
        log = Path(self.platform.driver().log)
        wait_until(lambda: log.read_text().endswith(".\n"), 30, what=f"the driver tells its code: {log}")
        return log.read_text().strip(".\n")

    def end(self) -> None:
        self.platform.driver().session.kill()
        self.control.end_driver(self.platform.driver().incarnation, "its release is replaced", "released")

    def rows(self) -> list[ReleaseRow]:
        return self.control.releases("a")


@pytest.fixture
def shop(p: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    def check(command: tuple[str, ...], _: float, project: Path) -> dict[str, Any]:
        assert "RATE" in (project / "jobs" / "shop" / "rate.py").read_text(), command
        return {"names": ["s"], "streams": False, "wrong": [], "others": []}

    monkeypatch.setattr(releases, "_run_check", check)
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path / "project"))
    settings.cache_clear()
    return Shop(p, tmp_path / "project")


def test_a_crash_restarts_what_was_released_and_a_rollback_what_was_before(shop: Shop) -> None:
    assert shop.launched() == "1"
    assert [(r.number, r.note, r.actor) for r in shop.rows()] == [(0, "first launch", "one")]
    shop.edit(2)
    shop.platform.driver().session.kill()
    assert shop.launched() == "1", "the edit was not released"

    assert release(shop.control, "a", ME, "dearer") == 1
    shop.end()
    assert shop.launched() == "2"
    first, second = shop.rows()[1].digest, shop.rows()[0].digest
    row = shop.control.app("a")
    assert row
    assert (row.digest, shop.platform.driver().spec_hash) == (second, second)

    shop.edit(3)
    assert release(shop.control, "a", ME, to="0") == 2
    shop.end()
    assert shop.launched() == "1"
    assert [(r.number, r.digest, r.note) for r in shop.rows()] == [
        (2, first, "(the code of release 0)"), (1, second, "dearer"), (0, first, "first launch"),
    ]  # fmt: skip
    assert second
    assert release(shop.control, "a", ME, to=second[:8]) == 3


def test_code_that_is_returned_to_is_not_removed_by_a_release_of_another_host(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is checked, the release that had it may become too old to be kept."""
    monkeypatch.setattr(released_code, "RELEASES_KEPT", 2)
    for number in (1, 2, 3):
        shop.edit(number)
        assert release(shop.control, "a", ME) == number
    with shop.control.begin() as c:
        c.execute(update(tables.code_snapshot).values(used_at=0))
    digest = shop.rows()[1].digest
    assert digest
    check = releases._run_check

    def release_elsewhere(*args: Any) -> dict[str, Any]:
        monkeypatch.setattr(releases, "_run_check", check)
        for number in (4, 5):
            shop.edit(number)
            shop.control.release("a", ME, digest=released_code.take(shop.control))
        released_code.prune(shop.control, "a")
        return check(*args)

    monkeypatch.setattr(releases, "_run_check", release_elsewhere)
    assert release(shop.control, "a", ME, to="2") == 6
    assert released_code.files_of(shop.control, digest)["jobs/shop/rate.py"] == b"RATE = 2\n"


def test_a_release_that_does_not_exist_is_refused(shop: Shop) -> None:
    shop.launched()
    for name in ("7", "abcdef", "", " "):
        with pytest.raises(ReleaseRefused, match="has no release"):
            released_code.find(shop.control, "a", name)


def test_a_refused_release_changes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.launched()
    wrong = {"names": ["s"], "streams": False, "wrong": ["it does not load"], "others": []}
    monkeypatch.setattr(releases, "_run_check", lambda *_: wrong)
    shop.edit(2)
    with pytest.raises(ReleaseRefused, match="does not load"):
        release(shop.control, "a", ME)
    shop.platform.driver().session.kill()
    assert shop.launched() == "1"


def test_a_damaged_copy_is_made_again_and_a_damaged_snapshot_is_refused(shop: Shop) -> None:
    shop.launched()
    digest = shop.platform.driver().spec_hash
    module = code_snapshot.folder_of(digest) / "jobs" / "shop" / "rate.py"
    module.chmod(0o600)
    module.write_text("RATE = 9\n")
    shop.platform.driver().session.kill()
    assert shop.launched() == "1"

    module.chmod(0o600)
    module.write_text("RATE = 9\n")
    with shop.control.begin() as c:
        c.execute(update(tables.code_snapshot).values(content=b"damaged"))
    shop.platform.driver().session.kill()
    shop.control.release("a", ME)  # so that nothing slows the next launch down
    shop.platform.supervisor().tick()
    why = shop.platform.driver().reason or ""
    assert "damaged or missing" in why
    assert "penstock streams release" in why
    assert release(shop.control, "a", ME) == 2, "which stores the same files again"
    assert shop.launched() == "1"


def test_two_apps_of_the_same_code_share_a_snapshot(shop: Shop) -> None:
    shop.launched()
    with shop.control.begin() as c:
        c.execute(tables.app.insert().values(name="b", release_seq=0, restarts=0))
    assert release(shop.control, "b", ME) == 1
    with shop.control.begin() as c:
        assert len(c.execute(tables.code_snapshot.select()).all()) == 1


def test_releases_that_are_neither_recent_nor_running_are_removed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released_code, "RELEASES_KEPT", 2)
    shop.launched()
    for n in range(2, 6):
        shop.edit(n)
        release(shop.control, "a", ME)
    assert [r.number for r in shop.rows()] == [4, 3, 0], "the driver of release 0 drains"

    def snapshots() -> int:
        with shop.control.begin() as c:
            return len(c.execute(tables.code_snapshot.select()).all())

    assert snapshots() == 5, "a snapshot may be of a release that is being checked"
    with shop.control.begin() as c:
        c.execute(update(tables.code_snapshot).values(used_at=0))
    released_code.prune(shop.control, "a")
    assert snapshots() == 3
    shop.end()
    released_code.prune(shop.control, "a")
    assert snapshots() == 2
    assert shop.launched() == "5"


def test_a_driver_on_another_host_fetches_its_code(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.launched()
    digest = shop.platform.driver().spec_hash
    content = code_snapshot.read_copy(digest)
    monkeypatch.setenv("PENSTOCK_HOME", str(shop.project.parent / "elsewhere"))
    monkeypatch.setenv("PENSTOCK_PROJECT", str(shop.project.parent / "elsewhere" / "releases" / digest))
    settings.cache_clear()
    released_code.fetch_own(shop.control)
    assert code_snapshot.read_copy(digest) == content
    with shop.control.begin() as c:
        c.execute(delete(tables.code_snapshot))
    released_code.fetch_own(shop.control)
