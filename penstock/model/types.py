"""The types of a value's fields, as a schema declares them."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True)
class Field:
    """required: declared NOT NULL."""

    name: str
    type: Type
    required: bool = False


def quoted(name: str) -> str:
    """A name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
