"""What only a PostgreSQL of one's own can show: its limits of sessions, subscriptions, crashes and standbys."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import orjson
import psycopg
import pytest
from sqlalchemy import make_url

from penstock.capture.checks.ordering import PagingVerifier
from penstock.capture.checks.paging_checks import PagingError
from penstock.capture.output.page_records import records
from penstock.capture.polling.keyset_queries import PageQueries, SourceQuery
from penstock.capture.source.base import SourceError
from penstock.capture.source.postgres import PostgreSQL
from penstock.model.capture import Capture, parse
from tests.support.postgres import Postgres
from tests.support.wait import wait_until

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
            pid = SourceQuery("SELECT pg_backend_pid()", {})
            first = database.value(pid)
            with psycopg.connect(own.url, autocommit=True) as other:
                time.sleep(0.8)
                with pytest.raises(psycopg.Error, match="idle-session timeout"):
                    other.execute("SELECT 1")
            assert database.value(pid) == first
            assert database.value(SourceQuery("SELECT 1 FROM pg_sleep(0.5)", {})) == 1
    finally:
        execute(own, *(f"ALTER ROLE postgres RESET {name}" for name in names))


def test_a_subscriber_has_a_delay_while_its_worker_is_away_too(own: Postgres) -> None:
    with opened(own.url) as database:
        assert database.visibility_problem == ""
        execute(
            own,
            "CREATE SUBSCRIPTION s CONNECTION 'host=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)",
        )
        try:
            assert "subscription" in database.visibility_problem
            moment = database.transactions(database.clock())
            assert moment.oldest is not None
            assert moment.oldest <= moment.now - 5
        finally:
            execute(own, "DROP SUBSCRIPTION s")
        assert database.visibility_problem == ""


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
        assert "standby" in second.visibility_problem
        moment = second.transactions(second.clock())
        assert moment.oldest is not None
        assert moment.oldest <= moment.now - 5
        assert first.server() == second.server()
        execute(standby, "SELECT pg_promote()")
        wait_until(lambda: second.visibility_problem == "", every=0.5, what="it is promoted")
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


def of(select: str, key: str = "id") -> Capture:
    return parse(f"CAPTURE INTO t FROM postgres x KEY {key} CURSOR id AS {select}", Path("t.sql"))


# Encoding, its bytes of "naïve €" or the like, bytes that are none.
ENCODINGS = [
    ("SQL_ASCII", "naïve", b"na\xc3\xafve", b"x\xff"),
    ("WIN1252", "naïve €", b"na\xefve \x80", b"x\x81"),
    ("WIN1251", "да", b"\xe4\xe0", b"x\x98"),
]


@pytest.mark.parametrize(("encoding", "text", "bytes_of", "none"), ENCODINGS, ids=[one[0] for one in ENCODINGS])
def test_bytes_that_are_no_character_leave_the_other_rows(
    own: Postgres, encoding: str, text: str, bytes_of: bytes, none: bytes
) -> None:
    name = f"of_{encoding.lower()}"
    execute(own, f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    url = own.url.removesuffix("/postgres") + f"/{name}"
    with psycopg.connect(url, autocommit=True) as c:
        c.execute("SET client_encoding = SQL_ASCII")
        c.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, a VARCHAR(9)[], k TEXT UNIQUE NOT NULL)")
        for number, v in enumerate((bytes_of, none, b"after")):
            c.execute(b"INSERT INTO t VALUES (%d, '%s', '{%s}', '%s')" % (number, v, v, v))
    with opened(url) as database:
        declared = of("SELECT id, v, a FROM t")
        proof = PagingVerifier(declared, database)
        proof.verify()
        for most in (None, 1000):
            made = records(declared, database.page(PageQueries(declared).by_key(None, 9), most))
            assert list(made.unreadable) == [b'{"id":1}']
            assert "convert_to(v, getdatabaseencoding())" in made.unreadable[b'{"id":1}']
            values = [orjson.loads(value) for value in made.values if value]
            assert (values[0], values[2]) == (
                {"id": 0, "v": text, "a": [text]},
                {"id": 2, "v": "after", "a": ["after"]},
            )
        # A key in that encoding goes back as it came, one that is none of it is refused.
        by = of("SELECT id, k FROM t", "k")
        assert [row[0] for row in database.page(PageQueries(by).rows_with_keys([(text,)])).rows] == [0]
        with pytest.raises(PagingError, match="met a value of k that has no place in its order"):
            PagingVerifier(by, database).verify()
        if encoding != "SQL_ASCII":
            with pytest.raises(SourceError) as e:
                database.page(PageQueries(by).rows_with_keys([("漢",)]))
            assert e.value.refused
        as_bytes = of("SELECT id, convert_to(v, getdatabaseencoding()) AS v FROM t")
        rows = database.page(PageQueries(as_bytes).by_key(None, 9)).rows
        assert [bytes(row[1]) for row in rows] == [bytes_of, none, b"after"]
    execute(own, f"DROP DATABASE {name}")
