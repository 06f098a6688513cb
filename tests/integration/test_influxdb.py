"""The InfluxDB output against a real server behind a proxy that fails: what is there equals what the rows say."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.declare.outputs import NOTHING
from penstock.declare.topic import COMMITS
from penstock.errors import DeclarationError, SinkError, Wait
from penstock.local.influxdb import InfluxDB as Server
from penstock.local.parts import Broker
from penstock.machine.process import free_port
from penstock.settings import PROJECT, settings
from penstock.sinks.influxdb import BYTES, InfluxDB, InfluxWriter
from penstock.streams import Each, F, Input, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send
from tests.faults import Fault, Proxy
from tests.influx import asked, server
from tests.support import tended, wait_until

pytestmark = pytest.mark.integration

T = 1_501_273_548_000


class Guarded(Server):
    """One that asks who is there."""

    def prepare(self) -> None:
        super().prepare()
        config = self.folder / "influxdb.conf"
        config.write_text(config.read_text().replace("[http]", "[http]\n  auth-enabled = true"))


@pytest.fixture
def influx(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "influx") as part:
        yield part


@pytest.fixture
def proxy(influx: Server) -> Iterator[Proxy]:
    with Proxy(influx.url, "/write") as made:
        yield made


@pytest.fixture
def writer(proxy: Proxy) -> Iterator[InfluxWriter]:
    made = InfluxWriter(proxy.url, InfluxDB("d"))
    yield made
    made.close()


def write(writer: InfluxWriter, *lines: str | bytes) -> int:
    given = [line.encode() if isinstance(line, str) else line for line in lines]
    return writer.write({"influxdb:d": pa.table({"line": pa.array(given, pa.binary())})}, NOTHING)


def ask(influx: Server, text: str, **params: str) -> list[dict[str, Any]]:
    """The series of a query's answer."""
    return list(asked(influx, text, "d", **params).get("series", []))


def points(influx: Server, measurement: str = "m") -> list[list[Any]]:
    return [row for series in ask(influx, f'SELECT v FROM "{measurement}"') for row in series["values"]]


@pytest.mark.parametrize("line", ["#7 v=1i 1", "", "  ", "m v=1i", 'm v="a 1"', "m,t=a\\ 5 v=1"])
def test_what_the_server_would_skip_or_date_itself_is_refused(influx: Server, writer: InfluxWriter, line: str) -> None:
    """A comment vanishes without a word; a point without a time is another point each time it is written."""
    with pytest.raises(SinkError, match="1 lines for influxdb:d have no time, or are comments or empty"):
        write(writer, f"m v=0i {T}", line)
    assert points(influx) == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(301, {"Location": "https://elsewhere/write"}),
        Fault(307, {"Location": "/login"}),
        Fault(200, body="<html>Please sign in</html>"),
        Fault(202),
    ],
)
def test_only_what_the_server_says_it_wrote_is_written(writer: InfluxWriter, proxy: Proxy, fault: Fault) -> None:
    proxy.faults.append(fault)
    with pytest.raises(SinkError, match=f"got: {fault.status}"):
        write(writer, f"m v=1i {T}")


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (Fault(401, body="who?"), SinkError, "401 who.*user and password"),
        (Fault(404, body="database not found"), SinkError, "404 database not found"),
        (Fault(413), SinkError, "413.*let it, and proxies before it, take"),
        (Fault(500), SinkError, "500"),
        (Fault(429, {"Retry-After": "7"}), Wait, "429"),
        (Fault(503, {"Retry-After": "Sun, 22 Nov 2026 12:00:00 GMT"}), Wait, "503"),
        (Fault(read=0.5), SinkError, "did not answer"),
        (Fault(reaches=True), SinkError, "did not answer"),
    ],
)
def test_a_batch_that_failed_may_be_written_again(
    influx: Server, writer: InfluxWriter, proxy: Proxy, fault: Fault, error: type[Exception], said: str
) -> None:
    proxy.faults.append(fault)
    with pytest.raises(error, match=said):
        write(writer, f"m v=1i {T}", f"m v=2i {T}", f"m v=-3i -{T}")
    assert write(writer, f"m v=1i {T}", f"m v=2i {T}", f"m v=-3i -{T}") == 3
    assert points(influx) == [[-T, -3], [T, 2]]


@pytest.mark.parametrize(("after", "seconds"), [("7", 7), ("0", 1), ("²", 1), ("soon", 1), ("", 1)])
def test_how_long_to_wait(writer: InfluxWriter, proxy: Proxy, after: str, seconds: float) -> None:
    """Never at once: that would be a loop without a pause."""
    proxy.faults.append(Fault(503, {"Retry-After": after}))
    with pytest.raises(Wait) as e:
        write(writer, f"m v=1i {T}")
    assert e.value.seconds == seconds


def test_requests_stay_small_whatever_the_lines(influx: Server, writer: InfluxWriter, proxy: Proxy) -> None:
    """The server refuses 25 MB, which no repetition mends."""
    lines = [f'm v="{"y" * 6000}{n}" {T + n}' for n in range(4500)]
    large = f'm v="{"z" * BYTES}" {T + 4500}'
    assert write(writer, *lines, large) == 4501
    sizes = [len(body) for _, body in proxy.seen]
    assert max(sizes[:-1]) <= BYTES
    assert sizes[-1] == len(large)
    assert sum(size + 1 for size in sizes) == sum(len(line) + 1 for line in [*lines, large])
    [series] = ask(influx, "SELECT count(v) FROM m")
    assert series["values"][0][1] == 4501


def test_names_and_values_of_every_kind(influx: Server, writer: InfluxWriter) -> None:
    write(
        writer,
        f'a\\ b\\,c=d,t\\ 1=x\\=y\\,z\\ "q" v="q\\"b\\\\" {T}',
        f'é\\n,t=日\\本 v="two\nlines, # 5 \\\\" {T}',
        b'raw v="\xff\xfe" %d' % T,
        f"m v=9223372036854775807i {T}",
        f"early v=1i {-9223372036854}",
    )
    assert points(influx, "a b,c=d") == [[T, 'q"b\\']]
    [series] = ask(influx, 'SELECT v FROM "é\\\\n" GROUP BY *')
    assert (series["tags"], series["values"]) == ({"t": "日\\本"}, [[T, "two\nlines, # 5 \\"]])
    assert points(influx, "raw") == [[T, "\ufffd\ufffd"]]
    assert points(influx) == [[T, 9223372036854775807]]
    assert points(influx, "early") == [[-9223372036854, 1]]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "9223372036854775808i", "1e999", "", '"a\\"'])
def test_a_value_the_server_does_not_take_is_told(writer: InfluxWriter, value: str) -> None:
    with pytest.raises(SinkError, match="unable to parse"):
        write(writer, f"m v={value} {T}")


def test_a_user_who_may_only_write_needs_no_more(influx: Server) -> None:
    with Guarded(influx.home / "guarded", port=free_port(2)) as guarded:
        admin = {"u": "root", "p": "root"}
        ask(guarded, "CREATE USER root WITH PASSWORD 'root' WITH ALL PRIVILEGES")
        for text in ("CREATE DATABASE d", "CREATE USER w WITH PASSWORD 'a/b'", "GRANT WRITE ON d TO w"):
            ask(guarded, text, **admin)
        place = f"127.0.0.1:{guarded.port}"
        writer = InfluxWriter(f"http://w:a%2Fb@{place}", InfluxDB("d"))
        write(writer, f"m v=1i {T}")
        writer.close()
        assert ask(guarded, "SELECT v FROM m", **admin)[0]["values"] == [[T, 1]]
        other = InfluxWriter(f"http://w:a%2Fb@{place}", InfluxDB("others"))
        with pytest.raises(SinkError, match=r"404.*let an admin create it"):
            other.write({"influxdb:others": pa.table({"line": [b"m v=1i 1"]})}, NOTHING)
        other.close()
        with pytest.raises(SinkError, match=r"401.*user and password"):
            InfluxWriter(f"http://w:wrong@{place}", InfluxDB("d"))


def test_names_of_databases(influx: Server) -> None:
    InfluxWriter(influx.url, InfluxDB('a "b"')).close()
    assert ask(influx, "SHOW DATABASES")[0]["values"] == [['a "b"']]
    for name in ("a/b", "a\\b"):
        with pytest.raises(SinkError, match=r"does not create database a.b; got: invalid name"):
            InfluxWriter(influx.url, InfluxDB(name))
    with pytest.raises(DeclarationError, match="needs a database"):
        InfluxDB("")


@pytest.mark.parametrize("url", ["http://user:secr/et@h:8086", "user:secret@h:8086", "http://h:secret", "h:8086"])
def test_what_is_no_url_is_told_without_the_password(url: str) -> None:
    with pytest.raises(SinkError, match="PENSTOCK_INFLUXDB_URL is no URL") as e:
        InfluxWriter(url, InfluxDB("d"))
    assert "secr" not in str(e.value)


def test_a_line_need_not_be_utf_8(spark: SparkSession, influx: Server, writer: InfluxWriter) -> None:
    line = b'm v="\xff" %d' % T
    rows = spark.range(1).select(F.lit(bytearray(line)).cast("string").alias("line"))
    writer.write({"influxdb:d": rows.select(*InfluxDB("d").columns()).toArrow()}, NOTHING)
    assert points(influx) == [[T, "\ufffd"]]


READINGS, COPY = (Topic(name, partitions=2) for name in ("readings", "copy"))


def transform(readings: DataFrame) -> DataFrame:
    """Each reading to both places."""
    line = F.expr("concat('m,id=', id, ' v=', v, 'i ', t)")
    return readings.select(
        "id", "v", line.alias("line"), F.explode(F.array(F.lit("points"), F.lit("copy"))).alias("output")
    )


BOTH = Stream(
    "two-places",
    "tests",
    {
        "readings": Input(
            READINGS,
            schema="id BIGINT NOT NULL, v BIGINT, t BIGINT NOT NULL",
            event_time="timestamp_millis(t)",
            dead="count",
        )
    },
    transform,
    {"points": InfluxDB("d"), "copy": TopicOutput(COPY, key="id", value="v")},
    Each(),
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
        create(bootstrap, READINGS, COPY, COMMITS)

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
        found = ask(self._influx, "SELECT v FROM m GROUP BY id")
        return self.points == {(series["tags"]["id"], at): v for series in found for at, v in series["values"]}

    def agrees(self, tend: Callable[[], None]) -> None:
        wait_until(lambda: tended(tend, self.pointed), 60, what="InfluxDB holds the rows")
        wait_until(lambda: tended(tend, self._copies), 60, what="the copy holds the rows")

    def _copies(self) -> bool:
        return self.copied() == sorted(self.copies, key=str)


@pytest.fixture
def history(fresh_broker: Broker, influx: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """The settings name the proxy."""
    monkeypatch.setenv("PENSTOCK_INFLUXDB_URL", proxy.url)
    settings.cache_clear()
    yield History(influx, fresh_broker.bootstrap)
    settings.cache_clear()


def test_through_every_fault_both_places_hold_what_the_rows_say(
    spark: SparkSession,
    fresh_broker: Broker,
    influx: Server,
    proxy: Proxy,
    history: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.sinks.influxdb.TIMEOUT", 2.0)
    with running(BOTH, spark, fresh_broker.bootstrap, tmp_path / "checkpoints") as run:
        history.more(40)
        history.agrees(run.tend)
        for fault in FAULTS:
            proxy.faults.append(fault)
            history.more(20)
            history.agrees(run.tend)
            assert not proxy.faults
        # The server hangs, and comes back with what it was asked meanwhile.
        influx.pause()
        try:
            history.more(30)
            wait_until(lambda: tended(run.tend, lambda: "Timeout" in (run.figures.error or "")), what="it says so")
            history.more(30)
        finally:
            influx.resume()
        history.agrees(run.tend)
        # The server is killed in the middle of things, and is away for a while.
        influx.kill()
        history.more(30)
        wait_until(lambda: tended(run.tend, lambda: run.figures.state == "failing"), what="it says so")
        assert "did not answer" in (run.figures.error or "")
        influx.start()
        influx.wait()
        history.agrees(run.tend)
        # Its database is deleted: what comes after is there.
        ask(influx, "DROP DATABASE d")
        history.points.clear()
        history.more(30)
        history.agrees(run.tend)


LIFE = """
import sys, time
from pathlib import Path
from penstock.testing import running, spark_session
from tests.integration.test_influxdb import BOTH

with spark_session() as spark, running(BOTH, spark, sys.argv[1], Path(sys.argv[2])) as run:
    while True:
        run.tend()
        time.sleep(0.1)
"""


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
