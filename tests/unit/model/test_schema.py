"""Schemas: which DDL is read, and what is refused with which words."""

from __future__ import annotations

import pytest

from penstock.errors import DeclarationError
from penstock.model.schema import schema
from penstock.model.types import Field, Type, quoted

INT = Type("int")


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("STRING", "string"),
        ("string", "string"),
        ("VARCHAR(3)", "string"),
        ("BOOLEAN", "boolean"),
        ("TINYINT", "tinyint"),
        ("BYTE", "tinyint"),
        ("SMALLINT", "smallint"),
        ("SHORT", "smallint"),
        ("INT", "int"),
        ("INTEGER", "int"),
        ("BIGINT", "bigint"),
        ("LONG", "bigint"),
        ("FLOAT", "float"),
        ("REAL", "float"),
        ("DOUBLE", "double"),
        ("DATE", "date"),
        ("TIMESTAMP", "timestamp"),
    ],
)
def test_plain_types(ddl: str, kind: str) -> None:
    assert schema(f"a {ddl}", "a test") == (Field("a", Type(kind)),)


def test_nested_types_and_required_fields() -> None:
    ddl = "id BIGINT NOT NULL, l ARRAY<DOUBLE>, m MAP<STRING, INT>, "
    ddl += "`o r` STRUCT<x: INT NOT NULL, y: ARRAY<STRING>> NOT NULL"
    inner = (Field("x", INT, required=True), Field("y", Type("array", Type("string"))))
    assert schema(ddl, "a test") == (
        Field("id", Type("bigint"), required=True),
        Field("l", Type("array", Type("double"))),
        Field("m", Type("map", INT)),
        Field("o r", Type("struct", fields=inner), required=True),
    )


@pytest.mark.parametrize("ddl", ["a INT, b STRING", "a INT COMMENT 'x', b STRING", " a INT,\n b STRING"])
def test_ways_to_write_it(ddl: str) -> None:
    assert schema(ddl, "a test") == (Field("a", INT), Field("b", Type("string")))


@pytest.mark.parametrize("name", ["a/b", "~", 'q"q', "a.b", "*", "é", "0", "order", "key", "value", "topic", "a`b"])
def test_names_in_backticks(name: str) -> None:
    assert schema(f"{quoted(name)} INT", "a test") == (Field(name, INT),)


def test_a_type_as_spark_reads_it_is_read_again() -> None:
    ddl = "a ARRAY<STRUCT<`x y`: INT, m: MAP<STRING, ARRAY<DATE>>>>, b TIMESTAMP, c DOUBLE"
    fields = schema(ddl, "a test")
    assert schema(", ".join(f"{quoted(f.name)} {f.type.ddl}" for f in fields), "a test") == fields
    assert str(fields[0].type) == "array<struct<x y:int,m:map<string,array<date>>>>"


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("a", "the schema of a test is no Spark DDL; got: a"),
        ("", "the schema of a test is no Spark DDL"),
        ("a: INT, b: STRING", "the schema of a test is no Spark DDL; got: .* write: name TYPE, name TYPE"),
        ("a INT b INT", "the schema of a test is no Spark DDL"),
        ("a STRUCT<>", "the schema of a test is no Spark DDL"),
        ("a ARRAY", "field a has a type that is not read from JSON"),
        ("a NOPE", "the schema of a test is no Spark DDL; got: a NOPE"),
        ("a TIME", "field a has a type that is not read from JSON; got: TIME"),
        ("a DECIMAL(10,2)", "field a has a type that is not read from JSON; got: DECIMAL"),
        ("a BINARY", "field a has a type that is not read from JSON; got: BINARY"),
        ("a TIMESTAMP_NTZ", "field a has a type that is not read from JSON"),
        ("a MAP<INT, STRING>", "field a has a type that is not read from JSON"),
        ("a ARRAY<DECIMAL(10,2)>", r"field a\[\] has a type that is not read from JSON"),
        ("a STRUCT<b: BINARY>", "field b has a type that is not read from JSON"),
        ("a INT, A STRING", "the schema of a test names a field twice; got: a"),
        ("s STRUCT<a: INT, A: STRING>", "the schema of a test names a field twice; got: a"),
        ("l ARRAY<STRUCT<a: INT, a: STRING>>", "the schema of a test names a field twice; got: a"),
        ("_at INT", "a field of the engine's own name; got: _at"),
        ("a INT, Event_Time INT", "a field of the engine's own name; got: event_time"),
    ],
)
def test_what_is_refused(ddl: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        schema(ddl, "a test")


def test_own_names_are_free_within_a_struct() -> None:
    [field] = schema("s STRUCT<_at: INT, event_time: INT>", "a test")
    assert [f.name for f in field.type.fields] == ["_at", "event_time"]


def test_what_comes_from_a_combiner_may_hold_bytes() -> None:
    assert schema("a BINARY", "a test", of_json=False) == (Field("a", Type("binary")),)
