"""The types of a value's fields, as a schema declares them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import DeclarationError


@dataclass(frozen=True)
class Type:
    """kind: Spark's name of it; element: of an array, or of a map's values; fields: of a struct."""

    kind: str
    element: Type | None = None
    fields: tuple[Field, ...] = ()
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        """As Spark writes it: `array<double>`, `struct<a:int>`."""
        match self.kind:
            case "array":
                return f"array<{self.element}>"
            case "map":
                return f"map<string,{self.element}>"
            case "struct":
                return f"struct<{','.join(f'{f.name}:{f.type}' for f in self.fields)}>"
            case "decimal":
                return f"decimal({self.precision},{self.scale})"
        return self.kind

    @property
    def ddl(self) -> str:
        """As Spark reads it, whatever the names of fields are."""
        match self.kind:
            case "array":
                assert self.element
                return f"ARRAY<{self.element.ddl}>"
            case "map":
                assert self.element
                return f"MAP<STRING,{self.element.ddl}>"
            case "struct":
                return f"STRUCT<{','.join(f'{quoted(f.name)}:{f.type.ddl}' for f in self.fields)}>"
        return str(self).upper()


class FieldForm(NamedTuple):
    """What a format of a schema registry knows of a field.

    Attributes:
        name: What the format calls its type.
        holds_any: Whether it can hold any text, or any bytes.
    """

    name: str
    holds_any: bool


@dataclass(frozen=True)
class Field:
    """required: declared NOT NULL; form: of a schema of a registry."""

    name: str
    type: Type
    required: bool = False
    form: FieldForm | None = dataclasses.field(default=None, compare=False, repr=False)


def check_field_names(fields: Sequence[Field], what: str) -> None:
    """Raise DeclarationError if a field has a name that the engine takes, or a name occurs twice.

    Args:
        fields: The fields of a schema.
        what: Names whose it is.
    """
    names = [field.name.lower() for field in fields]
    if reserved := [name for name in names if name.startswith("_") or name == "event_time"]:
        raise DeclarationError(
            f"the schema of {what} has a field of the engine's own name",
            got=", ".join(reserved),
            hint="rename it where it is written, or read the records without a schema: names that begin with '_' and "
            "event_time are taken",
        )
    _check_names_once(fields, what)


def _check_names_once(fields: Sequence[Field], what: str) -> None:
    names = [field.name.lower() for field in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DeclarationError(
            f"the schema of {what} names a field twice",
            got=", ".join(twice),
            hint="drop one; names that differ in case only are one name",
        )
    for field in fields:
        inner: Type | None = field.type
        while inner:
            _check_names_once(inner.fields, what)
            inner = inner.element


def quoted(name: str) -> str:
    """A name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
