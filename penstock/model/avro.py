"""Schemas of topics in Avro, read without a registry and without Spark.

The types are those that Spark reads Avro as:
https://spark.apache.org/docs/latest/sql-data-sources-avro.html
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from penstock.errors import DeclarationError, optional_packages
from penstock.model.registry_schema import RegistrySchema, json_text
from penstock.model.types import Field, FieldForm, Type

PLAIN = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double", "string": "string",
    "bytes": "binary", "fixed": "binary", "enum": "string",
}  # fmt: skip
# Logical types that change the type of a value; those of other names are values of the type below them.
LOGICAL = {
    ("int", "date"): "date", ("long", "timestamp-millis"): "timestamp", ("long", "timestamp-micros"): "timestamp",
    ("bytes", "decimal"): "decimal", ("fixed", "decimal"): "decimal",
}  # fmt: skip
# Unions of numbers that have one type for all values.
WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
MAX_DIGITS = 38


@dataclass(frozen=True)
class AvroType:
    """A type of a schema with what its names stand for.

    Attributes:
        name: Avro's name of it: `record`, `array`, `map`, `enum`, `fixed` or a primitive type.
        logical: Its logical type, if that changes the type of values; else empty.
        nullable: Whether it is a union with null.
        fields: Name and type of the fields of a record.
        element: The type of the values of an array or a map.
        precision: Digits of a decimal.
        scale: Digits behind its point.
    """

    name: str
    logical: str = ""
    nullable: bool = False
    fields: tuple[tuple[str, AvroType], ...] = ()
    element: AvroType | None = None
    precision: int = 0
    scale: int = 0

    @property
    def type(self) -> Type:
        """The type of its values in Spark."""
        if self.logical:
            return Type(LOGICAL[self.name, self.logical], precision=self.precision, scale=self.scale)
        if self.name == "record":
            return Type("struct", fields=tuple(of.as_field(name) for name, of in self.fields))
        if self.element:
            return Type(self.name, self.element.type)
        return Type(PLAIN[self.name])

    def as_field(self, name: str) -> Field:
        """A field of this type."""
        form = FieldForm(self.logical or self.name, self.name in ("string", "bytes") and not self.logical)
        return Field(name, self.type, not self.nullable, form)


@dataclass(frozen=True)
class Avro(RegistrySchema):
    """The values of a topic are Avro in the wire format of a schema registry.

    They are read as `text` by Avro's rules of schema resolution, whatever version of the subject wrote them.

    Attributes:
        text: The schema, a record, as JSON.
        subject: Its name in the registry; empty for `<topic>-value`.
    """

    kind: ClassVar[str] = "AVRO"

    def __post_init__(self) -> None:
        text = json_text(self.text, "an Avro schema is no JSON", "give the text of an .avsc file")
        object.__setattr__(self, "text", text)
        self.record  # noqa: B018

    @property
    def record(self) -> AvroType:
        """The schema as a type.

        Raises:
            DeclarationError: It is no Avro schema of a record, or has a type that is not read.
        """
        return _record(self.text)

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.record.type.fields


@cache
def _record(text: str) -> AvroType:
    with optional_packages():
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema
    names: dict[str, Any] = {}
    try:
        parsed = parse_schema(json.loads(text), names)
        of = _SchemaReader(names).read(parsed, "", ())
    except UnknownType as e:
        what, hint = (
            "an Avro schema names a type that it does not have",
            "correct its name, or move the type into this schema",
        )
        raise DeclarationError(what, got=str(e), hint=hint) from e
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError) as e:
        raise DeclarationError(
            "this is no Avro schema", got=f"{type(e).__name__}: {e}", hint="correct it as the Avro specification says"
        ) from e
    if of.name != "record" or of.nullable or not of.fields:
        raise DeclarationError(
            "the schema of a topic's values must be an Avro record with fields",
            got=text[:200],
            hint="wrap it in a record",
        )
    return of


@dataclass(frozen=True)
class _SchemaReader:
    names: dict[str, Any]

    def read(self, node: Any, where: str, within: tuple[str, ...]) -> AvroType:
        if isinstance(node, list):
            return self._union(node, where, within)
        if isinstance(node, str):
            node = self.names.get(node, {"type": node})
        name = node["type"]
        if isinstance(name, dict | list):
            return self.read(name, where, within)
        if name in ("record", "error"):
            return self._of_record(node, where, within)
        if name in ("array", "map"):
            element = self.read(node["items" if name == "array" else "values"], f"{where}[]", within)
            return AvroType(name, element=element)
        if name in self.names:
            return self.read(name, where, within)
        if name not in PLAIN:
            raise _not_read(where, name, "take the field out of the schema that is read, or make it a union with null")
        logical = node.get("logicalType", "")
        if (name, logical) not in LOGICAL:
            return AvroType(name)
        if logical != "decimal":
            return AvroType(name, logical)
        digits, scale = node.get("precision", 0), node.get("scale", 0)
        if not 0 < digits <= MAX_DIGITS or not 0 <= scale <= digits:
            raise _not_read(where, f"decimal({digits}, {scale})", f"give it a precision of 1 to {MAX_DIGITS} digits")
        return AvroType(name, logical, precision=digits, scale=scale)

    def _of_record(self, node: Any, where: str, within: tuple[str, ...]) -> AvroType:
        if node["name"] in within:
            raise _not_read(where, f"{node['name']} within itself", "take the field out of the schema that is read")
        names = [one["name"] for one in node["fields"]]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"a field of {node['name']} has a name that is no string")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{node['name']} has two fields {twice}")
        inner = (*within, node["name"])
        fields = (
            (one["name"], self.read(one["type"], f"{where}.{one['name']}".lstrip("."), inner)) for one in node["fields"]
        )
        return AvroType("record", fields=tuple(fields))

    def _union(self, node: list[Any], where: str, within: tuple[str, ...]) -> AvroType:
        others = [one for one in node if one not in ("null", {"type": "null"})]
        plain = frozenset(one if isinstance(one, str) else "" for one in others)
        if len(others) == 1 or plain in WIDER:
            of = self.read(WIDER.get(plain, others[0]), where, within)
            return replace(of, nullable=len(others) < len(node))
        raise _not_read(
            where,
            f"a union of {len(others)} types",
            "a union is read of null and one type, of int and long, or of float and double",
        )


def _not_read(where: str, got: str, hint: str) -> DeclarationError:
    return DeclarationError(f"Avro field {where or 'of the schema'} has a type that is not read", got=got, hint=hint)
