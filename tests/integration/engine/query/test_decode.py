"""No record lies further ahead of the clock than its input allows, and what has the key of beats and no proof is a
record; test_watermark.py tries what moves the watermark."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobs.agents import active, alerts, assignments, recheck
from penstock import catalog
from penstock.codec.columnar import BAD_COLUMN, EVENT_TIME, HEARTBEAT_COLUMN, SOURCE_RECORD_COLUMN, RecordDecoder
from penstock.codec.event_time import FIRST, LAST
from penstock.codec.heartbeat import HEARTBEAT_KEY, heartbeat_signer
from penstock.engine.query import decode
from penstock.model.spark_hmac import hmac_pads
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
def test_heartbeats_and_records_ahead_of_the_clock(spark: SparkSession, name: str) -> None:
    """Of three true beats one is there, one was copied from another partition, one was changed."""
    value = heartbeat_signer().value("t", 1, 5000)
    beats = [(value, 1), (value, 0), (value.replace(b"5000", b"6000"), 1)]
    keyed = [(HEARTBEAT_KEY, beat, "t", partition, n, NOW + AHEAD) for n, (beat, partition) in enumerate(beats)]
    own = [(None, b'{"at":%d}' % int(at.timestamp() * 1000), "t", 0, 100 + n, at) for n, at in enumerate(TIMES)]
    source = spark.createDataFrame([*keyed, *own], SCHEMA).coalesce(1)
    frame = decode.decode_records(source, INPUTS[name], F.lit(NOW))
    rows = frame.collect()
    times = {
        beat: sorted(row[EVENT_TIME] for row in rows if row[HEARTBEAT_COLUMN] == beat and not row[BAD_COLUMN])
        for beat in (True, False)
    }
    assert [at.astimezone(UTC) for at in times[True]] == [EPOCH + 5 * SECOND]
    assert times[False][-1].astimezone(UTC) == NOW + AHEAD
    if INPUTS[name].schema:
        assert sorted(row[SOURCE_RECORD_COLUMN].offset for row in rows if row[BAD_COLUMN]) == [1, 2, 103, 104]
    else:
        counted = sum(row.n if "n" in row else 1 for row in rows if not row[HEARTBEAT_COLUMN])
        assert counted == 2 + len(TIMES)


@pytest.mark.parametrize("name", INPUTS)
def test_no_plan_shows_the_secret(spark: SparkSession, name: str) -> None:
    frame = decode.decode_records(spark.createDataFrame([], SCHEMA), INPUTS[name], F.lit(NOW))
    plan = frame._jdf.queryExecution().toString() + repr(
        RecordDecoder.of_input(INPUTS[name], combine=True, keep_records=False, signer=heartbeat_signer())
    )
    for secret in (heartbeat_signer().secret, *hmac_pads(heartbeat_signer().secret)):
        for shown in (
            secret.hex(),
            base64.b64encode(secret[:30]).decode(),
            str(list(secret))[1:-1],
            repr(secret)[2:-1],
        ):
            assert shown[:12].lower() not in plan.lower()


def test_spark_and_python_verify_heartbeats_alike(spark: SparkSession) -> None:
    """Topics, partitions and times of any length, and what has almost the form."""
    ours = heartbeat_signer()
    given = [(topic, n, at) for topic in ("t", "a.b_c-" * 30) for n in (0, 12_345) for at in (0, 1, 1_767_225_600_000)]
    values: list[tuple[str, int, bytes | None]] = [(topic, n, ours.value(topic, n, at)) for topic, n, at in given]
    good = ours.value("t", 0, 1)
    near = [good + b" ", good.replace(b":1,", b":01,"), good.upper(), good[:-3] + b'"}', b"", b"\xff", None]
    values += [("t", 0, value) for value in near]
    rows = [(HEARTBEAT_KEY, value, topic, n, i, NOW) for i, (topic, n, value) in enumerate(values)]
    found = decode.decode_records(spark.createDataFrame(rows, SCHEMA), INPUTS["raw"], F.lit(NOW)).collect()
    assert [row[HEARTBEAT_COLUMN] for row in sorted(found, key=lambda row: row.offset)] == [True] * len(given) + [
        False
    ] * len(near)
    assert [ours.verified_time(topic, n, value) for topic, n, value in values] == [
        *(at for *_, at in given),
        *[None] * len(near),
    ]


# Each gives an event time of the field `at`, and none is a form that decoding knows.
SPARKS = {
    "a conversion in a condition": ("BIGINT", "CASE WHEN at IS NOT NULL THEN timestamp_millis(at) END", 1_000),
    "a sum in a conversion": ("BIGINT", "timestamp_millis(at + 1)", 1_000),
    "seconds": ("BIGINT", "CAST(at AS TIMESTAMP)", 1_000_000),
    "a sum of conversions": ("BIGINT", "timestamp_micros(at) + INTERVAL '0' SECOND", 1),
}
TEXTS = ("0000-12-31T23:59:59Z", "+10000-01-01T00:00:00Z", "never")


@pytest.mark.parametrize("name", SPARKS)
def test_spark_gives_no_event_time_beyond_the_calendar_and_never_fails(spark: SparkSession, name: str) -> None:
    kind, event_time, factor = SPARKS[name]
    first, last = -(-FIRST // factor), LAST // factor
    beyond = {first - 2, last + 2, 9_223_372_036_854_776, 1_700_000_000_000_000_000, 2**63 - 1, -(2**63)}
    beyond |= {-1_691_241_070_000_000 if factor > 1 else FIRST - 2}
    beyond = {at for at in beyond if not first - 1 <= at <= last}
    given = Input(Topic("t"), schema=f"at {kind} NOT NULL", event_time=event_time, max_ahead=None)
    found = decided(spark, given, [0, first + 1, last - 1, *sorted(beyond)])
    assert found == [None] * 3 + [f"no event time: {event_time} gives none"] * len(beyond)


def test_invalid_texts_give_no_event_time(spark: SparkSession) -> None:
    for event_time in ("to_timestamp(at)", "at"):
        given = Input(Topic("t"), schema="at STRING NOT NULL", event_time=event_time, max_ahead=None)
        found = decided(spark, given, ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", *TEXTS])
        assert found == [None] * 2 + [f"no event time: {event_time} gives none"] * len(TEXTS)


def test_a_text_without_a_day_gives_no_event_time(spark: SparkSession) -> None:
    """Read again tomorrow, it would be another one."""
    whole = ["2026-01-31", "2026-01-31T10:00", " 2026-01-31 10:00:00 America/New_York", "2026-01"]
    alone = ["20:15", "T10:00", "T10", "1:2", "1:2:3.5Z", " \t10:20", "\x0110:20", "10:20:30+02:00"]
    for event_time in ("CAST(at AS TIMESTAMP)", "to_timestamp(at)", "try_to_timestamp(at)", "at + INTERVAL '1' HOUR"):
        given = Input(Topic("t"), schema="at STRING NOT NULL", event_time=event_time, max_ahead=None)
        found = decided(spark, given, [*whole, *alone])
        assert found == [None] * len(whole) + [f"no event time: {event_time} gives none"] * len(alone)
    raw = Input(
        Topic("t"), event_time="CAST(get_json_object(CAST(value AS STRING), '$.at') AS TIMESTAMP)", max_ahead=None
    )
    rows = [(None, json.dumps({"at": at}).encode(), "t", 0, n, NOW) for n, at in enumerate([*alone, "2026-01-02"])]
    times = [row[EVENT_TIME] for row in decode.decode_records(spark.createDataFrame(rows, SCHEMA), raw, None).collect()]
    assert sorted(at.astimezone(UTC) for at in times) == [NOW] * len(alone) + [NOW + timedelta(days=1)]


def test_a_raw_record_whose_time_is_none_keeps_its_own_within_the_calendar(spark: SparkSession) -> None:
    given = Input(Topic("t"), event_time="timestamp_millis(CAST(CAST(value AS STRING) AS BIGINT))", max_ahead=None)
    values = [b"5", b"9223372036854776", b"253402300800000", b"x", None]
    rows = [(None, value, "t", 0, n, NOW) for n, value in enumerate(values)]
    source = spark.createDataFrame(rows, SCHEMA)
    late = source.limit(1).withColumn("timestamp", F.timestamp_micros(F.lit(LAST + 10))).withColumn("value", F.lit(b""))
    found = (
        decode.decode_records(source.union(late), given, None).select(F.unix_micros(EVENT_TIME).alias("at")).collect()
    )
    assert sorted(row["at"] for row in found) == [5000, *[int(NOW.timestamp() * 1e6)] * 4, LAST]


def test_no_shipped_stream_fails_on_nanoseconds(spark: SparkSession) -> None:
    """Instead of milliseconds, in every field that is a BIGINT."""
    agents = (active.STREAM, recheck.STREAM, alerts.STREAM, assignments.STREAM)
    shipped = {
        (one.schema, one.event_time): one
        for stream in (*catalog.load().streams.values(), *agents)
        for one in stream.inputs.values()
        if isinstance(one, Input) and one.topic and "BIGINT" in one.schema and "timestamp_" in one.event_time
    }
    assert sum(one.event_time.startswith("CASE") for one in shipped.values()) == 4
    for given in shipped.values():
        fields = RecordDecoder.of_input(given, combine=False, keep_records=False).fields
        texts = dict.fromkeys((f.name for f in fields if f.type.kind == "string"), "login")
        value = texts | dict.fromkeys((f.name for f in fields if f.type.kind == "bigint"), 1_700_000_000_000_000_000)
        others: dict[str, Any] = {"map": {}, "array": [], "boolean": True}
        rest = {f.name: others.get(f.type.kind, 1) for f in fields if f.required and f.name not in value}
        [why] = decided(spark, given, [value | rest])
        assert why == f"no event time: {' '.join(given.event_time.split())} gives none"


def test_python_functions_see_utc(spark: SparkSession) -> None:
    """In workers and in the driver, at an hour that local time has twice; the machine's zone is that of New York."""
    at = datetime(2015, 11, 1, 6, 30, tzinfo=UTC)
    rows = spark.createDataFrame([(at,)], "at TIMESTAMP")
    seen = F.udf(lambda e: f"{e.timestamp():.0f} {e.hour} {e.date()}", "string")
    [row] = rows.select(
        seen("at").alias("seen"), "at", (F.col("at") == F.lit(at.replace(tzinfo=None))).alias("same")
    ).collect()
    assert row.seen == f"{at.timestamp():.0f} 6 2015-11-01"
    assert (row["at"], row.same) == (at.replace(tzinfo=None), True)


def decided(spark: SparkSession, given: Input, values: list[Any]) -> list[str | None]:
    """Why each record is bad, in order; a value that is no dict is its field `at`."""
    texts = [json.dumps(value if isinstance(value, dict) else {"at": value}).encode() for value in values]
    rows = [(None, text, "t", 0, n, NOW, None) for n, text in enumerate(texts)]
    source = spark.createDataFrame(rows, f"{SCHEMA}, headers {decode.HEADERS_TYPE}").coalesce(1)
    found = (
        decode.decode_records(source, given, F.lit(NOW), keep="all", combine=False)
        .select(BAD_COLUMN, f"{SOURCE_RECORD_COLUMN}.*")
        .collect()
    )
    return [row.reason if row[BAD_COLUMN] else None for row in sorted(found, key=lambda row: row.offset)]
