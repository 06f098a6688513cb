"""A table of a real MariaDB and its capture, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.cursors import Cursor
from sqlalchemy import make_url

from penstock.capture import factory
from penstock.capture.output.encode import encode
from penstock.capture.polling.poller import Poller
from penstock.capture.source.mysql import MySQL as Engine
from penstock.control import Control, ProgressRow, tables
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.model.capture import APP, parse
from penstock.testing import Record, read, send, table
from tests.support.mysql import MySQL
from tests.support.wait import wait_until

TABLE = """CREATE TABLE {name} (
  id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40), gone TINYINT(1) NOT NULL DEFAULT 0,
  changed TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (changed))"""
CAPTURE = """CAPTURE INTO {name} FROM mysql demo KEY (id) CURSOR changed DELETED WHEN (gone = 1)
EVERY 100 MILLISECONDS OVERLAP 1 SECOND {more} AS SELECT {columns} FROM {name}"""


def connect(mariadb: MariaDB | MySQL, **options: Any) -> pymysql.Connection[Any]:
    """A connection to the database `demo`."""
    return pymysql.connect(
        host="127.0.0.1", port=mariadb.port, user="penstock", password="penstock", database="demo", **options
    )


def url_of(request: pytest.FixtureRequest, file: Path, *, mariadb: str = "mariadb") -> str:
    """Of the database of the engine that a fixture's parameter names. file: SQLite's; mariadb: the fixture's name."""
    match request.param:
        case "mysql":
            return str(request.getfixturevalue(mariadb).url_of("demo"))
        case "postgres":
            return str(request.getfixturevalue("postgres").url.replace("postgresql://", "postgresql+psycopg://"))
        case _:
            return f"sqlite:///{file}"


@contextmanager
def opened(server: MariaDB, delay: timedelta = timedelta(seconds=5)) -> Iterator[Engine]:
    """The database `demo` as a capture opens it."""
    made = Engine(make_url(server.url_of("demo")), delay)
    yield made
    made.close()


def until(poller: Poller, done: Callable[[], bool], what: str) -> None:
    """Let a poller work until something holds."""

    def worked() -> bool:
        time.sleep(min(poller.step(), 0.1))
        return done()

    wait_until(worked, every=0.0, what=what)


def polled(poller: Poller, times: int = 1) -> None:
    """Let a poller work until it has polled so many times more."""
    wanted = poller.metrics.polls + times
    until(poller, lambda: poller.metrics.polls >= wanted, "polls")


class Source:
    """A table and its capture."""

    def __init__(self, name: str, mariadb: MariaDB | MySQL, broker: Broker, folder: Path) -> None:
        self.name, self.mariadb, self.broker, self.folder = name, mariadb, broker, folder
        self.pollers: list[Poller] = []
        self.connections: list[pymysql.Connection[Any]] = []
        self.sql(f"DROP TABLE IF EXISTS {name}", TABLE.format(name=name))

    def connect(self) -> pymysql.Connection[Any]:
        made = connect(self.mariadb, init_command="SET time_zone = '+00:00'")
        self.connections.append(made)
        return made

    @contextmanager
    def cursor(self) -> Iterator[Cursor]:
        """A cursor of a connection of its own; what is done by it is committed."""
        connection = self.connect()
        with connection.cursor() as cursor:
            yield cursor
        connection.commit()
        connection.close()
        self.connections.remove(connection)

    def sql(self, *statements: str) -> None:
        with self.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def begun(self, name: str) -> pymysql.Connection[Any]:
        """A transaction that is left open with a new row of that name in it."""
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {self.name} (name) VALUES (%s)", (name,))
        return connection

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.cursor() as cursor:
            cursor.execute(query, values)
            return list(cursor.fetchall())

    def poller(self, decision: factory.Decision = "", more: str = "", columns: str = "*") -> Poller:
        return self.opened(self.declared(more, columns), decision)

    def declared(self, more: str = "", columns: str = "*") -> str:
        """The capture's declaration. more: further clauses."""
        return CAPTURE.format(name=self.name, more=more, columns=columns)

    def opened(self, text: str, decision: factory.Decision = "") -> Poller:
        made = factory.open_poller(parse(text, self.folder / f"{self.name}.sql"), self.broker.bootstrap, decision)
        self.pollers.append(made)
        return made

    def close(self, poller: Poller) -> None:
        """Stop one that was opened here."""
        self.pollers.remove(poller)
        poller.close()

    def topic(self) -> dict[bytes, bytes]:
        """The last value of each key that a committed reader sees."""
        found = table(read(self.broker.bootstrap, self.name))
        return {key.encode(): value.encode() for key, value in found.items()}

    def table(self, columns: str = "*") -> dict[bytes, bytes]:
        """What the topic should hold."""
        with self.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM {self.name} WHERE gone = 0")
            rows = list(cursor.fetchall())
            names = [d[0] for d in cursor.description]
        if not rows:
            return {}
        return dict(zip(encode(["id"], [(r[names.index("id")],) for r in rows]), encode(names, rows), strict=True))

    def send(self, records: dict[bytes, bytes]) -> None:
        """Write into the topic as somebody else would."""
        given = [Record(self.name, key.decode(), value.decode()) for key, value in records.items()]
        send(self.broker.bootstrap, given)

    def same(self) -> bool:
        return self.topic() == self.table()


def known(control: Control, name: str) -> None:
    """Let a control database know a capture, wanted, and its driver, running elsewhere."""
    with control.begin() as c:
        c.execute(tables.app.insert().values(name=APP, release_seq=0, restarts=0))
        c.execute(tables.stream.insert().values(name=name, app=APP, desired="on"))
    driver = control.claim(APP, None, host="elsewhere", spec_hash="x", owner="test", log="x")
    assert driver
    control.report_driver_resources(driver, None)


def reported(
    control: Control, name: str, state: str, error: str | None = None, behind: float = 0.0, **row: Any
) -> None:
    """Let that driver report on the capture. behind: seconds behind its database; row: fields of its CaptureRow."""
    app = control.app(APP)
    assert app
    assert app.incarnation
    watermark = int(control.now() - behind * 1000)
    progress = ProgressRow(name, APP, app.incarnation, state=state, watermark=watermark, error=error)
    control.report([progress], keep=False)
    Captures(control).report(CaptureRow(name, **row))
