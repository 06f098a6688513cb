"""What only a PostgreSQL of one's own can show: its limits of sessions, subscriptions, crashes and standbys."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import make_url

from penstock.capture.pages import Query
from penstock.capture.postgres import PostgreSQL
from tests.postgres import Postgres
from tests.support import wait_until

DELAY = timedelta(seconds=5)


@pytest.fixture(scope="module")
def own() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@contextmanager
def opened(url: str) -> Iterator[PostgreSQL]:
    made = PostgreSQL(make_url(url).set(drivername="postgresql+psycopg"), DELAY)
    yield made
    made.close()


def execute(server: Postgres, *statements: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as c:
        for statement in statements:
            c.execute(statement)


def test_no_limit_of_the_servers_ends_a_session_between_two_polls(own: Postgres) -> None:
    names = ("idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout", "lock_timeout")
    execute(own, *(f"ALTER ROLE postgres SET {name} = '200ms'" for name in names))
    try:
        with opened(own.url) as database:
            pid = Query("SELECT pg_backend_pid()", {})
            first = database.value(pid)
            with psycopg.connect(own.url, autocommit=True) as other:
                time.sleep(0.8)
                with pytest.raises(psycopg.Error, match="idle-session timeout"):
                    other.execute("SELECT 1")
            assert database.value(pid) == first
            assert database.value(Query("SELECT 1 FROM pg_sleep(0.5)", {})) == 1
    finally:
        execute(own, *(f"ALTER ROLE postgres RESET {name}" for name in names))


def test_a_subscriber_has_a_delay_while_its_worker_is_away_too(own: Postgres) -> None:
    with opened(own.url) as database:
        assert database.can_tell == ""
        execute(
            own,
            "CREATE SUBSCRIPTION s CONNECTION 'host=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)",
        )
        try:
            assert "subscription" in database.can_tell
            moment = database.moment(database.clock())
            assert moment.oldest is not None
            assert moment.oldest <= moment.now - 5
        finally:
            execute(own, "DROP SUBSCRIPTION s")
        assert database.can_tell == ""


def test_a_crash_makes_another_server_if_commits_are_not_waited_for(own: Postgres) -> None:
    with opened(own.url) as database:
        sure = database.server()
        execute(own, "ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()")
        wait_until(lambda: database.server() != sure, every=0.5, what="the setting is known")
        unsure = database.server()
        database.close()
        assert unsure == database.server()
        own.kill()
        own.start()
        database.close()
        assert unsure != database.server() != sure
        execute(own, "ALTER SYSTEM RESET synchronous_commit", "SELECT pg_reload_conf()")
        database.close()
        wait_until(lambda: database.server() == sure, every=0.5, what="it is the one it was")


def test_a_standby_has_a_delay_and_is_another_server_once_promoted(own: Postgres) -> None:
    data = own.folder / "standby"
    with psycopg.connect(own.url, autocommit=True) as c:
        c.execute("SELECT pg_backup_start('standby', true)")
        # Files that go meanwhile are none that the copy needs.
        subprocess.run(["cp", "-a", str(own.folder / "data"), str(data)], check=False, capture_output=True)
        [label] = c.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchall()[0]
    (data / "postmaster.pid").unlink()
    with (data / "postgresql.auto.conf").open("a") as conf:
        conf.write(f"primary_conninfo = 'host=127.0.0.1 port={own.port} user=postgres'\n")
    for name, said in {"backup_label": label, "standby.signal": ""}.items():
        (data / name).write_text(said)
        if own._as:
            shutil.chown(data / name, "nobody")
    with Standby(own, data) as standby, opened(own.url) as first, opened(standby.url) as second:
        assert "standby" in second.can_tell
        moment = second.moment(second.clock())
        assert moment.oldest is not None
        assert moment.oldest <= moment.now - 5
        assert first.server() == second.server()
        execute(standby, "SELECT pg_promote()")
        wait_until(lambda: second.can_tell == "", every=0.5, what="it is promoted")
        wait_until(lambda: second.server() != first.server(), every=0.5, what="it is on another timeline")


class Standby(Postgres):
    """Another server beside one, over a copy of its data."""

    def __init__(self, of: Postgres, data: object) -> None:
        super().__init__()
        self.folder, self._as, self._log = of.folder, of._as, of._log
        self._command = [str(data) if one == of.folder / "data" else one for one in of._command]
        self._command[self._command.index(str(of.port))] = str(self.port)

    def __enter__(self) -> Standby:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._all():
            one.kill()
        self._process.wait(30)
