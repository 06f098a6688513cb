"""`penstock init` lays out a project that is valid, and refuses what it could not lay out well."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

import penstock
from penstock import catalog
from penstock.cli import app
from penstock.devstack import new_project
from penstock.errors import HostError
from penstock.settings.project import table_of
from tests.support.caches import unload_jobs


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    new_project.create(tmp_path / "shop")
    return tmp_path / "shop"


def test_it_has_a_stream_a_capture_a_sink_and_their_tests(shop: Path) -> None:
    try:
        made = catalog.load(shop)
    finally:
        unload_jobs()
        catalog.load.cache_clear()
    assert {name: one.app for name, one in made.declared.items()} == {
        "order-minutes": "orders", "shops": "captures", "shops-documents": "sinks",
    }  # fmt: skip
    assert table_of(shop) is not None
    tests = " ".join(path.read_text() for path in (shop / "tests").rglob("*.*"))
    assert all(word in tests for word in ("minutes import STREAM", 'captures["shops"]', "sink: shops-documents"))


def test_no_placeholder_is_left_and_every_file_is_valid(shop: Path) -> None:
    files = [path for path in shop.rglob("*") if path.is_file()]
    text = {str(path.relative_to(shop)): path.read_text() for path in files}
    assert not any("PROJECT_NAME" in one or "PENSTOCK_VERSION" in one for one in text.values())
    assert text["README.md"].startswith("# shop\n")
    assert f"=={penstock.__version__}\n" in text["requirements.txt"]
    assert ".penstock/" in text[".gitignore"]
    for name, content in text.items():
        if name.endswith(".py"):
            ast.parse(content)
    steps = yaml.safe_load(text[".github/workflows/test.yml"])["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step][-1] == "penstock test"


@pytest.mark.usefixtures("airflow_home")
def test_its_dag_files_import_what_there_is(shop: Path) -> None:
    from penstock.airflow import dags

    files = (ast.parse(path.read_text()) for path in (shop / "dags").glob("*.py"))
    imports = [node for file in files for node in ast.walk(file) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imports} == {"penstock.airflow.dags"}
    names = {alias.name for node in imports for alias in node.names}
    assert names == {"declare_dags", "check_declarations"}
    assert all(hasattr(dags, name) for name in names)


def test_the_command_lists_what_it_wrote_and_what_comes_next(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "shop")])
    assert done.exit_code == 0, done.output
    written = {str(path.relative_to(tmp_path / "shop")) for path in (tmp_path / "shop").rglob("*") if path.is_file()}
    assert written <= set(done.output.split())
    assert "penstock up" in done.output.partition("Next:")[2]


@pytest.mark.parametrize("name", ["Shop", "1shop", "shop.py", "über", "a" * 51, "-shop"])
def test_an_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HostError, match=r"no name of a project.*hint: begin with a letter"):
        new_project.create(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_with_something_in_it_and_a_file_are_refused(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for taken in (shop, tmp_path / "file"):
        with pytest.raises(HostError, match=r"must be empty.*hint"):
            new_project.create(taken)
    (tmp_path / "empty").mkdir()
    assert new_project.create(tmp_path / "empty")


def test_a_folder_in_another_project_is_refused(shop: Path) -> None:
    with pytest.raises(HostError, match=f"in another project; got: {shop}"):
        new_project.create(shop / "parts" / "inner")
    assert not (shop / "parts").exists()


def test_a_folder_that_cannot_be_made_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["init", str(tmp_path / "file" / "shop")])
    assert done.exit_code == 1
    assert "cannot be written" in done.output
    assert "Traceback" not in done.output


def test_the_tests_of_a_project_run_in_a_home_of_their_own(
    shop: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    runs: list[tuple[list[str], Path, dict[str, str]]] = []

    def run(command: list[str], *, cwd: Path, env: dict[str, str], check: bool) -> subprocess.CompletedProcess[str]:
        assert not check
        runs.append((command, cwd, env))
        return subprocess.CompletedProcess(command, 5)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("PENSTOCK_PROJECT", str(shop))
    done = CliRunner().invoke(app, ["test", "-k", "orders", "tests"])
    assert done.exit_code == 5, done.output
    [(command, folder, env)] = runs
    assert command[1:] == ["-m", "pytest", "-p", "penstock.testing.plugin", "-k", "orders", "tests"]
    assert folder == shop
    assert env["PENSTOCK_PROJECT"] == str(shop)
    assert env["PENSTOCK_HOME"] != str(home)
    assert env["PYTHONPATH"].startswith(str(shop))
