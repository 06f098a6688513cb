"""Schemas of topics in JSON Schema, read without a registry and without Spark.

https://json-schema.org/draft/2020-12/json-schema-core; of the keywords, those that say what type a value has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar
from urllib.parse import unquote

from penstock.errors import DeclarationError
from penstock.model.registry_schema import RegistrySchema, json_text
from penstock.model.types import Field, FieldForm, Type

PLAIN = {"boolean": "boolean", "integer": "bigint", "number": "double", "string": "string"}
FORMATS = {"date": "date", "date-time": "timestamp"}
OF_PYTHON = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
# What a text must be beside a string.
LIMITS = ("enum", "const", "pattern", "format", "minLength", "maxLength", "contentEncoding")


@dataclass(frozen=True)
class JsonType:
    """A type of a schema with what its references stand for.

    Attributes:
        kind: The kind of its values in Spark.
        nullable: Whether null is one of its values.
        properties: The properties of an object that is a STRUCT.
        element: The type of the values of an array or a map.
        is_limited: Whether a keyword limits which texts it has.
    """

    kind: str
    nullable: bool = False
    properties: tuple[JsonProperty, ...] = ()
    element: JsonType | None = None
    is_limited: bool = False

    @property
    def type(self) -> Type:
        """The type of its values in Spark."""
        fields = tuple(one.field for one in self.properties)
        return Type(self.kind, self.element.type if self.element else None, fields)


@dataclass(frozen=True)
class JsonProperty:
    """A property of an object; required: whether it must be there, also if it may be null."""

    name: str
    of: JsonType
    required: bool

    @property
    def field(self) -> Field:
        """The property as a field."""
        form = FieldForm(self.of.kind, self.of.kind == "string" and not self.of.is_limited)
        return Field(self.name, self.of.type, self.required and not self.of.nullable, form)


@dataclass(frozen=True)
class JsonSchema(RegistrySchema):
    """The values of a topic are JSON of a JSON Schema, in the wire format of a schema registry.

    Types and `required` are checked when values are read and written, other keywords are not.

    Attributes:
        text: The schema, of an object with properties.
        subject: Its name in the registry; empty for `<topic>-value`.
    """

    kind: ClassVar[str] = "JSON"
    is_json: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", json_text(self.text, "a JSON Schema is no JSON", "give the text of its file"))
        self.record  # noqa: B018

    @property
    def record(self) -> JsonType:
        """The schema as a type.

        Raises:
            DeclarationError: It is no JSON Schema of an object, or has a type that is not read.
        """
        return _record(self.text)

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.record.type.fields


@cache
def _record(text: str) -> JsonType:
    root = json.loads(text)
    try:
        of = _SchemaReader(root).read(root, "", ())
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        what = "this is no JSON Schema: a keyword has a value of another type"
        raise DeclarationError(what, got=f"{e}; {text[:200]}", hint="correct it as json-schema.org says") from e
    if of.kind != "struct" or of.nullable:
        raise DeclarationError(
            "the schema of a topic's values must be a JSON Schema of an object with properties",
            got=text[:200],
            hint="wrap it in an object",
        )
    return of


@dataclass(frozen=True)
class _SchemaReader:
    root: Any

    def read(self, node: Any, where: str, within: tuple[str, ...]) -> JsonType:
        """A schema as a type. within: the references around it."""
        if not isinstance(node, dict):
            raise _not_read(where, json.dumps(node), "give a schema with a type")
        if "$ref" in node:
            reference = node["$ref"]
            if reference in within:
                raise _not_read(where, f"{reference} within itself", "take the field out of the schema that is read")
            return self.read(self._target(reference, where), where, (*within, reference))
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in node and "properties" not in node:
                return self._union(keyword, node[keyword], where, within)
        types = _types(node)
        nullable = "null" in types
        types = [name for name in types if name != "null"]
        if sorted(types) == ["integer", "number"]:
            types = ["number"]
        if len(types) != 1:
            got = f"type {', '.join(types)}" if types else json.dumps(node)[:200]
            raise _not_read(where, got, "give it one type, or one type and null")
        return replace(self._of_type(types[0], node, where, within), nullable=nullable)

    def _of_type(self, name: str, node: dict[str, Any], where: str, within: tuple[str, ...]) -> JsonType:
        if name == "object":
            return self._object(node, where, within)
        if name == "array":
            if not isinstance(node.get("items"), dict) or "prefixItems" in node:
                raise _not_read(where, "an array without one schema of its items", 'give "items" with a type')
            return JsonType("array", element=self.read(node["items"], f"{where}[]", within))
        if name not in PLAIN:
            raise _not_read(where, f"type {name}", f"take one of: array, object, {', '.join(PLAIN)}")
        kind = FORMATS.get(str(node.get("format"))) if name == "string" else None
        return JsonType(kind or PLAIN[name], is_limited=any(keyword in node for keyword in LIMITS))

    def _object(self, node: dict[str, Any], where: str, within: tuple[str, ...]) -> JsonType:
        properties, required = node.get("properties"), node.get("required", [])
        if not properties:
            values = node.get("additionalProperties")
            if not isinstance(values, dict) or "patternProperties" in node:
                hint = 'give "properties"; or "additionalProperties" with a type, for a map'
                raise _not_read(where, "an object without properties", hint)
            return JsonType("map", element=self.read(values, f"{where}[]", within))
        if not isinstance(properties, dict) or not isinstance(required, list):
            hint = '"properties" is an object, and "required" an array'
            raise _not_read(where, json.dumps(node)[:200], hint)
        if missing := [name for name in required if name not in properties]:
            raise _not_read(where, f"required without a property: {', '.join(map(str, missing))}", "declare it")
        return JsonType(
            "struct",
            properties=tuple(
                JsonProperty(name, self.read(inner, f"{where}.{name}".lstrip("."), within), name in required)
                for name, inner in properties.items()
            ),
        )

    def _union(self, keyword: str, among: Any, where: str, within: tuple[str, ...]) -> JsonType:
        others = [one for one in among if not (isinstance(one, dict) and one.get("type") == "null")]
        if len(others) != 1:
            hint = "such a value is read if it is of null and one type"
            raise _not_read(where, f"{keyword} of {len(others)} types", hint)
        of = self.read(others[0], where, within)
        return replace(of, nullable=of.nullable or len(others) < len(among))

    def _target(self, reference: Any, where: str) -> Any:
        """The schema that a reference names, within this one."""
        node, (file, _, pointer) = self.root, str(reference).partition("#")
        if file or not str(reference):
            raise _not_read(where, f"a reference to another schema: {reference}", 'move it to "$defs" of this one')
        if pointer and not pointer.startswith("/"):
            raise _not_read(where, f"an anchor: {reference}", 'write its place, such as "#/$defs/Item"')
        for name in unquote(pointer).split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
            if not isinstance(node, dict) or name not in node:
                raise _not_read(where, f"a reference to nothing: {reference}", 'declare it in "$defs"')
            node = node[name]
        return node


def _types(node: dict[str, Any]) -> list[str]:
    """The types that a schema names, or those of its values."""
    if "type" in node:
        return [*node["type"]] if isinstance(node["type"], list) else [str(node["type"])]
    if "properties" in node:
        return ["object"]
    values = node.get("enum", [node["const"]] if "const" in node else [])
    return list(dict.fromkeys(OF_PYTHON.get(type(value), "object") for value in values))


def _not_read(where: str, got: str, hint: str) -> DeclarationError:
    what = f"JSON Schema: {where or 'the schema itself'} has a type that is not read"
    return DeclarationError(what, got=got, hint=hint)
