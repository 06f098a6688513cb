"""Topic quality in a real InfluxDB, and the dashboard that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.quality import influxdb as job
from jobs.quality.counts import METRICS
from penstock.declare.outputs import NOTHING, Owner
from penstock.declare.topic import COMMITS
from penstock.errors import SinkError
from penstock.local.influxdb import InfluxDB
from penstock.local.parts import Broker
from penstock.machine.process import free_port
from penstock.settings import PROJECT, settings
from penstock.sinks import influxdb as sinks
from penstock.sinks.influxdb import LINES, InfluxWriter
from penstock.testing import Record, create, running, send
from tests.influx import asked, server

pytestmark = pytest.mark.integration

DASHBOARD = PROJECT / "docker" / "grafana" / "topic-quality.json"
SECOND = 1_501_273_548_000


@pytest.fixture(scope="module")
def influx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InfluxDB]:
    with server(tmp_path_factory.mktemp("influx")) as part:
        yield part


@pytest.fixture
def named(influx: InfluxDB, monkeypatch: pytest.MonkeyPatch) -> Iterator[InfluxDB]:
    """The settings name this server."""
    monkeypatch.setenv("PENSTOCK_INFLUXDB_URL", influx.url)
    settings.cache_clear()
    yield influx
    settings.cache_clear()


def query(influx: InfluxDB, text: str, database: str = "penstock") -> list[dict[str, Any]]:
    """The series of a query's answer."""
    result = asked(influx, text, database)
    assert "error" not in result, f"{text}: {result['error']}"
    return list(result.get("series", []))


def points(influx: InfluxDB, topic: str) -> list[list[Any]]:
    series = query(influx, f'SELECT "valid", "invalid" FROM "{topic}"')
    return list(series[0]["values"]) if series else []


def count(topic: str, second: int, status: str, value: int | str | None) -> Record:
    key = json.dumps({"topic": topic, "window": SECOND + 1000 * second, "status": status}, separators=(",", ":"))
    return Record(METRICS.name, key, None if value is None else str(value))


def test_points_are_updated_in_place(
    spark: SparkSession, fresh_broker: Broker, named: InfluxDB, tmp_path: Path
) -> None:
    create(fresh_broker.bootstrap, METRICS, COMMITS)
    stream = replace(job.SINK, every=0.0)
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
        run.settle()
        assert points(named, "tx") == [[SECOND, 5, 1], [SECOND + 1000, 2, None]]
        assert points(named, "other.topic-1") == [[SECOND, None, 3]]
        send(fresh_broker.bootstrap, [count("tx", 0, "valid", 7), count("tx", 1, "invalid", 4)])
        run.settle()
        assert points(named, "tx") == [[SECOND, 7, 1], [SECOND + 1000, 2, 4]]
    # The whole topic once more, as after a lost checkpoint.
    with running(stream, spark, fresh_broker.bootstrap, tmp_path / "again") as run:
        run.settle()
        assert points(named, "tx") == [[SECOND, 7, 1], [SECOND + 1000, 2, 4]]


def rows(database: str, *lines: str) -> dict[str, pa.Table]:
    return {f"influxdb:{database}": pa.table({"line": [line.encode() for line in lines]})}


def test_large_batches_go_in_several_requests(influx: InfluxDB) -> None:
    writer = InfluxWriter(influx.url, sinks.InfluxDB("large"))
    lines = [f"many valid={n}i {SECOND + n}" for n in range(2 * LINES + 1)]
    assert writer.write(rows("large", *lines), NOTHING) == len(lines)
    writer.close()
    [series] = query(influx, 'SELECT count("valid") FROM "many"', "large")
    assert series["values"][0][1] == len(lines)


def test_what_the_server_refuses_is_an_error_with_its_words(influx: InfluxDB) -> None:
    writer = InfluxWriter(influx.url, sinks.InfluxDB("refusing"))
    with pytest.raises(SinkError, match="unable to parse"):
        writer.write(rows("refusing", "rubbish 5"), NOTHING)
    writer.close()
    with pytest.raises(SinkError, match="did not answer"):
        InfluxWriter(f"http://127.0.0.1:{free_port()}", sinks.InfluxDB("x"))


def test_without_a_server_in_the_settings_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_INFLUXDB_URL", "")
    settings.cache_clear()
    try:
        with pytest.raises(SinkError, match="PENSTOCK_INFLUXDB_URL is not set"):
            sinks.open_database(Owner("shop", "a", "127.0.0.1:9"), [sinks.InfluxDB("x")])
    finally:
        settings.cache_clear()


def test_every_query_of_the_dashboard_answers(influx: InfluxDB) -> None:
    writer = InfluxWriter(influx.url, sinks.InfluxDB("shown"))
    writer.write(rows("shown", f"tx valid=3i,invalid=1i {SECOND}"), NOTHING)
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
