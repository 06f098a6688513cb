"""Validity rules, as declared in sql/quality/, one file for each topic.

A file is comment lines `-- name: value`, among any other comments, then one boolean SQL expression::

    -- topic: tx                                  the topic, or * for every topic without a rule of its own
    -- format: json                               json, avro or text
    -- schema: id BIGINT NOT NULL, amount DOUBLE  json: Spark DDL; NOT NULL fields are required
    -- schema: tx.avsc                            avro: a file in the same folder, with the writer's schema
    -- framing: confluent                         avro: records begin with the five bytes of a schema registry
    amount >= 0                                   over the schema's fields, and the record's `key` and `value` as STRING

A record is valid if it can be parsed in the format, has the required fields, and the expression is true. The expression
is a predicate like that of an expectation of a stream (`penstock.model.checks.predicates`). A tombstone is
valid. A topic without any rule must have JSON records, or those of the schemas that a schema registry has for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlglot import exp

from penstock.errors import DeclarationError
from penstock.model.checks.predicates import parse_predicate
from penstock.model.declaration import list_files
from penstock.model.schema import schema
from penstock.model.sql.lexer import read_sql_file
from penstock.model.types import Field

EVERY = "*"
HEADER = re.compile(r"--\s*([A-Za-z]+)\s*:\s*(.*?)\s*$")
HEADERS = ("topic", "format", "schema", "framing")
FORMATS = ("json", "avro", "text")
CONFLUENT = "confluent"
RECORD_FIELDS = ("key", "value")


@dataclass(frozen=True)
class Rule:
    """The rule of one topic.

    Attributes:
        topic: The topic, or `*`.
        format: `json`, `avro` or `text`.
        schema: Spark DDL, or an Avro schema as JSON.
        predicate: A parsed boolean expression over the schema's fields, `key` and `value`.
        framed: Whether records begin with the five bytes of a schema registry.
    """

    topic: str
    format: str
    schema: str
    predicate: exp.Condition
    framed: bool = False

    @property
    def what(self) -> str:
        """What error messages call it."""
        return f"the rule of topic {self.topic}"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a JSON rule's schema."""
        return schema(self.schema, self.what) if self.format == "json" and self.schema else ()

    @property
    def names(self) -> set[str]:
        """Names of the schema's fields, in lower case."""
        names = avro_fields(self.schema) if self.format == "avro" else [f.name for f in self.fields]
        return {name.lower() for name in names}

    def sql(self, prefix: str) -> str:
        """The predicate as Spark SQL over the columns `<prefix><field>`, `key` and `value`."""
        fields = self.names

        def rename(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            first, *inner = node.parts
            name = first.name.lower()
            if name in RECORD_FIELDS and name not in fields and not inner:
                return exp.cast(exp.column(name), exp.DataType.Type.TEXT)
            column: exp.Expr = exp.column(exp.to_identifier(prefix + first.name, quoted=True))
            for part in inner:
                column = exp.Dot(this=column, expression=part)
            return column

        return self.predicate.transform(rename).sql("spark")


def read(path: Path) -> Rule:
    """Read the rule of a file.

    Raises:
        DeclarationError: The file is no rule.
    """
    headers: dict[str, str] = {}
    body: list[str] = []
    for number, line in enumerate(read_sql_file(path).split("\n"), 1):
        text, place = line.strip(), f"{path.name}:{number}"
        header = HEADER.fullmatch(text)
        name = header[1].lower() if header else ""
        if header and name in HEADERS:
            if body:
                hint = "put it before the expression"
                raise DeclarationError(f"{place}: the clause `-- {name}:` is behind the expression", hint=hint)
            if name in headers:
                raise DeclarationError(f"{place}: the clause `-- {name}:` is there twice", hint="remove one")
            headers[name] = header[2]
        elif body or (text and not text.startswith("--")):
            body.append(line)
        elif header and header[1].islower():
            raise DeclarationError(f"{place}: unknown clause", got=name, hint=f"use one of {', '.join(HEADERS)}")
    for name in ("topic", "format"):
        if not headers.get(name):
            raise DeclarationError(f"{path.name}: the clause `-- {name}:` is missing", hint="see jobs/quality/rules.py")
    if headers["format"] not in FORMATS:
        raise DeclarationError(
            f"{path.name}: unknown format", got=headers["format"], hint=f"use one of {', '.join(FORMATS)}"
        )
    if headers["format"] == "text" and "schema" in headers:
        raise DeclarationError(
            f"{path.name}: a text topic has no schema", got=headers["schema"], hint="remove the clause"
        )
    framing = headers.get("framing", "")
    if framing and (framing != CONFLUENT or headers["format"] != "avro"):
        raise DeclarationError(
            f"{path.name}: unknown framing", got=framing, hint=f"remove it, or use {CONFLUENT} with the format avro"
        )
    declared = headers.get("schema", "")
    if headers["format"] == "avro":
        declared = _avro_schema(path, declared)
    predicate = parse_predicate(path.name, "\n".join(body))
    rule = Rule(headers["topic"], headers["format"], declared, predicate, bool(framing))
    rule.fields  # noqa: B018 - raises an error if the schema is invalid
    return rule


def _avro_schema(path: Path, name: str) -> str:
    """The text of an Avro schema. It must have a required field: otherwise any bytes may be a valid record."""
    file = path.parent / name
    if not name or not file.is_file():
        raise DeclarationError(
            f"{path.name}: an avro rule needs the file of its schema",
            got=name or "nothing",
            hint="put it into the rule's folder",
        )
    try:
        text = file.read_text("utf-8")
        required = required_fields(text)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DeclarationError(
            f"{path.name}: {name} is not an Avro schema of a record", got=f"{type(e).__name__}: {e}"
        ) from e
    if not required:
        raise DeclarationError(
            f"{path.name}: the schema in {name} has only optional fields, so any bytes may be a valid record",
            hint="declare a field that is not a union with null",
        )
    return text


def avro_fields(avro: str) -> dict[str, Any]:
    """The fields of an Avro record, with their types."""
    record = json.loads(avro)
    if record["type"] != "record":
        raise ValueError(f"its type is {record['type']}")
    return {field["name"]: field["type"] for field in record["fields"]}


def required_fields(avro: str) -> list[str]:
    """Names of the fields of an Avro record that cannot be null."""
    return [name for name, kind in avro_fields(avro).items() if kind != "null" and "null" not in kind]


def load(folder: Path) -> dict[str, Rule]:
    """All rules of a folder, by topic; there is always one of `*`."""
    rules: dict[str, Rule] = {EVERY: Rule(EVERY, "json", "", exp.true())}
    files: dict[str, str] = {}
    for path in list_files(folder, ".sql"):
        rule = read(path)
        if rule.topic in files:
            raise DeclarationError(
                f"{path.name}: topic {rule.topic} already has a rule", got=files[rule.topic], hint="join the two"
            )
        files[rule.topic] = path.name
        rules[rule.topic] = rule
    return rules
