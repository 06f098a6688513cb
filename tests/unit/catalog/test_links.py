"""Links in the folders of declarations that lead nowhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.catalog import load, load_partial
from penstock.errors import DeclarationError
from tests.chaos.projects import other_project
from tests.support.declared_project import DECLARED


@pytest.mark.parametrize("folder", ["jobs", "jobs/shop", "sql/captures"])
def test_a_link_to_a_folder_that_is_away_is_not_taken_for_an_empty_one(folder: str, tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    path = tmp_path / folder
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / "away")
    with pytest.raises(DeclarationError, match=f"{folder} is a link that leads to no folder; got: .*away; hint: see"):
        load(tmp_path)


def test_the_lock_of_an_editor_is_no_declaration(tmp_path: Path) -> None:
    """Emacs makes links that lead nowhere beside the files that are edited."""
    project = tmp_path / "project"
    shutil.copytree(DECLARED, project, ignore=shutil.ignore_patterns("__pycache__"))
    with other_project(project, {}):
        before = load_partial()
        for folder in ("jobs", "jobs/shop", "sql/captures", "sql/sinks", "sql/streams"):
            (project / folder).mkdir(parents=True, exist_ok=True)
            for name in (".#sales.py", ".#sales.sql"):
                (project / folder / name).symlink_to("somebody@host.1234:5678")
        assert load_partial() == before
        assert load(project) == before[0]
