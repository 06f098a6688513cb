"""What a driver gets from its launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.settings import Settings, settings
from penstock.supervision import launch


@pytest.mark.processes
@pytest.mark.parametrize("named", ["link", "real"])
@pytest.mark.usefixtures("home")
def test_a_release_is_run_without_the_folders_of_the_project(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whichever of its names the project is reached: a working directory has its real name."""
    code, real, link = (tmp_path / name for name in ("code", "real", "link"))
    for folder in (code, real):
        (folder / "src").mkdir(parents=True)
    link.symlink_to(real)
    monkeypatch.setenv("PENSTOCK_PROJECT", str(tmp_path / named))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (real, link, tmp_path / "other"))))
    monkeypatch.setattr(sys, "path", [str(real), *sys.path, str(link / "src"), str(real / "src")])
    settings.cache_clear()
    paths = launch.environment(code)["PYTHONPATH"].split(os.pathsep)
    own = [path for path in paths if Path(path).is_relative_to(tmp_path)]
    assert own == [str(code), str(code / "src"), str(tmp_path / "other")]


@pytest.mark.processes
@pytest.mark.usefixtures("home")
def test_a_release_has_the_places_of_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path in the released pyproject.toml would begin at the folder of the release."""
    code, project = tmp_path / "code", tmp_path / "project"
    for folder in (code, project):
        folder.mkdir()
        (folder / "pyproject.toml").write_text(
            "[tool.penstock]\ncheckpoints = 'ck'\nexecutor_template = 'pods/one.yaml'\n"
        )
    monkeypatch.setenv("PENSTOCK_PROJECT", str(project))
    settings.cache_clear()
    places = {name: value for name, value in launch.environment(code).items() if name.startswith("PENSTOCK_")}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    launcher, driver = settings(), Settings()
    assert driver.project == code
    assert (driver.home, driver.cache, driver.checkpoints) == (launcher.home, launcher.cache, str(project / "ck"))
    assert driver.executor_template == str(project / "pods/one.yaml")
