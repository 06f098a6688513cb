"""The bank of checkpoints has each kind of stream, is small, and says nothing of the machine that made it."""

from __future__ import annotations

import penstock
from tests.checkpoints.make import KINDS
from tests.support.saved_checkpoints import ARCHIVE, HISTORY, History, saved_checkpoints

SAVED = saved_checkpoints()
MAX_BYTES = 20_000


def test_the_newest_version_has_each_kind_and_this_one_is_in_the_bank() -> None:
    """`python -m tests.checkpoints.make` adds a version when it is released."""
    assert {saved.kind for saved in SAVED if saved.version == SAVED[-1].version} == KINDS.keys()
    assert SAVED[-1].version.startswith(f"{penstock.__version__}-spark-")
    assert {saved.kind for saved in SAVED} <= KINDS.keys()


def test_each_is_small_and_readable() -> None:
    for saved in SAVED:
        text = (saved.folder / HISTORY).read_text()
        assert History.read(text).text() == text
        assert len(text) + (saved.folder / ARCHIVE).stat().st_size < MAX_BYTES, saved
        assert {file.name for file in saved.folder.iterdir()} == {ARCHIVE, HISTORY}


def test_each_has_something_to_read_and_to_write() -> None:
    for saved in SAVED:
        assert saved.history.before.records, saved
        assert saved.history.after.records, saved
        assert saved.history.after.written, saved
        assert saved.history.marker.batch >= 0, saved
        assert saved.history.marker.checkpoint.startswith("bank:/"), saved
