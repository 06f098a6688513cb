"""Nothing moves event time beyond the clock: no record and no beat, whatever it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine import records
from penstock.records.columns import BAD, BEAT, EVENT_TIME
from penstock.records.heartbeat import BEAT_KEY
from penstock.streams import Combiner, Input, Topic

pytestmark = pytest.mark.integration

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AHEAD = timedelta(minutes=5)
TIMES = (NOW - AHEAD, NOW, NOW + AHEAD, NOW + timedelta(days=1), datetime(9000, 1, 1, tzinfo=UTC))
SCHEMA = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
COUNT = Combiner("n BIGINT", "SELECT count(*) AS n, max(event_time) AS event_time FROM records GROUP BY event_time")
INPUTS = {
    "raw": Input(pattern="t"),
    "raw, combined": Input(pattern="t", combine=COUNT),
    "with a schema": Input(Topic("t"), schema="at BIGINT NOT NULL", event_time="timestamp_millis(at)"),
    "with a schema, timed by Spark": Input(
        Topic("t"), schema="at BIGINT NOT NULL", event_time="timestamp_millis(at + 0)"
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_beats_and_records_of_the_future(spark: SparkSession, name: str) -> None:
    beats = [(BEAT_KEY, b"", "t", 0, n, at) for n, at in enumerate(TIMES)]
    own = [(None, b'{"at":%d}' % int(at.timestamp() * 1000), "t", 0, 100 + n, at) for n, at in enumerate(TIMES)]
    source = spark.createDataFrame([*beats, *own], SCHEMA).coalesce(1)
    found = records.decoded(source, INPUTS[name], F.lit(NOW)).where(f"NOT {BAD}").collect()
    times = {beat: sorted(row[EVENT_TIME] for row in found if row[BEAT] == beat) for beat in (True, False)}
    assert len(times[True]) == len(TIMES)
    assert times[True][-1].astimezone(UTC) == NOW + AHEAD
    assert times[False][-1].astimezone(UTC) == NOW + AHEAD
