"""Which records are late where windows overlap and where times are finer than the watermark: those Spark dropped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from penstock import catalog
from penstock.devstack.servers.kafka import Broker
from penstock.model.output_mode import OutputMode
from penstock.streams import EmitFinal, F, Input, Stream, Timers, Topic, TopicOutput
from penstock.testing import Record, create, read, running, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

SECOND = timedelta(seconds=1)
BASE = 1_700_000_000
EVENTS = Topic("events", partitions=1, config={"retention.ms": "-1"})
OUT = Topic("out", partitions=1)
INPUT = Input(EVENTS, schema="at BIGINT NOT NULL", event_time="timestamp_micros(at)", late_records="keep")


def windows(events: DataFrame) -> DataFrame:
    """Five seconds, every two."""
    rows = events.groupBy(F.window("event_time", "5 seconds", "2 seconds").alias("w")).agg(F.count("*").alias("n"))
    return rows.selectExpr(f"unix_seconds(w.end) - {BASE} AS at", "n")


class Times(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002, N802, N803
        for row in rows:
            yield Row(at=row.at, n=1)

    def close(self) -> None: ...


def timed(events: DataFrame) -> DataFrame:
    keyed = events.withColumn("k", F.lit(1)).groupBy("k")
    return keyed.transformWithState(Times(), "at BIGINT, n BIGINT", "Append", "EventTime")


@pytest.fixture
def bootstrap(fresh_broker: Broker) -> str:
    return fresh_broker.bootstrap


def micros(seconds: float) -> int:
    return round((BASE + seconds) * 1_000_000)


def through(
    transform: Any,
    output_mode: OutputMode,
    steps: Sequence[Sequence[float]],
    spark: SparkSession,
    bootstrap: str,
    folder: Path,
) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
    """Rows as (at, n), and the late records with how many ms; each step is a batch of its own."""
    stream = Stream("late", "tests", {"events": INPUT}, transform, TopicOutput(OUT, value=("at", "n")), output_mode)
    create(bootstrap, *catalog.build([stream]).topics.values())
    with running(stream, spark, bootstrap, folder) as run:
        for step in steps:
            send(bootstrap, [Record(EVENTS.name, None, json.dumps({"at": micros(seconds)})) for seconds in step])
            run.process_all_available()
    rows = [json.loads(r.value or "") for r in read(bootstrap, OUT.name)]
    late = [
        (json.loads(r.value or "")["at"], dict(r.headers)["penstock.late-ms"]) for r in read(bootstrap, "late-late")
    ]
    return [(row["at"], row["n"]) for row in rows], late


def test_a_record_that_misses_one_of_its_windows_is_late(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """The second step finds time at 17.25: a window has ended at 17, and the next ends at 19."""
    output_mode = EmitFinal(window=2 * SECOND, grace=3 * SECOND, phase=SECOND)
    steps = [[20.25], [16.5, 17.0], [60.0]]
    rows, late = through(windows, output_mode, steps, spark, bootstrap, tmp_path)
    assert sorted(rows) == [(19, 2), (21, 3), (23, 1), (25, 1)]
    assert late == [(micros(16.5), "250")]


def test_a_record_less_than_a_millisecond_after_the_watermark_is_in_time(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    steps = [[20.0], [17.0, 17.0005, 16.9]]
    rows, late = through(timed, Timers(tick=SECOND, grace=3 * SECOND), steps, spark, bootstrap, tmp_path)
    assert sorted(rows) == [(micros(17.0005), 1), (micros(20.0), 1)]
    assert late == [(micros(17.0), "0"), (micros(16.9), "100")]
