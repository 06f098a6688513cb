"""A backlog that does not fit into memory: drivers die of it and report it, and the stream still catches up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.control import Actor, DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.supervision.reaper import clear
from penstock.testing import read
from tests.chaos.drivers import Drivers, drivers
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1000)]

STREAM = """
from penstock.streams import Stateless, Input, Stream, Topic, TopicOutput
TEXTS = Input(Topic("texts", partitions=2), schema="text STRING NOT NULL, at BIGINT NOT NULL",
              event_time="timestamp_millis(at)")
STREAM = Stream("copy", "heavy", {"texts": TEXTS}, lambda texts: texts.select("text"),
                TopicOutput(Topic("copies", partitions=1, config={"compression.type": "zstd"}), value="text"),
                Stateless())
"""
RECORDS, SIZE = 260, 900_000


@pytest.fixture
def heavy(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    jobs = tmp_path / "project" / "jobs" / "heavy"
    jobs.mkdir(parents=True)
    (jobs / "__init__.py").touch()
    (jobs / "copy.py").write_text(STREAM)
    with drivers(fresh_broker, mariadb, tmp_path / "home", tmp_path / "project", PENSTOCK_LEASE_TTL=5) as running:
        yield running


def test_records_that_fill_a_drivers_memory_are_written_once(heavy: Drivers) -> None:
    producer = Producer({"bootstrap.servers": heavy.bootstrap, "compression.type": "zstd", "linger.ms": 50})
    for n in range(RECORDS):
        producer.produce("texts", json.dumps({"text": f"{n}-{'x' * SIZE}", "at": 0}), partition=n % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    dead_drivers: list[DriverRow] = []
    driver = heavy.launch("heavy")

    def all_written() -> bool:
        nonlocal driver
        driver = heavy.row(driver.incarnation)
        if driver.state == "ended" or driver.session.alive() is False or driver.session.leader_gone():
            assert clear(heavy.control, driver, "its process is gone", Actor("test", "supervisor"))
            dead_drivers.append(heavy.row(driver.incarnation))
            assert len(dead_drivers) < 6, [d.reason for d in dead_drivers]
            driver = heavy.launch("heavy")
        progress = heavy.control.progress("heavy").get("copy")
        return bool(progress and progress.rows_out >= RECORDS)

    wait_until(all_written, 900, every=0.5, what=f"all is written: {driver.log}")
    assert dead_drivers
    assert {d.end_code for d in dead_drivers} == {"memory"}
    counts = Counter((record.value or "").partition("-")[0] for record in read(heavy.bootstrap, "copies"))
    assert counts == Counter(str(n) for n in range(RECORDS))
