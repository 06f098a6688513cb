"""Windows computed again from archived records: what the stream said where nothing was late, else what was meant."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobs.metrics import RECEIPTS, bundles, metrics_settings, summaries
from jobs.metrics.statistics import quantile_names
from jobs.quality import counts
from penstock import catalog
from penstock.archive import records as archive_records
from penstock.devstack.servers.kafka import Broker
from penstock.engine.operations import recompute
from penstock.engine.operations.recompute import RecomputeCounts, recompute_rows
from penstock.errors import DeclarationError
from penstock.streams import EmitChanges, EmitFinal, Expectation, F, Input, Stream, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send, table
from tests.support.statistics_model import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
SUMMARY = 600_000
CHAIN = (bundles.STREAM, summaries.STREAM)
Archived = tuple[int, bytes | None]
"""Own timestamp, epoch ms, and value."""


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def archived(folder: Path, topic: str, given: Sequence[Archived], hours: bool = True) -> list[str]:
    """The files that an archive has of some records, an hour each."""
    rows = [
        {"topic": topic, "partition": n % 2, "offset": n, "key": b"k", "value": value, "timestamp": at(ms),
         "headers": [{"key": "h", "value": b"1"}] if n % 2 else None, "event_time": at(ms)}
        for n, (ms, value) in enumerate(given)
    ]  # fmt: skip
    made = archive_records.to_archive_schema(pa.Table.from_pylist(rows, archive_records.SCHEMA))
    paths = []
    for hour, part in archive_records.split_by_hour(made) if hours else [("all", made)]:
        path = folder / f"{topic}-{hour}.parquet"
        pq.write_table(part, path)
        paths.append(str(path))
    return paths


def again(
    spark: SparkSession, streams: Sequence[Stream], paths: Sequence[str], start: int, end: int
) -> tuple[dict[str, str], RecomputeCounts]:
    """The rows by key, each of which comes once, and what was read. start, end: epoch ms."""
    told = RecomputeCounts()
    found = [
        (row["key"].decode(), row["value"].decode())
        for rows in recompute_rows(spark, streams, paths, start=at(start), end=at(end), counts=told)
        for row in rows.select(["key", "value"]).to_pylist()
    ]
    assert len(dict(found)) == len(found)
    return dict(found), told


def receipt(metric: str, value: float, ms: int) -> Record:
    said = {"environment": "prod", "metric": metric, "value": value, "timestamp": ms}
    return Record(RECEIPTS.name, None, json.dumps(said), partition=ms % 4, timestamp=ms)


def alike(one: dict[str, str], other: dict[str, str]) -> None:
    """The same figures under the same keys, but for the order of additions."""
    assert one.keys() == other.keys()
    for key, text in one.items():
        a, b = json.loads(text), json.loads(other[key])
        assert a == {**b, **{name: pytest.approx(b[name], rel=1e-9) for name in ("average", "stddev")}}, key


@pytest.mark.long
def test_recomputed_windows_equal_those_of_the_shipped_streams(
    spark: SparkSession, fresh_broker: Broker, tmp_path: Path
) -> None:
    """Receipts of three hours ago, some that come when their windows have closed, and some that are none."""
    bootstrap, chance = fresh_broker.bootstrap, random.Random(5)
    create(bootstrap, *catalog.build([*CHAIN, counts.STREAM]).topics.values())
    base = (int(time.time() * 1000) - 3 * 3_600_000) // SUMMARY * SUMMARY
    # Two metrics in six windows of ten minutes; what is late falls into the third one.
    sent = [
        receipt(f"m{n % 2}", chance.choice([1.239, 7.0, chance.uniform(-50, 50)]), base + chance.randrange(6 * SUMMARY))
        for n in range(3000)
    ]
    sent += [receipt("m0", 1.0, base + 4 * SUMMARY), receipt("m1", 1.0, base + 3 * SUMMARY - 1)]
    late = [receipt("m1", 99.5 + n, base + 2 * SUMMARY + n * 60_000) for n in range(9)]
    rubbish = [
        Record(RECEIPTS.name, None, value, timestamp=base + SUMMARY + 5) for value in ("{", '{"metric": "m1"}', None)
    ]
    # What is late is told by the time before the batch before.
    now = [receipt("m0", 0.0, int(time.time() * 1000)) for _ in range(2)]
    steps = [[*sent, *rubbish, now[0]], [now[1]], late]
    late_ones = []
    with ExitStack() as stack:
        runs = [
            stack.enter_context(running(one, spark, bootstrap, tmp_path / "checkpoints"))
            for one in (bundles.STREAM, counts.STREAM)
        ]
        for step in steps:
            send(bootstrap, step)
            for run in runs:
                run.process_all_available()
                late_ones.append(run.report().late)
    assert late_ones == [0, 0, 0, 0, len(late), len(late)]
    with running(summaries.STREAM, spark, bootstrap, tmp_path / "checkpoints") as run:
        run.process_all_available()
    kept = [(r.timestamp, None if r.value is None else r.value.encode()) for r in read(bootstrap, RECEIPTS.name)]
    paths = archived(tmp_path, RECEIPTS.name, kept)
    assert len(paths) >= 2
    start, end = base + 1, base + 6 * SUMMARY - 1

    def inside(found: dict[str, str], size: int) -> dict[str, str]:
        return {k: v for k, v in found.items() if start <= (at := json.loads(k)["window"]) and at + size <= end}

    live = inside(table(read(bootstrap, summaries.SUMMARIES.name)), SUMMARY)
    made, told = again(spark, CHAIN, paths, start, end)
    [third] = {key for key in live if json.loads(key)["window"] == base + 2 * SUMMARY and "m1" in key}
    assert len(live) == 8
    alike({**made, third: live[third]}, live)
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for value in (json.loads(r.value or "") for r in [*sent, *late]):
        groups[value["metric"], value["timestamp"] // SUMMARY * SUMMARY].append(value["value"])
    quantiles = metrics_settings().quantiles
    for key, text in made.items():
        said, wanted = json.loads(text), plain(groups[json.loads(key)["metric"], json.loads(key)["window"]], quantiles)
        assert said == {**json.loads(key), **said, **{n: wanted[n] for n in ("count", *quantile_names(quantiles))}}
    assert json.loads(made[third])["count"] == json.loads(live[third])["count"] + len(late)
    assert (told.records, told.bad) == (len(kept), {bundles.STREAM.name: 3})

    own = {k: v for k, v in table(read(bootstrap, counts.METRICS.name)).items() if json.loads(k)["topic"] == "receipts"}
    made, _ = again(spark, (counts.STREAM,), paths, start, end)
    wanted = inside(own, 1000)
    for one in late:
        key = json.dumps({"topic": "receipts", "window": one.timestamp // 1000 * 1000, "status": "valid"}).replace(
            " ", ""
        )
        wanted[key] = str(int(wanted.get(key, "0")) + 1)
    assert made == wanted


IN, BETWEEN, OUT = (Topic(name, partitions=1) for name in ("again-in", "again-between", "again-out"))
MICROS = "at BIGINT NOT NULL"


def counted(length: str, says: str = "unix_micros(w.start)") -> Any:
    def transform(given: DataFrame) -> DataFrame:
        rows = given.groupBy(F.window("event_time", length).alias("w")).agg(F.count("*").alias("n"))
        return rows.selectExpr(f"{says} AS at", "n")

    return transform


def stream(
    transform: Any,
    window: timedelta = SECOND,
    given: Topic = IN,
    output: Topic = OUT,
    time: str = "timestamp_micros(at)",
) -> Stream:
    source = Input(given, schema=MICROS, event_time=time)
    written = TopicOutput(output, key="at", value=("at", "n"))
    return Stream(f"{given.name}-counts", "tests", {"given": source}, transform, written, EmitChanges(window, HOUR))


BASE = 1_700_000_000_000


def seconds(*given: float) -> list[Archived]:
    return [(round(BASE + s * 1000), b'{"at": %d}' % round((BASE + s * 1000) * 1000)) for s in given]


@pytest.mark.parametrize("time", ["timestamp_micros(at)", "timestamp_micros(at + 0)"])
def test_records_ahead_of_their_timestamp_are_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: str
) -> None:
    """By the time that Spark tells, and by the one that is told where records are decoded; and windows at the edges.
    The files are cut, as large ones are."""
    monkeypatch.setattr(recompute, "LARGE", 0)
    ahead = [(BASE, value) for _, value in seconds(299.5, 301)]
    paths = archived(tmp_path, IN.name, [*seconds(0.2, 0.3, 1.5, 299.9, 302.5), *ahead])
    made, told = again(spark, [stream(counted("1 second"), time=time)], paths, BASE + 100, BASE + 302_600)
    assert {int(k) // 1000 - BASE: json.loads(v)["n"] for k, v in made.items()} == {1000: 1, 299_000: 2}
    assert (told.records, told.bad) == (7, {"again-in-counts": 1})
    assert told.reason.startswith("the event time lies in the future: ")


def test_recomputing_without_records_gives_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    chain = [stream(counted("1 second"), output=BETWEEN), stream(counted("2 seconds"), 2 * SECOND, BETWEEN)]
    files = archived(tmp_path, IN.name, [], hours=False)
    assert again(spark, chain, files, BASE, BASE + 10_000) == ({}, RecomputeCounts())
    assert again(spark, chain, [], BASE, BASE + 10_000) == ({}, RecomputeCounts())
    assert again(spark, chain, ["nowhere"], BASE, BASE + 1999) == ({}, RecomputeCounts())


def test_rows_are_checked_against_expectations(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that would be dead letters are left out and counted, of each stream of a chain; a rule may fail all."""
    few = Expectation("few", "n < 3", on_violation="dead letter")
    final = EmitFinal(SECOND, SECOND)
    first = replace(stream(counted("1 second"), output=BETWEEN), output_mode=final, expectations=(few,))
    kept = (Expectation("one", "n = 1", on_violation="keep"), Expectation("known", "n <> 2", on_violation="keep"))
    second = replace(stream(counted("2 seconds"), 2 * SECOND, BETWEEN), expectations=kept)
    paths = archived(tmp_path, IN.name, seconds(0.1, 0.2, 0.3, 1.1, 2.5, 3.1))
    made, told = again(spark, [first, second], paths, BASE, BASE + 4000)
    assert {int(k) // 1000 - BASE: json.loads(v)["n"] for k, v in made.items()} == {0: 1, 2000: 2}
    assert (told.bad, told.reason) == ({"again-in-counts": 1}, "the row violates few: n < 3")
    failing = replace(second, expectations=(Expectation("one", "n = 1", on_violation="fail"),))
    with pytest.raises(DeclarationError, match="violate its expectation one, which fails them; got: 1 rows, n = 1"):
        again(spark, [first, failing], paths, BASE, BASE + 4000)


def by_all(given: DataFrame) -> DataFrame:
    return (
        given.groupBy(F.window("event_time", "1 second").alias("w"))
        .agg(F.count("*").alias("n"))
        .selectExpr("unix_micros(w.start) AS at", "n")
    )


def for_ever(given: DataFrame) -> DataFrame:
    return given.groupBy("at").agg(F.count("*").alias("n"))


def overlapping(given: DataFrame) -> DataFrame:
    rows = given.groupBy(F.window("event_time", "2 seconds", "1 second").alias("w")).agg(F.count("*").alias("n"))
    return rows.selectExpr("unix_micros(w.start) AS at", "n")


BY_SECOND = stream(counted("1 second"), output=BETWEEN)
REFUSED = {
    "for groups without event time": [stream(for_ever)],
    "groups by windows that overlap": [stream(overlapping)],
    "puts records of several topics together": [
        replace(stream(counted("1 second")), inputs={"given": Input(pattern="again-i.")})
    ],
    "outside the window that they are of": [
        replace(BY_SECOND, transform=counted("1 second", "unix_micros(w.end)")),
        stream(counted("2 seconds"), 2 * SECOND, BETWEEN),
    ],
    "does not read what is archived": [stream(counted("1 second"), given=Topic("other"))],
}


@pytest.mark.parametrize("why", REFUSED)
def test_recomputations_that_could_be_wrong_are_refused(spark: SparkSession, tmp_path: Path, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        again(spark, REFUSED[why], archived(tmp_path, IN.name, seconds(2.5)), BASE, BASE + 10_000)
