"""A capture that is killed at any step of a poll or a snapshot of several pages: what it wrote is written once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock.capture.polling.poller import Poller
from tests.support.captures import polled, until
from tests.support.captures_in_memory import QUICK, Kept, killed, poller_of

DECLARED = f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c {QUICK} AS SELECT * FROM t"


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """An empty table, read in pages of five rows."""
    monkeypatch.setattr("penstock.capture.session.CaptureSession.PAGE", 5)
    monkeypatch.setattr("penstock.capture.polling.cursors.LEAST_OVERLAP", timedelta(0))
    monkeypatch.setenv("AIRFLOW_CONN_X", f"sqlite:///{tmp_path / 'x.db'}")
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as c:
        c.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT)")
        yield c


def filled(db: sqlite3.Connection, cursor: int) -> None:
    """Twenty rows more, all of one cursor."""
    db.executemany("INSERT INTO t (c) VALUES (?)", [(cursor,)] * 20)


def once(poller: Poller, rows: int) -> None:
    """Each row was written once, and stays so."""
    polled(poller, 3)
    kept = cast(Kept, poller.session.output)
    assert len(kept.rows) == rows
    assert set(kept.written.values()) == {1}


def test_a_poll(db: sqlite3.Connection, tmp_path: Path) -> None:
    filled(db, 1)
    poller = poller_of(DECLARED, tmp_path)
    until(poller, lambda: poller.position.low == 1, "the low watermark comes on")
    for number, step in enumerate((2, 5, 6, 7, 9, 12, 15), start=2):
        filled(db, number)
        poller = poller_of(DECLARED, tmp_path, killed(poller, step))
        once(poller, 20 * number)
    poller.close()


def test_a_snapshot(db: sqlite3.Connection, tmp_path: Path) -> None:
    filled(db, 1)
    poller = poller_of(DECLARED, tmp_path)
    for step in (3, 5, 6):
        poller = poller_of(DECLARED, tmp_path, killed(poller, step))
    once(poller, 20)
    poller.close()


def test_a_resumed_poll_does_not_claim_what_it_has_not_read(db: sqlite3.Connection, tmp_path: Path) -> None:
    filled(db, 1)
    poller = poller_of(DECLARED, tmp_path)
    polled(poller)
    assert poller.position.low == 1
    filled(db, 2)
    kept = killed(poller, 10)
    assert kept.position
    assert kept.position.catch_up
    # Committed meanwhile, before the row behind which the poll is resumed.
    db.execute("INSERT INTO t (id, c) VALUES (-1, 1)")
    poller = poller_of(DECLARED, tmp_path, kept)
    assert poller.step() == 0.0
    assert (poller.metrics.polls, poller.metrics.current) == (0, None)
    assert b'{"id":-1}' not in kept.rows
    poller.step()
    assert poller.metrics.polls == 1
    assert poller.metrics.current is not None
    assert b'{"id":-1}' in kept.rows
    poller.close()
