"""The jars in the cache are whole, or they are fetched again."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import HostError
from penstock.host import process
from penstock.java import jar_sets, jars, runtime
from penstock.java.jar_sets import JarSet

pytestmark = pytest.mark.processes


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(home / "cache"))
    monkeypatch.setitem(jar_sets.SETS, "tiny", JarSet(1, ("org.x:a:1", "org.x:b:2")))
    return jars.folder("tiny")


def fill(place: Path) -> None:
    place.mkdir(parents=True)
    for name in ("a-1.jar", "b-2.jar"):
        (place / name).write_bytes(b"12345")
    (place / "sizes.json").write_text(json.dumps({"a-1.jar": 5, "b-2.jar": 5}))


def test_whole_jars_are_used_as_they_are(tiny: Path) -> None:
    fill(tiny)
    assert jars.missing("tiny") == []
    assert jars.ensure("tiny") == tiny


def test_what_is_cut_off_or_gone_is_missing(tiny: Path) -> None:
    assert jars.missing("tiny") == ["a-1.jar", "b-2.jar"]
    fill(tiny)
    (tiny / "a-1.jar").write_bytes(b"123")
    assert jars.missing("tiny") == ["a-1.jar"]
    (tiny / "b-2.jar").unlink()
    assert jars.missing("tiny") == ["a-1.jar", "b-2.jar"]


def test_a_failed_fetch_says_why_and_leaves_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "Server access error at url https://repo1.maven.org/x", "")

    runtime.find()
    monkeypatch.setattr(process, "run_captured", no_network)
    with pytest.raises(HostError, match=r"could not be fetched.*Server access error"):
        jars._fetch("tiny", jar_sets.SETS["tiny"], _made(tiny.with_name("work")), None)
    assert not tiny.exists()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_other_coordinates_are_another_folder(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jar_sets.SETS, "tiny", JarSet(1, ("org.x:a:2",)))
    assert jars.folder("tiny") != tiny


def test_two_files_of_one_module_are_one_dependency() -> None:
    """Of two dependencies on the same module Ivy takes one."""
    written = jars._ivy_file(JarSet(1, ("org.x:a:1", "org.x:a:jar:tests:1", "org.x:b:1")))
    assert written.count("<dependency ") == 2
    assert written.count('<artifact name="a"') == 2
    assert 'm:classifier="tests"' in written


def test_an_archive_is_unpacked_and_each_of_its_files_is_checked(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jar_sets.SETS, "tiny", JarSet(1, ("org.x:a:tar.gz:all:1",)))
    assert jars.missing("tiny") == ["a-1-all.tar.gz"]
    fill(tiny.with_name("content") / "lib")

    def packed(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
        target = Path(str(command[command.index("-retrieve") + 1])).parent
        assert (
            '<artifact name="a" type="tar.gz" ext="tar.gz" m:classifier="all"/>'
            in (target / "ivy" / "ivy.xml").read_text()
        )
        with tarfile.open(target / "a-1-all.tar.gz", "w:gz") as archive:
            archive.add(tiny.with_name("content") / "lib", "./lib")
        return subprocess.CompletedProcess([], 0, "", "")

    runtime.find()
    monkeypatch.setattr(process, "run_captured", packed)
    fetched = jars.ensure("tiny")
    assert sorted(str(path.relative_to(fetched)) for path in fetched.rglob("*.*")) == [
        "lib/a-1.jar", "lib/b-2.jar", "lib/sizes.json", "sizes.json",
    ]  # fmt: skip
    assert jars.missing("tiny") == []
    (fetched / "lib" / "a-1.jar").write_bytes(b"123")
    assert jars.missing("tiny") == ["lib/a-1.jar"]
