"""Topic quality in a real InfluxDB, and the dashboard that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.quality.counts import METRICS
from penstock.devstack.servers.influxdb import InfluxDBServer as Server
from penstock.devstack.servers.kafka import Broker
from penstock.errors import SinkError
from penstock.model.output import NO_COMMIT, WriterOwner
from penstock.model.sql import sink_file
from penstock.settings import PROJECT, settings
from penstock.sinks.core.stream import sink_stream
from penstock.sinks.influxdb.config import InfluxDB
from penstock.sinks.influxdb.writer import InfluxWriter
from penstock.testing import Record, create, running, send
from tests.support.influxdb import asked, documents, row, server

pytestmark = pytest.mark.integration

DASHBOARD = PROJECT / "docker" / "grafana" / "topic-quality.json"
SINK = sink_stream(sink_file.read(PROJECT / "sql" / "sinks" / "quality-influxdb.sql"), {METRICS.name: METRICS})
SECOND = 1_501_273_548_000


@pytest.fixture(scope="module")
def influx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("influx")) as part:
        yield part


@pytest.fixture
def named(influx: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The settings name this server."""
    monkeypatch.setenv("PENSTOCK_INFLUXDB_URL", influx.url)
    settings.cache_clear()
    yield influx
    settings.cache_clear()


def query(influx: Server, text: str, database: str = "penstock") -> list[dict[str, Any]]:
    """The series of a query's answer."""
    result = asked(influx, text, database)
    assert "error" not in result, f"{text}: {result['error']}"
    return list(result.get("series", []))


def points(influx: Server, topic: str) -> list[list[Any]]:
    series = query(influx, f'SELECT "valid", "invalid" FROM "{topic}"')
    return list(series[0]["values"]) if series else []


def count(topic: str, second: int, status: str, value: int | str | None) -> Record:
    key = json.dumps({"topic": topic, "window": SECOND + 1000 * second, "status": status}, separators=(",", ":"))
    return Record(METRICS.name, key, None if value is None else str(value))


def test_points_are_updated_in_place(spark: SparkSession, fresh_broker: Broker, named: Server, tmp_path: Path) -> None:
    create(fresh_broker.bootstrap, *{topic.name: topic for topic in SINK.topics()}.values())
    stream = replace(SINK, every=0.0)
    with running(stream, spark, fresh_broker.bootstrap, tmp_path) as run:
        send(
            fresh_broker.bootstrap,
            [
                count("tx", 0, "valid", 5),
                count("tx", 0, "invalid", 1),
                count("tx", 1, "valid", 2),
                count("other.topic-1", 0, "invalid", 3),
                Record(METRICS.name, "no key of ours", "1"),
                count("a name,of=nobody", 0, "valid", 1),
                count("tx\n", 0, "valid", 1),
                # A second in the year 49543, as of a producer that takes microseconds for milliseconds.
                count("tx", SECOND, "valid", 1),
                count("tx", -SECOND, "valid", 1),
                count("tx", 0, "valid", "many"),
                count("tx", 0, "valid", None),
            ],
        )
        run.process_all_available()
        assert points(named, "tx") == [[SECOND, 5, 1], [SECOND + 1000, 2, None]]
        assert points(named, "other.topic-1") == [[SECOND, None, 3]]
        send(fresh_broker.bootstrap, [count("tx", 0, "valid", 7), count("tx", 1, "invalid", 4)])
        run.process_all_available()
        assert points(named, "tx") == [[SECOND, 7, 1], [SECOND + 1000, 2, 4]]
    # The whole topic once more, as after a lost checkpoint.
    with running(stream, spark, fresh_broker.bootstrap, tmp_path / "again") as run:
        run.process_all_available()
        assert points(named, "tx") == [[SECOND, 7, 1], [SECOND + 1000, 2, 4]]


def test_without_a_server_the_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_INFLUXDB_URL", "AIRFLOW_CONN_INFLUXDB"):
        monkeypatch.setenv(name, "")
    settings.cache_clear()
    try:
        with pytest.raises(SinkError, match="neither PENSTOCK_INFLUXDB_URL nor AIRFLOW_CONN_INFLUXDB is set"):
            InfluxWriter.open(WriterOwner("shop", "a", "127.0.0.1:9"), [SINK.outputs[""]])
    finally:
        settings.cache_clear()


def test_every_query_of_the_dashboard_answers(influx: Server) -> None:
    output = InfluxDB(sink="shown", database="shown", measurement="tx", time="at")
    writer = InfluxWriter(influx.url, output)
    types: dict[str, Any] = {"at": pa.timestamp("us", "UTC"), "valid": pa.int64(), "invalid": pa.int64()}
    shown = documents(row(at=datetime.fromtimestamp(SECOND / 1000, UTC), valid=3, invalid=1), **types)
    writer.write({output.name: shown}, NO_COMMIT)
    writer.close()
    dashboard = json.loads(DASHBOARD.read_text())
    [topics] = [v["query"] for v in dashboard["templating"]["list"] if v["name"] == "topic"]
    assert query(influx, topics, "shown")[0]["values"] == [["tx"]]
    targets = [(panel["title"], t["query"]) for panel in dashboard["panels"] for t in panel["targets"]]
    assert len(targets) >= 4
    for title, text in targets:
        asked = text.replace("$timeFilter", f"time >= {SECOND - 60_000}ms AND time <= {SECOND + 60_000}ms")
        asked = asked.replace("$__interval", "10s").replace("$topic", ".*")
        assert "$" not in asked.replace("$/", ""), f"{title}: a variable nobody fills in: {asked}"
        [series] = query(influx, asked, "shown")
        assert series["name"] == "tx"
        numbers = [v for row in series["values"] for v in row[1:] if v]
        assert numbers, f"{title}: no figure in the answer to {asked}"
