"""Validity rules as declared in sql/quality/, one file a topic.

A file is comment lines `-- name: value`, then one boolean SQL expression::

    -- topic: tx                                  the topic, or * for every topic without a rule of its own
    -- format: json                               json, avro or text
    -- schema: id BIGINT NOT NULL, amount DOUBLE  json: Spark DDL; NOT NULL fields must be there
    -- schema: tx.avsc                            avro: a file beside this one, with the writer's schema
    -- framing: confluent                         avro: five bytes of a schema registry come first
    amount >= 0                                   over the schema's fields, and the record's `key` and `value` as STRING

A record is valid if it parses as the format, has the required fields, and the expression is true. A record without
value (a tombstone) is valid: it says that its key is gone. Without any rule a record must parse as JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import DeclarationError
from penstock.model.declaration import list_files
from penstock.model.schema import Field, schema

EVERY = "*"
HEADER = re.compile(r"--\s*([a-z]+)\s*:\s*(.*?)\s*$")
HEADERS = ("topic", "format", "schema", "framing")
FORMATS = ("json", "avro", "text")
CONFLUENT = "confluent"
RECORD_FIELDS = ("key", "value")


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

    @property
    def what(self) -> str:
        """For messages."""
        return f"the rule of topic {self.topic}"

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a JSON rule's schema."""
        return schema(self.schema, self.what) if self.format == "json" and self.schema else ()

    @property
    def names(self) -> set[str]:
        """Of its fields, in lower case."""
        named = avro_fields(self.schema) if self.format == "avro" else [f.name for f in self.fields]
        return {name.lower() for name in named}

    def sql(self, prefix: str) -> str:
        """The predicate as Spark SQL, its fields taken from the columns `<prefix><field>`."""
        own = self.names

        def placed(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            first, *inner = node.parts
            record = first.name.lower()
            if record in RECORD_FIELDS and record not in own and not inner:
                return exp.cast(exp.column(record), exp.DataType.Type.TEXT)
            found: exp.Expr = exp.column(exp.to_identifier(prefix + first.name, quoted=True))
            for part in inner:
                found = exp.Dot(this=found, expression=part)
            return found

        return self.predicate.transform(placed).sql("spark")


def read(path: Path) -> Rule:
    """The rule a file declares; DeclarationError with file and line if it is none."""
    headers: dict[str, str] = {}
    body: list[str] = []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        found = HEADER.fullmatch(line.strip())
        if not found or body:
            body.append(line if line.strip() else "")
        elif found[1] not in HEADERS:
            raise DeclarationError(
                f"{path.name}:{number}: unknown clause", got=found[1], hint=f"use one of {', '.join(HEADERS)}"
            )
        else:
            headers[found[1]] = found[2]
    for name in ("topic", "format"):
        if not headers.get(name):
            raise DeclarationError(f"{path.name}: the clause `-- {name}:` is missing", hint="see jobs/quality/rules.py")
    if headers["format"] not in FORMATS:
        raise DeclarationError(
            f"{path.name}: unknown format", got=headers["format"], hint=f"use one of {', '.join(FORMATS)}"
        )
    if headers["format"] == "text" and "schema" in headers:
        raise DeclarationError(
            f"{path.name}: a text topic has no schema", got=headers["schema"], hint="drop the clause"
        )
    framing = headers.get("framing", "")
    if framing and (framing != CONFLUENT or headers["format"] != "avro"):
        raise DeclarationError(
            f"{path.name}: unknown framing", got=framing, hint=f"drop it, or use {CONFLUENT} with the format avro"
        )
    declared = headers.get("schema", "")
    if headers["format"] == "avro":
        declared = _avro_schema(path, declared)
    predicate = _predicate(path, "\n".join(body))
    rule = Rule(headers["topic"], headers["format"], declared, predicate, bool(framing))
    rule.fields  # noqa: B018 - a schema that is none is refused here
    return rule


def _avro_schema(path: Path, name: str) -> str:
    """The text of an Avro schema: a record with a required field, for only such a field tells rubbish from nothing."""
    file = path.parent / name
    if not name or not file.is_file():
        raise DeclarationError(
            f"{path.name}: an avro rule needs its schema's file", got=name or "nothing", hint="put it beside the rule"
        )
    text = file.read_text()
    try:
        needed = required(text)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DeclarationError(
            f"{path.name}: {name} is no Avro schema of a record", got=f"{type(e).__name__}: {e}"
        ) from e
    if not needed:
        raise DeclarationError(
            f"{path.name}: the schema in {name} has optional fields only, so any bytes may pass for a record of it",
            hint="give a field that is no union with null",
        )
    return text


def avro_fields(avro: str) -> dict[str, Any]:
    """The fields of an Avro record, with their types."""
    record = json.loads(avro)
    if record["type"] != "record":
        raise ValueError(f"it is of type {record['type']}")
    return {field["name"]: field["type"] for field in record["fields"]}


def required(avro: str) -> list[str]:
    """Names of the fields of an Avro record that cannot be null."""
    return [name for name, kind in avro_fields(avro).items() if kind != "null" and "null" not in kind]


def _predicate(path: Path, text: str) -> exp.Condition:
    try:
        kinds = [token.token_type for token in sqlglot.tokenize(text, read="spark")]
        found = sqlglot.parse_one(text, read="spark")
    except SqlglotError as e:
        raise DeclarationError(f"{path.name}: the rule is no SQL expression", got=str(e).splitlines()[0]) from e
    if any(kind == other == sqlglot.TokenType.STRING for kind, other in pairwise(kinds)):
        # 'a''b' has a quote in it for Spark, and is two texts put together for the parser.
        raise DeclarationError(
            f"{path.name}: two texts in quotes follow each other", hint="write \\' for a quote in a text"
        )
    if not isinstance(found, exp.Condition) or found.find(exp.Query):
        raise DeclarationError(
            f"{path.name}: the rule must be one boolean expression", got=text.strip(), hint="leave SELECT and WHERE out"
        )
    return found


def load(folder: Path) -> dict[str, Rule]:
    """Every rule of a folder, by topic; `*` is always among them."""
    rules: dict[str, Rule] = {EVERY: Rule(EVERY, "json", "", exp.true())}
    places: dict[str, str] = {}
    for path in list_files(folder, ".sql"):
        rule = read(path)
        if rule.topic in places:
            raise DeclarationError(
                f"{path.name}: topic {rule.topic} has a rule already", got=places[rule.topic], hint="join the two"
            )
        places[rule.topic] = path.name
        rules[rule.topic] = rule
    return rules
