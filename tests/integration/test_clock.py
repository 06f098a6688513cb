"""No record lies further ahead of the clock than its input allows, and what has the key of beats and no proof is a
record; test_time.py tries what moves the watermark."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine import records
from penstock.records.columns import BAD, BEAT, EVENT_TIME, KEPT, Reading
from penstock.records.heartbeat import BEAT_KEY, signer
from penstock.streams import Combiner, Input, Topic

pytestmark = pytest.mark.integration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("name", INPUTS)
def test_beats_and_records_of_the_future(spark: SparkSession, name: str) -> None:
    """Of three true beats one is there, one was copied from another partition, one was changed."""
    value = signer().value("t", 1, 5000)
    beats = [(value, 1), (value, 0), (value.replace(b"5000", b"6000"), 1)]
    keyed = [(BEAT_KEY, beat, "t", partition, n, NOW + AHEAD) for n, (beat, partition) in enumerate(beats)]
    own = [(None, b'{"at":%d}' % int(at.timestamp() * 1000), "t", 0, 100 + n, at) for n, at in enumerate(TIMES)]
    source = spark.createDataFrame([*keyed, *own], SCHEMA).coalesce(1)
    frame = records.decoded(source, INPUTS[name], F.lit(NOW))
    rows = frame.collect()
    times = {
        beat: sorted(row[EVENT_TIME] for row in rows if row[BEAT] == beat and not row[BAD]) for beat in (True, False)
    }
    assert [at.astimezone(UTC) for at in times[True]] == [EPOCH + 5 * SECOND]
    assert times[False][-1].astimezone(UTC) == NOW + AHEAD
    if INPUTS[name].schema:
        assert sorted(row[KEPT].offset for row in rows if row[BAD]) == [1, 2, 103, 104]
    else:
        counted = sum(row.n if "n" in row else 1 for row in rows if not row[BEAT])
        assert counted == 2 + len(TIMES)


@pytest.mark.parametrize("name", INPUTS)
def test_no_plan_shows_the_secret(spark: SparkSession, name: str) -> None:
    frame = records.decoded(spark.createDataFrame([], SCHEMA), INPUTS[name], F.lit(NOW))
    plan = frame._jdf.queryExecution().toString() + repr(
        Reading.of(INPUTS[name], combine=True, keep=False, signer=signer())
    )
    for secret in (signer().secret, *signer().pads):
        for shown in (
            secret.hex(),
            base64.b64encode(secret[:30]).decode(),
            str(list(secret))[1:-1],
            repr(secret)[2:-1],
        ):
            assert shown[:12].lower() not in plan.lower()


def test_spark_proves_as_python_does(spark: SparkSession) -> None:
    """Topics, partitions and times of any length, and what has almost the form."""
    ours = signer()
    given = [(topic, n, at) for topic in ("t", "a.b_c-" * 30) for n in (0, 12_345) for at in (0, 1, 1_767_225_600_000)]
    values: list[tuple[str, int, bytes | None]] = [(topic, n, ours.value(topic, n, at)) for topic, n, at in given]
    good = ours.value("t", 0, 1)
    near = [good + b" ", good.replace(b":1,", b":01,"), good.upper(), good[:-3] + b'"}', b"", b"\xff", None]
    values += [("t", 0, value) for value in near]
    rows = [(BEAT_KEY, value, topic, n, i, NOW) for i, (topic, n, value) in enumerate(values)]
    found = records.decoded(spark.createDataFrame(rows, SCHEMA), INPUTS["raw"], F.lit(NOW)).collect()
    assert [row[BEAT] for row in sorted(found, key=lambda row: row.offset)] == [True] * len(given) + [False] * len(near)
    assert [ours.time(topic, n, value) for topic, n, value in values] == [
        *(at for *_, at in given),
        *[None] * len(near),
    ]
