"""Protobuf that Spark's workers encode: every type, rows of several outputs, and what makes a batch fail."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine.query.encode import encode_rows, split_by_output
from penstock.errors import DeclarationError
from penstock.model.protobuf import Protobuf
from penstock.registry import client
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput
from tests.support.protobuf_cases import EVERYTHING, schema

pytestmark = pytest.mark.integration

ALL = Protobuf(EVERYTHING, message="Everything")
ROW = {
    "id": "5", "i": "-3", "u": "4294967295L", "big": "18446744073709551615BD", "f": "1.5F", "d": "-2.25D", "z": "true",
    "s": "'x'", "y": "X'00FF'", "color": "'BLUE'", "note": "''", "inner": "named_struct('o', NULL, 'n', 1)",
    "items": "array(named_struct('n', 2, 'o', 'y'))", "colors": "array('BLUE', 'RED')", "counts": "map('a', 1)",
    "inners": "map('k', named_struct('n', 4, 'o', 'z'))", "at": "timestamp '2026-02-03 04:05:06.789'",
    "took": "1500000L", "wrapped": "0", "text": "CAST(NULL AS STRING)", "first": "CAST(NULL AS STRING)", "second": "0",
}  # fmt: skip
SOURCE = {"rows": Input(Topic("in"))}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "registered_id", lambda *_: 7)


def written(spark: SparkSession, **changed: str) -> Any:
    output = TopicOutput(Topic("t", schema=ALL), key="id", value=tuple(ROW))
    stream = Stream("s", "a", SOURCE, lambda rows: rows, output, Stateless())
    rows = spark.range(1).select(*(F.expr(sql).alias(name) for name, sql in {**ROW, **changed}.items()))
    [record] = encode_rows(stream, rows).collect()
    assert record.value[:7] == b"\x00\x00\x00\x00\x07\x02\x02"
    return GetMessageClass(ALL.descriptor).FromString(bytes(record.value[7:]))


def test_every_type_is_written(spark: SparkSession) -> None:
    message = written(spark)
    assert message.at.ToDatetime(UTC) == datetime(2026, 2, 3, 4, 5, 6, 789000, UTC)
    assert (message.took.ToMicroseconds(), message.big, message.color, [*message.colors]) == (
        1_500_000, 2**64 - 1, 5, [5, 0],
    )  # fmt: skip
    assert (message.inner.n, message.items[0].o, dict(message.counts), message.inners["k"].n) == (1, "y", {"a": 1}, 4)
    assert [message.HasField(name) for name in ("note", "wrapped", "text", "second")] == [True, True, False, True]
    assert not message.inner.HasField("o")


@pytest.mark.parametrize(
    ("name", "sql", "said"),
    [
        ("s", "CAST(NULL AS STRING)", "field s is NULL, which Protobuf does not have for it"),
        ("color", "'GREEN'", "demo.Color has no such value"),
        ("first", "'both'", "more than one field of oneof choice"),
    ],
)
def test_what_a_message_cannot_hold_fails(spark: SparkSession, name: str, sql: str, said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        written(spark, **{name: sql})


def test_a_column_that_would_change_is_refused(spark: SparkSession) -> None:
    with pytest.raises(DeclarationError, match="topic t, took; got: timestamp for bigint"):
        written(spark, took="current_timestamp()")


def test_rows_of_other_outputs_are_not_encoded(spark: SparkSession) -> None:
    numbers, texts = schema("int32 a = 1;"), schema("string b = 1;")
    outputs = {
        "n": TopicOutput(Topic("numbers", schema=numbers), value=("a",)),
        "t": TopicOutput(Topic("texts", schema=texts), value=("b",)),
    }
    stream = Stream("s", "a", SOURCE, lambda rows: rows, outputs, Stateless())
    rows: DataFrame = spark.sql("SELECT 'n' AS output, 1 AS a, NULL AS b UNION ALL SELECT 't', NULL, 'x'")
    by_topic = split_by_output(stream, encode_rows(stream, rows).toArrow())
    assert {topic: table["value"].to_pylist() for topic, table in by_topic.items()} == {
        "numbers": [b"\x00\x00\x00\x00\x07\x00\x08\x01"],
        "texts": [b"\x00\x00\x00\x00\x07\x00\x0a\x01x"],
    }
