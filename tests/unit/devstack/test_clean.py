"""What `penstock clean` removes, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.devstack.platform import Platform
from penstock.errors import HostError
from penstock.settings import PROJECT, settings
from tests.support.reports import Silent

pytestmark = pytest.mark.processes


def test_clean_removes_the_home_and_nothing_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "kafka").mkdir()
    Platform().clean(Silent())
    assert not home.exists()
    for place in (PROJECT, PROJECT.parent, Path.home(), Path("/")):
        monkeypatch.setenv("PENSTOCK_HOME", str(place))
        settings.cache_clear()
        with pytest.raises(HostError, match="not removed"):
            Platform().clean(Silent())


def test_clean_leaves_what_is_not_penstocks(home: Path, tmp_path: Path) -> None:
    (home / "notes.txt").write_text("of somebody else")
    (home / "logs").mkdir()
    with pytest.raises(HostError, match="no platform was started"):
        Platform().clean(Silent())
    assert {path.name for path in home.iterdir()} == {"notes.txt", "logs"}
    (home / "run").mkdir()
    (home / "run" / "up.lock").touch()
    disk = tmp_path / "disk"
    (disk / "stream").mkdir(parents=True)
    (home / "checkpoints").symlink_to(disk)
    report = Silent()
    Platform().clean(report)
    assert [path.name for path in home.iterdir()] == ["notes.txt"]
    assert (disk / "stream").is_dir()
    assert report.said[-1] == "left: notes.txt, as not Penstock's"


@pytest.mark.parametrize("place", ["folder", "file URL", "bucket", "home"])
def test_clean_says_that_it_leaves_checkpoints_elsewhere(
    place: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = (home if place == "home" else tmp_path / "disk") / "checkpoints"
    folder.mkdir(parents=True)
    (home / "logs").mkdir()
    checkpoints = {"file URL": f"file://{folder}", "bucket": "s3a://bucket/ck"}.get(place, str(folder))
    for name, value in (
        ("CHECKPOINTS", checkpoints),
        ("S3_URL", "s3://"),
        ("S3_ACCESS_KEY", "k"),
        ("S3_SECRET_KEY", "s"),
    ):
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    settings.cache_clear()
    done = CliRunner().invoke(app, ["clean"], input="y")
    if place == "home":
        assert "with all records, checkpoints and logs?" in done.output
        assert "left" not in done.output
    else:
        shown = " ".join(done.output.split())
        assert f"with all records and logs? The checkpoints in {checkpoints} stay." in shown
        remedy = f"`rm -r {folder}`" if place != "bucket" else "the store's own tools"
        assert f"left: the checkpoints in {checkpoints}; remove them by {remedy} before the next `penstock up`" in shown
        assert folder.exists()
    assert done.exit_code == 0, done.output
    assert not home.exists()
