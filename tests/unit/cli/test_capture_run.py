"""`penstock capture run` and the decisions that a capture waits for."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from penstock.cli import captures
from penstock.errors import PenstockError
from tests.support.captures import until
from tests.support.captures_in_memory import QUICK, Kept, poller_of

DECLARED = f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c {QUICK} AS SELECT * FROM v"


@pytest.mark.parametrize("altered", [False, True])
def test_it_confirms_only_what_was_pending_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, altered: bool
) -> None:
    monkeypatch.setattr("penstock.capture.polling.cursors.LEAST_OVERLAP", timedelta(0))
    monkeypatch.setattr("penstock.capture.reconcile.compare.DECISION_POLL_SECONDS", 0.05)
    monkeypatch.setattr(captures, "connect", MagicMock())
    monkeypatch.setenv("AIRFLOW_CONN_X", f"sqlite:///{tmp_path / 'x.db'}")
    kept = Kept()
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT)")
        db.executemany("INSERT INTO t VALUES (?, 1)", [(n,) for n in range(50)])
        db.execute("CREATE VIEW v AS SELECT * FROM t")
        poller = poller_of(DECLARED, tmp_path, kept)
        until(poller, lambda: poller.metrics.polls > 0, "it polls")
        db.execute("DELETE FROM t WHERE id < 11")
        poller.compare("asked for")
        until(poller, lambda: bool(poller.pending_decision), "it asks")
        poller.close()
        if altered:
            db.execute("DROP VIEW v")
            db.execute("CREATE VIEW v AS SELECT * FROM t WHERE id = 20")
        poller = poller_of(DECLARED, tmp_path, kept)
        if altered:
            with pytest.raises(PenstockError, match="waits for a decision; got: 49 of 50 rows"):
                captures._run(poller, "test", once=True, confirm=True)
        else:
            captures._run(poller, "test", once=True, confirm=True)
        poller.close()
    assert len(kept.rows) == (50 if altered else 39)
