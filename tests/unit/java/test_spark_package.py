"""The packages of Spark that are installed have one version."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from penstock.devstack import doctor
from penstock.devstack.platform import Platform
from penstock.engine.session import open_session
from penstock.errors import HostError
from penstock.java import jars, spark_package
from penstock.settings import PROJECT


@pytest.fixture
def newer_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    shutil.copy(jars.pyspark_folder() / "version.py", tmp_path)
    monkeypatch.setattr(jars, "pyspark_folder", lambda: tmp_path)


def test_one_version_is_returned() -> None:
    assert f"pyspark=={spark_package.check()}\n" in (PROJECT / "requirements.txt").read_text()


@pytest.mark.usefixtures("newer_jars")
def test_a_session_and_a_start_of_the_platform_refuse_two_versions() -> None:
    for start in (lambda: open_session("app"), Platform()._check):
        with pytest.raises(HostError, match=r"have different versions; got: .*pyspark-client 4\.2\.0.*jars 4\.3\.0"):
            start()


@pytest.mark.processes
@pytest.mark.usefixtures("newer_jars")
def test_doctor_sees_two_versions() -> None:
    found = {check.name: check for check in doctor.examine(Platform())}
    assert found["Spark"].state == "fail"
    assert "jars 4.3.0" in found["Spark"].found
    assert "create the environment again" in found["Spark"].hint


def test_pip_can_install_only_one_version() -> None:
    """pip takes the newest release of each package that its requirement allows."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    required = {one.name: str(one.specifier) for one in map(Requirement, project["dependencies"])}
    assert required["pyspark"] == required["pyspark-client"] == f"=={spark_package.check()}"
