"""Transactions of a PostgreSQL that are hard to see, and a poller that reads its table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psycopg
import pytest

from penstock.capture.polling.poller import Poller
from penstock.capture.source.base import SourceError
from tests.support.captures import until
from tests.support.captures_in_memory import Kept, poller_of
from tests.support.postgres import Postgres
from tests.support.wait import wait_until

DECLARED = """CAPTURE INTO t FROM postgres pg KEY (id) CURSOR at EVERY 100 MILLISECONDS OVERLAP 1 SECOND {more}
AS SELECT id, at FROM hard"""


@pytest.fixture
def session(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A session of a superuser, and the connection `pg` of a login that may see what others do."""
    monkeypatch.setenv("AIRFLOW_CONN_PG", postgres.url.replace("postgres@", "looker@"))
    with psycopg.connect(postgres.url, autocommit=True) as c:
        for statement in (
            "DROP TABLE IF EXISTS hard",
            "DROP ROLE IF EXISTS looker",
            "CREATE TABLE hard (id int PRIMARY KEY, at timestamptz NOT NULL)",
            "CREATE ROLE looker LOGIN",
            "GRANT pg_read_all_stats, pg_read_all_data TO looker",
        ):
            c.execute(statement)
        yield c


@pytest.fixture
def poller(session: psycopg.Connection, tmp_path: Path) -> Iterator[Poller]:  # noqa: ARG001
    made = poller_of(DECLARED.format(more="HOLD 1 MINUTE"), tmp_path)
    until(made, lambda: made.position.snapshot is None, "a snapshot")
    yield made
    made.close()


def all_read(session: psycopg.Connection, poller: Poller) -> bool:
    [rows] = session.execute("SELECT count(*) FROM hard").fetchone() or ()
    return bool(len(poller.session.output.rows) == rows)  # type: ignore[attr-defined]


def test_a_statement_that_commits_inside_counts_from_its_own_beginning(
    postgres: Postgres, session: psycopg.Connection, poller: Poller
) -> None:
    """`xact_start` moves with each COMMIT, and `statement_timestamp()` does not."""
    block = """DO $$ BEGIN FOR n IN 1..12 LOOP
        INSERT INTO hard VALUES (n, statement_timestamp()); PERFORM pg_sleep(0.3); COMMIT; END LOOP; END $$"""

    def run() -> None:
        with psycopg.connect(postgres.url, autocommit=True) as c:
            c.execute(block)

    thread = threading.Thread(target=run)
    thread.start()
    number = 100
    while thread.is_alive():
        number += 1
        session.execute("INSERT INTO hard VALUES (%s, clock_timestamp())", (number,))
        poller.poll()
        thread.join(0.1)
    poller.poll()
    assert all_read(session, poller)


def test_a_right_that_is_taken_away_leaves_the_low_mark_where_it_is(
    postgres: Postgres, session: psycopg.Connection, tmp_path: Path
) -> None:
    more = "DELAY 1 SECOND HOLD 1 MINUTE"
    poller = poller_of(DECLARED.format(more=more), tmp_path)
    until(poller, lambda: poller.position.snapshot is None, "a snapshot")
    with psycopg.connect(postgres.url) as slow:
        slow.execute("SELECT 1")
        poller.poll()
        session.execute("REVOKE pg_read_all_stats FROM looker")
        slow.execute("INSERT INTO hard VALUES (1, clock_timestamp())")
        session.execute("INSERT INTO hard VALUES (2, clock_timestamp() + '1 microsecond')")
        [end] = session.execute("SELECT extract(epoch FROM clock_timestamp() + '3 seconds')").fetchone() or ()
        database = poller.session.database
        wait_until(lambda: poller.poll() >= 0 and database.clock() > end, every=0.1, what="the overlap passes")
        assert "pg_read_all_stats" in poller.pending_decision
        assert len(poller.session.output.rows) == 1, "what can be seen is delivered"  # type: ignore[attr-defined]
        # Nor does another process forget that it saw more.
        poller.close()
        poller = poller_of(DECLARED.format(more=more), tmp_path, cast(Kept, poller.session.output))
        database = poller.session.database
        wait_until(lambda: poller.poll() >= 0 and database.clock() > end + 3, every=0.1, what="it passes again")
        assert "pg_read_all_stats" in poller.pending_decision
        slow.commit()
    poller.poll()
    assert all_read(session, poller)
    session.execute("GRANT pg_read_all_stats TO looker")
    wait_until(lambda: poller.poll() >= 0 and not poller.pending_decision, every=0.3, what="it sees all again")
    session.execute("REVOKE pg_read_all_stats FROM looker")
    wait_until(lambda: poller.poll() >= 0 and bool(poller.pending_decision), every=0.3, what="it is blind again")
    poller.continue_pending()
    poller.poll()
    assert not poller.pending_decision, "DELAY is taken in its place"
    poller.close()


def test_row_security_that_is_switched_on_hides_no_row_in_silence(session: psycopg.Connection, poller: Poller) -> None:
    session.execute("INSERT INTO hard VALUES (1, clock_timestamp()), (2, clock_timestamp())")
    poller.poll()
    session.execute("ALTER TABLE hard ENABLE ROW LEVEL SECURITY")
    with pytest.raises(SourceError, match=r"row-level security policy for table .*; hint: .*BYPASSRLS"):
        poller.poll()
    session.execute("ALTER TABLE hard DISABLE ROW LEVEL SECURITY")
    poller.poll()
    assert all_read(session, poller)
