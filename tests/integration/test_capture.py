"""Captures on a real MariaDB and Kafka: the topic's last value per key is the table."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pymysql
import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.capture import start
from penstock.capture.encode import encode
from penstock.capture.poller import Poller
from penstock.capture.statement import parse
from penstock.errors import LeaseLost
from penstock.local.parts import Broker, MariaDB
from tests.support import wait_until

TABLE = """CREATE TABLE {name} (
  id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40), gone TINYINT(1) NOT NULL DEFAULT 0,
  changed TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (changed))"""
CAPTURE = """CAPTURE INTO {name} FROM mysql demo KEY (id) CURSOR changed DELETED WHEN (gone = 1)
EVERY 100 MILLISECONDS OVERLAP 1 SECOND {more} AS SELECT {columns} FROM {name}"""


class Source:
    """A table and its capture."""

    def __init__(self, name: str, mariadb: MariaDB, broker: Broker, folder: Path) -> None:
        self.name, self.mariadb, self.broker, self.folder = name, mariadb, broker, folder
        self.pollers: list[Poller] = []
        self.connections: list[pymysql.Connection[Any]] = []
        self.sql(f"DROP TABLE IF EXISTS {name}", TABLE.format(name=name))

    def connect(self) -> pymysql.Connection[Any]:
        made = pymysql.connect(
            host="127.0.0.1", port=self.mariadb.port, user="penstock", password="penstock", database="demo",
            init_command="SET time_zone = '+00:00'",
        )  # fmt: skip
        self.connections.append(made)
        return made

    def sql(self, *statements: str) -> None:
        connection = self.connect()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()
        connection.close()
        self.connections.remove(connection)

    def poller(self, decision: start.Decision = "", more: str = "", columns: str = "*") -> Poller:
        text = CAPTURE.format(name=self.name, more=more, columns=columns)
        made = start.open_poller(parse(text, self.folder / f"{self.name}.sql"), self.broker.bootstrap, decision)
        self.pollers.append(made)
        return made

    def topic(self) -> dict[bytes, bytes]:
        """The last value of each key that a committed reader sees."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap, "group.id": "test", "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )  # fmt: skip
        found: dict[bytes, bytes] = {}
        consumer.assign([TopicPartition(self.name, 0, 0)])
        while (message := consumer.poll(10)) is not None and not message.error():
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            found.pop(key, None)
            if value is not None:
                found[key] = value
        consumer.close()
        return found

    def table(self, columns: str = "*") -> dict[bytes, bytes]:
        """What the topic should hold."""
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM {self.name} WHERE gone = 0")
            rows = list(cursor.fetchall())
            names = [d[0] for d in cursor.description]
        connection.close()
        self.connections.remove(connection)
        if not rows:
            return {}
        return dict(zip(encode(["id"], [(r[names.index("id")],) for r in rows]), encode(names, rows), strict=True))

    def same(self) -> bool:
        return self.topic() == self.table()


@pytest.fixture
def source(
    request: pytest.FixtureRequest, mariadb: MariaDB, broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    made = Source(request.node.name.split("[")[0][:60], mariadb, broker, home)
    yield made
    for poller in made.pollers:
        poller.close()
    for connection in made.connections:
        connection.close()


def until(poller: Poller, done: Callable[[], bool], what: str) -> None:
    """Let it work until something holds."""

    def worked() -> bool:
        time.sleep(min(poller.step(), 0.1))
        return done()

    wait_until(worked, 60, every=0.0, what=what)


def polled(poller: Poller, times: int = 1) -> None:
    wanted = poller.figures.polls + times
    until(poller, lambda: poller.figures.polls >= wanted, "polls")


def test_table_and_topic_are_the_same(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b'), (NULL)")
    poller = source.poller()
    polled(poller)
    assert len(source.topic()) == 3
    assert source.same()
    source.sql(
        f"INSERT INTO {source.name} (name) VALUES ('d')",
        f"UPDATE {source.name} SET name = 'B' WHERE id = 2",
        f"UPDATE {source.name} SET gone = 1 WHERE id = 1",
        f"INSERT INTO {source.name} (name, changed) VALUES ('no cursor', NULL), ('epoch', '1970-01-01 00:00:01')",
    )
    polled(poller)
    assert len(source.topic()) == 4
    assert b'{"id":1}' not in source.topic()
    assert {orjson.loads(v)["name"] for v in source.topic().values()} == {"B", None, "d", "no cursor"}
    source.sql(f"UPDATE {source.name} SET name = 'still none', changed = NULL WHERE name = 'no cursor'")
    polled(poller, 2)
    assert b"still none" in b"".join(source.topic().values())


def test_what_does_not_change_is_written_once(source: Source) -> None:
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a'), ('b')")
    poller = source.poller()
    polled(poller, 2)
    written = poller.figures.written
    polled(poller, 30)
    assert poller.figures.written == written
    assert poller.position.low is not None


def test_a_transaction_committed_behind_later_ones_is_not_missed(source: Source) -> None:
    poller = source.poller()
    polled(poller)
    slow = source.connect()
    with slow.cursor() as cursor:
        cursor.execute(f"INSERT INTO {source.name} (name) VALUES ('slow')")
        for i in range(25):
            source.sql(f"INSERT INTO {source.name} (name) VALUES ('fast {i}')")
            polled(poller)
            time.sleep(0.1)
        # A poller that goes on behind the last cursor it saw would read nothing of what comes now.
        slow.commit()
    polled(poller)
    assert source.same()


def test_a_transaction_open_too_long_is_read_when_it_ends(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    poller = source.poller(more="HOLD 2 SECONDS")
    polled(poller)
    slow = source.connect()
    with slow.cursor() as cursor:
        cursor.execute(f"INSERT INTO {source.name} (name) VALUES ('slow')")
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('before')")
    until(poller, lambda: poller.position.debt is not None, "it is no longer waited for")
    assert "is open for" in caplog.text
    for i in range(40):
        source.sql(f"INSERT INTO {source.name} (name) VALUES ('fast {i}')")
        polled(poller)
        time.sleep(0.1)
    low = poller.position.low
    slow.commit()
    until(poller, lambda: poller.position.debt is None, "what it owed is read")
    assert low is not None
    assert source.same()


def test_rows_with_one_cursor_on_both_sides_of_a_page(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.capture.poller.PAGE", 10)
    poller = source.poller()
    polled(poller)
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('before')")
    until(poller, lambda: poller.position.low is not None, "the low mark comes on")
    rows = ", ".join(f"('{i}', @now)" for i in range(95))
    source.sql("SET @now = NOW(6)", f"INSERT INTO {source.name} (name, changed) VALUES {rows}")
    polled(poller)
    assert len(source.topic()) == 96
    assert source.same()


def test_a_second_poller_shuts_the_first_out(source: Source) -> None:
    first = source.poller()
    polled(first)
    second = source.poller()
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('a')")
    with pytest.raises(LeaseLost, match=r"capture .* a newer process has opened its output"):
        polled(first)
    assert source.topic() == {}
    polled(second)
    assert source.same()


@pytest.mark.parametrize("step", ["before read", "after read", "mid-produce", "before commit", "after commit"])
def test_killed_at_any_step(source: Source, step: str) -> None:
    """As far as the broker and the database can tell, the process is gone: it says nothing more to either."""

    class Killed(BaseException):
        pass

    chance = random.Random(step)
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(20)))
    for _ in range(4):
        poller = source.poller()
        left = chance.randrange(3)

        def kill(at: str) -> None:
            nonlocal left
            left -= at == step
            if left < 0:
                raise Killed

        def work(poller: Poller) -> None:
            while True:
                source.sql(
                    f"UPDATE {source.name} SET name = '{chance.random()}' WHERE id = {chance.randrange(1, 21)}",
                    f"UPDATE {source.name} SET gone = 1 - gone WHERE id = {chance.randrange(1, 21)}",
                )
                poller.step()

        poller.hook = kill
        with pytest.raises(Killed):
            work(poller)
        source.pollers.pop().close()
    last = source.poller()
    polled(last)
    assert source.same()


def test_changes_while_it_polls(source: Source) -> None:
    """Writers of one row at a time, of long and of short transactions, and a checker."""
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(50)))
    over = threading.Event()

    def write(seed: int) -> None:
        chance, connection = random.Random(seed), source.connect()
        with connection.cursor() as cursor:
            while not over.is_set():
                for _ in range(chance.choice((1, 1, 3))):
                    key = chance.randrange(1, 13) * 4 + seed
                    cursor.execute(f"UPDATE {source.name} SET name = '{chance.random()}' WHERE id = {key}")
                    time.sleep(chance.choice((0, 0, 0.05)))
                connection.commit()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    poller = source.poller()
    polled(poller, 80)
    over.set()
    for writer in writers:
        writer.join()
    polled(poller)
    assert source.same()


def test_a_reconcile_finds_and_repairs(source: Source) -> None:
    source.sql(*(f"INSERT INTO {source.name} (name) VALUES ('{i}')" for i in range(50)))
    poller = source.poller(more="RECONCILE EVERY 1 HOUR")
    polled(poller)
    # What no poll can see: a row that is gone, one that kept its cursor, one that changed its key.
    source.sql(
        f"DELETE FROM {source.name} WHERE id = 7",
        f"UPDATE {source.name} SET name = 'unseen', changed = '2020-01-01' WHERE id = 8",
        f"UPDATE {source.name} SET id = 1000, changed = '2020-01-01' WHERE id = 9",
    )
    until(poller, lambda: poller.position.low is not None, "the low mark comes on")
    source.sql(f"INSERT INTO {source.name} (name) VALUES ('later')")
    polled(poller, 2)
    assert not source.same()
    poller.compare("asked for")
    until(poller, lambda: not poller.position.reconcile, "all is compared")
    assert source.same()
    drift = poller.reconcile.drift
    assert (drift.missing, drift.differing, drift.extra) == (1, 1, 2)
