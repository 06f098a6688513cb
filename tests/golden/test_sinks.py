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

from penstock.engine.query.encode import encode_rows
from penstock.errors import DeclarationError
from penstock.model.output import JSON
from penstock.model.sink import Sink
from penstock.model.sql.sink_file import parse
from penstock.model.stream import Stream
from penstock.model.topic import Topic
from penstock.sinks.core.document import OFFSET_BITS
from penstock.sinks.core.preview import explain_sink
from penstock.sinks.core.stream import sink_stream
from penstock.sinks.influxdb.config import InfluxDB
from penstock.sinks.influxdb.points import read_points
from penstock.sinks.mongodb import encode
from penstock.sinks.mongodb.encode import DocumentHeader
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
    stream = sink_stream(parse("\n".join(case["sink"]), PATH), topics)
    rows = transformed(stream, case["send"], spark)
    at = F.col("at").cast("string").alias("at") if "SUFFIX" in " ".join(case["sink"]) else F.lit(None).alias("at")
    found = rows.select("id", "version", "deleted", "refused", at, F.to_json("doc", JSON).alias("doc")).collect()
    assert in_order([told(row) for row in found]) == in_order([wanted(row) for row in case["rows"]])
    # What a writer gets of it.
    assert encode_rows(stream, rows).toArrow().num_rows == len(found)
    assert not spark.catalog.listTables()


@pytest.mark.parametrize("case", REFUSED, ids=[case["sink"][-1] for case in REFUSED])
def test_a_statement_is_refused_with_its_place(case: dict[str, Any], spark: SparkSession) -> None:
    topics = {name: Topic(name, compacted=True) for name in case["compacted"]}
    with pytest.raises(DeclarationError) as e:
        explain_sink(parse("\n".join(case["sink"]), PATH), topics, spark)
    assert str(e.value).startswith(case["said"])
    assert not spark.catalog.listTables()


# Of Spark's types what every store takes, as columns of a SELECT; then what each takes besides, and what it refuses.
TAKEN = """true AS b, 1Y AS y, 1S AS s, 1 AS i, 1L AS l, 1F AS f, 1D AS d, 1.5BD AS dec,
CAST(7 AS DECIMAL(38, 0)) AS wide, 'x' AS str, X'00' AS bin, date'2020-01-01' AS day,
timestamp'2020-01-01 00:00:00' AS ts, NULL AS nothing, timestamp_ntz'2020-01-01 00:00:00' AS ntz,
CAST('c' AS CHAR(3)) AS c, CAST('c' AS VARCHAR(3)) AS vc"""
NESTED = """map('k', 1) AS m, map(1, 2) AS mi, map('k', struct(1 AS a)) AS ms, array(NULL) AS an,
struct(1 AS a, array(struct(2 AS b)) AS c) AS st"""
INTERVALS = ("INTERVAL '1' MONTH AS x", "make_interval(1) AS x")
REFUSED_BY_ALL = (
    "array() AS x", "struct(map() AS a) AS x", "struct(1 AS a, 2 AS A) AS x",
    "array(struct(1 AS a, struct(1 AS b, 2 AS B) AS c)) AS x",
)  # fmt: skip
STORES = {
    "elasticsearch.tests": (
        f"{NESTED}, map(true, 1) AS mb, parse_json('{{}}') AS v, INTERVAL '1' DAY AS iv, time'12:00' AS tm",
        (*INTERVALS, "map(date'2020-01-01', 1) AS x", "1 AS `_id`", "1 AS `a..b`", "1 AS ` `", "1 AS `a. .b`"),
    ),
    "mongodb.d.c": (NESTED, (
        *INTERVALS, "INTERVAL '1' DAY AS x", "time'12:00' AS x", "parse_json('1') AS x", "array(parse_json('1')) AS x",
        "map(true, 1) AS x", "1 AS `_id`", "1 AS `_v`", "1 AS `a.b`", "struct(1 AS `$a`) AS x",
    )),
    "influxdb.d.m": ("time'12:00' AS tm", (
        *INTERVALS, "INTERVAL '1' DAY AS x", "map('k', 1) AS x", "array(1) AS x", "struct(1 AS a) AS x",
        "parse_json('1') AS x", "1 AS `_version.x`", "1 AS `time`",
    )),
}  # fmt: skip


@pytest.mark.parametrize(
    "target", ["mongodb.d.c", *(pytest.param(one, marks=pytest.mark.long) for one in STORES if one != "mongodb.d.c")]
)
def test_what_a_check_lets_through_is_written(target: str, spark: SparkSession) -> None:
    """By type and by name: what a store takes of no row is refused before there is one."""

    def sink(columns: str) -> Sink:
        return parse(f"UPSERT INTO {target} READ t AS TEXT TOMBSTONES IGNORE AS SELECT {columns} FROM t", PATH)

    more, refused = STORES[target]
    for columns in (*REFUSED_BY_ALL, *refused):
        with pytest.raises(DeclarationError, match=r"case\.sql:1:"):
            explain_sink(sink(columns), {}, spark)
    taken = sink(f"{TAKEN}, {more}")
    explain_sink(taken, {}, spark)
    stream = sink_stream(taken)
    rows = encode_rows(stream, transformed(stream, [{"topic": "t", "key": "k", "value": "v"}], spark)).toArrow()
    match taken.store:
        case "elasticsearch":
            assert json.loads(rows["body"][0].as_py())["st"] == {"a": 1, "c": [{"b": 2}]}
        case "mongodb":
            assert [
                one.error for one in encode.encode_documents(rows["doc"].combine_chunks(), [DocumentHeader("k", 1)])
            ] == [""]
        case _:
            (output,) = stream.outputs.values()
            assert isinstance(output, InfluxDB)
            found = read_points(output, rows)
            assert (found.refused, found.cells.num_rows) == ({}, len(found.fields) - 1)


def test_rows_say_which_of_them_have_a_later_time_than_their_record(spark: SparkSession) -> None:
    text = "UPSERT INTO mongodb.d.c READ t AS JSON (at BIGINT) EVENT TIME timestamp_millis(at) AS SELECT at FROM t"
    stream = sink_stream(parse(text, PATH))
    values = ['{"at": 5500}', '{"at": 5000}', '{"at": 4000}', None]
    sent = [{"topic": "t", "key": "k", "value": v, "timestamp": 5000, "offset": n} for n, v in enumerate(values)]
    found = encode_rows(stream, transformed(stream, sent, spark)).toArrow().sort_by("offset")
    assert found["future"].to_pylist() == [True, False, False, False]
    assert found["tombstone"].to_pylist() == [False, False, False, True]
