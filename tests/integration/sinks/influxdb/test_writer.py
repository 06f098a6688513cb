"""The InfluxDB writer against a real server behind a failing proxy: the points equal the latest rows."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.devstack.servers.influxdb import InfluxDBServer as Server
from penstock.errors import Refused, SinkError, Wait
from penstock.host.ports import free_port
from penstock.model.output import NO_COMMIT
from penstock.sinks.influxdb.config import LIMITS, InfluxDB
from penstock.sinks.influxdb.writer import InfluxWriter
from tests.support.http_faults import Fault, Proxy
from tests.support.influxdb import asked, documents, row, server

pytestmark = pytest.mark.integration

T = 1_501_273_548_000
AT = datetime.fromtimestamp(T / 1000, UTC)
TIME = pa.timestamp("us", "UTC")
TYPES: dict[str, Any] = {"t": pa.string(), "at": TIME, "v": pa.int64()}
OUTPUT = InfluxDB(sink="s", database="d", measurement="m", tags=("t",), time="at")
PLAIN = InfluxDB(sink="s", database="d", measurement="m", time="at", versioned=False)


class Guarded(Server):
    """One that asks who is there."""

    def prepare(self) -> None:
        super().prepare()
        config = self.folder / "influxdb.conf"
        config.write_text(config.read_text().replace("[http]", "[http]\n  auth-enabled = true"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("influx")) as part:
        yield part


@pytest.fixture
def influx(shared: Server) -> Server:
    """Empty."""
    asked(shared, "DROP DATABASE d", "d")
    return shared


@pytest.fixture
def proxy(influx: Server) -> Iterator[Proxy]:
    with Proxy(influx.url, "/write") as made:
        yield made


Opened = Callable[..., InfluxWriter]


@pytest.fixture
def opened(proxy: Proxy) -> Iterator[Opened]:
    made: list[InfluxWriter] = []

    def writer(output: InfluxDB = OUTPUT, url: str = "") -> InfluxWriter:
        made.append(InfluxWriter(url or proxy.url, output))
        return made[-1]

    yield writer
    for one in made:
        one.close()


def write(writer: InfluxWriter, *rows: dict[str, Any], **types: Any) -> int:
    return writer.write({writer.output.name: documents(*rows, **types or TYPES)}, NO_COMMIT)


def ask(influx: Server, text: str, **params: str) -> list[dict[str, Any]]:
    """The series of a query's answer."""
    return list(asked(influx, text, "d", **params).get("series", []))


def points(influx: Server, measurement: str = "m", field: str = "v") -> list[list[Any]]:
    return [row for series in ask(influx, f'SELECT "{field}" FROM "{measurement}"') for row in series["values"]]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(301, {"Location": "https://elsewhere/write"}),
        Fault(307, {"Location": "/login"}),
        Fault(200, body="<html>Please sign in</html>"),
        Fault(202),
    ],
)
def test_only_what_the_server_says_it_wrote_is_written(opened: Opened, proxy: Proxy, fault: Fault) -> None:
    proxy.faults.append(fault)
    with pytest.raises(SinkError, match=f"got: {fault.status}"):
        write(opened(), row(at=AT, v=1))


@pytest.mark.parametrize(
    ("faults", "error", "said"),
    [
        ([Fault(401, body="who?")], SinkError, "401 who.*user and password"),
        ([Fault(404, body="database not found")], SinkError, "404 database not found"),
        ([Fault(500)] * 3, Wait, "500"),
        ([Fault(429, {"Retry-After": "7"})], Wait, "429"),
        ([Fault(503, {"Retry-After": "Sun, 22 Nov 2026 12:00:00 GMT"})], Wait, "503"),
        ([Fault(read=0.5)] * 3, Wait, "cannot take anything at present; got: RemoteProtocolError"),
        ([Fault(reaches=True)] * 3, Wait, "cannot take anything at present"),
    ],
)
def test_a_batch_that_failed_may_be_written_again(
    influx: Server, opened: Opened, proxy: Proxy, faults: list[Fault], error: type[Exception], said: str
) -> None:
    proxy.faults.extend(faults)
    writer = opened()
    rows = row(1, at=AT, v=1), row(2, at=AT, v=2), row(1, at=AT - timedelta(days=20_000), v=-3)
    with pytest.raises(error, match=said):
        write(writer, *rows)
    assert not proxy.faults
    assert write(writer, *rows) == 3
    assert points(influx) == [[T - 20_000 * 86_400_000, -3], [T, 2]]


def test_a_request_is_made_again_a_few_times_before_the_batch_waits(opened: Opened, proxy: Proxy) -> None:
    writer = opened()
    proxy.faults.extend([Fault(503), Fault(reaches=True)])
    assert write(writer, row(at=AT, v=1)) == 1
    assert (writer.counters.written, writer.counters.retried) == (1, 2)


@pytest.mark.parametrize(("after", "seconds"), [("7", 7), ("0", 1), ("²", 1), ("soon", 1)])
def test_how_long_to_wait(opened: Opened, proxy: Proxy, after: str, seconds: float) -> None:
    """Never at once: that would be a loop without a pause."""
    proxy.faults.append(Fault(503, {"Retry-After": after}))
    with pytest.raises(Wait) as e:
        write(opened(), row(at=AT, v=1))
    assert seconds <= e.value.seconds <= 1.25 * seconds


def test_a_server_that_is_away_is_waited_for_ever_longer(opened: Opened, influx: Server) -> None:
    writer = opened(url=f"http://127.0.0.1:{free_port()}")
    waits = []
    for _ in range(4):
        with pytest.raises(Wait, match=r"ConnectError.* database d") as e:
            write(writer, row(at=AT, v=1))
        waits.append(e.value.seconds)
    assert waits[0] < waits[2] < waits[3] <= 10
    assert ask(influx, "SHOW DATABASES")


def test_requests_stay_small_whatever_the_lines(influx: Server, opened: Opened, proxy: Proxy) -> None:
    """The server refuses 25 MB, which no repetition mends."""
    rows = [row(at=AT + timedelta(milliseconds=n), v=f"{'y' * 6000}{n}") for n in range(1500)]
    large = row(at=AT - timedelta(milliseconds=1), v="z" * LIMITS.request_bytes)
    huge = row(at=AT - timedelta(milliseconds=2), v="z" * 26_000_000)
    with pytest.raises(Refused) as e:
        write(opened(), *rows, large, huge, t=pa.string(), at=TIME, v=pa.string())
    assert e.value.rows == {OUTPUT.name: {1501: "it is larger than InfluxDB, or a proxy before it, takes"}}
    sizes = sorted(len(body) for _, body in proxy.seen)
    assert sizes[-3] <= LIMITS.request_bytes < sizes[-2]
    [series] = ask(influx, "SELECT count(v) FROM m")
    assert series["values"][0][1] == 1501


NAMES = (
    "a b,c=d",
    "é\u0085\u2028\\n",
    'q"u',
    "'",
    "日\\本",
    "a\\,b",
    "a\\ b",
    " ",
    "\\=",
    "_field",
    "a,b=c d\\=e",
    "x.tombstones",
    "\\\\n",
)
# Of measurements; others are refused.
KEPT = [name for name in NAMES if not re.search(r'\\[,= "]', name)]


def selected(name: str) -> str:
    """The query for a measurement's points."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'SELECT "f ,=", b FROM "{quoted}" GROUP BY *'


def test_names_and_values_of_every_kind(influx: Server, opened: Opened) -> None:
    """Written, compared with what is there, and deleted: each finds its own point again, and no other."""
    output = InfluxDB(sink="s", database="d", measurement_column="m", tags=('t "=, x',), time="at")
    text_of: dict[str, Any] = {name: pa.string() for name in ("m", output.tags[0], "f ,=")}
    types = {**text_of, "at": TIME, "b": pa.bool_()}
    text = 'q"b\\ two\nlines, # 5 \\'

    def named(m: str, t: str) -> dict[str, Any]:
        return {"m": m, output.tags[0]: t, "at": AT, "f ,=": text, "b": True}

    rows = [row(2, **named(m, t)) for m in KEPT for t in NAMES]
    writer = opened(output)
    assert write(writer, *rows, **types) == len(rows)
    assert write(writer, *[{**one, "version": 1, "doc": {**one["doc"], "b": False}} for one in rows], **types) == 0
    for name in KEPT:
        found = ask(influx, selected(name))
        assert sorted(series["tags"][output.tags[0]] for series in found) == sorted(NAMES)
        assert [series["values"] for series in found] == [[[T, text, True]]] * len(NAMES)
    assert len(ask(influx, "SHOW MEASUREMENTS")[0]["values"]) == len(KEPT)
    gone = [{**one, "version": 3, "deleted": True} for one in rows]
    assert write(writer, *gone[::2], **types) == len(gone[::2])
    left = [(name, s["tags"][output.tags[0]]) for name in KEPT for s in ask(influx, selected(name))]
    assert sorted(left) == sorted((one["doc"]["m"], one["doc"][output.tags[0]]) for one in rows[1::2])


def test_numbers_and_times_to_the_ends_of_their_ranges(influx: Server, opened: Opened) -> None:
    ends = [datetime(1677, 9, 21, 0, 12, 44, tzinfo=UTC), datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=UTC)]
    types: dict[str, Any] = {
        "at": TIME,
        "n": pa.int64(),
        "x": pa.float64(),
        "y": pa.float32(),
        "d": pa.decimal128(38, 18),
    }
    output = InfluxDB(sink="s", database="d", measurement="ends", time="at")
    numbers: dict[str, Any] = {"x": 1.7976931348623157e308, "y": 1e-45, "d": -1}
    rows = [row(2**63 - 1, at=at, n=n, **numbers) for at, n in zip(ends, (-(2**63), 2**63 - 1), strict=True)]
    writer = opened(output)
    assert write(writer, *rows, **types) == 2
    assert write(writer, *[{**one, "version": 2**63 - 2} for one in rows], **types) == 0
    [series] = ask(influx, 'SELECT n, x, y, d, "_version.n" FROM ends', epoch="u")
    found = [dict(zip(series["columns"], values, strict=True)) for values in series["values"]]
    assert [one["n"] for one in found] == [-(2**63), 2**63 - 1]
    assert [one["_version.n"] for one in found] == [2**63 - 1] * 2
    assert {(one["x"], one["d"]) for one in found} == {(1.7976931348623157e308, -1)}
    assert [one["time"] for one in found] == [int(at.timestamp()) * 10**6 + at.microsecond for at in ends]


def test_one_value_that_the_server_refuses_takes_no_other_with_it(influx: Server, opened: Opened) -> None:
    """A field of a measurement has one type for all: in `whole` whole numbers came first."""
    output = InfluxDB(sink="s", database="d", measurement_column="t", time="at")
    write(opened(output), row(at=AT, v=0, t="whole"))
    rows = [row(at=AT + timedelta(seconds=n), v=n, t="other" if n % 9 else "whole") for n in range(20)]
    with pytest.raises(Refused, match=r"can never take 3 rows for .*; got: .*field type conflict") as e:
        write(opened(output), *rows, **{**TYPES, "v": pa.float64()})
    assert (sorted(e.value.rows[output.name]), e.value.written) == ([0, 9, 18], 17)
    assert [v for _, v in points(influx, "other")] == [n for n in range(20) if n % 9]
    assert points(influx, "whole") == [[T, 0]]


@pytest.mark.parametrize("output", [OUTPUT, PLAIN])
def test_rows_of_one_record_for_one_field_are_refused(influx: Server, opened: Opened, output: InfluxDB) -> None:
    with pytest.raises(Refused) as e:
        write(opened(output), row(5, offset=1, at=AT, v=1), row(5, offset=1, at=AT, v=2), row(4, offset=0, at=AT, v=3))
    assert (sorted(e.value.rows[output.name]), e.value.written) == ([0, 1], 1)
    assert points(influx) == [[T, 3]]


def test_points_that_the_database_would_not_keep_are_left_out(influx: Server, opened: Opened) -> None:
    ask(influx, "CREATE DATABASE d WITH DURATION 7d")
    now = datetime.now(UTC)
    assert write(opened(), row(at=AT, v=1), row(at=now, v=2)) == 2
    assert [v for _, v in points(influx)] == [2]


def test_text_that_is_no_utf_8(spark: SparkSession, influx: Server, opened: Opened) -> None:
    """As a value it is kept as it is; a name would be another's for who reads it."""
    raw = "CAST(X'FF' AS STRING)"
    record = "struct('topic' AS topic, 0 AS partition, 0L AS offset) AS record"
    doc = f"struct(%s AS t, timestamp_millis({T}L) AS at, {raw} AS v) AS doc"
    frame = spark.range(2).selectExpr(
        doc % f"if(id = 1, {raw}, 't')", "'i' AS id", "1L AS version", "false AS deleted", "NULL AS at",
        "NULL AS refused", record,
    )  # fmt: skip
    with pytest.raises(Refused) as e:
        opened().write({OUTPUT.name: frame.select(*OUTPUT.columns()).toArrow()}, NO_COMMIT)
    assert e.value.rows == {OUTPUT.name: {1: "its measurement or a tag of it is not UTF-8"}}
    assert points(influx) == [[T, "\ufffd"]]


def test_a_user_who_may_only_write_needs_no_more_where_nothing_is_versioned(tmp_path: Path) -> None:
    with Guarded(tmp_path / "guarded", port=free_port(2)) as guarded:
        admin = {"u": "root", "p": "root"}
        ask(guarded, "CREATE USER root WITH PASSWORD 'root' WITH ALL PRIVILEGES")
        for text in ("CREATE DATABASE d", "CREATE USER w WITH PASSWORD 'a/b'", "GRANT WRITE ON d TO w"):
            ask(guarded, text, **admin)
        url = f"http://w:a%2Fb@127.0.0.1:{guarded.port}"
        for given, output, said in (
            (url, PLAIN, ""),
            (url, OUTPUT, "403.*may read and write"),
            (
                url,
                InfluxDB(sink="s", database="others", measurement="m", versioned=False),
                "404.*let an admin create it",
            ),
            (url.replace("a%2Fb", "wrong"), PLAIN, "401.*user and password"),
        ):
            writer = InfluxWriter(given, output)
            if said:
                with pytest.raises(SinkError, match=said):
                    write(writer, row(at=AT, v=2))
            else:
                write(writer, row(at=AT, v=1))
            writer.close()
        assert ask(guarded, "SELECT v FROM m", **admin)[0]["values"] == [[T, 1]]


def test_names_of_databases(influx: Server, opened: Opened) -> None:
    write(opened(InfluxDB(sink="s", database='a "b"', measurement="m", time="at")), row(at=AT, v=1))
    assert ['a "b"'] in ask(influx, "SHOW DATABASES")[0]["values"]
    for name in ("a/b", "a\\b"):
        with pytest.raises(SinkError, match=r"does not create database a.b; got: invalid name"):
            write(opened(InfluxDB(sink="s", database=name, measurement="m", time="at")), row(at=AT, v=1))


# The newest wins


@pytest.mark.parametrize("seed", range(4))
def test_in_whatever_order_rows_come_the_newest_of_each_field_wins(influx: Server, opened: Opened, seed: int) -> None:
    """Rows of few points in a random order and in batches of any size, some of them twice, by two writers in turn; the
    server dies twice. A row deletes, or gives one field or both, and never two of one version."""
    chance = random.Random(seed)
    output = InfluxDB(sink="s", database="d", measurement="m", tags=("t",), time="at")
    types: dict[str, Any] = {"t": pa.string(), "at": TIME, "a": pa.int64(), "b": pa.string()}
    rows, model = [], dict[tuple[str, int], dict[str, Any]]()
    for version in range(1, 301):
        point = chance.choice(["", "x", "y=,"]), chance.choice([0, 1, 10_000_000])
        values: dict[str, Any] = {
            name: value for name, value in (("a", version), ("b", f"v{version}")) if chance.random() < 0.6
        }
        deleted = chance.random() < 0.15 or not values
        if deleted:
            model.pop(point, None)
            # Both fields at once: InfluxDB deletes no single field, so what is older than a deletion that comes after
            # something newer of the same point stays.
            values = {}
            rows.append(row(version, deleted=True, t=point[0], at=AT + timedelta(seconds=point[1])))
            continue
        model.setdefault(point, {}).update(values)
        rows.append(row(version, t=point[0], at=AT + timedelta(seconds=point[1]), **values))
    deletions = [one for one in rows if one["deleted"]]
    others = [one for one in rows if not one["deleted"]]
    chance.shuffle(others)
    chance.shuffle(deletions)
    # Deletions first, or each in its own time: both ways what is older and comes later must stay away.
    given = [*deletions, *others] if seed % 2 else rows
    given = given + chance.sample(given, 60) if seed % 2 else given + others[:100]
    writers = [opened(output, influx.url), opened(output, influx.url)]
    restarts = {len(given) // 3, len(given) // 2}
    at = 0
    while at < len(given):
        size = chance.choice([1, 5, 30])
        if restarts & set(range(at, at + size)):
            influx.kill()
            influx.restart()
        write(chance.choice(writers), *given[at : at + size], **types)
        at += size
    found = {
        (series["tags"]["t"], (at - T) // 1000): {n: v for n, v in zip("ab", (a, b), strict=True) if v is not None}
        for series in ask(influx, "SELECT a, b FROM m GROUP BY t")
        for at, a, b in series["values"]
    }
    assert found == model


def test_a_deleted_point_stays_away_from_what_is_older_also_after_a_restart(influx: Server, opened: Opened) -> None:
    other = AT + timedelta(seconds=1)
    writer = opened(url=influx.url)
    write(writer, row(5, at=AT, v=1, t="x"), row(5, at=other, v=2, t="x"), row(5, at=AT, v=3))
    write(writer, row(7, deleted=True, at=AT, t="x"))
    assert write(writer, row(6, deleted=True, at=AT, t="x"), row(4, deleted=True, at=other, t="x")) == 0
    influx.kill()
    influx.restart()
    assert write(writer, row(6, at=AT, v=9, t="x")) == 0
    assert points(influx) == [[T, 3], [T + 1000, 2]]
    assert write(writer, row(8, at=AT, v=4, t="x")) == 1
    assert sorted(points(influx)) == [[T, 3], [T, 4], [T + 1000, 2]]
    assert writer.counters.conflicts == 3


def test_a_mark_is_set_and_taken_away_again(influx: Server, opened: Opened) -> None:
    output = InfluxDB(sink="s", database="d", measurement="m", time="at", tombstones="mark")
    writer = opened(output)
    for rows, expected in (
        ([row(1, at=AT, v=1)], [1, False]),
        ([row(5, deleted=True, at=AT)], [1, True]),
        ([row(3, at=AT, v=3)], [3, True]),
        ([row(6, at=AT, v=6)], [6, False]),
    ):
        write(writer, *rows)
        [series] = ask(influx, "SELECT v, deleted FROM m")
        assert series["values"] == [[T, *expected]]
