"""The wheel: what is in it, what it says of itself, and what Airflow reads of it."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
import zipfile
from email.message import Message
from importlib.metadata import EntryPoint, PathDistribution, distribution
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from twine.commands import check

import penstock
from penstock import bootstrap
from penstock.devstack import new_project
from penstock.settings import PROJECT
from tests.support.caches import clear_caches, unload_jobs

PINS = ("requirements.txt", "tests/requirements.txt")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(WheelBuilder(str(PROJECT)).build(directory=str(folder), versions=["standard"])))


@pytest.fixture
def installed(wheel: Path) -> PathDistribution:
    return PathDistribution(zipfile.Path(wheel, f"penstock-{penstock.__version__}.dist-info/"))


def test_the_wheel_has_every_file_of_the_library_and_nothing_else(wheel: Path) -> None:
    built = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = (path for path in (PROJECT / "penstock").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert built == {str(path.relative_to(PROJECT)) for path in sources}
    assert {Path(name).suffix for name in built} >= {".py", ".js", ".css", ".html", ".java", ".mako", ".properties"}


def test_the_metadata_is_what_an_index_accepts(wheel: Path) -> None:
    assert check.check([str(wheel)], strict=True) is False


def test_each_extra_is_declared_and_the_whole_is_all_of_them(installed: PathDistribution) -> None:
    metadata = installed.metadata
    assert isinstance(metadata, Message)
    assert metadata["Version"] == penstock.__version__
    extras = set(metadata.get_all("Provides-Extra", []))
    assert {"devstack", "elasticsearch", "influxdb", "mongodb", "mysql", "postgres", "s3", "all"} <= extras
    of_extras = {line.partition(";")[0] for line in installed.requires or () if "extra ==" in line}
    of_all = {line.partition(";")[0] for line in installed.requires or () if "extra == 'all'" in line}
    assert of_extras == of_all
    told = (PROJECT / "README.md").read_text().partition("The extras ")[2].partition(" is all of it")[0]
    assert set(re.findall(r"`(\w+)`", told)) | {"test"} == extras


@pytest.mark.parametrize("version", [f"{major}.{minor}" for major, minor in bootstrap.SUPPORTED])
def test_the_pins_are_all_that_is_needed_on_each_python(version: str) -> None:
    """They are installed without what they ask for."""
    environment = {"python_version": version, "python_full_version": f"{version}.0"}
    lines = [
        line for name in PINS for line in (PROJECT / name).read_text().splitlines() if line[:1] not in ("", "#", "-")
    ]
    pinned = {canonicalize_name(pin.name): pin for pin in map(Requirement, lines)}
    there = {name for name, pin in pinned.items() if pin.marker is None or pin.marker.evaluate(environment)}
    lacking: set[str] = set()
    asked: set[tuple[NormalizedName, str]] = {(name, "") for name in there}
    seen: set[tuple[NormalizedName, str]] = set()
    while asked - seen:
        name, extra = (asked - seen).pop()
        seen.add((name, extra))
        if pinned[name].marker and version != ".".join(map(str, sys.version_info[:2])):
            continue  # its metadata is not here
        for text in distribution(name).requires or ():
            need = Requirement(text)
            if need.marker and not need.marker.evaluate({**environment, "extra": extra}):
                continue
            needed = canonicalize_name(need.name)
            if needed not in there or not need.specifier.contains(_version(pinned[needed]), prereleases=True):
                lacking.add(f"{name} needs {need}")
            else:
                asked |= {(needed, more) for more in ("", *need.extras)}
    assert lacking == set()


def _version(pin: Requirement) -> str:
    [specifier] = pin.specifier
    return specifier.version


def test_the_pins_are_within_the_ranges_of_the_package(installed: PathDistribution) -> None:
    lines = (PROJECT / "requirements.txt").read_text().splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    of_tests = {"pytest", "pytest-timeout"}
    requirements = [Requirement(line) for line in installed.requires or ()]
    wrong = [
        str(requirement)
        for requirement in requirements
        if requirement.name not in of_tests
        and not requirement.specifier.contains(pins.get(canonicalize_name(requirement.name), "0"))
    ]
    assert wrong == []


@pytest.mark.usefixtures("airflow_home")
def test_every_entry_point_leads_somewhere(installed: PathDistribution) -> None:
    points: list[EntryPoint] = list(installed.entry_points)
    assert {(point.group, point.name) for point in points} == {
        ("console_scripts", "penstock"), ("apache_airflow_provider", "provider_info"), ("airflow.plugins", "penstock"),
    }  # fmt: skip
    for point in points:
        assert point.load()


@pytest.mark.usefixtures("airflow_home")
def test_airflow_accepts_what_the_provider_says_of_itself() -> None:
    from pkgutil import resolve_name

    from penstock.airflow.provider import get_provider_info

    info = get_provider_info()
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    integrations = {one["integration-name"] for one in info["integrations"]}
    for kind in ("operators", "triggers", "hooks"):
        for entry in info[kind]:
            assert entry["integration-name"] in integrations
            assert all(resolve_name(name) for name in entry["python-modules"])
    # Where Airflow looks for the example DAGs of a provider of this name.
    folder = files(info["package-name"]) / "example_dags"
    assert sorted(path.name for path in folder.iterdir() if path.name.endswith(".py")) == [
        "penstock_dags.py", "penstock_declarations.py",
    ]  # fmt: skip


@pytest.mark.usefixtures("airflow_home")
@pytest.mark.parametrize("installed", [True, False])
def test_the_folder_of_plugins_adds_no_second_one(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow reports a plugin that it finds by an entry point and in the folder as an error."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ["penstock"] if installed else [])
    [path] = (PROJECT / "plugins").glob("*.py")
    assert ("PenstockPlugin" in runpy.run_path(str(path))) is not installed


@pytest.mark.usefixtures("airflow_home")
def test_the_example_dags_are_for_projects_without_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import DAG

    project = tmp_path / "shop"
    new_project.create(project)
    monkeypatch.setenv("PENSTOCK_PROJECT", str(project))

    def dags() -> set[str]:
        clear_caches()
        unload_jobs()
        values = runpy.run_path(str(PROJECT / "penstock" / "example_dags" / "penstock_dags.py")).values()
        return {value.dag_id for value in values if isinstance(value, DAG)}

    try:
        assert dags() == set()
        shutil.rmtree(project / "dags")
        assert {"streams_orders", "capture_shops", "heartbeat", "reaper"} <= dags()
        shutil.rmtree(project / "jobs")
        shutil.rmtree(project / "sql")
        assert dags() == set(), "an Airflow without a project shows no error"
    finally:
        monkeypatch.undo()
        clear_caches()
        unload_jobs()
