"""The record itself beside its columns, as a transform gets it of every kind of input."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.engine.query.decode import HEADERS_TYPE, decode_records
from penstock.model.input import RAW_FIELDS
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from penstock.testing import Record, frames

pytestmark = pytest.mark.integration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FAR = 4_000_000_000
DDL = "id INT NOT NULL, at BIGINT"
GIVEN = [
    Record("t", "k", '{"id":1,"at":5}', 3, 7, 2000, (("h", "v"), ("h", "w"))),
    Record("t", "k", None, 3, 8, 3000),
    Record("t", None, f'{{"id":2,"at":{FAR}}}', 3, 9, 4000),
]


def streamed(given: Input) -> Stream:
    def transform(rows: DataFrame) -> DataFrame:
        return rows

    return Stream("s", "a", {"rows": given}, transform, TopicOutput(Topic("out"), value="id"), Stateless())


@pytest.mark.parametrize(
    ("schema", "event_time", "times"),
    [
        (DDL, "timestamp_seconds(at)", [5, 3, FAR]),
        (DDL, "timestamp_millis(at * 1000)", [5, 3, FAR]),
        (DDL, "record.timestamp", [2, 3, 4]),
        ("", "timestamp", [2, 3, 4]),
        ("", "record.timestamp + INTERVAL 1 SECOND", [3, 4, 5]),
    ],
)
def test_records_beside_their_columns(spark: SparkSession, schema: str, event_time: str, times: list[int]) -> None:
    """What is decoded here and what Spark computes; a time in the future is believed."""
    given = Input(Topic("t"), schema=schema, event_time=event_time, max_ahead=None, record=True, tombstones="keep")
    found = frames(spark, streamed(given), rows=GIVEN)["rows"]
    assert found.columns[-2:] == ["event_time", "record"]
    rows = sorted((row.record.asDict(recursive=True) for row in found.collect()), key=lambda one: one["offset"])
    assert [row["event_time"].astimezone(UTC) for row in rows] == [EPOCH + at * SECOND for at in times]
    assert {name: value for name, value in rows[0].items() if not name.endswith("time")} == {
        "topic": "t", "partition": 3, "offset": 7, "key": b"k", "value": b'{"id":1,"at":5}',
        "timestamp": rows[0]["timestamp"],
        "headers": [{"key": "h", "value": b"v"}, {"key": "h", "value": b"w"}],
    }  # fmt: skip
    assert [row["value"] is None for row in rows] == [False, True, False]
    if schema:
        assert [row.id for row in sorted(found.collect(), key=lambda row: row.record.offset)] == [1, None, 2]


def test_headers_keep_their_bytes(spark: SparkSession) -> None:
    """They go to Python and back as text."""
    headers = [
        None, [], [("h", b"\xff\0")], [('\u00fc\0"\\\n', b""), ("", None), ('\u00fc\0"\\\n', bytes(range(256)))],
    ]  # fmt: skip
    schema = (
        f"{', '.join(f'{f.name} {f.type.ddl}' for f in RAW_FIELDS[:5])}, timestamp TIMESTAMP, headers {HEADERS_TYPE}"
    )
    rows = [("t", 0, at, None, b'{"id": 1}', EPOCH, one) for at, one in enumerate(headers)]
    given = Input(Topic("t"), schema="id INT", event_time="record.timestamp", max_ahead=None, record=True)
    found = decode_records(spark.createDataFrame(rows, schema), given, None).orderBy("record.offset").collect()
    told = [None if row.record.headers is None else [(h.key, h.value) for h in row.record.headers] for row in found]
    assert told == headers
