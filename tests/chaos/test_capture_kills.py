"""The captures' driver killed at random moments while writers work: the topic ends as the table, never going back."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.model.capture import APP
from penstock.testing import read, table
from tests.chaos.drivers import Drivers, drivers, signal_session
from tests.support.captures import connect
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

# The histories try what is captured; here it is the driver, with its leases.
KILLS = 4
ROWS = 40
DECLARED = """CAPTURE INTO ledger PARTITIONS 2 FROM mysql demo KEY (id) CURSOR changed DELETED WHEN (gone)
EVERY 50 MILLISECONDS OVERLAP 2 SECONDS AS SELECT id, version, gone, changed FROM ledger"""
TABLE = """CREATE TABLE ledger (id INT PRIMARY KEY, version INT NOT NULL DEFAULT 0, gone BOOLEAN NOT NULL DEFAULT FALSE,
changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (changed, id))"""


@pytest.fixture
def ledger(
    fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Drivers]:
    monkeypatch.setenv("AIRFLOW_CONN_DEMO", mariadb.url_of("demo"))
    folder = tmp_path / "project" / "sql" / "captures"
    folder.mkdir(parents=True)
    (folder / "ledger.sql").write_text(DECLARED)
    connection = connect(mariadb)
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS ledger")
        cursor.execute(TABLE)
        cursor.executemany("INSERT INTO ledger (id) VALUES (%s)", [(i,) for i in range(ROWS)])
    connection.commit()
    connection.close()
    with drivers(fresh_broker, mariadb, tmp_path, tmp_path / "project", PENSTOCK_LEASE_TTL=5) as given:
        yield given


def write(mariadb: MariaDB, worker: int, over: threading.Event) -> None:
    """Transactions of some rows each, held open for a while, so that they commit in another order than they began."""
    chance, connection = random.Random(worker), connect(mariadb)
    with connection.cursor() as cursor:
        while not over.is_set():
            # In order of key, so that no two writers wait for each other.
            for key in sorted(chance.sample(range(ROWS), chance.choice((1, 1, 2, 5)))):
                gone = chance.random() < 0.1
                cursor.execute("UPDATE ledger SET version = version + 1, gone = %s WHERE id = %s", (gone, key))
                time.sleep(chance.choice((0, 0, 0.02, 0.2)))
            connection.commit() if chance.random() < 0.9 else connection.rollback()
    connection.rollback()
    connection.close()


def test_the_topic_is_the_table_through_kills(ledger: Drivers, mariadb: MariaDB) -> None:
    chance, over = random.Random(20261121), threading.Event()
    writers = [threading.Thread(target=write, args=(mariadb, worker, over)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for _ in range(KILLS):
        driver = ledger.launch(APP)
        # Sometimes before it took its leases, mostly in the middle of its work.
        time.sleep(chance.uniform(0.5, 4))
        signal_session(driver, signal.SIGKILL)
        wait_until(lambda d=driver: d.session.alive() is False, what="it is gone")  # type: ignore[misc]
    over.set()
    for writer in writers:
        writer.join()
    ledger.wait_running(ledger.launch(APP))

    connection = connect(mariadb)
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, version FROM ledger WHERE NOT gone")
        rows = dict(cursor.fetchall())
    connection.close()

    def topic() -> dict[int, int]:
        last = table(read(ledger.bootstrap, "ledger"))
        return {json.loads(key)["id"]: json.loads(value)["version"] for key, value in last.items()}

    wait_until(lambda: topic() == rows, what="the topic is the table")
    newest: dict[str, int] = {}
    for record in read(ledger.bootstrap, "ledger"):
        if record.value is not None:
            key, version = record.key or "", json.loads(record.value)["version"]
            assert version >= newest.get(key, 0), f"{key} went back"
            newest[key] = version
    assert sum(newest.values()) > ROWS
