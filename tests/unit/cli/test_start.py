"""What starting the command line costs: a command imports what it needs and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock import __version__
from penstock.cli import COMMANDS, app, load
from penstock.control import Control

pytestmark = pytest.mark.processes

# Each takes a tenth of a second and more to import.
HEAVY = {
    "pyspark", "duckdb", "pyarrow", "numpy", "pandas", "sqlglot", "confluent_kafka", "httpx", "fastapi", "boto3",
    "elasticsearch", "pymongo", "airflow", "jinja2",
}  # fmt: skip
DATABASE = {"sqlalchemy", "pymysql"}
SCRIPT = """
import sys
from penstock.cli import app
try:
    app(sys.argv[1:], prog_name="penstock")
finally:
    print("modules", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def imported(*args: str, **variables: str) -> set[str]:
    """The packages that a command imports."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args], capture_output=True, text=True, env=os.environ | variables, check=True
    )
    line = next(line for line in run.stderr.splitlines() if line.startswith("modules "))
    return set(line.split())


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}], ids=str)
def test_a_terminal_without_the_characters_of_a_path_shows_escapes(locale: dict[str, str], tmp_path: Path) -> None:
    project = tmp_path / "Büro 日" / "shop"
    env = {k: v for k, v in os.environ.items() if k not in ("LANG", "LC_ALL", "PYTHONUTF8")} | locale
    as_given = "PYTHONIOENCODING" not in locale
    for words, shown in (
        (["init", str(project)], "Büro 日" if as_given else r"B\u00fcro \u65e5"),
        (["catalog", "--json"], "Büro 日" if as_given else r"B\u00fcro \u65e5"),
    ):
        command = [sys.executable, "-m", "penstock", *words]
        env["PENSTOCK_PROJECT"] = str(project)
        run = subprocess.run(command, capture_output=True, env=env, check=False)
        assert b"Traceback" not in run.stderr
        assert shown in run.stdout.decode()
        if words[0] == "init":
            (project / "jobs" / "orders" / "broken.py").write_text("raise ValueError('ü😀')")
        if "--json" in words:
            assert "Büro 日" in str(json.loads(run.stdout))
            assert "ü😀" in str(json.loads(run.stdout))


def test_help_imports_no_heavy_package() -> None:
    found = imported("--help")
    assert "typer" in found
    assert not found & (HEAVY | DATABASE | {"pydantic"})


@pytest.mark.parametrize("command", [("streams", "list"), ("streams", "show", "--help")])
def test_light_commands_import_no_heavy_package(command: tuple[str, ...], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/control.db"
    Control(url).migrate()
    found = imported(*command, PENSTOCK_CONTROL_URL=url)
    assert not found & HEAVY


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_the_first_sentence_of_each_command(name: str) -> None:
    first = (load(name).help or "").split("\n\n")[0]
    assert " ".join(first.split()) == COMMANDS[name].help


def test_help_names_every_command() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert all(f" {name} " in said for name in COMMANDS)


def test_an_unknown_command_is_refused_with_a_close_one() -> None:
    result = CliRunner().invoke(app, ["stream"])
    assert result.exit_code == 2
    assert "streams" in result.output


@pytest.mark.parametrize("variables", [{}, {"PENSTOCK_KAFKA_PORT": "no port"}], ids=["", "with an invalid setting"])
def test_the_version_is_printed(variables: dict[str, str]) -> None:
    result = CliRunner().invoke(app, ["--version"], env=variables)
    assert (result.exit_code, result.output) == (0, f"penstock {__version__}\n")
