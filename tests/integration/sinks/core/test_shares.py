"""Two processes share a topic: each writes its own partitions, and neither waits for the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo import MongoClient

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.kafka.admin import ensure_topics
from penstock.streams import Topic
from penstock.testing import Record, send
from tests.chaos.drivers import Drivers, drivers
from tests.support.mongodb import store
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

CLICKS = Topic("shared-clicks", partitions=4)
SINK = """UPSERT INTO mongodb.shares.clicks READ shared-clicks SHARE {n} OF 2 AS JSON (n BIGINT NOT NULL) APP {app}
AS SELECT n, record.partition AS place FROM `shared-clicks`"""
APPS = {"first": {0, 2}, "second": {1, 3}}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with store(tmp_path / "mongodb") as found:
        yield found


@pytest.fixture
def running(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path, url: str) -> Iterator[Drivers]:
    project = tmp_path / "project"
    (project / "sql" / "sinks").mkdir(parents=True)
    for n, app in enumerate(APPS, 1):
        (project / "sql" / "sinks" / f"clicks-{app}.sql").write_text(SINK.format(n=n, app=app))
    ensure_topics([CLICKS], fresh_broker.bootstrap)
    with drivers(fresh_broker, mariadb, tmp_path, project, PENSTOCK_MONGODB_URL=url, PENSTOCK_LEASE_TTL=5) as made:
        yield made


def sent(drivers: Drivers, first: int, upto: int) -> None:
    """Records n, n by n in the topic's partitions; every tenth is none of the schema."""
    values = {n: f'{{"n": {n}}}' if n % 10 else "broken" for n in range(first, upto)}
    send(drivers.bootstrap, [Record(CLICKS.name, str(n), value, n % 4) for n, value in values.items()])


def test_two_processes_share_a_topic(running: Drivers, url: str) -> None:
    with MongoClient[dict[str, int]](url) as client:
        clicks = client["shares"]["clicks"]
        clicks.drop()

        def there() -> list[tuple[int, int]]:
            return sorted((found["n"], found["place"]) for found in clicks.find())

        def wanted(upto: int, places: set[int]) -> list[tuple[int, int]]:
            return [(n, n % 4) for n in range(upto) if n % 10 and n % 4 in places]

        sent(running, 0, 400)
        started = {app: running.launch(app) for app in APPS}
        for app, driver in started.items():
            running.wait_committed(app, driver, 240)
        assert there() == wanted(400, {0, 1, 2, 3})
        for app, places in APPS.items():
            [row] = running.control.progress(app).values()
            assert row.rows_out == len(wanted(400, places)), "each writes what is its own"
            assert row.dead == sum(n % 10 == 0 and n % 4 in places for n in range(400))
        started["first"].session.kill()
        running.control.end_driver(started["first"].incarnation, "killed")
        sent(running, 400, 600)
        both = sorted([*wanted(400, APPS["first"]), *wanted(600, APPS["second"])])
        wait_until(lambda: there() == both, what="the second goes on by itself")
        running.wait_committed("first", running.launch("first"), 240)
        assert there() == wanted(600, {0, 1, 2, 3})
