"""The golden cases of the language of sinks: statements, the records they are given, and the rows that a store gets.

A case is a JSON object: `sink`, the lines of the statement; `compacted`, which of its topics are; `send`, records,
bytes as `{"hex": ...}`; `rows`, all that comes out: `version` as milliseconds and lower bits of the offset, or number.
sinks-refused.json lists statements that are refused, and how what is said begins.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.declare.outputs import JSON
from penstock.declare.sink_file import parse
from penstock.declare.stream import Stream
from penstock.declare.topic import Topic
from penstock.engine.tagged import encoded
from penstock.errors import DeclarationError
from penstock.sinks import statements
from penstock.sinks.documents import OFFSET_BITS
from penstock.sinks.explained import explain
from penstock.testing import Record, frames

HERE = Path(__file__).parent
CASES = [pytest.param(json.loads(path.read_text()), id=path.stem) for path in sorted((HERE / "sinks").glob("*.json"))]
REFUSED = json.loads((HERE / "sinks-refused.json").read_text())
PATH = Path("case.sql")


def sent(record: dict[str, Any]) -> Record:
    given: dict[str, Any] = {n: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for n, v in record.items()}
    return Record(**{**given, "headers": tuple(map(tuple, record.get("headers", ())))})


def transformed(stream: Stream, records: list[dict[str, Any]], spark: SparkSession) -> DataFrame:
    made = [sent(record) for record in records]
    given = {name: [r for r in made if r.topic == source.source] for name, source in stream.sources.items()}
    return stream.transform(**frames(spark, stream, **given))


def told(row: Row) -> dict[str, Any]:
    found = {"id": row.id, "version": row.version, "deleted": row.deleted, "doc": json.loads(row.doc)}
    return found | {name: row[name] for name in ("at", "refused") if row[name] is not None}


def wanted(row: dict[str, Any]) -> dict[str, Any]:
    version = row["version"]
    return {**row, "version": version[0] << OFFSET_BITS | version[1] if isinstance(version, list) else version}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


@pytest.mark.parametrize("case", CASES)
def test_rows_are_made(case: dict[str, Any], spark: SparkSession) -> None:
    topics = {name: Topic(name, compacted=True) for name in case.get("compacted", ())}
    stream = statements.stream(parse("\n".join(case["sink"]), PATH), topics)
    rows = transformed(stream, case["send"], spark)
    at = F.col("at").cast("string").alias("at") if "SUFFIX" in " ".join(case["sink"]) else F.lit(None).alias("at")
    found = rows.select("id", "version", "deleted", "refused", at, F.to_json("doc", JSON).alias("doc")).collect()
    assert in_order([told(row) for row in found]) == in_order([wanted(row) for row in case["rows"]])
    # What a writer gets of it.
    assert encoded(stream, rows).toArrow().num_rows == len(found)
    assert not spark.catalog.listTables()


@pytest.mark.parametrize("case", REFUSED, ids=[case["sink"][-1] for case in REFUSED])
def test_a_statement_is_refused_with_its_place(case: dict[str, Any], spark: SparkSession) -> None:
    topics = {name: Topic(name, compacted=True) for name in case["compacted"]}
    with pytest.raises(DeclarationError) as e:
        explain(parse("\n".join(case["sink"]), PATH), topics, spark)
    assert str(e.value).startswith(case["said"])
    assert not spark.catalog.listTables()
