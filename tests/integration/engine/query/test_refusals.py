"""What Spark cannot do in one query is refused before its first batch, with the way to do it."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from penstock.control import ProgressRow
from penstock.devstack.servers.kafka import Broker
from penstock.engine.query.stream_run import StreamRun
from penstock.errors import DeclarationError
from penstock.model.output_mode import OutputMode
from penstock.model.topic import COMMITS
from penstock.streams import (
    EmitChanges,
    EmitFinal,
    F,
    Input,
    Stateless,
    Stream,
    StreamJoin,
    Table,
    Timers,
    Topic,
    TopicOutput,
)
from penstock.testing import create, frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration

MINUTE = timedelta(minutes=1)
SCHEMA = "n BIGINT NOT NULL, at TIMESTAMP NOT NULL"
ONE, OTHER, OUT = (Topic(name, partitions=1) for name in ("one", "other", "out"))
NAMES = Topic("names", partitions=1, compacted=True)
INPUTS: dict[str, Input | Table] = {
    "one": Input(ONE, schema=SCHEMA, event_time="at", dead_letters="count"),
    "other": Input(OTHER, schema=SCHEMA, event_time="at", dead_letters="count"),
    "names": Table(NAMES, schema="name STRING"),
}
FINAL, UPDATES = EmitFinal(window=MINUTE, grace=MINUTE), EmitChanges(window=MINUTE, grace=MINUTE)
JOINED, TIMED = StreamJoin(within=MINUTE, grace=MINUTE), Timers(tick=MINUTE, grace=MINUTE)
BETWEEN = "a.n = b.n AND a.event_time BETWEEN b.event_time AND b.event_time + INTERVAL 1 MINUTE"


def by_minute(one: DataFrame) -> DataFrame:
    return one.groupBy(F.window("event_time", "1 minute").alias("w")).agg(F.count("*").alias("n"))


def joined(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.alias("a").join(other.alias("b"), F.expr(BETWEEN)).select("a.n", "a.event_time")


class Nothing(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002, N802, N803
        yield Row(n=1)

    def close(self) -> None: ...


def timed(one: DataFrame) -> DataFrame:
    return by_clock(one, "EventTime")


def by_clock(one: DataFrame, clock: str) -> DataFrame:
    return one.groupBy("n").transformWithState(Nothing(), "n BIGINT", "Append", clock)


def same(_key: Any, frames: Any, _state: Any) -> Any:
    return frames


def sliding(length: str, every: str, start: str = "0 seconds") -> Any:
    return lambda one: one.groupBy(F.window("event_time", length, every, start)).agg(F.count("*").alias("n"))


TOPIC_BETWEEN = "two streams with a topic between"
REFUSED: dict[str, tuple[OutputMode, Any, str]] = {
    "an aggregate of an aggregate that is updated": (
        UPDATES, lambda one: by_minute(by_minute(one).withColumn("event_time", F.window_time("w"))), "one is all"),
    "a join without saying so": (FINAL, joined, "use StreamJoin("),
    "a join that is updated": (UPDATES, joined, TOPIC_BETWEEN),
    "a join of each": (Stateless(), joined, "use StreamJoin("),
    "no join": (JOINED, lambda one, other: one.union(other).select("n"), "take another output mode"),
    "timers that are updated": (UPDATES, timed, TOPIC_BETWEEN),
    "timers without saying so": (FINAL, timed, "use Timers("),
    "timers by the machine's clock": (TIMED, lambda one: by_clock(one, "ProcessingTime"), '"EventTime"'),
    "state without a clock": (TIMED, lambda one: by_clock(one, "None"), '"EventTime"'),
    "timers without event time": (TIMED, lambda one: timed(one.select("n")), "the column event_time"),
    "no timers": (TIMED, by_minute, "take another output mode"),
    "a step more than is said": (FINAL, lambda one: by_minute(one.dropDuplicates(["n", "event_time"])), "say steps=2"),
    "a step in a stream without state": (Stateless(), by_minute, "use EmitFinal(window="),
    "groups without time": (FINAL, lambda one: one.groupBy("n").count().select("n"), "a window of event_time"),
    "updated windows of another time": (
        UPDATES, lambda one: one.groupBy(F.window("at", "1 minute").alias("w")).agg(F.count("*").alias("n")),
        "as the event time of the input"),
    "updated windows of local time": (
        UPDATES, lambda one: one.groupBy(F.window(F.from_utc_timestamp("event_time", "Asia/Tokyo"), "1 minute")).agg(
            F.count("*").alias("n")), "startTime"),
    "updated groups of a time that is cut": (
        UPDATES, lambda one: one.groupBy(F.date_trunc("minute", "event_time").alias("m")).agg(
            F.count("*").alias("n")), "window of event_time"),
    "updated groups without time": (UPDATES, lambda one: one.groupBy("n").count().select("n"), "a Fold"),
    "windows of another time": (
        FINAL, lambda one: one.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("n")),
        "as the event time of the input"),
    "a watermark of its own, of a second time": (
        UPDATES, lambda one: by_minute(one.withWatermark("at", "1 hour")), "remove withWatermark"),
    "a watermark of its own, once more": (
        FINAL, lambda one: by_minute(one.withWatermark("event_time", "1 hour")), "remove withWatermark"),
    "a watermark of its own without state": (
        Stateless(), lambda one: one.withWatermark("at", "1 hour").select("n"), "remove withWatermark"),
    "an outer join without time": (
        JOINED, lambda one, other: one.join(other, "n", "left").select("n"), "how far apart"),
    "an anti join of streams": (JOINED, lambda one, other: one.alias("a").join(
        other.alias("b"), F.expr(BETWEEN), "anti"), "filter a left join"),
    "a table joined with a stream": (
        Stateless(), lambda one, names: names.join(one, F.expr("key = n"), "left").select("n"), "not the table with"),
    "all of a table": (
        Stateless(), lambda one, names: one.join(names, F.expr("key = n"), "full").select("n"), "not the table with"),
    "an order": (Stateless(), lambda one: one.orderBy("n"), "leave it out"),
    "a limit": (Stateless(), lambda one: one.limit(3), "leave it out"),
    "a window over rows": (
        Stateless(), lambda one: one.selectExpr("row_number() OVER (PARTITION BY n ORDER BY at) AS n"), "max_by"),
    "sessions that are updated": (
        UPDATES, lambda one: one.groupBy("n", F.session_window("event_time", "1 minute")).count(), "use EmitFinal"),
    "old timers by the machine's clock": (
        TIMED, lambda one: one.groupBy("n").applyInPandasWithState(
            same, "n BIGINT", "n BIGINT", "append", "ProcessingTimeTimeout"), '"EventTime"'),
    "different values": (
        FINAL, lambda one: one.groupBy(F.window("event_time", "1 minute")).agg(F.countDistinct("n").alias("n")),
        "drop duplicates in a step before"),
    "windows that overlap, by their length": (
        FINAL, sliding("1 minute", "30 seconds"), "window=datetime.timedelta(seconds=30)"),
    "windows that overlap and end between": (
        EmitFinal(window=MINUTE, grace=MINUTE), sliding("90 seconds", "1 minute"),
        "phase=datetime.timedelta(seconds=30)"),
    "windows with a start of their own": (
        UPDATES, sliding("1 minute", "1 minute", "-5 seconds"), "phase=datetime.timedelta(seconds=55)"),
    "longer windows than it says": (
        UPDATES, sliding("1 hour", "1 hour"), "window=datetime.timedelta(seconds=3600)"),
    "common rows": (Stateless(), lambda one, other: one.select("n").intersect(other.select("n")), "join the streams"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bootstrap(broker: Broker) -> str:
    create(broker.bootstrap, ONE, OTHER, OUT, NAMES, COMMITS, Topic(NAMES.dead_letters))
    return broker.bootstrap


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_queries_are_refused(spark: SparkSession, bootstrap: str, tmp_path: Path, name: str) -> None:
    output_mode, transform, way = REFUSED[name]
    inputs = {n: INPUTS[n] for n in inspect.signature(transform).parameters}
    stream = Stream("refused", "tests", inputs, transform, TopicOutput(OUT, key="n", value="n"), output_mode)
    run = StreamRun(stream, spark, bootstrap, str(tmp_path), ProgressRow("refused", "tests", "i"))
    try:
        run.start()
    except Exception as e:
        message = f"{type(e).__name__}: {e}"
    else:
        message = "it started"
    finally:
        run.stop()
    assert message.startswith("DeclarationError: stream refused"), message
    assert way in message


@pytest.mark.parametrize("moment", ["coalesce(at, now())", "greatest(at, CAST('today' AS TIMESTAMP))"])
def test_a_nondeterministic_event_time_is_refused(spark: SparkSession, moment: str) -> None:
    given = Input(ONE, schema="at TIMESTAMP", event_time=moment)
    stream = Stream("timed", "tests", {"rows": given}, lambda rows: rows, TopicOutput(OUT, value="value"), Stateless())
    with pytest.raises(DeclarationError, match="input one: the event time is not deterministic"):
        frames(spark, stream, rows=[])


def test_another_error_is_not_reworded(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    stream = Stream(
        "refused",
        "tests",
        {"one": INPUTS["one"]},
        lambda one: one.select("m"),
        TopicOutput(OUT, value="n"),
        Stateless(),
    )
    run = StreamRun(stream, spark, bootstrap, str(tmp_path), ProgressRow("refused", "tests", "i"))
    run.reconcile()
    run.stop()
    assert "`m`" in (run.figures.error or "")
