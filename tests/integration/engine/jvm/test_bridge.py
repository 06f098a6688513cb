"""Each private way into Spark's JVM, tried on a real query: a new Spark that changed one fails here."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine import session
from penstock.engine.jvm import bridge, hadoop_fs
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

ENDS = """
import contextlib, os
from pyspark.errors import PySparkException
from penstock.cli.spark import session
from penstock.engine.jvm import bridge
opened = session("ends")
spark = opened.__enter__()
with contextlib.suppress(PySparkException):
    spark.range(1).selectExpr("raise_error('no way')").collect()
spark.sparkContext._jsc.sc().stop()
assert not bridge.is_alive(spark)
os._exit(bridge.stop_jvm(spark))
"""


def rates(spark: SparkSession) -> DataFrame:
    """A stream of a row each batch."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()


def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def counted(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("timestamp", "0 seconds").groupBy(F.window("timestamp", "1 second")).count()


def test_a_running_context_is_alive(spark: SparkSession) -> None:
    assert bridge.is_alive(spark)


def test_error_chain_lists_the_causes_of_an_error(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="no way") as raised:
        spark.range(1).select(F.raise_error(F.lit("no way"))).write.format("noop").mode("append").save()
    found = bridge.error_chain(raised.value)
    assert found[-1][0] == "org.apache.spark.SparkRuntimeException"
    assert "no way" in found[-1][1]
    assert bridge.error_chain(ValueError("of Python")) == []


def test_stateful_steps_are_listed_by_name(spark: SparkSession) -> None:
    rows = rates(spark)
    assert bridge.stateful_steps(rows.select("value")) == []
    assert bridge.stateful_steps(counted(rows)) == ["Aggregate"]
    still = spark.range(3).withColumnRenamed("id", "value")
    assert bridge.stateful_steps(rows.join(still, "value")) == []


def test_arrow_functions_are_named_as_often_as_a_plan_calls_them(spark: SparkSession) -> None:
    once = spark.range(3).mapInArrow(passed_on, "id BIGINT")
    assert bridge.arrow_functions(once) == ["passed_on"]
    once.createOrReplaceTempView("once")
    twice = spark.sql("WITH t AS (FROM once) SELECT * FROM t UNION ALL FROM t")
    assert bridge.arrow_functions(twice) == ["passed_on", "passed_on"]
    spark.catalog.dropTempView("once")


@pytest.mark.parametrize(
    ("given", "found", "phase"),
    [
        (("1 second",), (1, 1, 0), 0),
        (("10 seconds", "5 seconds"), (10, 5, 0), 0),
        (("5 seconds", "2 seconds", "1 second"), (5, 2, 1), 0),
        (("5 seconds", "2 seconds"), (5, 2, 0), 1),
        (("10 seconds", "10 seconds", "-3 seconds"), (10, 10, -3), 7),
    ],
)
def test_event_time_windows_are_found(
    spark: SparkSession, given: tuple[str, ...], found: tuple[int, int, int], phase: int
) -> None:
    rows = rates(spark).withWatermark("timestamp", "0 seconds")
    for window in (F.window("timestamp", *given), F.window(F.col("timestamp") + F.expr("INTERVAL 1 SECOND"), *given)):
        [one] = bridge.event_time_windows(rows.groupBy("value", window.alias("w")).count().select("count"))
        assert one == bridge.EventTimeWindows(*(timedelta(seconds=n) for n in found))
        assert one.phase == timedelta(seconds=phase)
    assert bridge.event_time_windows(rows.groupBy(F.session_window("timestamp", "5 seconds")).count()) == []
    assert bridge.event_time_windows(rows.groupBy("value").count()) == []


def test_groups_without_event_time_and_watermarks_of_their_own(spark: SparkSession) -> None:
    given = rates(spark).withWatermark("timestamp", "0 seconds")
    window, later = F.window("timestamp", "1 second"), F.col("timestamp") + F.expr("INTERVAL 1 SECOND")
    for groups in ([window], [window.alias("w"), "value"], ["timestamp"], [F.col("timestamp").alias("at")], []):
        assert bridge.untimed_groups(given.groupBy(*groups).count()) == []
    renamed = given.select(F.col("timestamp").alias("at")).union(given.select("timestamp"))
    assert bridge.untimed_groups(renamed.groupBy(F.window("at", "1 second")).count()) == []
    for group in (F.window(later, "1 second"), F.unix_millis("timestamp"), F.col("value")):
        assert len(bridge.untimed_groups(given.groupBy(group).count())) == 1
    twice = given.withColumn("at", later)
    assert bridge.own_watermarks(twice.union(twice).join(spark.range(1))) == []
    assert bridge.own_watermarks(twice.withWatermark("at", "1 second")) == ["at"]


def test_a_batch_reports_progress_metrics_and_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    watched = counted(rates(spark).observe("seen", F.count("*").alias("n")))
    seen: list[tuple[int, int]] = []

    def look(frame: DataFrame, _: int) -> None:
        frame.collect()
        [query] = [q for q in spark.streams.active if q.name == "jvm"]
        execution = bridge.BatchExecution.last_of(query)
        metric = execution.observed_metric("seen")
        places = execution.late_operator_paths()
        assert metric is not None
        assert places
        assert execution.observed_metric("not there") is None
        seen.append((int(metric.getLong(0)), execution.late_rows(places)))

    writer = watched.writeStream.queryName("jvm").outputMode("update").option("checkpointLocation", str(tmp_path))
    query = writer.foreachBatch(look).start()
    try:
        while len(seen) < 3:
            assert query.isActive, query.exception()
            time.sleep(0.05)
        known = bridge.recent_progress(query, ("", -1))
        assert known
        assert known == sorted(known, key=lambda p: p["timestamp"])
        first = known[0]["timestamp"], known[0]["batchId"]
        assert all(p["timestamp"] > first[0] for p in bridge.recent_progress(query, first))
    finally:
        query.stop()
    assert seen[0] == (1, 0)


def test_a_query_is_idle_once_it_has_closed_its_windows(spark: SparkSession, tmp_path: Path) -> None:
    """Behind the batch that moved time comes one that closes windows: before it there is no rest."""
    rows, batches = tmp_path / "rows", list[int]()
    spark.sql("SELECT timestamp '2026-01-01 00:00:05' AS timestamp").write.parquet(str(rows))
    files = spark.readStream.schema("timestamp TIMESTAMP").parquet(str(rows))
    for frame, rests in ((counted(files), True), (counted(rates(spark)), False)):
        batches.clear()
        write = frame.writeStream.outputMode("append").foreachBatch(lambda rows, n: batches.append(rows.count() + n))
        query = write.option("checkpointLocation", str(tmp_path / str(rests))).start()
        try:
            # The look that ends the wait decides: an idle query looks for data again and again, and is busy meanwhile.
            end = wait_until(
                lambda: "idle" if bridge.is_idle(query) else "busy" if len(batches) > 5 else "",  # noqa: B023
                every=0.001,
            )
            assert (end == "idle") == rests
            assert len(batches) >= 2
        finally:
            query.stop()


def test_a_batch_moves_the_watermark_no_further_than_its_cap(spark: SparkSession, tmp_path: Path) -> None:
    """A row a second from 1970 on: the first batch is not let at all, all others up to the second second."""

    def hold(frame: DataFrame, number: int) -> None:
        frame.collect()
        [query] = [q for q in spark.streams.active if q.name == "held"]
        execution = bridge.BatchExecution.last_of(query)
        places = execution.watermark_paths()
        assert len(places) == 1
        execution.cap_watermark(places, [2000 if number else None])

    writer = counted(rates(spark)).writeStream.queryName("held").outputMode("update")
    query = writer.option("checkpointLocation", str(tmp_path)).foreachBatch(hold).start()
    moved: list[str] = []
    try:
        while len(moved) < 6:
            assert query.isActive, query.exception()
            time.sleep(0.05)
            moved = [p["eventTime"]["watermark"][14:19] for p in bridge.recent_progress(query, ("", -1))]
    finally:
        query.stop()
    assert moved[:6] == ["00:00", "00:00", "00:01", "00:02", "00:02", "00:02"]


def test_a_folder_replaces_and_deletes_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    folder = hadoop_fs.HadoopFolder(spark, str(tmp_path))
    for text in ("one", "two"):
        folder.replace("offsets/1", text)
        assert folder.read("offsets/1") == text
    assert [name for name in folder.list_names("offsets") if name.isdigit()] == ["1"]
    folder.delete("offsets/1")
    assert not [name for name in folder.list_names("offsets") if name.isdigit()]
    assert folder.list_names("nowhere") == []


def test_a_file_of_a_checkpoint_is_private_and_needs_no_process(spark: SparkSession, tmp_path: Path) -> None:
    """Hadoop alone runs `chmod` three times for each. Any other child of the JVM may end during one attempt."""
    jvm: Any = spark._jvm
    folder = hadoop_fs.HadoopFolder(spark, str(tmp_path))

    def faults_of_ended_children() -> int:
        return int(Path(f"/proc/{jvm.ProcessHandle.current().pid()}/stat").read_text().rpartition(")")[2].split()[8])

    def no_child_ended(path: str) -> bool:
        before = faults_of_ended_children()
        assert folder.create(path, "one")
        assert not folder.create(path, "two")
        folder.replace(path, "three")
        assert folder.read_verified(path) == "three"
        return faults_of_ended_children() == before

    assert any(no_child_ended(f"offsets/{attempt}") for attempt in range(5))
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "offsets").iterdir()} == {0o600}
    assert (tmp_path / "offsets").stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_no_thread_starves_while_others_have_work(spark: SparkSession) -> None:
    """Six threads with more to do than the cores can; Spark's own order lets those wait that come late by name."""
    done = dict.fromkeys(range(6), 0)

    def works(number: int) -> None:
        while sum(done.values()) < 36:
            with bridge.fair_turn(spark):
                spark.range(0, 1_000_000, 1, 4).selectExpr("sum(xxhash64(id) % 1000)").collect()
            done[number] += 1

    threads = [Thread(target=works, args=(number,)) for number in done]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(done.values()) > max(done.values()) / 2, done
    context: Any = spark.sparkContext
    pools = context._jsc.sc().getAllPools()
    assert [pools.apply(i).name() for i in range(pools.size())] == ["default"]


def test_a_logged_payload_cannot_forge_a_log_record(spark: SparkSession) -> None:
    java = spark._jvm
    assert java is not None
    told = java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert f"-Dlog4j2.configurationFile={session.LOG4J_CONFIG}" in list(told)
    read = java.java.util.Properties()
    read.load(java.java.io.FileReader(str(session.LOG4J_CONFIG)))
    log4j = java.org.apache.logging.log4j
    layout = log4j.core.layout.PatternLayout.newBuilder()
    layout.withPattern(read.getProperty("appender.stderr.layout.pattern"))
    event = log4j.core.impl.Log4jLogEvent.newBuilder()
    event.setLoggerName("a.b.Shop").setLevel(log4j.Level.ERROR)
    event.setMessage(log4j.message.SimpleMessage("bad \x1b[2J\a\u2028\u202e ä\r\n2026-01-01 INFO forged"))
    event.setThrown(java.java.lang.IllegalStateException("also\n2026-01-01 INFO forged\x9b"))
    first, *more = layout.build().toSerializable(event.build()).removesuffix("\n").split("\n")
    assert re.fullmatch(r"[0-9T:.-]+Z ERROR spark Shop: bad \?\[2J\?\?\? ä\?", first)
    assert more[0] == "    2026-01-01 INFO forged"
    assert more[2] == "    2026-01-01 INFO forged?"
    assert len(more) > 3
    assert all(line.startswith("    ") for line in more)


@pytest.mark.long
def test_a_stopped_context_is_not_alive_and_stop_jvm_ends_the_jvm(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == "", "a command tells errors itself"
    assert done.returncode == 0, done.stderr[-2000:]
