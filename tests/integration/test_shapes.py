"""The short way to read a JSON record says the same as the long way, for every text."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.streams import shapes
from penstock.streams.records import schema_of

pytestmark = pytest.mark.integration

DDL = "name STRING NOT NULL, value DOUBLE NOT NULL, n INT, at BIGINT NOT NULL, ok BOOLEAN"
PLAIN = '{"name":"a b","value":1.5,"n":7,"at":1700000000000,"ok":true}'
NUMBERS = [
    "0", "-0", "-0.0", "0.0", "00", "01", "-", "+1", "1.", ".5", "1.50", "-12.25", "1e5", "1E+05", "1e-400", "1e400",
    "-1e400", "123456789012345678", "1234567890123456789", "12345678901234567890",
    "9007199254740993", "0.1000000000000000055",
    "0.123456789012345678901", "1_0", "1d", "0x1", "NaN", "\"NaN\"", "Infinity", "\"-Infinity\"",
    "\"1.5\"", "\"x\"", "null",
    "true", "[1]", "{}", "", " 1", "1 ", "4.9e-324", "2.2250738585072011e-308",
]  # fmt: skip
STRINGS = [
    '""', '"a"', '"a\\"b"', '"\\u0041"', '"é"', '"日本"', '"a\\\\b"', '"tab\there"', '"line\nbreak"',
    '"}"', '"a,b: c"', "null", "1",
    "true", '"a""b"', '"', "'a'", '"\u007f"', '" "',
]  # fmt: skip
INTEGERS = [
    *NUMBERS,
    "2147483647",
    "2147483648",
    "-2147483648",
    "999999999",
    "1000000000",
    "9223372036854775807",
    "1.0",
]
BOOLEANS = ["true", "false", "null", "TRUE", "1", '"true"', ""]
TEXTS = [
    PLAIN, PLAIN + " ", " " + PLAIN, PLAIN + "\n", PLAIN + PLAIN, PLAIN[:-1], PLAIN[1:], "", "{}", "[]", "null", "x",
    PLAIN.replace('"ok"', '"OK"'), PLAIN.replace(",", ", ").replace(":", ": "), PLAIN.replace(",", ",  "),
    PLAIN.replace(',"ok":true', ""), PLAIN.replace(',"ok":true', ',"ok":true,"more":1'),
    PLAIN.replace('"n":7', '"n":7,"n":8'), PLAIN.replace(',"ok":true', ',"n":8'), PLAIN.replace('"ok"', '"n"'),
    PLAIN.replace("true}", "true,}"), PLAIN.replace(",", " ,\n"), PLAIN.replace(",", ",,"), PLAIN.replace(",", " "),
    PLAIN.replace("{", "{,"), PLAIN.replace("{", "{ "), PLAIN.replace("{", "{{"), PLAIN.replace(":", "\n:\t"),
    PLAIN.replace(":", "::"), PLAIN.replace('"name"', "name"), PLAIN.replace('"name"', "'name'"),
    PLAIN.replace('"name"', '"name '), PLAIN.replace(",", ",\u00a0"), PLAIN.replace(",", ",\f"),
    json.dumps(dict(reversed(json.loads(PLAIN).items()))), "\ufeff" + PLAIN,
]  # fmt: skip


@pytest.fixture(scope="module")
def declared(spark: SparkSession) -> StructType:  # noqa: ARG001 (a schema needs a session)
    return schema_of(DDL, "a test")


def texts() -> list[str]:
    random.seed(5)
    made = list(TEXTS)
    for field, values in (("name", STRINGS), ("value", NUMBERS), ("n", INTEGERS), ("at", INTEGERS), ("ok", BOOLEANS)):
        for value in values:
            parts: dict[str, Any] = {"name": '"a b"', "value": "1.5", "n": "7", "at": "1700000000000", "ok": "true"}
            parts[field] = value
            made.append("{" + ",".join(f'"{k}":{v}' for k, v in parts.items()) + "}")
            made.append("{" + ", ".join(f'"{k}": {v}' for k, v in parts.items()) + "}")
            shuffled = random.sample(list(parts.items()), len(parts))
            made.append("{" + "\n ,".join(f'"{k}" : {v}' for k, v in shuffled) + " }")
    for _ in range(400):
        broken = list(PLAIN)
        for _ in range(random.choice([1, 1, 2, 5])):
            broken[random.randrange(len(broken))] = random.choice('{}[]":,.0123456789aeE-+ \\\x00é')
        made.append("".join(broken))
    return made


def test_both_ways_say_the_same(spark: SparkSession, declared: StructType) -> None:
    frame = spark.createDataFrame([(t,) for t in texts()], "text string").coalesce(2)
    names = [f.name for f in declared.fields]
    short = shapes.parsed(frame.withColumn("t", F.col("text")), "t", declared).select("text", *names, shapes.CORRUPT)
    long = frame.select("text", shapes.from_json(F.col("text"), declared).alias("j")).select("text", "j.*")
    one, other = ([tuple(map(repr, row)) for row in f.collect()] for f in (short, long))
    assert one == other


def test_bytes_that_are_no_text_are_the_same_both_ways(spark: SparkSession, declared: StructType) -> None:
    inside = [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\x80", b"\x00", b"\x7f", b"\xef\xbb\xbf"]
    texts = [PLAIN.encode().replace(b"a b", b"a" + i + b"b") for i in (*inside, "😀 ﷽ é".encode(), b"\xe2\x80\xa8")]
    texts += [PLAIN.encode().replace(b":7", i + b":7") for i in inside] + [i + PLAIN.encode() for i in inside]
    frame = spark.createDataFrame([(t,) for t in texts], "raw binary").withColumn("text", F.col("raw").cast("string"))
    fields = [F.hex(F.col("name").cast("binary")), "value", "n", "at", "ok", F.col(shapes.CORRUPT).isNull()]
    short = shapes.parsed(frame, "text", declared).select("raw", *fields)
    long = frame.select("raw", shapes.from_json(F.col("text"), declared).alias("j")).select("raw", "j.*")
    assert [tuple(r) for r in short.collect()] == [tuple(r) for r in long.select("raw", *fields).collect()]


def test_plain_objects_need_no_parser_in_any_layout(spark: SparkSession, declared: StructType) -> None:
    value = json.loads(PLAIN)
    plain = [
        PLAIN,
        json.dumps(value),
        json.dumps(value, separators=(",", ":")),
        json.dumps(value, indent=2),
        json.dumps({**value, "value": -3}),
        f"\t {PLAIN}\r\n",
        *(json.dumps(dict(order)) for order in itertools.permutations(value.items())),
    ]
    frame = spark.createDataFrame([(t,) for t in plain], "text string")
    found = shapes.cut(frame, "text", declared, "f").select("f_usual").collect()
    assert [r[0] for r in found] == [True] * len(plain)


def test_rubbish_does_not_take_the_guard_long(spark: SparkSession, declared: StructType) -> None:
    """A text that nearly matches, and is long: no way to try again and again."""
    long = '{"name":"' + "a" * 200_000
    frame = spark.createDataFrame([(long,)] * 50, "text string")
    assert shapes.parsed(frame, "text", declared).where(F.col(shapes.CORRUPT).isNotNull()).count() == 50


@pytest.mark.parametrize(
    "ddl", ["a ARRAY<INT>", "a STRUCT<b: INT>", "a DECIMAL(10,2)", "a TIMESTAMP", '`a"b` STRING', "`é` INT"]
)
def test_a_schema_without_a_guard_is_parsed_all_the_same(spark: SparkSession, ddl: str) -> None:
    declared = schema_of(ddl, "a test")
    assert not shapes.layouts(declared)
    frame = spark.createDataFrame([("{}",), ("x",)], "text string")
    found = shapes.parsed(frame, "text", declared).select(shapes.CORRUPT).collect()
    assert [r[0] for r in found] == [None, "x"]
