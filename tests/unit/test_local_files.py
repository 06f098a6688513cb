"""Folders that are complete or not there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.machine.files import publish


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
