"""The beginning of a snapshot, where the database does not tell how large the table is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock.capture.polling.keyset_queries import SourceQuery
from penstock.capture.source.base import SourceError, SourcePage
from penstock.capture.source.sqlite import SQLite
from tests.support.captures import polled
from tests.support.captures_in_memory import QUICK, Kept, poller_of

DECLARED = f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c {QUICK} AS SELECT * FROM t"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("slow", "total"), [("SELECT COUNT(*) FROM (", 0), ("OFFSET", 50)])
def test_a_table_that_is_not_counted_in_time_is_read_in_one_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str, total: int
) -> None:
    monkeypatch.setattr("penstock.capture.polling.cursors.LEAST_OVERLAP", timedelta(0))
    monkeypatch.setattr("penstock.capture.snapshot.snapshot.SnapshotRun.LARGE", 10)
    monkeypatch.setenv("PENSTOCK_SNAPSHOT_READERS", "2")
    monkeypatch.setenv("AIRFLOW_CONN_X", f"sqlite:///{tmp_path / 'x.db'}")
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT)")
        db.executemany("INSERT INTO t VALUES (?, 1)", [(n,) for n in range(50)])
    poller, read = poller_of(DECLARED, tmp_path), SQLite.page

    def page(database: SQLite, query: SourceQuery, most: int | None = None) -> SourcePage:
        if slow in query.sql:
            error = SourceError("a query of a capture failed", got="it took too long", hint="none")
            error.timed_out = True
            raise error
        return read(database, query, most)

    monkeypatch.setattr(SQLite, "page", page)
    polled(poller)
    assert poller.metrics.total == total
    assert len(cast(Kept, poller.session.output).rows) == 50
    poller.close()
