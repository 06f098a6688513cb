"""A time in the future as text, as SQLite has times: it hides no other change."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock.capture.polling.cursors import CursorTracker
from penstock.model.capture import parse
from tests.support.captures import polled, until
from tests.support.captures_in_memory import QUICK, Kept, poller_of

DECLARED = f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c {QUICK} AS SELECT * FROM t"
FORMS = {
    "2099-01-01 00:00:00": "datetime('now')",
    "2099-01-01T00:00:00.000Z": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    "2099-01-01": "date('now')",
}


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("future", FORMS)
def test_a_text_in_the_future_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, future: str, snapshot: bool
) -> None:
    monkeypatch.setattr("penstock.capture.polling.cursors.LEAST_OVERLAP", timedelta(0))
    monkeypatch.setenv("AIRFLOW_CONN_X", f"sqlite:///{tmp_path / 'x.db'}")
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c TEXT)")
        db.execute(f"INSERT INTO t VALUES (1, {FORMS[future]})")
        poller = poller_of(DECLARED, tmp_path)
        if not snapshot:
            polled(poller)
        db.execute("INSERT INTO t VALUES (2, ?)", (future,))
        until(poller, lambda: poller.metrics.polls > 0 and poller.position.low is not None, "the low watermark")
        polled(poller, 100)
        assert poller.position.low < "2099"
        db.execute(f"INSERT INTO t VALUES (3, {FORMS[future]})")
        polled(poller, 2)
        assert set(cast(Kept, poller.session.output).rows) == {b'{"id":%d}' % n for n in (1, 2, 3)}
        poller.close()


@pytest.mark.parametrize(
    ("sample", "limit"),
    [
        # The overlap and the widest zone later.
        ("2026-01-01 12:00:00", "2026-01-02 02:00:10"),
        ("2026-01-01T12:00Z", "2026-01-02T02:00:10"),
        ("2026-01-01T12:00:00.5+02:00", "2026-01-02T02:00:10"),
        ("2026-01-01", "2026-01-02"),
        ("20260101", None),
        ("2026-01-01 noon", None),
        ("b", None),
        (1_767_268_800, None),
    ],
)
def test_the_limit_of_a_text_has_its_form(sample: str | int, limit: str | None) -> None:
    text = "CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c OVERLAP 10 SECONDS AS SELECT * FROM t"
    now = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    assert CursorTracker(parse(text, Path("t.sql")), None).limit(sample, "None", now) == limit
