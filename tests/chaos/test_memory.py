"""A backlog that a driver's memory does not hold: drivers die of it, say so, and the stream gets through."""

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
STREAM = Stream("reading", "heavy", {"texts": TEXTS}, lambda texts: texts.select("text"),
                TopicOutput(Topic("said", partitions=1, config={"compression.type": "zstd"}), value="text"),
                Stateless())
"""
RECORDS, SIZE = 260, 900_000


@pytest.fixture
def heavy(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    jobs = tmp_path / "project" / "jobs" / "heavy"
    jobs.mkdir(parents=True)
    (jobs / "__init__.py").touch()
    (jobs / "reading.py").write_text(STREAM)
    with drivers(fresh_broker, mariadb, tmp_path / "home", tmp_path / "project", PENSTOCK_LEASE_TTL=5) as given:
        yield given


def test_records_that_fill_a_drivers_memory_are_written_once_each(heavy: Drivers) -> None:
    producer = Producer({"bootstrap.servers": heavy.bootstrap, "compression.type": "zstd", "linger.ms": 50})
    for n in range(RECORDS):
        producer.produce("texts", json.dumps({"text": f"{n}-{'x' * SIZE}", "at": 0}), partition=n % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    died: list[DriverRow] = []
    now = heavy.launch("heavy")

    def through() -> bool:
        nonlocal now
        now = heavy.row(now.incarnation)
        if now.state == "ended" or now.session.alive() is False or now.session.leader_gone():
            assert clear(heavy.control, now, "its process is gone", Actor("test", "supervisor"))
            died.append(heavy.row(now.incarnation))
            assert len(died) < 6, [d.reason for d in died]
            now = heavy.launch("heavy")
        known = heavy.control.progress("heavy").get("reading")
        return bool(known and known.rows_out >= RECORDS)

    wait_until(through, 900, every=0.5, what=f"all is written: {now.log}")
    assert died
    assert {d.end_code for d in died} == {"memory"}
    said = Counter((record.value or "").partition("-")[0] for record in read(heavy.bootstrap, "said"))
    assert said == Counter(str(n) for n in range(RECORDS))
