"""The fields of a JSON Schema, and what of it cannot be a column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.model.json_schema import JsonSchema
from penstock.model.types import FieldForm
from penstock.streams import Input, Stateless, Stream, Topic, TopicOutput


def schema(properties: dict[str, Any], required: tuple[str, ...] = (), **more: Any) -> JsonSchema:
    return JsonSchema(json.dumps({"type": "object", "properties": properties, "required": [*required], **more}))


def test_types_are_those_of_the_keywords() -> None:
    item = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]}
    read = schema(
        {
            "a": {"type": "string", "minLength": 3},
            "b": {"type": ["null", "integer"]},
            "c": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "d": {"type": "string", "format": "date"},
            "t": {"type": "string", "format": "date-time"},
            "e": {"enum": ["x", "y", None]},
            "l": {"type": "array", "items": {"$ref": "#/$defs/An%20Item"}},
            "m": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "o": {"allOf": [{"$ref": "#/definitions/Other"}]},
            "x": {"type": ["integer", "number"]},
        },
        ("a", "b", "t"),
        definitions={"Other": {"properties": {"p": {"const": 1}}}},
        **{"$defs": {"An Item": item}},
    )
    assert read.ddl == (
        "`a` STRING NOT NULL, `b` BIGINT, `c` DOUBLE, `d` DATE, `t` TIMESTAMP NOT NULL, `e` STRING, "
        "`l` ARRAY<STRUCT<`n`:BIGINT,`s`:STRING>>, `m` MAP<STRING,BOOLEAN>, `o` STRUCT<`p`:BIGINT>, `x` DOUBLE"
    )
    [items] = [field.type.element for field in read.fields if field.name == "l"]
    assert items
    assert [field.required for field in items.fields] == [True, False]
    assert [read.form_of(path) for path in (("A",), ("e",), ("l", "s"), ("none",))] == [
        FieldForm("string", False), FieldForm("string", False), None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({}, "v has a type that is not read; got: {}"),
        (True, "v has a type that is not read; got: true"),
        ({"type": ["string", "integer"]}, "got: type string, integer"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "oneOf of 2 types"),
        ({"type": "object"}, "an object without properties"),
        ({"type": "array"}, "an array without one schema of its items"),
        ({"type": "array", "items": {"type": "null"}}, r"v\[\] has a type"),
        ({"type": "text"}, "got: type text"),
        ({"$ref": "https://example.com/a.json"}, "a reference to another schema"),
        ({"$ref": "#Item"}, "an anchor: #Item"),
        ({"$ref": "#/$defs/None"}, "a reference to nothing"),
        ({"$ref": "#/properties/v"}, "#/properties/v within itself"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, "v.a has a type"),
        ({"type": ["string", ["null"]]}, "a keyword has a value of another type"),
        ({"anyOf": None}, "a keyword has a value of another type"),
        ({"enum": True}, "a keyword has a value of another type"),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
            "required without a property: b",
        ),
    ],
)
def test_what_cannot_be_a_column_is_refused(field: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as e:
        schema({"v": field})
    assert e.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "no JSON"), ('{"type": "string"}', "of an object with properties"), ("[]", "has a type that is not read")],
)
def test_a_schema_of_no_object_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DeclarationError, match=said):
        JsonSchema.read(path)
    with pytest.raises(DeclarationError, match="a schema cannot be read"):
        JsonSchema.read(tmp_path / "none.json")


def test_an_output_has_the_fields_of_the_schema() -> None:
    topic = Topic("out", schema=schema({"id": {"type": "integer"}}, ("id",)))
    source = {"rows": Input(Topic("in", schema="id BIGINT, at TIMESTAMP"), event_time="at")}
    with pytest.raises(DeclarationError, match="has not the fields of its JsonSchema schema; got: at"):
        Stream("s", "a", source, lambda rows: rows, TopicOutput(topic, value=("at",)), Stateless())
    with pytest.raises(DeclarationError, match="a field of the engine's own name; got: _id"):
        Input(Topic("in", schema=schema({"_id": {"type": "integer"}, "at": {"type": "string"}})), event_time="at")
