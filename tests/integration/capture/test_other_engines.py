"""Captures of PostgreSQL and SQLite, from snapshot to reconcile: the topic's last value per key is the table."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import orjson
import psycopg
import pytest

from penstock.capture import factory
from penstock.capture.polling.poller import Poller
from penstock.capture.source.base import SourceError
from penstock.devstack.servers.kafka import Broker
from penstock.model.capture import parse
from penstock.testing import Record, read, send, table
from tests.support.captures import until
from tests.support.postgres import Postgres

DECLARED = """CAPTURE INTO {topic} PARTITIONS 2 FROM {engine} demo KEY (region, id) CURSOR changed DELETED WHEN (gone)
EVERY 100 MILLISECONDS OVERLAP 1 SECOND {more} AS SELECT region, id, name, gone, changed FROM {table}"""


def topic(broker: Broker, name: str) -> dict[tuple[str, int], str]:
    """Names by key, as the topic has them in the end."""
    rows = ((orjson.loads(key), orjson.loads(value)) for key, value in table(read(broker.bootstrap, name)).items())
    return {(key["region"], key["id"]): row["name"] for key, row in rows}


def work(poller: Poller, polls: int = 1) -> None:
    wanted = poller.metrics.polls + polls
    until(poller, lambda: poller.metrics.polls >= wanted and not poller.position.reconcile, "polls")


def test_postgresql(postgres: Postgres, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", postgres.url)
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS people")
        c.execute(
            "CREATE TABLE people (region text, id bigint, name text, gone boolean NOT NULL DEFAULT false,"
            " changed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (region, id))"
        )
        c.execute("CREATE INDEX ON people (changed, region, id)")
        c.execute(
            "INSERT INTO people SELECT CASE i % 2 WHEN 0 THEN 'eu' ELSE 'US' END, i, 'n' || i"
            " FROM generate_series(1, 50) i"
        )
        text = DECLARED.format(topic="people-pg", engine="postgres", table="people", more="")
        poller = factory.open_poller(parse(text, home / "people-pg.sql"), broker.bootstrap)
        work(poller)

        def table() -> dict[tuple[str, int], str]:
            return {(r, i): n for r, i, n in c.execute("SELECT region, id, name FROM people WHERE NOT gone").fetchall()}

        assert topic(broker, "people-pg") == table()
        with psycopg.connect(postgres.url) as slow:
            # Its now() is that of its beginning, and it commits behind all that follow.
            slow.execute("UPDATE people SET name = 'slow', changed = now() WHERE id = 7")
            for i in range(20):
                c.execute("UPDATE people SET name = %s, changed = now() WHERE id = %s", (f"fast {i}", 10 + i))
                work(poller)
                time.sleep(0.1)
            slow.commit()
        with psycopg.connect(postgres.url) as gone:
            gone.execute("UPDATE people SET name = 'prepared', changed = now() WHERE id = 8")
            gone.execute("PREPARE TRANSACTION 'people'")
        for i in range(20):
            c.execute("UPDATE people SET name = %s, changed = now() WHERE id = %s", (f"faster {i}", 10 + i))
            work(poller)
            time.sleep(0.1)
        c.execute("COMMIT PREPARED 'people'")
        c.execute("UPDATE people SET gone = true, changed = now() WHERE id = 20")
        work(poller)
        assert topic(broker, "people-pg") == table()
        c.execute("DELETE FROM people WHERE id = 30")
        c.execute("UPDATE people SET id = 1000 WHERE id = 31")
        poller.compare("asked for")
        work(poller)
        assert topic(broker, "people-pg") == table()
        poller.close()


def test_a_key_of_postgresql_that_is_given_another_type(
    postgres: Postgres, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old values are no parameters any more: a comparison that goes on behind one would fail for ever."""
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", postgres.url)
    monkeypatch.setattr("penstock.capture.reconcile.digest_index.DigestIndex.CHUNK", 7)
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS retyped")
        c.execute("CREATE TABLE retyped (id int PRIMARY KEY, changed timestamp NOT NULL)")
        c.execute("INSERT INTO retyped SELECT i, '2020-01-01' FROM generate_series(1, 30) AS i")
        text = "CAPTURE INTO retyped FROM postgres demo KEY (id) CURSOR changed AS SELECT * FROM retyped"
        capture = parse(text, home / "retyped.sql")
        poller = factory.open_poller(capture, broker.bootstrap)
        work(poller)
        poller.compare("asked for")
        until(poller, lambda: poller.session.index.behind is not None, "some are compared")
        c.execute("ALTER TABLE retyped ALTER COLUMN id TYPE text, ALTER COLUMN changed TYPE timestamptz")
        with pytest.raises(SourceError):
            work(poller)
        poller.close()
        again = factory.open_poller(capture, broker.bootstrap)
        c.execute("INSERT INTO retyped VALUES ('new', '2019-01-01')")
        work(again)
        again.close()
        keys = {orjson.loads(key)["id"] for key in table(read(broker.bootstrap, "retyped"))}
        assert keys == {"new", *map(str, range(1, 31))}


def test_a_key_in_the_topic_that_the_type_does_not_know(
    postgres: Postgres, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL refuses to compare an enum with what is none of it, e.g. a label that was renamed."""
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", postgres.url)
    with psycopg.connect(postgres.url, autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS known")
        c.execute('DROP TYPE IF EXISTS "Region"')
        c.execute("CREATE TYPE \"Region\" AS ENUM ('eu', 'us')")
        c.execute('CREATE TABLE known (region "Region", at inet, changed int NOT NULL, PRIMARY KEY (region, at))')
        c.execute("INSERT INTO known VALUES ('eu', '::1', 1), ('us', '::1', 2)")
        text = "CAPTURE INTO known FROM postgres demo KEY (region, at) CURSOR changed AS SELECT * FROM known"
        poller = factory.open_poller(parse(text, home / "known.sql"), broker.bootstrap)
        work(poller)
        c.execute("ALTER TYPE \"Region\" RENAME VALUE 'us' TO 'ca'")
        c.execute("DELETE FROM known WHERE region = 'eu'")
        send(broker.bootstrap, [Record("known", '{"region":"eu","at":"nowhere"}', "{}")])
        poller.compare("asked for")
        work(poller)
        poller.close()
        assert list(table(read(broker.bootstrap, "known"))) == ['{"region":"ca","at":"::1"}']


def test_sqlite(tmp_path: Path, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", f"sqlite:///{tmp_path / 'shop.db'}")
    c = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    c.execute(
        "CREATE TABLE people (region TEXT, id INTEGER, name TEXT, gone INTEGER NOT NULL DEFAULT 0,"
        " changed TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f')), PRIMARY KEY (region, id))"
    )
    c.execute("CREATE INDEX changes ON people (changed, region, id)")
    c.executemany("INSERT INTO people (region, id, name) VALUES (?, ?, ?)", [("eu", i, f"n{i}") for i in range(50)])
    text = DECLARED.format(topic="people-sqlite", engine="sqlite", table="people", more="DELAY 1 SECOND")
    poller = factory.open_poller(parse(text, home / "people-sqlite.sql"), broker.bootstrap)
    work(poller)

    def table() -> dict[tuple[str, int], str]:
        return {(r, i): n for r, i, n in c.execute("SELECT region, id, name FROM people WHERE NOT gone")}

    assert topic(broker, "people-sqlite") == table()
    now = "changed = strftime('%Y-%m-%d %H:%M:%f')"
    for i in range(10):
        c.execute(f"UPDATE people SET name = 'changed', {now} WHERE id = ?", (i,))
        work(poller)
    c.execute(f"UPDATE people SET gone = 1, {now} WHERE id = 20")
    work(poller)
    assert topic(broker, "people-sqlite") == table()
    c.execute("DELETE FROM people WHERE id = 30")
    poller.compare("asked for")
    work(poller)
    assert topic(broker, "people-sqlite") == table()
    poller.close()
    c.close()
