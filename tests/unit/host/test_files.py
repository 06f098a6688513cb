"""Folders that are complete or not there."""

from __future__ import annotations

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.host.files import make_private, owner_only, publish, write_private

pytestmark = pytest.mark.processes


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "jars"
    with publish(target) as fresh:
        assert fresh
        (fresh / "a").write_text("a")
        assert not target.exists()
    assert (target / "a").read_text() == "a"
    with publish(target) as fresh:
        assert fresh is None


def test_a_failed_attempt_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "jars"

    def attempt() -> None:
        with publish(target) as fresh:
            assert fresh
            (fresh / "half").touch()
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        attempt()
    assert not [p for p in tmp_path.iterdir() if not p.name.endswith(".lock")]


def test_what_a_killed_attempt_left_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "jars"
    stale = tmp_path / ".jars.part-killed"
    stale.mkdir()
    with publish(target) as fresh:
        assert fresh
    assert target.is_dir()
    assert not stale.exists()


def test_a_damaged_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "jars"
    target.mkdir()
    (target / "old").touch()
    with publish(target, is_current=(target / "new").exists) as fresh:
        assert fresh
        (fresh / "new").touch()
    assert [p.name for p in target.iterdir()] == ["new"]


def test_of_many_at_once_one_does_the_work(tmp_path: Path) -> None:
    target, filled = tmp_path / "jars", []

    def attempt(number: int) -> None:
        with publish(target) as fresh:
            if fresh:
                filled.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, range(8)))
    assert len(filled) == 1


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_folder_that_others_could_read_is_closed_to_them_with_all_that_is_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("another's")
    outside.chmod(0o644)
    home = tmp_path / "home"
    (home / "airflow").mkdir(parents=True)
    home.chmod(0o755)
    (home / "airflow").chmod(0o755)
    for name, before in (("airflow.db", 0o644), ("script", 0o755), ("kept", 0o400)):
        (home / "airflow" / name).touch()
        (home / "airflow" / name).chmod(before)
    (home / "airflow" / "link").symlink_to(outside)
    (home / "heartbeat.secret").touch()
    make_private(home)
    after = {path.name: mode(path) for path in home.rglob("*") if not path.is_symlink()}
    assert after.pop("heartbeat.secret") == 0o600
    assert after == {"airflow": 0o700, "airflow.db": 0o600, "script": 0o700, "kept": 0o400}
    assert (mode(home), mode(outside)) == (0o700, 0o644)


def test_a_folder_of_other_things_too_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "letters-of-mine").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert {mode(path) for path in (tmp_path, *tmp_path.iterdir())} == {0o755}


def test_a_new_folder_is_its_owners(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "home")
    assert mode(tmp_path / "a" / "home") == 0o700


def test_blocks_of_two_threads_leave_the_mask_as_it_was() -> None:
    first, second = owner_only(), owner_only()
    before = os.umask(0o022)
    try:
        for step in (first.__enter__, second.__enter__):
            step()
        first.__exit__(None, None, None)
        assert os.umask(0o077) == 0o077
        second.__exit__(None, None, None)
        assert os.umask(before) == 0o022
    finally:
        os.umask(before)


def test_what_is_made_meanwhile_is_its_owners_whoever_makes_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with owner_only():
            (tmp_path / "own").touch()
            subprocess.run(["touch", tmp_path / "childs"], check=True)
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("own", "childs", "later")] == [0o600, 0o600, 0o644]


def test_a_private_file_is_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert (path.read_text(), mode(path), len(list(tmp_path.iterdir()))) == ("new", 0o600, 1)
