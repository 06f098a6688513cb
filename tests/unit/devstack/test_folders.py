"""Folders in which the platform cannot work are refused before anything is written; all others are taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.devstack import folders
from penstock.devstack.folders import SPECIAL
from penstock.devstack.platform import Platform
from penstock.errors import HostError
from penstock.settings import settings
from tests.support.reports import Silent

REFUSED = [*SPECIAL, "\n", "\t", "\x1b", "\udcfc"]


@pytest.mark.parametrize("character", REFUSED, ids=ascii)
def test_a_project_in_it_is_not_laid_out(tmp_path: Path, character: str) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / f"a{character}b" / "shop")])
    assert done.exit_code == 1, done.output
    assert "error: the path of the project contains the character " in done.output
    assert (character if character in SPECIAL else ascii(character)) in done.output
    assert "hint: rename the folder" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", ["PENSTOCK_PROJECT", "PENSTOCK_HOME", "PENSTOCK_CACHE", "PENSTOCK_CHECKPOINTS"])
def test_up_starts_nothing_in_it(tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path / "a,b"))
    settings.cache_clear()
    try:
        with pytest.raises(HostError, match="contains the character ,"):
            Platform().up(Silent())
    finally:
        settings.cache_clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["My Projects", "Büro", "it's (a) & b", "=+@!~;$x", "日本😀"])
def test_another_folder_is_taken(name: str) -> None:
    folders.check("the project", Path("/home", name, "shop"))
