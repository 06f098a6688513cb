"""Queries that have a clock of their own: a tripwire for new versions of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine.jvm.query_clock import QueryClock
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration

START = 1_700_000_000_000


def test_batches_have_the_time_of_the_clock_from_the_first_one_on(spark: SparkSession, tmp_path: Path) -> None:
    session, clock, times = spark.newSession(), QueryClock(spark, START), list[int]()
    clock.drive(session)

    def note(frame: DataFrame, _: int) -> None:
        times.extend(row.at for row in frame.collect())

    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    frame = rows.select(F.unix_millis(F.current_timestamp()).alias("at"))
    query = frame.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(note).start()
    try:
        wait_until(lambda: len(times) >= 2 or not query.isActive)
        clock.set(START + 60_000)
        wait_until(lambda: times[-1] > START or not query.isActive)
    finally:
        query.stop()
    assert set(times) == {START, START + 60_000}
    assert times == sorted(times)
