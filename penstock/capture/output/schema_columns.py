"""The columns of a page as the types of a schema that a registry keeps.

What a field takes, by the type that it is read as. Only the microseconds that Avro's `timestamp-millis` lacks, and the
digits that FLOAT lacks, are lost:

| type | values |
|---|---|
| BOOLEAN | booleans, 0 and 1 |
| INT, BIGINT | integers that fit |
| FLOAT, DOUBLE | floating-point numbers within their range, and integers that they have exactly |
| STRING, also of enums | all that is a string in JSON: text, times, decimals, UUID, JSON; bytes in base64 |
| BINARY | bytes |
| DATE, TIMESTAMP | dates; times, in UTC if they have no zone; texts in ISO 8601 |
| DECIMAL | decimals and integers whose digits fit |
| ARRAY | arrays |

A column of another type is refused. A value that does not fit, such as NULL in a field that cannot be null, makes its
row a dead letter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa

from penstock.capture.output.encode import EncodingError, Unreadable, formed
from penstock.codec.arrow_types import arrow_type
from penstock.model.registry_schema import RegistrySchema
from penstock.model.types import Field, Type

# Python types of the values that a field takes, by the kind of its type.
TAKEN: dict[str, tuple[type, ...]] = {
    "boolean": (bool, int), "int": (int,), "bigint": (int,), "float": (float, int), "double": (float, int),
    "binary": (bytes, bytearray, memoryview), "date": (date, str), "timestamp": (datetime, str),
    "decimal": (Decimal, int), "string": (str,),
}  # fmt: skip
# Types that Arrow does not take for these kinds.
CONVERTED = {"boolean": int, "date": str, "timestamp": str, "float": float}
MAX_FLOAT = float.fromhex("0x1.fffffep+127")
WRONG = (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, OverflowError)


def arrow_columns(
    schema: RegistrySchema, columns: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, pa.Array[Any]], dict[int, str]]:
    """Columns of a page as a schema's types.

    Args:
        schema: The schema.
        columns: The columns, as the database's driver returns them.

    Returns:
        The columns, and by its number why a row cannot have a record.

    Raises:
        EncodingError: A column has a type that its field cannot have.
    """
    reasons = dict[int, str]()
    what = f"{type(schema).__name__} field"
    return {one.name: _array(one, columns[one.name], what, reasons) for one in schema.fields}, reasons


def _array(field: Field, values: Sequence[Any], what: str, reasons: dict[int, str]) -> pa.Array[Any]:
    """A column as the type of its field. what: what messages call the field."""
    name, leaf = field.name, field.type
    while leaf.element:
        leaf = leaf.element
    kind = leaf.kind
    if kind == "string":
        [values] = formed([name], [values])
    kinds = set(map(type, _leaves(values, field.type))) - {type(None), Unreadable}
    if refused := _refused(values, field.type):
        others = ", ".join(sorted(one.__name__ for one in refused))
        error = EncodingError(
            f"column {name} has a type that its {what} cannot have",
            got=f"{others} for {field.type if field.type.element or not field.form else field.form.name}",
            hint="convert the column in the SELECT to text, or change the type of the field",
        )
        error.column = name
        error.row = next(number for number, value in enumerate(values) if _refused([value], field.type))
        raise error
    target: Any = arrow_type(field.type)
    try:
        fitting = [_taken(value, kind) for value in values] if CONVERTED.get(kind) in kinds else list(values)
        return cast("pa.Array[Any]", pa.array(fitting, target))
    except WRONG:
        fitting = []
        for number, value in enumerate(values):
            try:
                taken = _taken(value, kind)
                pa.array([taken], target)
                fitting.append(taken)
            except WRONG as e:
                fitting.append(None)
                reason = f"column {name} does not fit its {what}: {str(value)[:200]} ({str(e).splitlines()[0]})"
                reasons.setdefault(number, reason)
        return cast("pa.Array[Any]", pa.array(fitting, target))


def _leaves(values: Iterable[Any], of: Type) -> Iterable[Any]:
    """Values, or those within arrays."""
    return _leaves(_items(values), of.element) if of.element else values


def _refused(values: Sequence[Any], of: Type) -> set[type]:
    """The types of values that a type does not take. Arrow would make an array of a text's characters."""
    others = set(map(type, values)) - {type(None), Unreadable}
    if of.element:
        return (others - {list}) | _refused([*_items(values)], of.element)
    return others.difference(TAKEN[of.kind])


def _items(arrays: Iterable[Any]) -> Iterator[Any]:
    return (item for array in arrays if isinstance(array, list) for item in array)


def _taken(value: Any, kind: str) -> Any:
    """A value as Arrow takes it for a kind; ValueError if it does not fit."""
    match value:
        case Unreadable():
            raise ValueError("it has bytes that are invalid in its encoding")
        case list():
            return [_taken(one, kind) for one in value]
        case int() if kind == "boolean":
            if value not in (0, 1):
                raise ValueError("it is neither 0 nor 1")
            return bool(value)
        case str() if kind == "date":
            return date.fromisoformat(value)
        case str() if kind == "timestamp":
            at = datetime.fromisoformat(value)
            return at.astimezone(UTC) if at.tzinfo else at
        case float() if kind == "float" and MAX_FLOAT < abs(value) < math.inf:
            raise ValueError("it is too large")
    return value
