"""Validity rules as declared in sql/quality/, one file a topic.

A file is comment lines `-- name: value`, then one boolean SQL expression::

    -- topic: tx                                  the topic, or * for every topic without a rule of its own
    -- format: json                               json, avro or text
    -- schema: id BIGINT NOT NULL, amount DOUBLE  json: Spark DDL; NOT NULL fields must be there
    -- schema: tx.avsc                            avro: a file beside this one, with the writer's schema
    -- framing: confluent                         avro: five bytes of a schema registry come first
    amount >= 0                                   over the schema's fields, and `key` and `value` as STRING

A record is valid if it parses as the format, has the required fields, and the expression is true. A record without
value (a tombstone) is valid: it says that its key is gone. Without any rule a record must parse as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import DeclarationError
from penstock.streams import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVERY = "*"
HEADER = re.compile(r"--\s*([a-z]+)\s*:\s*(.*?)\s*$")
HEADERS = ("topic", "format", "schema", "framing")
FORMATS = ("json", "avro", "text")
CONFLUENT = "confluent"
RECORD_FIELDS = ("key", "value")
TEXT, REST, VERDICT = "_text", "_rest", "_verdict"


@dataclass(frozen=True)
class Rule:
    """One topic's rule; predicate: a parsed boolean expression over the schema's fields, `key` and `value`.

    schema: Spark DDL, or an Avro schema as JSON; framed: whether a schema registry's five bytes come before the data.
    """

    topic: str
    format: str
    schema: str
    predicate: exp.Condition
    framed: bool = False

    def sql(self, prefix: str) -> str:
        """The predicate as Spark SQL, its fields taken from the columns `<prefix><field>`."""

        def placed(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            first, *inner = node.parts
            if first.name in RECORD_FIELDS and not inner:
                return exp.cast(exp.column(first.name), exp.DataType.Type.TEXT)
            found: exp.Expr = exp.column(exp.to_identifier(prefix + first.name, quoted=True))
            for part in inner:
                found = exp.Dot(this=found, expression=part)
            return found

        return self.predicate.transform(placed).sql("spark")


def read(path: Path) -> Rule:
    """The rule a file declares; DeclarationError with file and line if it is none."""
    headers: dict[str, str] = {}
    body: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = HEADER.fullmatch(line.strip())
        if not found or body:
            body.append(line if line.strip() else "")
        elif found[1] not in HEADERS:
            raise DeclarationError(
                f"{path.name}:{number}: unknown clause", got=found[1], fix=f"use one of {', '.join(HEADERS)}"
            )
        else:
            headers[found[1]] = found[2]
    for name in ("topic", "format"):
        if not headers.get(name):
            raise DeclarationError(f"{path.name}: the clause `-- {name}:` is missing", fix="see jobs/quality/rules.py")
    if headers["format"] not in FORMATS:
        raise DeclarationError(
            f"{path.name}: unknown format", got=headers["format"], fix=f"use one of {', '.join(FORMATS)}"
        )
    if headers["format"] == "text" and "schema" in headers:
        raise DeclarationError(f"{path.name}: a text topic has no schema", got=headers["schema"], fix="drop the clause")
    framing = headers.get("framing", "")
    if framing and (framing != CONFLUENT or headers["format"] != "avro"):
        raise DeclarationError(
            f"{path.name}: unknown framing", got=framing, fix=f"drop it, or use {CONFLUENT} with the format avro"
        )
    schema = headers.get("schema", "")
    if headers["format"] == "avro":
        schema = _avro_schema(path, schema)
    predicate = _predicate(path, "\n".join(body))
    return Rule(headers["topic"], headers["format"], schema, predicate, bool(framing))


def _avro_schema(path: Path, name: str) -> str:
    """The text of an Avro schema: a record with a required field, for only such a field tells rubbish from nothing."""
    file = path.parent / name
    if not name or not file.is_file():
        raise DeclarationError(
            f"{path.name}: an avro rule needs its schema's file", got=name or "nothing", fix="put it beside the rule"
        )
    text = file.read_text()
    try:
        required = _required(text)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DeclarationError(
            f"{path.name}: {name} is no Avro schema of a record", got=f"{type(e).__name__}: {e}"
        ) from e
    if not required:
        raise DeclarationError(
            f"{path.name}: the schema in {name} has optional fields only, so any bytes may pass for a record of it",
            fix="give a field that is no union with null",
        )
    return text


def _fields(avro: str) -> dict[str, Any]:
    """The fields of an Avro record, with their types."""
    record = json.loads(avro)
    if record["type"] != "record":
        raise ValueError(f"it is of type {record['type']}")
    return {field["name"]: field["type"] for field in record["fields"]}


def _required(avro: str) -> list[str]:
    """Names of the fields of an Avro record that cannot be null."""
    return [name for name, kind in _fields(avro).items() if kind != "null" and "null" not in kind]


def _predicate(path: Path, text: str) -> exp.Condition:
    try:
        found = sqlglot.parse_one(text, read="spark")
    except SqlglotError as e:
        raise DeclarationError(f"{path.name}: the rule is no SQL expression", got=str(e).splitlines()[0]) from e
    if not isinstance(found, exp.Condition) or found.find(exp.Query):
        raise DeclarationError(
            f"{path.name}: the rule must be one boolean expression", got=text.strip(), fix="leave SELECT and WHERE out"
        )
    return found


def load(folder: Path) -> dict[str, Rule]:
    """Every rule of a folder, by topic; `*` is always among them."""
    rules: dict[str, Rule] = {EVERY: Rule(EVERY, "json", "", exp.true())}
    places: dict[str, str] = {}
    for path in sorted(folder.glob("*.sql")):
        rule = read(path)
        if rule.topic in places:
            raise DeclarationError(
                f"{path.name}: topic {rule.topic} has a rule already", got=places[rule.topic], fix="join the two"
            )
        places[rule.topic] = path.name
        rules[rule.topic] = rule
    return rules


def judged(records: DataFrame, rules: Mapping[str, Rule]) -> DataFrame:
    """The raw records with the column `status STRING`: `valid` or `invalid`.

    records: topic STRING, key BINARY, value BINARY.
    """
    # Only here: a declaration is read without Spark.
    from pyspark.sql.avro.functions import from_avro

    from penstock.streams import shapes
    from penstock.streams.records import schema_of

    own = [rule for topic, rule in rules.items() if topic != EVERY]
    others = ~F.col("topic").isin([rule.topic for rule in own]) if own else F.lit(True)
    rows = records.withColumn(TEXT, F.col("value").cast("string"))
    # What only a JSON parser can judge has no verdict at first, and is judged behind it: few records, as a rule.
    verdict, later = F.when(F.col("value").isNull(), True), F.lit(False)
    cut: list[tuple[Column, Column]] = []
    uncut: list[tuple[Column, Column]] = []
    parsers: dict[str, Column] = {}
    slow: dict[str, Column] = {}
    for number, rule in enumerate([*own, rules[EVERY]]):
        here = others if rule.topic == EVERY else F.col("topic") == rule.topic
        prefix, parser = f"_rule_{number}_", f"_parser_{number}_"
        if rule.format == "json" and rule.schema:
            fields = schema_of(rule.schema, f"the rule of topic {rule.topic}")
            rows = shapes.cut(rows, TEXT, fields, prefix, here)
            cut.append((F.col(f"{prefix}_usual"), _true(F.expr(rule.sql(prefix)))))
            uncut.append((here, F.lit(None)))
            parsers[parser] = shapes.from_json(F.when(here, F.col(REST)), fields)
            slow |= {parser + f.name: F.col(parser)[f.name] for f in fields.fields}
            parses = F.col(parser)[shapes.CORRUPT].isNull()
            for name in (f.name for f in fields.fields if not f.nullable):
                parses = parses & F.col(parser + name).isNotNull()
            later = F.when(here, parses & F.expr(rule.sql(parser))).otherwise(later)
            continue
        if rule.format == "text":
            parses = F.is_valid_utf8(TEXT)
        elif rule.format == "avro":
            data = F.substring("value", 6, 2**31 - 1) if rule.framed else F.col("value")
            rows = rows.withColumn(prefix, F.when(here, from_avro(data, rule.schema, {"mode": "PERMISSIVE"})))
            rows = rows.withColumns({prefix + name: F.col(prefix)[name] for name in _fields(rule.schema)})
            parses = F.substring("value", 1, 1) == F.lit(bytes(1)) if rule.framed else F.lit(True)
            for name in _required(rule.schema):
                parses = parses & F.col(prefix + name).isNotNull()
        else:
            parses = F.try_parse_json(TEXT).isNotNull()
        uncut.append((here, _true(parses & F.expr(rule.sql(prefix)))))
    # Whether a text was cut is known already; its topic has to be looked at.
    for case in (*cut, *uncut):
        verdict = verdict.when(*case)
    rows = rows.withColumn(VERDICT, verdict).withColumn(REST, F.when(F.col(VERDICT).isNull(), F.col(TEXT)))
    rows = rows.withColumns(parsers).withColumns(slow)
    valid = F.when(F.col(REST).isNotNull(), _true(later)).otherwise(F.col(VERDICT))
    return rows.withColumn("status", F.when(valid, "valid").otherwise("invalid"))


def _true(predicate: Column) -> Column:
    """A predicate that is not known is not true."""
    return F.coalesce(predicate, F.lit(False))
