"""What a comparison removes, and what it asks first: rows that are gone from the table, keys that no row can have."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from penstock.capture.output.position import RECONCILES_KEPT
from penstock.capture.polling.poller import Poller
from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.kafka.limits import ProducerRecord
from tests.support.captures import polled, until
from tests.support.captures_in_memory import QUICK, Kept, killed, poller_of

DECLARED = f"CAPTURE INTO t FROM sqlite x KEY (id) CURSOR c {QUICK} {{more}} AS SELECT * FROM {{table}}"


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """A table of 50 rows."""
    monkeypatch.setattr("penstock.capture.polling.cursors.LEAST_OVERLAP", timedelta(0))
    monkeypatch.setenv("AIRFLOW_CONN_X", f"sqlite:///{tmp_path / 'x.db'}")
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as c:
        c.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT)")
        c.executemany("INSERT INTO t VALUES (?, 1)", [(n,) for n in range(50)])
        yield c


def opened(folder: Path, kept: Kept | None = None, more: str = "", table: str = "t") -> Poller:
    made = poller_of(DECLARED.format(more=more, table=table), folder, kept)
    polled(made)
    return made


def topic(poller: Poller) -> set[bytes]:
    return set(cast(Kept, poller.session.output).rows)


def compared(poller: Poller, removed: int) -> None:
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert (poller.position.last_reconcile.extra, poller.pending_decision) == (removed, "")


def asked(poller: Poller) -> str:
    if not poller.position.reconcile:
        poller.compare("asked for")
    until(poller, lambda: bool(poller.pending_decision), "it asks")
    assert poller.pending_since
    return poller.pending_decision


def test_many_rows_that_are_gone_at_once_are_asked_for(db: sqlite3.Connection, tmp_path: Path) -> None:
    poller = opened(tmp_path)
    db.execute("DELETE FROM t WHERE id < 10")
    compared(poller, 10)
    db.execute("DELETE FROM t WHERE id < 21")
    assert "11 of 40 rows of the topic are no longer in the table" in asked(poller)
    assert len(topic(poller)) == 40
    poller.close()
    poller = opened(tmp_path, cast(Kept, poller.session.output))
    asked(poller)
    # What comes back meanwhile stays, and what is written meanwhile too.
    db.execute("INSERT INTO t VALUES (20, 1), (100, 2)")
    polled(poller)
    poller.continue_pending()
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert poller.position.last_reconcile.extra == 10
    assert topic(poller) == {b'{"id":%d}' % n for n in (*range(20, 50), 100)}
    poller.close()


def test_a_declaration_may_allow_more(db: sqlite3.Connection, tmp_path: Path) -> None:
    poller = opened(tmp_path, more="RECONCILE EVERY 1 DAY REMOVES 60 PERCENT")
    db.execute("DELETE FROM t WHERE id < 30")
    compared(poller, 30)
    poller.close()
    poller = opened(tmp_path, cast(Kept, poller.session.output), "RECONCILE EVERY 1 DAY REMOVES 100 PERCENT")
    db.execute("DELETE FROM t")
    compared(poller, 20)
    poller.close()


@pytest.mark.parametrize("rows", [2, 50])
def test_an_empty_table_is_asked_for_however_few_its_rows_were(
    db: sqlite3.Connection, tmp_path: Path, rows: int
) -> None:
    db.execute("DELETE FROM t WHERE id >= ?", (rows,))
    poller = opened(tmp_path, more="RECONCILE EVERY 1 DAY REMOVES 99 PERCENT")
    db.execute("ALTER TABLE t RENAME TO other")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT)")
    poller.session.next_table_check = 0.0
    assert f"{rows} of {rows} rows" in asked(poller)
    # It is mended, and looked at again.
    db.execute("INSERT INTO t SELECT * FROM other")
    compared(poller, 0)
    assert len(topic(poller)) == rows
    poller.close()


def test_a_view_with_another_where_is_asked_for(db: sqlite3.Connection, tmp_path: Path) -> None:
    db.execute("CREATE VIEW v AS SELECT * FROM t WHERE id < 100")
    poller = opened(tmp_path, table="v")
    db.execute("DROP VIEW v")
    db.execute("CREATE VIEW v AS SELECT * FROM t WHERE id < 30")
    poller.session.next_table_check = 0.0
    assert "20 of 50 rows" in asked(poller)
    assert len(topic(poller)) == 50
    poller.close()


def test_keys_that_no_row_can_have_are_taken_out_at_once(db: sqlite3.Connection, tmp_path: Path) -> None:
    poller = opened(tmp_path)
    foreign = [
        b"junk", b"[" * 100_000, b'{"id":9223372036854775808}', b'{"id":%s}' % (b"9" * 140_000), b'{"id":"Infinity"}',
        b'{"id":"\\ud800"}', b'{"id":null}', b'{"id":[1]}', *(b'{"id":"%d"}' % n for n in range(50)),
    ]  # fmt: skip
    cast(Kept, poller.session.output).send(*foreign)
    db.execute("DELETE FROM t WHERE id = 7")
    compared(poller, len(foreign) + 1)
    assert topic(poller) == {b'{"id":%d}' % n for n in range(50) if n != 7}
    poller.close()


@pytest.mark.parametrize("again", [False, True])
def test_what_is_repaired_counts_once_whenever_it_is_killed(
    db: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Also if the reconcile is started anew by the next process."""
    monkeypatch.setattr(DigestIndex, "CHUNK", 20)
    poller = opened(tmp_path)
    db.execute("INSERT INTO t VALUES (100, 5)")
    until(poller, lambda: poller.position.low == 5, "the low watermark comes on")
    kept = cast(Kept, poller.session.output)
    for step in range(30):
        kept.send(b'{"id":3}', b'{"id":44}', b'{"id":1000}', b"junk")
        kept.commit([ProducerRecord("t", b'{"id":30}', None)], poller.position.value())
        earlier = [drift for drift in poller.position.reconciles if drift.repaired]
        poller.compare("asked for")
        poller = opened(tmp_path, killed(poller, step))
        if again and poller.position.reconcile:
            poller.compare("asked for")
        until(poller, lambda p=poller: not p.position.reconcile, "all is compared")  # type: ignore[misc]
        found = poller.position.last_reconcile
        assert (found.missing, found.differing, found.extra) == (1, 2, 2), step
        assert list(poller.position.reconciles[:-1]) == earlier[-RECONCILES_KEPT:]
        assert topic(poller) == {b'{"id":%d}' % n for n in (*range(50), 100)}
    poller.close()


def test_what_was_asked_for_before_the_table_was_altered_is_not_allowed_after_it(
    db: sqlite3.Connection, tmp_path: Path
) -> None:
    db.execute("CREATE VIEW v AS SELECT * FROM t")
    poller = opened(tmp_path, table="v")
    db.execute("DELETE FROM t WHERE id < 11")
    asked(poller)
    db.execute("DROP VIEW v")
    db.execute("CREATE VIEW v AS SELECT * FROM t WHERE id = 20")
    poller.session.next_table_check, poller._next_chunk = 0.0, float("inf")
    poller.step()
    assert poller.pending_decision == ""
    poller.continue_pending()
    poller._next_chunk = 0.0
    assert "49 of 50 rows" in asked(poller)
    assert len(topic(poller)) == 50
    poller.close()


def test_of_two_decisions_only_the_one_that_is_shown_is_confirmed(db: sqlite3.Connection, tmp_path: Path) -> None:
    poller = opened(tmp_path)
    db.execute("DELETE FROM t WHERE id < 11")
    asked(poller)
    poller._cursors.blind = True
    assert "not all transactions" in poller.pending_decision
    poller.continue_pending()
    assert "11 of 50 rows" in poller.pending_decision
    polled(poller, 2)
    assert len(topic(poller)) == 50
    poller.continue_pending()
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert len(topic(poller)) == 39
    poller.close()


@pytest.mark.parametrize("highest", [None, 5, 2000])
def test_polls_of_a_table_in_place_of_another_see_its_changes(
    db: sqlite3.Connection, tmp_path: Path, highest: int | None
) -> None:
    poller = opened(tmp_path)
    db.execute("UPDATE t SET c = 1000")
    until(poller, lambda: poller.position.low == 1000, "the low watermark comes on")
    db.execute("UPDATE t SET c = 3000 WHERE id = 7")
    polled(poller)
    db.execute("DROP TABLE t")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT, n INT)")
    if highest:
        db.execute("INSERT INTO t VALUES (0, ?, 0)", (highest,))
    poller.session.next_table_check, poller._next_poll = 0.0, float("inf")
    poller.step()
    assert poller.position.low == (1000 if highest == 2000 else None)
    poller._next_poll = 0.0
    asked(poller)
    poller.continue_pending()
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    # Meanwhile the low watermark comes on, if it can.
    polled(poller, 100)
    db.execute("INSERT INTO t VALUES (1, ?, 0)", ((highest or 4) + 1,))
    polled(poller, 3)
    assert topic(poller) == {b'{"id":1}'} | ({b'{"id":0}'} if highest else set())
    poller.close()
