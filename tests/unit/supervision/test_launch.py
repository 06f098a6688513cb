"""What a driver gets from its launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.settings import settings
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
