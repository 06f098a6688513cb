"""Imports between packages go one way; the contracts are in pyproject.toml."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.settings import PROJECT

# Imported by processes without Spark, or that must start quickly: DAG files, the page, the captures.
WITHOUT_SPARK = (
    "errors", "settings", "logs", "model", "host", "java", "web", "streams", "object_store", "registry", "codec",
    "control", "kafka", "sinks", "tables", "catalog", "lineage", "supervision", "capture", "views", "monitoring", "cli",
    "airflow",
)  # fmt: skip
# Run in a fresh interpreter: imports modules while Spark is banned, and reports which module imported it.
PROBE = """
import importlib, importlib.abc, sys

class Ban(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            frame = sys._getframe()
            while not (asking := frame.f_globals.get("__name__", "")).startswith("penstock"):
                frame = frame.f_back
            found.add(f"{asking}, line {frame.f_lineno}: imports {name}")
            raise ImportError(name)

found = set()
sys.meta_path.insert(0, Ban())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as e:
        found or sys.exit(f"{name}: {e}")
print(*sorted(found), sep="\\n", end="")
"""
MODULES = sorted((PROJECT / "penstock").rglob("*.py"))


def run_in_fresh_process(*command: str, **variables: str) -> str:
    """Output of a command, with the project first on Python's path."""
    env = {**os.environ, "PYTHONPATH": str(PROJECT)} | variables
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.processes
def test_packages_import_only_packages_below_them() -> None:
    output = run_in_fresh_process(str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo")
    assert "0 broken" in output, f"\n{output}"


@pytest.mark.processes
def test_what_runs_without_spark_imports_none(tmp_path: Path) -> None:
    # Alembic alone can import its scripts.
    modules = [name_of(path) for path in MODULES if "migrations" not in path.parts]
    names = [name for name in modules if name.split(".")[1:2] and name.split(".")[1] in WITHOUT_SPARK]
    assert len(names) > len(WITHOUT_SPARK)
    output = run_in_fresh_process(sys.executable, "-W", "ignore", "-c", PROBE, *names, AIRFLOW_HOME=str(tmp_path))
    assert not output, f"\n{output}"


def test_the_table_of_packages_has_every_package() -> None:
    config = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [contract] = [c for c in config["contracts"] if c["type"] == "layers"]
    names = {name for layer in contract["layers"] for name in layer.split(" | ")}
    table = (PROJECT / "docs" / "architecture.md").read_text().partition("## Packages")[2].partition("## Size")[0]
    assert sorted(names) == sorted(set(re.findall(r"`penstock/(\w+)/?`", table)))


def output_classes_tested(path: Path) -> Iterator[str]:
    """Classes of outputs and sinks that a module tests for, in `isinstance` or in a class pattern."""
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    outputs = {
        alias.asname or alias.name
        for node in imports
        if (node.module or "").startswith(("penstock.model.output", "penstock.sinks"))
        for alias in node.names
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            classes: ast.AST = node.args[1]
        elif isinstance(node, ast.MatchClass):
            classes = node.cls
        else:
            continue
        yield from (part.id for part in ast.walk(classes) if isinstance(part, ast.Name) and part.id in outputs)


@pytest.mark.parametrize("module", ["query/stream_run", "commit/committer", "commit/output_stores"])
def test_the_engine_treats_all_outputs_alike(module: str) -> None:
    assert list(output_classes_tested(PROJECT / "penstock" / "engine" / f"{module}.py")) == []


def test_tests_for_classes_of_outputs_are_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from penstock.model.output import Output, TopicOutput as T\n"
        "def f(o):\n"
        "    isinstance(o, (int, T))\n"
        "    match o:\n"
        "        case Output(): pass\n"
    )
    assert sorted(output_classes_tested(wrong)) == ["Output", "T"]


def test_only_two_places_reach_into_sparks_jvm() -> None:
    """Attributes of PySpark that are not public may change with any version."""
    reached = re.compile(r"\._(jvm|jdf|jsc|jsq|jsparkSession|gateway)\b")
    found = {str(path.relative_to(PROJECT / "penstock")) for path in MODULES if reached.search(path.read_text())}
    assert {name for name in found if not name.startswith("engine/jvm/")} == {"model/checks/spark_plan.py"}


@pytest.mark.processes
def test_no_module_has_more_than_400_lines() -> None:
    files = [
        path for folder in ("penstock", "plugins", "dags", "jobs", "tests") for path in (PROJECT / folder).rglob("*.py")
    ]
    assert len(files) > 200
    assert [str(path) for path in files if len(path.read_text().splitlines()) > 400] == []


def test_no_test_imports_from_a_test_file() -> None:
    """Helpers of several tests are in tests/support or beside them, under a name that says what it is."""
    imports = re.compile(r"^ *from (tests\.(?:\w+\.)*test_\w+)", re.MULTILINE)
    # A program of another process may import the file that has its text.
    found = {
        str(path.relative_to(PROJECT)): module
        for path in (PROJECT / "tests").rglob("*.py")
        for module in imports.findall(path.read_text())
        if module != name_of(path)
    }
    assert found == {}
