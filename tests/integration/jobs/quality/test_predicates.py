"""Quality rules: a predicate judged where records are decoded says what Spark says of it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobs.quality import counts, rules, validity
from jobs.quality.rules import EVERY, Rule
from jobs.quality.translate import to_duckdb
from penstock.codec.columnar import RecordDecoder
from penstock.errors import DeclarationError
from penstock.model.schema import schema
from penstock.model.types import quoted
from penstock.testing import frames
from tests.support.record_batches import batch, run

pytestmark = pytest.mark.integration

DDL = "Name STRING, other STRING, t TINYINT, n INT, b BIGINT, f FLOAT, d DOUBLE, ok BOOLEAN, `a b` INT, topic STRING"
FIELDS = schema(DDL, "a test")
KINDS = {f.name: f.type.kind for f in FIELDS}
LIMITS = {"tinyint": 2**7, "int": 2**31, "bigint": 2**63}
TEXTS = [
    "", "a", "A", "b", "ab", "a b", "abc", "é", "日本", "😀", "\ue000", "\uffff", "a'b", 'a"b', "a\\b", "\\", "\\d",
    "5", "dd",
    "12", "a.c", "a\n", "a\r\n", "a\r", "\r\n", "\n", "a\n\n", "a\u0085", "a\u2028", "a\u2029", "a\x0b", "\na",
    "a\x00", "%",
    "_", "[a]", "a-b", "a]", "^a", "a$", "{2}", "aaa", "a/b", "prod", "Prod", "zone:x_1", "\t", "null", "true",
]  # fmt: skip
PATTERNS = [
    "^a$", "a$", "^a", "a", "^$", "$", "", "[a-c]+$", "^[^a]$", "[^a]+", "[^a]+$", r"\\d", r"^\\.$", r"a\\.c",
    r"a\\$", r"\\[a\\]$",
    "^[A-Za-z0-9._:-]+$", "^a{1,2}$", "a{3}", "a{2,}", "b?$", "^a*b?", r"[\\-a]$", r"[\\]]", r"\\{2\\}",
    "[+.*?(){}|$-]", "a b",
    r"^[a-c\\.]*$", "'", '"', "é", "[é]", "a|b", "(a)", ".", "a.c", r"\\w+", r"\\\\", "(?i)A", "[[:alpha:]]",
    r"^a\\z", "a{150}",
    "[a-c&&b]", "[a||b]", "^zone:[a-z]_[0-9]$", "[^-a]", "[a-]", "[-a]$", r"[\\^a]", "<=>", r"\\/", "a/b$",
]  # fmt: skip


def literal(text: str) -> str:
    """A text as a literal of Spark."""
    escaped = (
        text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r").replace("\x00", "\\0")
    )
    return f"'{escaped}'"


def row(chance: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, kind in KINDS.items():
        if chance.random() < 0.15:
            continue
        match kind:
            case "string":
                made[name] = chance.choice(TEXTS)
            case "boolean":
                made[name] = chance.random() < 0.5
            case "float" | "double":
                reals = [0.0, -0.0, 0.1, 0.3, 1.5, -1.5, 16777217.0, 1e300, 5e-324, math.nan, math.inf, -math.inf, 7.0]
                number = chance.choice(reals if kind == "double" else [x for x in reals if abs(x) != 1e300])
                made[name] = str(number).replace("inf", "Infinity").replace("nan", "NaN")
                if math.isfinite(number):
                    made[name] = number
            case _:
                most = LIMITS[kind]
                made[name] = chance.choice([0, 1, 5, 7, 100, -1, -5, most - 1, -most, min(most - 1, 16777217)])
    return made


class Predicates:
    """Predicates of the grammar that is taken, from a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self, depth: int = 0) -> str:
        chance = self._chance
        if depth < 3 and chance.random() < 0.4:
            one, other = self(depth + 1), self(depth + 1)
            return chance.choice([f"({one} AND {other})", f"({one} OR {other})", f"NOT ({one})", f"{one} OR {other}"])
        name = chance.choice(list(KINDS))
        shown = quoted(name) if " " in name else chance.choice([name, name.upper(), quoted(name), name.lower()])
        kind, value = KINDS[name], self._literal(KINDS[name])
        no = chance.choice(["", "NOT "])
        forms = [
            f"{shown} {chance.choice(['=', '<>', '!=', '<', '<=', '>', '>=', '=='])} {value}",
            f"{shown} IS {no}NULL",
            f"{shown} {no}IN ({value}, {self._literal(kind)}, {self._literal(kind)})",
            f"{shown} {no}BETWEEN {value} AND {self._literal(kind)}",
        ]
        if kind == "string":
            forms = [*forms, *[f"{shown} {no}RLIKE '{self._pattern()}'"] * 4]
        if kind == "boolean":
            forms = [shown, f"NOT {shown}", forms[0], forms[1], "TRUE", "FALSE"]
        return chance.choice(forms)

    def _literal(self, kind: str) -> str:
        chance = self._chance
        match kind:
            case "string":
                return literal(chance.choice(TEXTS))
            case "boolean":
                return chance.choice(["TRUE", "false"])
        return chance.choice(
            [
                "0",
                "1",
                "-1",
                "5",
                "0.1",
                "0.3",
                "-1.5",
                "300",
                "16777217",
                "16777216.5",
                "123456789012345.123456",
                "007",
            ]
        )

    def _pattern(self) -> str:
        if self._chance.random() < 0.6:
            return self._chance.choice(PATTERNS).replace("'", "\\'")
        items = ["a", "b", "[ab]", "[^a]", "[a-z]", r"\\.", " ", "é", "-", r"\\-", "[.]", "/", "0"]
        many = ["", "", "*", "+", "?", "{2}", "{1,3}", "{0,}"]
        made = "".join(self._chance.choice(items) + self._chance.choice(many) for _ in range(self._chance.randrange(4)))
        return self._chance.choice(["", "^"]) + made + self._chance.choice(["", "$"])


def rule(folder: Path, predicate: str, topic: str = "t", ddl: str = DDL) -> Rule:
    file = folder / "t.sql"
    file.write_text(f"-- topic: {topic}\n-- format: json\n-- schema: {ddl}\n{predicate}", newline="")
    return rules.read(file)


def by_spark(
    spark: SparkSession, texts: Sequence[str], predicates: Sequence[str], made: Sequence[Rule]
) -> tuple[list[list[bool | None]], list[list[bool | None]]]:
    """Of each predicate Spark's verdict on each row: as it is written, and as a rule gives it to Spark."""
    reading = RecordDecoder("t", "a test", DDL, "now", None, True)
    decoded = run(reading, batch([text.encode() for text in texts]))
    assert not any(r["_bad"] for r in decoded)
    ddl = ", ".join(f"{quoted(f.name)} {f.type.ddl}" for f in FIELDS)
    rows = [tuple(r[f.name] for f in FIELDS) for r in decoded]
    frame = spark.createDataFrame(rows, ddl).coalesce(1)
    raw = {"key": F.lit("k"), "value": F.array(*map(F.lit, texts))[F.monotonically_increasing_id()]}
    frame = frame.withColumns(raw | {f"x_{f.name}": F.col(quoted(f.name)) for f in FIELDS})
    written = [F.expr(p).alias(f"w{i}") for i, p in enumerate(predicates)]
    given = [F.expr(r.sql("x_")).alias(f"g{i}") for i, r in enumerate(made)]
    found = frame.select(*written, *given).collect()
    columns = [list(column) for column in zip(*found, strict=True)]
    return columns[: len(predicates)], columns[len(predicates) :]


def by_code(rule: Rule, texts: Sequence[str]) -> list[str | None]:
    """The status of each record as it leaves the combiner; None where it is left to Spark."""
    combiner = validity.combiner({EVERY: Rule(EVERY, "json", "", sqlglot.exp.true()), rule.topic: rule})
    reading = RecordDecoder("", "records", "", "timestamp", combiner, False)
    times = [n * 1_000_000 for n in range(len(texts))]
    rows = run(reading, batch([t.encode() for t in texts], times=times, topics=[rule.topic] * len(texts)))
    assert [r["n"] for r in rows] == [1] * len(texts)
    return [r["status"] for r in sorted(rows, key=lambda r: r["event_time"])]


@pytest.mark.parametrize("count", [20, pytest.param(600, marks=pytest.mark.long)])
def test_the_decoder_and_spark_agree_on_each_predicate(spark: SparkSession, tmp_path: Path, count: int) -> None:
    chance = random.Random(3)
    texts = [json.dumps(row(chance)) for _ in range(400)]
    texts += [json.dumps({"Name": a, "other": b}) for a, b in zip(TEXTS, reversed(TEXTS), strict=True)]
    make = Predicates(4)
    predicates = [f"Name RLIKE '{p}'" for p in (p.replace("'", "\\'") for p in PATTERNS)]
    predicates += [f"name = {literal(t)}" for t in TEXTS] + [f"name > {literal(t)}" for t in TEXTS]
    predicates += [make() for _ in range(count)]
    made = [rule(tmp_path, p) for p in predicates]
    written, given = by_spark(spark, texts, predicates, made)
    inside = 0
    for predicate, of, one, other in zip(predicates, made, written, given, strict=True):
        assert one == other, f"{predicate} is read otherwise: {of.sql('')}"
        found, sql = by_code(of, texts), to_duckdb(of)
        if sql is None:
            assert set(found) == {None}
            continue
        inside += 1
        wanted = ["valid" if v else "invalid" for v in one]
        differ = [(t, f) for t, f, w in zip(texts, found, wanted, strict=True) if f != w]
        assert not differ, f"{predicate} as {sql}: {len(differ)}, such as {differ[:2]}"
    assert inside > len(predicates) * 2 // 3


OUTSIDE = [
    "n % 7 > 1", "5 < n", "other = Name", "length(Name) > 1", "Name LIKE 'a%'", "d > 1e3", "n <=> NULL", "ok IS TRUE",
    r"Name RLIKE '\\\\d+'", "Name RLIKE 'a|b'", "Name RLIKE '[^a]$'", "f = 0.1D", "upper(Name) = 'A'", "n IN (1, NULL)",
    "Name = concat('a', 'b')", "CASE WHEN n > 1 THEN ok ELSE TRUE END", "coalesce(n, 7) = 7", "key = 'k'", "KEY = 'k'",
    "value LIKE '%prod%'", "b = 9223372036854775807", "d = 0.1234567891", "-d = 1.5", "d = double('NaN')", "isnan(d)",
    "Name < other OR n IS NULL", "Name RLIKE other", r"Name RLIKE r'\\d'", "Name IN ('a', other)", "ok = (n > 1)",
]  # fmt: skip


@pytest.mark.long
def test_untranslated_predicates_are_judged_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(6)
    texts = [json.dumps(row(chance)) for _ in range(60)] + [json.dumps({"Name": t}) for t in TEXTS]
    made = {f"t{i}": rule(tmp_path, p, f"t{i}") for i, p in enumerate(OUTSIDE)}
    assert [of.predicate.sql() for of in made.values() if to_duckdb(of)] == []
    own = {EVERY: Rule(EVERY, "json", "", sqlglot.exp.true()), **made}
    given = [
        {"topic": topic, "key": "k", "value": text, "timestamp": 1000 * n}
        for topic in made
        for n, text in enumerate(texts)
    ]
    stream = replace(counts.STREAM, inputs={"records": replace(counts.RECORDS, combine=validity.combiner(own))})
    judged = validity.add_status(frames(spark, stream, records=given)["records"], own)
    rows = judged.select("topic", F.unix_millis("event_time").alias("at"), "status").collect()
    found = {(r.topic, r["at"] // 1000): r.status for r in rows}
    assert len(found) == len(given)
    written, _ = by_spark(spark, texts, OUTSIDE, [])
    for topic, predicate, column in zip(made, OUTSIDE, written, strict=True):
        differ = [
            t for n, (t, v) in enumerate(zip(texts, column, strict=True)) if (found[topic, n] == "valid") != (v is True)
        ]
        assert not differ, f"{predicate}: {differ[:2]}"


@pytest.mark.parametrize(
    "pattern",
    [
        "[z-a]",
        "x{2,1}",
        "x{00}",
        "x{01,2}",
        "x{1,02}",
        "[a--b]",
        "a" * 201,
        "x{1000}",
        "a**",
        "(a",
        "[[a]",
        r"\\p{L}",
        "a++",
    ],
)
def test_patterns_that_are_not_translated(tmp_path: Path, pattern: str) -> None:
    assert to_duckdb(rule(tmp_path, f"Name RLIKE '{pattern}'")) is None


@pytest.mark.parametrize("predicate", ["Name = 'a''b'", "Name = 'a' 'b'", "Name RLIKE 'a'\n 'b'"])
def test_ambiguous_texts_are_refused(tmp_path: Path, predicate: str) -> None:
    with pytest.raises(DeclarationError, match="two quoted texts follow each other"):
        rule(tmp_path, predicate)
