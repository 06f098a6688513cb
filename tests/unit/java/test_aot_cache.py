"""Where Java's cache for drivers lies, and what becomes of a training run that fails."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from penstock.errors import HostError
from penstock.host import process
from penstock.java import aot_cache, jars, runtime

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def jar(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with one jar; its cache is empty."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PENSTOCK_CACHE", str(home / "cache"))
    found = home / "pyspark" / "jars" / "spark-core_2.13-4.2.0.jar"
    found.parent.mkdir(parents=True)
    found.touch()
    monkeypatch.setattr(jars, "pyspark_folder", lambda: home / "pyspark")
    return found


def trained(monkeypatch: pytest.MonkeyPatch, code: int = 0, said: str = "") -> list[Sequence[str | Path]]:
    """Training runs that do nothing but leave a file, if they end well; returns what was called."""
    calls: list[Sequence[str | Path]] = []

    def run(command: Sequence[str | Path], *, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert env["PENSTOCK_SPARK_MASTER"].startswith("local"), "it would wait for a cluster"
        calls.append(command)
        if not code:
            Path(command[-1]).write_text("cache")
        return subprocess.CompletedProcess(command, code, "", said)

    runtime.find()
    monkeypatch.setattr(process, "run_captured", run)
    return calls


def test_it_is_made_once_and_named_to_every_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = trained(monkeypatch)
    assert (aot_cache.missing(), aot_cache.options()) == (True, [])
    aot_cache.ensure()
    aot_cache.ensure()
    assert len(calls) == 1
    assert not aot_cache.missing()
    assert aot_cache.options() == [f"-XX:AOTCache={aot_cache.folder() / aot_cache.FILE}", aot_cache.QUIET]


def test_an_environment_made_anew_has_another_and_the_old_one_goes(monkeypatch: pytest.MonkeyPatch, jar: Path) -> None:
    trained(monkeypatch)
    aot_cache.ensure()
    old = aot_cache.folder()
    elsewhere, gone = old.parent / "elsewhere", old.parent / "gone"
    for folder, owner in ((elsewhere, jar.parent), (gone, jar.parent / "no-such-folder")):
        folder.mkdir()
        (folder / aot_cache.OWNER).write_text(str(owner))
    jar.unlink()
    jar.with_name("spark-core_2.13-4.3.0.jar").touch()
    assert aot_cache.missing()
    aot_cache.ensure()
    assert {p.name for p in old.parent.iterdir() if p.is_dir()} == {aot_cache.folder().name, "elsewhere"}


def test_a_training_run_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trained(monkeypatch, 1, "Traceback\nOSError: No space left on device")
    with pytest.raises(HostError, match="No space left on device"):
        aot_cache.ensure()
    assert aot_cache.missing()
    assert not [p for p in aot_cache.folder().parent.iterdir() if p.is_dir()]


def test_an_older_java_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    runtime.find.cache_clear()
    calls = trained(monkeypatch)
    aot_cache.ensure()
    assert (aot_cache.missing(), aot_cache.options(), calls) == (False, [], [])
