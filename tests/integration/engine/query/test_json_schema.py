"""JSON of a JSON Schema, as Spark writes it: what it cannot hold makes a batch fail, and no row is written wrong."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine.query.written_values import written_columns
from penstock.errors import DeclarationError
from penstock.model.json_schema import JsonSchema
from penstock.registry import client
from penstock.streams import Topic, TopicOutput

pytestmark = pytest.mark.integration

INNER = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}, "required": ["n"]}
PROPERTIES = {
    "id": {"type": "integer"},
    "opt": {"type": "string"},
    "nul": {"type": ["null", "string"]},
    "l": {"type": "array", "items": INNER},
    "m": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
    "at": {"type": "string", "format": "date-time"},
    "d": {"type": "string", "format": "date"},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["id", "nul"], "additionalProperties": False}
ROW = {
    "id": "1", "opt": "'x'", "nul": "'y'", "l": "array(named_struct('x', 1.5D, 'n', 2))", "m": "map('k', 0.5D)",
    "at": "timestamp '2026-02-03 04:05:06.789'", "d": "date '2026-02-03'",
}  # fmt: skip


def written(spark: SparkSession, schema: dict[str, Any], **changed: str) -> Any:
    output = TopicOutput(Topic("t", schema=JsonSchema(json.dumps(schema))), value=tuple(schema["properties"]))
    assert output.topic.registry_schema
    row = {name: sql for name, sql in {**ROW, **changed}.items() if name in schema["properties"]}
    rows = spark.range(1).select(*(F.expr(sql).alias(name) for name, sql in row.items()))
    [record] = rows.select(*written_columns(rows, output, output.topic.registry_schema, {})).collect()
    assert record.value[:5] == b"\x00\x00\x00\x00\x07"
    value = json.loads(record.value[5:])
    jsonschema.validate(value, schema)
    return value


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "registered_id", lambda *_: 7)


def test_rows_are_written_as_the_schema_has_them(spark: SparkSession) -> None:
    whole = {
        "id": 1, "opt": "x", "nul": "y", "l": [{"x": 1.5, "n": 2}], "m": {"k": 0.5},
        "at": "2026-02-03T04:05:06.789000Z", "d": "2026-02-03",
    }  # fmt: skip
    assert written(spark, SCHEMA) == whole
    # Only what is required is null; all else is left out.
    empty = {name: f"CAST(NULL AS {kind})" for name, kind in {"opt": "STRING", "nul": "STRING", "d": "DATE"}.items()}
    inner = {"l": "array(named_struct('x', CAST(NULL AS DOUBLE), 'n', 2))", "m": "map('k', CAST(NULL AS DOUBLE))"}
    missing = {"id": 1, "nul": None, "l": [{"n": 2}], "m": {"k": None}, "at": whole["at"]}
    assert written(spark, SCHEMA, **empty, **inner) == missing
    only = {"type": "object", "properties": {"opt": PROPERTIES["opt"]}}
    assert written(spark, only, opt="CAST(NULL AS STRING)") == {}


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("id", "CAST(NULL AS BIGINT)"),
        ("l", "array(named_struct('x', 1D, 'n', CAST(NULL AS BIGINT)))"),
        ("l", "array(CAST(NULL AS STRUCT<x: DOUBLE, n: BIGINT>))"),
        ("l", "array(named_struct('x', double('NaN'), 'n', 2L))"),
        ("m", "map('k', double('-Infinity'))"),
    ],
)
def test_what_the_types_do_not_have_fails(spark: SparkSession, name: str, sql: str) -> None:
    with pytest.raises(PySparkException, match=f"field {name} is NULL or no finite number"):
        written(spark, SCHEMA, **{name: sql})


def test_what_cannot_be_written_is_refused(spark: SparkSession) -> None:
    with pytest.raises(DeclarationError, match="topic t, id; got: double for bigint"):
        written(spark, SCHEMA, id="1.5D")
    mixed = {"type": "object", "properties": {"n": {"type": ["integer", "null"]}, "o": {"type": "string"}}}
    schema = {"type": "object", "properties": {"s": {**mixed, "required": ["n"]}}}
    with pytest.raises(DeclarationError, match="has fields in `s` that are left out"):
        written(spark, schema, s="named_struct('n', 1, 'o', 'x')")
