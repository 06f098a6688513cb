"""A query that finds no records polls less often, the longer it finds none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.engine.jvm.polling_delay import PollingDelay
from penstock.model.output_mode import HeartbeatSchedule
from tests.support.wait import wait_until

pytestmark = pytest.mark.integration
DELAY = "spark.sql.streaming.pollingDelay"


@contextmanager
def quiet_query(spark: SparkSession, tmp_path: Path, delay: str) -> Iterator[StreamingQuery]:
    (rows := tmp_path / "rows").mkdir()
    session = spark.newSession()
    session.conf.set(DELAY, delay)
    frame = session.readStream.schema("number INT").option("maxFilesPerTrigger", 1).json(str(rows))
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        yield query
    finally:
        query.stop()


def test_the_delay_of_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    with quiet_query(spark, tmp_path, "100ms") as query:
        delay = PollingDelay(query)
        found = {}
        for silence in (0.0, 1.9, 4.1, 9.0, 1e9, 0.0):
            delay.adjust(silence)
            found[silence] = PollingDelay(query).current_ms()
        assert found == {0.0: 100, 1.9: 100, 4.1: 200, 9.0: 400, 1e9: 500}


def test_a_query_that_waits_for_a_heartbeat_polls_often_when_it_is_due(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly = HeartbeatSchedule(timedelta(hours=1), timedelta(seconds=5))
    with quiet_query(spark, tmp_path, "100ms") as query:
        for schedule, expected in (
            (hourly, [500, 100, 100, 500]),
            (HeartbeatSchedule(timedelta(seconds=9)), [500] * 4),
        ):
            delay, found = PollingDelay(query, schedule=schedule), []
            for second in (0, 3, 5.9, 7):
                monkeypatch.setattr(time, "time", lambda at=second: 3600 * 400_000 + at)
                delay.adjust(3600)
                found.append(PollingDelay(query).current_ms())
            assert found == expected


def test_the_query_sleeps_for_the_new_delay(spark: SparkSession, tmp_path: Path) -> None:
    with quiet_query(spark, tmp_path, "100ms") as query:
        delay = PollingDelay(query)
        wait_until(lambda: query.status["message"].startswith("Waiting for data"), every=0.01)
        delay._field.setLong(delay._execution, 3_600_000)
        time.sleep(0.5)
        (tmp_path / "rows" / "one.json").write_text('{"number": 1}')
        time.sleep(2)
        assert not any(progress["numInputRows"] for progress in query.recentProgress)


def test_a_delay_that_somebody_has_set_stays(spark: SparkSession, tmp_path: Path) -> None:
    with quiet_query(spark, tmp_path, "20ms") as query:
        PollingDelay(query).adjust(60)
        assert PollingDelay(query).current_ms() == 20
