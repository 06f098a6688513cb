"""The file of a capture's index: what is damaged in it is found when it is met, and read again from the topic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.errors import PenstockError
from tests.support.captures_in_memory import FakeMessage, Unread
from tests.support.closing import closing_instances

KEYS = [b"%d" % n for n in range(20_000)]
PAGE_BYTES = 4096


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    with closing_instances(DigestIndex):
        yield


def opened(file: Path) -> DigestIndex:
    return Unread(file, "t", "id", "127.0.0.1:1")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """An index of which only the first pages are as they were written."""
    file = tmp_path / "t.db"
    index = opened(file)
    index._take([FakeMessage(key, b"{}") for key in KEYS])
    index.mark_in_sync()
    index.close()
    with file.open("r+b") as content:
        content.seek(4 * PAGE_BYTES)
        content.write(os.urandom(file.stat().st_size - 4 * PAGE_BYTES))
    return file


@pytest.mark.parametrize(
    "work",
    [
        lambda index: index.digests(KEYS),
        lambda index: index.unmatched_keys(),
        lambda index: index.removal_counts(),
        lambda index: index.mark_compared(KEYS, None),
        lambda index: index._take([FakeMessage(key, b"[]") for key in KEYS]),
    ],
)
def test_a_damaged_index_is_begun_again(damaged: Path, work: Callable[[DigestIndex], object]) -> None:
    index = opened(damaged)
    assert index.in_sync_at
    with pytest.raises(PenstockError, match=f"{damaged}.*made anew"):
        work(index)
    index.close()
    index = opened(damaged)
    work(index)
    assert (index.in_sync_at, index.digests([b"none"])) == (0, {})


def test_progress_that_is_no_json_is_damage(tmp_path: Path) -> None:
    index = opened(tmp_path / "t.db")
    index.db.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", [("offsets", "{")])
    index.close()
    with pytest.raises(PenstockError, match="made anew"):
        opened(tmp_path / "t.db")
    assert opened(tmp_path / "t.db").scan == 1


def test_a_file_that_is_none_of_sqlites_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "t.db").write_bytes(b"nothing" * 5000)
    assert opened(tmp_path / "t.db").digests(KEYS[:1]) == {}
