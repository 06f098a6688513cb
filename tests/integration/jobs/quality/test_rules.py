"""Validity rules: what each kind takes for valid, and what is refused as a rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import to_avro

from jobs.quality import counts, rules, validity
from penstock.errors import DeclarationError
from penstock.testing import frames

pytestmark = pytest.mark.integration

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Tx",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)
Value = str | bytes | None


def statuses(spark: SparkSession, folder: Path, values: list[Value], topic: str = "t") -> list[str]:
    """Of each record by itself: it has a second of its own."""
    found = rules.load(folder)
    stream = replace(counts.STREAM, inputs={"records": replace(counts.RECORDS, combine=validity.combiner(found))})
    given = [{"topic": topic, "key": "k1", "value": v, "timestamp": 1000 * n} for n, v in enumerate(values)]
    judged = validity.add_status(frames(spark, stream, records=given)["records"], found).orderBy("event_time").collect()
    assert [row.n for row in judged] == [1] * len(values)
    return [row.status for row in judged]


def rule(folder: Path, text: str, name: str = "t.sql") -> None:
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "valid", "invalid"),
    [
        pytest.param(
            "-- topic: t\n-- format: json\nTRUE", ['{"a":1}', "[]", "null", None], ["{", "", "x"], id="parses as JSON"
        ),
        pytest.param("-- topic: t\n-- format: text\nTRUE", ["anything", "", None], [b"\xff\xfe"], id="parses as text"),
        pytest.param(
            "-- topic: t\n-- format: text\nvalue LIKE '${b}%'", ["${b}", "${b}c"], ["x", "b"], id="no variable of Spark"
        ),
        pytest.param(
            "-- topic: t\n-- format: json\n-- schema: id BIGINT NOT NULL, note STRING\nTRUE",
            ['{"id":1}', '{"note":null,"id":2}', '{"id":3,"more":[1]}'],
            ['{"note":"x"}', '{"id":null}'],
            id="required columns",
        ),
        pytest.param(
            "-- topic: t\n-- format: json\n-- schema: id BIGINT NOT NULL, amount DOUBLE, at TIMESTAMP\nTRUE",
            ['{"id":1,"amount":1.5}', '{"id":1,"amount":2,"at":"2026-01-01T00:00:00Z"}'],
            ['{"id":"one"}', '{"id":1.5}', '{"id":1,"amount":"much"}', '{"id":1,"at":"soon"}', "[1]"],
            id="types",
        ),
        pytest.param(
            "-- topic: t\n-- format: json\n-- schema: id BIGINT NOT NULL, amount DOUBLE\namount BETWEEN 0 AND 10",
            ['{"id":1,"amount":0}', '{"id":1,"amount":10}'],
            ['{"id":1,"amount":-0.01}', '{"id":1,"amount":10.5}', '{"id":1}'],
            id="ranges, and NULL is not true",
        ),
        pytest.param(
            "-- topic: t\n-- format: text\nvalue RLIKE '^[0-9]+;[a-z]+$'",
            ["1;a"],
            ["1;", "a;1", "1;a\n2"],
            id="expression",
        ),
        pytest.param(
            "-- topic: t\n-- format: json\n-- schema: `order` STRUCT<lines: ARRAY<BIGINT>> NOT NULL\n"
            "SIZE(`order`.lines) > 0 AND FORALL(`order`.lines, x -> x > 0) AND key = 'k1'",
            ['{"order":{"lines":[1,2]}}'],
            ['{"order":{"lines":[]}}', '{"order":{"lines":[1,0]}}'],
            id="any predicate, over nested fields and the key",
        ),
    ],
)
def test_records_are_judged_by_the_rule_of_their_format(
    spark: SparkSession, tmp_path: Path, text: str, valid: list[Value], invalid: list[Value]
) -> None:
    rule(tmp_path, text)
    wanted = ["valid"] * len(valid) + ["invalid"] * len(invalid)
    assert statuses(spark, tmp_path, [*valid, *invalid]) == wanted


@pytest.mark.parametrize("framing", ["", "-- framing: confluent\n"])
def test_avro(spark: SparkSession, tmp_path: Path, framing: str) -> None:
    (tmp_path / "tx.avsc").write_text(AVRO)
    rule(tmp_path, f"-- topic: t\n-- format: avro\n-- schema: tx.avsc\n{framing}id > 0")
    frame = spark.sql(
        "select named_struct('id', id, 'note', note) v from values (7L, 'x'), (8L, NULL), (-1L, 'y') t(id, note)"
    )
    made = [bytes(r.b) for r in frame.select(to_avro("v", AVRO).alias("b")).collect()]
    head = b"\x00\x00\x00\x00\x09" if framing else b""
    good, empty, negative = (head + b for b in made)
    values: list[Value] = [
        good,
        empty,
        None,
        negative,
        b"",
        good[:-1],
        b"\xff\xff\xff",
        *([b"\x01" + good[1:]] if framing else []),
    ]
    found = statuses(spark, tmp_path, values)
    assert found == ["valid", "valid", "valid", *["invalid"] * (len(values) - 3)]


def test_each_topic_has_its_own_rule_and_the_others_the_default(spark: SparkSession, tmp_path: Path) -> None:
    rule(tmp_path, "-- topic: a\n-- format: text\nvalue = 'yes'", "a.sql")
    rule(tmp_path, "-- topic: b\n-- format: json\n-- schema: id BIGINT NOT NULL\nid > 5", "b.sql")
    values: list[Value] = ["yes", '{"id":6}', '{"id":1}']
    assert statuses(spark, tmp_path, values, "a") == ["valid", "invalid", "invalid"]
    assert statuses(spark, tmp_path, values, "b") == ["invalid", "valid", "invalid"]
    assert statuses(spark, tmp_path, values, "c") == ["invalid", "valid", "valid"]
    rule(tmp_path, "-- topic: *\n-- format: text\nTRUE", "default.sql")
    assert statuses(spark, tmp_path, values, "c") == ["valid", "valid", "valid"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- format: json\nTRUE", "the clause `-- topic:` is missing"),
        ("-- topic: t\nTRUE", "the clause `-- format:` is missing"),
        ("-- topic: t\n-- format: xml\nTRUE", "unknown format"),
        ("-- topic: t\n-- frmat: json\nTRUE", "t.sql:2: unknown clause"),
        ("-- topic: t\n-- format: json\namount >", "not a SQL expression"),
        ("-- topic: t\n-- format: json\nSELECT 1", "one boolean expression"),
        ("-- topic: t\n-- format: json\n-- schema: a INT\na + 1", "one boolean expression"),
        ("-- topic: t\n-- format: json\n-- schema: a INT\nsum(a) > 1", "aggregates rows"),
        ("-- topic: t\n-- format: json\n-- schema: at TIMESTAMP\nat < now()", "not deterministic"),
        ("-- topic: t\n-- format: text\n-- schema: a INT\nTRUE", "a text topic has no schema"),
        ("-- topic: t\n-- format: json\n-- framing: confluent\nTRUE", "unknown framing"),
        ("-- topic: t\n-- format: avro\nTRUE", "needs the file of its schema"),
        ("-- topic: t\n-- format: avro\n-- schema: none.avsc\nTRUE", "needs the file of its schema"),
        ("-- topic: t\n-- format: avro\n-- schema: bad.avsc\nTRUE", "not an Avro schema"),
        ("-- topic: t\n-- format: avro\n-- schema: loose.avsc\nTRUE", "only optional fields"),
    ],
)
def test_an_invalid_rule_is_refused_with_its_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.avsc").write_text('"long"')
    (tmp_path / "loose.avsc").write_text(
        '{"type":"record","name":"L","fields":[{"name":"a","type":["null","string"]}]}'
    )
    rule(tmp_path, text)
    with pytest.raises(DeclarationError, match=message) as e:
        rules.load(tmp_path)
    assert "t.sql" in str(e.value)


@pytest.mark.parametrize("moment", ["at < now()", "at < date'tomorrow'", "rand() < 0.5"])
def test_a_nondeterministic_rule_is_refused(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    rule(tmp_path, f"-- topic: t\n-- format: json\n-- schema: at TIMESTAMP\n{moment}")
    with pytest.raises(DeclarationError, match="the rule is not deterministic"):
        statuses(spark, tmp_path, ["{}"])


def test_two_rules_for_one_topic_are_refused(tmp_path: Path) -> None:
    for name in ("one.sql", "two.sql"):
        rule(tmp_path, "-- topic: t\n-- format: json\nTRUE", name)
    with pytest.raises(DeclarationError, match="already has a rule"):
        rules.load(tmp_path)
