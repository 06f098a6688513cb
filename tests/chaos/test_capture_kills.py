"""The captures' driver is killed at random moments while rows change: the topic equals the table, in version order."""

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

# The chaos histories test what is captured; this tests the driver and its leases.
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
    with drivers(fresh_broker, mariadb, tmp_path, tmp_path / "project", PENSTOCK_LEASE_TTL=5) as driver_processes:
        yield driver_processes


def write(mariadb: MariaDB, worker: int, stop: threading.Event) -> None:
    """Transactions of some rows each, open for a while, so that they do not commit in the order in which they began."""
    rng, connection = random.Random(worker), connect(mariadb)
    with connection.cursor() as cursor:
        while not stop.is_set():
            # In key order, so that there are no deadlocks.
            for key in sorted(rng.sample(range(ROWS), rng.choice((1, 1, 2, 5)))):
                deleted = rng.random() < 0.1
                cursor.execute("UPDATE ledger SET version = version + 1, gone = %s WHERE id = %s", (deleted, key))
                time.sleep(rng.choice((0, 0, 0.02, 0.2)))
            connection.commit() if rng.random() < 0.9 else connection.rollback()
    connection.rollback()
    connection.close()


@pytest.mark.long
def test_the_topic_equals_the_table_despite_kills(ledger: Drivers, mariadb: MariaDB) -> None:
    rng, stop = random.Random(20261121), threading.Event()
    writers = [threading.Thread(target=write, args=(mariadb, worker, stop)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for _ in range(KILLS):
        driver = ledger.launch(APP)
        # Sometimes before it has its leases, mostly while it works.
        time.sleep(rng.uniform(0.5, 4))
        signal_session(driver, signal.SIGKILL)
        wait_until(lambda d=driver: d.session.alive() is False, what="the driver is gone")  # type: ignore[misc]
    stop.set()
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

    wait_until(lambda: topic() == rows, what="the topic equals the table")
    newest: dict[str, int] = {}
    for record in read(ledger.bootstrap, "ledger"):
        if record.value is not None:
            key, version = record.key or "", json.loads(record.value)["version"]
            assert version >= newest.get(key, 0), f"{key} has an older version after a newer one"
            newest[key] = version
    assert sum(newest.values()) > ROWS
