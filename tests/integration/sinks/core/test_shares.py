"""Two processes share a topic: each writes its own partitions, and neither waits for the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pymongo import MongoClient
from pyspark.sql import SparkSession

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.engine.query.stream_run import StreamRun
from penstock.kafka.admin import ensure_topics
from penstock.settings import settings
from penstock.streams import Topic
from penstock.testing import Record, running, send
from tests.chaos.drivers import Drivers, drivers

pytestmark = pytest.mark.integration

CLICKS = Topic("shared-clicks", partitions=4)
SINK = """UPSERT INTO mongodb.shares.clicks READ shared-clicks SHARE {n} OF 2 AS JSON (n BIGINT NOT NULL) APP {app}
AS SELECT n, record.partition AS place FROM `shared-clicks`"""
APPS = {"first": {0, 2}, "second": {1, 3}}


@pytest.fixture
def running_drivers(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path, mongodb_url: str) -> Iterator[Drivers]:
    project = tmp_path / "project"
    (project / "sql" / "sinks").mkdir(parents=True)
    for n, app in enumerate(APPS, 1):
        (project / "sql" / "sinks" / f"clicks-{app}.sql").write_text(SINK.format(n=n, app=app))
    ensure_topics([CLICKS], fresh_broker.bootstrap)
    with drivers(
        fresh_broker, mariadb, tmp_path, project, PENSTOCK_MONGODB_URL=mongodb_url, PENSTOCK_LEASE_TTL=5
    ) as made:
        yield made


def sent(drivers: Drivers, first: int, upto: int) -> None:
    """Records n, n by n in the topic's partitions; every seventh is none of the schema."""
    values = {n: f'{{"n": {n}}}' if n % 7 else "broken" for n in range(first, upto)}
    send(drivers.bootstrap, [Record(CLICKS.name, str(n), value, n % 4) for n, value in values.items()])


def wanted(upto: int, partitions: set[int]) -> list[tuple[int, int]]:
    return [(n, n % 4) for n in range(upto) if n % 7 and n % 4 in partitions]


@pytest.mark.long
def test_two_processes_share_a_topic(running_drivers: Drivers, spark: SparkSession, mongodb_url: str) -> None:
    """A driver of the first app, and the second in this process, which also takes the first over once it is killed."""
    streams, checkpoints = catalog.load().streams, Path(settings().checkpoint_root)
    with MongoClient[dict[str, int]](mongodb_url) as client, ExitStack() as stack:
        clicks = client["shares"]["clicks"]
        stack.callback(client.drop_database, "shares")

        def written() -> list[tuple[int, int]]:
            return sorted((found["n"], found["place"]) for found in clicks.find())

        def start(app: str) -> StreamRun:
            return stack.enter_context(running(streams[f"clicks-{app}"], spark, running_drivers.bootstrap, checkpoints))

        sent(running_drivers, 0, 80)
        first = running_drivers.launch("first")
        second = start("second")
        second.process_all_available()
        running_drivers.wait_committed("first", first, 240)
        assert written() == wanted(80, {0, 1, 2, 3})
        [row] = running_drivers.control.progress("first").values()
        for figures, partitions in ((row, APPS["first"]), (second.figures, APPS["second"])):
            assert figures.rows_out == len(wanted(80, partitions)), "each writes what is its own"
            assert figures.dead == sum(n % 7 == 0 and n % 4 in partitions for n in range(80)) > 0
        first.session.kill()
        sent(running_drivers, 80, 120)
        second.process_all_available()
        assert written() == sorted([*wanted(80, APPS["first"]), *wanted(120, APPS["second"])]), "the second goes on"
        start("first").process_all_available()
        assert written() == wanted(120, {0, 1, 2, 3})
