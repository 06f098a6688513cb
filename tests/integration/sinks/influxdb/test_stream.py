"""A stream with InfluxDB as one of its outputs, with every fault of a real server and its own death."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.devstack.servers.influxdb import InfluxDBServer as Server
from penstock.devstack.servers.kafka import Broker
from penstock.settings import PROJECT, settings
from penstock.sinks.influxdb.config import InfluxDB
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.support.http_faults import Fault, Proxy
from tests.support.influxdb import asked, server
from tests.support.wait import tended, wait_until

pytestmark = pytest.mark.integration

T = 1_501_273_548_000


@pytest.fixture
def influx(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "influx") as part:
        yield part


@pytest.fixture
def proxy(influx: Server) -> Iterator[Proxy]:
    with Proxy(influx.url, "/write") as made:
        yield made


READINGS, COPY = (Topic(name, partitions=2) for name in ("readings", "copy"))


def transform(readings: DataFrame) -> DataFrame:
    """Each reading to both places; one without a value is none of a point."""
    return readings.selectExpr(
        "id AS key", "v", "v AS version", "CAST(id AS STRING) AS id", "false AS deleted", "event_time AS at",
        "struct(CAST(id AS STRING) AS id, event_time AS at, v) AS doc", "CAST(NULL AS STRING) AS refused",
        "struct('readings' AS topic, 0 AS partition, 0L AS offset) AS record",
        "explode(if(v IS NULL, array('copy'), array('points', 'copy'))) AS output",
    )  # fmt: skip


BOTH = Stream(
    "two-places",
    "tests",
    {
        "readings": Input(
            READINGS,
            schema="id BIGINT NOT NULL, v BIGINT, t BIGINT NOT NULL",
            event_time="timestamp_millis(t)",
            dead_letters="count",
        )
    },
    transform,
    {
        "points": InfluxDB(sink="two-places", database="d", measurement="m", tags=("id",), time="at"),
        "copy": TopicOutput(COPY, key="key", value="v"),
    },
    Stateless(),
)
FAULTS = [
    Fault(401), Fault(404), Fault(413), Fault(429, {"Retry-After": "1"}), Fault(500), Fault(503), Fault(302),
    Fault(read=0.5), Fault(reaches=True), Fault(500, reaches=True), Fault(503, reaches=True), Fault(400, body="some"),
]  # fmt: skip


class History:
    """Readings as they are sent, and what they say of both places. Few points, so that many are written again in one
    batch; a NULL leaves its point as it is."""

    def __init__(self, influx: Server, bootstrap: str) -> None:
        self._influx, self._bootstrap, self._chance = influx, bootstrap, random.Random(5)
        self.points: dict[tuple[str, int], int] = {}
        self.copies: list[tuple[str | None, str | None]] = []
        create(bootstrap, *{topic.name: topic for topic in BOTH.topics()}.values())

    def more(self, count: int) -> None:
        records = []
        for _ in range(count):
            name, t = str(self._chance.randrange(5)), T - 10 + self._chance.randrange(20)
            v = self._chance.choice([None, len(self.copies)])
            if v is not None:
                self.points[name, t] = v
            self.copies.append((name, None if v is None else str(v)))
            records.append(Record(READINGS.name, name, json.dumps({"id": int(name), "v": v, "t": t})))
        send(self._bootstrap, records)

    def copied(self) -> list[tuple[str | None, str | None]]:
        return sorted(((r.key, r.value) for r in read(self._bootstrap, COPY.name)), key=str)

    def pointed(self) -> bool:
        found = asked(self._influx, "SELECT v FROM m GROUP BY id", "d").get("series", [])
        return self.points == {(series["tags"]["id"], at): v for series in found for at, v in series["values"]}

    def agrees(self, tend: Callable[[], None]) -> None:
        wait_until(lambda: tended(tend, self.pointed), what="InfluxDB holds the rows")
        wait_until(lambda: tended(tend, self._copies), what="the copy holds the rows")

    def _copies(self) -> bool:
        return self.copied() == sorted(self.copies, key=str)


@pytest.fixture
def history(fresh_broker: Broker, influx: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """The settings name the proxy."""
    monkeypatch.setenv("PENSTOCK_INFLUXDB_URL", proxy.url)
    settings.cache_clear()
    yield History(influx, fresh_broker.bootstrap)
    settings.cache_clear()


@pytest.mark.long
def test_through_every_fault_both_places_hold_what_the_rows_say(
    spark: SparkSession,
    fresh_broker: Broker,
    influx: Server,
    proxy: Proxy,
    history: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.sinks.influxdb.client.TIMEOUT_S", 2.0)
    monkeypatch.setattr("penstock.engine.query.run_state.RETRY_DELAYS_S", (0.1,))
    with running(BOTH, spark, fresh_broker.bootstrap, tmp_path / "checkpoints") as run:
        history.more(40)
        history.agrees(run.reconcile)
        for fault in FAULTS:
            proxy.faults.append(fault)
            history.more(20)
            history.agrees(run.reconcile)
            assert not proxy.faults
        # The server hangs, and comes back with what it was asked meanwhile.
        influx.pause()
        try:
            history.more(30)
            wait_until(lambda: tended(run.reconcile, lambda: "Timeout" in (run.figures.error or "")), what="it says so")
            history.more(30)
        finally:
            influx.resume()
        history.agrees(run.reconcile)
        # The server is killed in the middle of things, and is away for a while.
        influx.kill()
        history.more(30)
        told = "InfluxDB cannot take anything at present"
        wait_until(lambda: tended(run.reconcile, lambda: told in (run.figures.error or "")), what="it says so")
        influx.start()
        influx.wait()
        history.agrees(run.reconcile)
        # Its database is deleted: what comes after is there.
        asked(influx, "DROP DATABASE d", "d")
        history.points.clear()
        history.more(30)
        history.agrees(run.reconcile)


LIFE = """
import sys, time
from pathlib import Path
from penstock.testing import running, spark_session
from tests.integration.sinks.influxdb.test_stream import BOTH

with spark_session() as spark, running(BOTH, spark, sys.argv[1], Path(sys.argv[2])) as run:
    while True:
        run.reconcile()
        time.sleep(0.1)
"""


@pytest.mark.long
def test_a_driver_killed_between_two_places_gives_each_row_to_both(
    fresh_broker: Broker, proxy: Proxy, history: History, tmp_path: Path
) -> None:
    def life() -> subprocess.Popen[bytes]:
        given = [sys.executable, "-c", LIFE, fresh_broker.bootstrap, str(tmp_path / "checkpoints")]
        return subprocess.Popen(given, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    for n in (1, 2):
        history.more(20)
        with life() as driver:
            proxy.passed = driver.kill
            assert driver.wait(60) == -signal.SIGKILL
        assert history.copied() == []
        assert len(proxy.seen) == n
    # It was given the same batch again, not the records that came meanwhile.
    assert proxy.seen[0] == proxy.seen[1]
    proxy.passed = lambda: None
    with life() as driver:
        try:
            history.agrees(lambda: None)
        finally:
            driver.kill()
