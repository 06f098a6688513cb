"""What other sessions of a database do to a capture: on the real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.capture.polling.poller import Poller
from penstock.capture.source import mysql
from penstock.capture.source.mysql import MySQL
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from tests.support.captures import Source, connect, opened, until
from tests.support.captures_in_memory import Unbrokered
from tests.support.wait import wait_until


def executed(connection: pymysql.Connection[Any], *statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def source(
    request: pytest.FixtureRequest, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Unbrokered]:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    made = Unbrokered(request.node.name[:60], mariadb, tmp_path)
    yield made
    for poller in made.pollers:
        poller.close()
    for connection in made.connections:
        connection.close()


def ended(source: Source, statement: str) -> None:
    """Execute what ends a prepared transaction, in a session that never has one of its own."""
    connection = connect(source.mariadb, autocommit=True)
    executed(connection, statement)
    connection.close()


def snapshotted(source: Source, more: str = "") -> Poller:
    poller = source.poller(more=more)
    until(poller, lambda: poller.position.snapshot is None, "a snapshot")
    return poller


def until_passed(source: Source, seconds: float, poller: Poller | None = None) -> None:
    """Wait so long by the database's clock, which is longer than the overlap, while somebody polls or nobody."""
    [(end,)] = source.rows("SELECT NOW(6) + INTERVAL %s SECOND", seconds)

    def passed() -> bool:
        if poller:
            poller.poll()
        return bool(source.rows("SELECT NOW(6)")[0][0] > end)

    wait_until(passed, every=0.1, what="the overlap has passed")


def low(poller: Poller, beyond: Any) -> Callable[[], bool]:
    """Whether a poll more leaves the low watermark beyond a cursor."""
    return lambda: poller.poll() >= 0 and poller.position.low is not None and poller.position.low > beyond


def test_prepared_transactions_whose_sessions_are_gone(source: Source) -> None:
    """MariaDB shows them all with number 0 for their session."""
    poller = snapshotted(source)
    names = ("first", "second")
    try:
        for name in names:
            connection = connect(source.mariadb, autocommit=True)
            executed(
                connection,
                f"XA START '{name}'", f"INSERT INTO {source.name} (name) VALUES ('{name}')",
                f"XA END '{name}'", f"XA PREPARE '{name}'",
            )  # fmt: skip
            connection.close()
            until_passed(source, 3, poller)
            source.sql(f"INSERT INTO {source.name} (name) VALUES ('between')")
        for name in reversed(names):
            ended(source, f"XA COMMIT '{name}'")
            poller.poll()
        assert source.same()
    finally:
        with suppress(pymysql.Error):  # it is committed
            for name in names:
                ended(source, f"XA ROLLBACK '{name}'")


def test_a_prepared_transaction_that_outlives_its_server_is_owed_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    server = MariaDB(home=tmp_path / "server", port=port)
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", server.url_of("demo"))
    with server:
        source = Unbrokered("outlives", server, tmp_path)
        poller = snapshotted(source, "HOLD 2 SECONDS DELAY 1 SECOND")
        connection = connect(server, autocommit=True)
        executed(connection, "XA START 'x'", "INSERT INTO outlives (name) VALUES ('x')", "XA END 'x'", "XA PREPARE 'x'")
        connection.close()
        wait_until(lambda: poller.poll() >= 0 and poller.position.skipped is not None, every=0.2, what="it is too long")
        source.sql("INSERT INTO outlives (name) VALUES ('later')")
        [(later,)] = source.rows("SELECT changed FROM outlives")
        wait_until(low(poller, later - timedelta(microseconds=1)), every=0.2, what="polls have passed it")
        poller.close()
    with MariaDB(home=tmp_path / "server", port=port):
        poller = source.poller(more="HOLD 2 SECONDS DELAY 1 SECOND")
        poller.poll()
        assert poller.position.skipped is not None
        ended(source, "XA COMMIT 'x'")
        wait_until(lambda: poller.poll() >= 0 and poller.position.skipped is None, every=0.2, what="it is read")
        assert source.same()
        poller.close()


def test_a_statement_that_waits_behind_a_poll_when_the_next_is_far_away(source: Source) -> None:
    """It has a cursor before the poll ends, touches its row an overlap behind that, and no poll saw it wait."""
    poller = snapshotted(source)
    holder, waiter = source.connect(), source.connect()
    executed(holder, "SELECT GET_LOCK('waits', 10)")
    statement = f"INSERT INTO {source.name} (name) SELECT 'slow' WHERE GET_LOCK('waits', 30) = 1"
    thread = threading.Thread(target=executed, args=(waiter, statement))
    running = "SELECT COUNT(*) FROM information_schema.processlist WHERE STATE = 'User lock'"

    def begin(at: str) -> None:
        if at == "before read" and not thread.ident:
            thread.start()
            wait_until(lambda: source.rows(running)[0][0] == 1, what="it waits")
            source.sql(f"INSERT INTO {source.name} (name) VALUES ('fast')")

    poller.session.hook = begin
    poller.poll()
    until_passed(source, 3.2)
    executed(holder, "SELECT RELEASE_LOCK('waits')")
    thread.join()
    poller.poll()
    waiter.commit()
    poller.poll()
    assert source.same()


def test_a_statement_that_waits_for_another_tables_metadata_lock(source: Source) -> None:
    """It has its cursor from when it began, and InnoDB knows of no transaction before it goes on."""
    other = "another_with_a_lock"
    source.sql(f"CREATE OR REPLACE TABLE {other} (name VARCHAR(40))", f"INSERT INTO {other} VALUES ('slow')")
    poller = snapshotted(source)
    holder, waiter = source.connect(), source.connect()
    # Else InnoDB shows a transaction of the holder, as old as this.
    holder.autocommit(True)
    executed(holder, f"LOCK TABLES {other} WRITE")
    statement = f"INSERT INTO {source.name} (name) SELECT name FROM {other}"
    thread = threading.Thread(target=executed, args=(waiter, statement))
    thread.start()
    waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE STATE = 'Waiting for table metadata lock'"
    wait_until(lambda: source.rows(waiting)[0][0] == 1, what="it waits")
    until_passed(source, 1.5, poller)
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('fast')")
    until_passed(source, 3, poller)
    assert len(source.topic()) == 1
    executed(holder, "UNLOCK TABLES")
    thread.join()
    waiter.commit()
    poller.poll()
    assert source.same()
    source.sql(f"DROP TABLE {other}")


@pytest.mark.parametrize("kind", ["TIMESTAMP", "DATETIME"])
def test_a_clock_set_back_while_nobody_polled_asks_for_a_reconcile(
    source: Source, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    now = f"{kind}(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"
    source.sql(f"ALTER TABLE {source.name} MODIFY changed {now}")
    with monkeypatch.context() as ahead:
        ahead.setattr(MySQL, "CLOCK", f"{MySQL.CLOCK} + 3600")
        poller = snapshotted(source)
        hour = "SET timestamp = UNIX_TIMESTAMP() + 3600"
        source.sql(hour, f"INSERT INTO {source.name} (name) VALUES ('ahead')")
        [(cursor,)] = source.rows(f"SELECT changed FROM {source.name}")
        wait_until(low(poller, cursor - timedelta(microseconds=1)), every=0.2, what="it is the low watermark")
        source.pollers.pop().close()
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('behind')")
    until_passed(source, 3)
    poller = source.poller()
    poller.poll()
    assert poller.position.reconcile.startswith("the database's clock was set back by ")
    source.pollers.pop().close()
    again = source.poller()
    again.session.position = replace(again.position, reconcile="")
    again.poll()
    assert not again.position.reconcile, "it is said once"


def test_an_old_list_of_transactions_is_not_taken_for_a_new_one(
    mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made within the same second, with our own transaction of the look before in it."""
    with opened(mariadb, timedelta(seconds=8)) as database, database._connected() as c:
        first = database._look.moment = database.read_transactions(c)
        assert first.now
        monkeypatch.setattr(mysql, "RETRIES", 0)
        assert database.read_transactions(c) is first
