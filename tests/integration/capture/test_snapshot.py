"""Snapshots of a real MariaDB, by several readers too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from penstock.capture.source.base import SourceError
from penstock.settings import settings
from tests.support.captures import Source, polled, until


@pytest.fixture
def two_readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table of a hundred rows counts as large."""
    monkeypatch.setattr("penstock.capture.snapshot.snapshot.SnapshotRun.LARGE", 100)
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 50)
    monkeypatch.setenv("PENSTOCK_SNAPSHOT_READERS", "2")
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def readers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.usefixtures("two_readers")
def test_a_snapshot_by_two_readers_goes_on_where_it_was_stopped(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name, gone) SELECT seq, seq % 10 = 0 FROM seq_1_to_2000")
    poller = source.poller()
    until(poller, lambda: poller.metrics.rows >= 600, "a part of the snapshot")
    begun = poller.position.snapshot
    assert begun is not None
    assert len(begun.ranges) == 2
    assert len(readers()) == 2
    source.pollers.pop().close()
    assert readers() == []
    # Of what was read and what was not, in both ranges.
    source.sql(f"UPDATE {source.name} SET name = 'other' WHERE id % 97 = 0")
    second = source.poller()
    until(second, lambda: second.position.snapshot is None, "the rest of the snapshot")
    assert second.metrics.read <= 1450
    polled(second)
    assert source.same()


@pytest.mark.long
@pytest.mark.usefixtures("two_readers")
def test_a_reader_that_dies_is_no_silent_end(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) SELECT seq FROM seq_1_to_2000")
    poller = source.poller()
    until(poller, lambda: poller.metrics.rows > 0, "the snapshot begins")
    readers()[0].kill()
    with pytest.raises(SourceError, match=r"a process that reads the snapshot .* ended.*PENSTOCK_SNAPSHOT_READERS"):
        until(poller, lambda: poller.position.snapshot is None, "the snapshot ends")
    source.pollers.pop().close()
    second = source.poller()
    until(second, lambda: second.position.snapshot is None, "the rest of the snapshot")
    polled(second)
    assert source.same()


def test_a_snapshot_is_not_led_astray_by_a_cursor_yet_to_come(source: Source) -> None:
    source.sql(
        f"INSERT INTO {source.name} (name, changed) VALUES ('early', '2037-01-01')",
        f"INSERT INTO {source.name} (name) VALUES ('now')",
    )
    poller = source.poller()
    polled(poller)
    assert poller.position.low.year < 2037
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('later')")
    polled(poller)
    assert source.same()
