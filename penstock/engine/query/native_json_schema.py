"""JSON of a JSON Schema, written by Spark."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import DeclarationError
from penstock.model.output import JSON
from penstock.model.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.model.json_schema import JsonProperty, JsonSchema, JsonType


def json_value(record: Column, schema: JsonSchema) -> Column:
    """BINARY: the record as JSON. A batch fails whose row has a value that the schema's types do not have.

    A NULL is left out, or written as null if the field is required.

    Args:
        record: STRUCT of the schema's fields.
        schema: The schema.

    Raises:
        DeclarationError: An object in it has both fields that are left out and fields that are null.
    """
    groups: dict[bool, list[Column]] = {}
    for one in schema.record.properties:
        field = record[one.name]
        if (is_wrong := _is_wrong(field, one)) is not None:
            reason = F.lit(f"field {one.name} is NULL or no finite number, which its JSON Schema does not allow")
            field = F.when(is_wrong, F.raise_error(reason)).otherwise(field)
        groups.setdefault(_writes_nulls(one), []).append(field.alias(one.name))
    objects = [
        F.to_json(F.struct(*columns), {**JSON, "ignoreNullFields": str(not writes_nulls).lower()})
        for writes_nulls, columns in groups.items()
    ]
    if len(objects) == 1:
        return objects[0].cast("binary")
    first, second = (F.substring(one, F.lit(2), F.length(one) - 2) for one in objects)
    # The object of fields that may be left out may be empty.
    inner = F.concat_ws(",", *(F.when(F.length(text) > 0, text) for text in (first, second)))
    return F.concat(F.lit("{"), inner, F.lit("}")).cast("binary")


def _is_wrong(value: Column, one: JsonProperty) -> Column | None:
    """BOOLEAN: whether a value is NULL, or has a NULL or a number within it, that its type does not have."""
    tests = [value.isNull()] if one.required and not one.of.nullable else []
    if (inner := _has_wrong(value, one.of)) is not None:
        tests.append(F.coalesce(inner, F.lit(False)))
    return reduce(or_, tests) if tests else None


def _has_wrong(value: Column, of: JsonType) -> Column | None:
    if of.kind == "double":
        return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))
    if of.kind == "struct":
        of_fields = [_is_wrong(value.getField(one.name), one) for one in of.properties]
        tests = [test for test in of_fields if test is not None]
        return value.isNotNull() & reduce(or_, tests) if tests else None
    if of.element is None:
        return None
    element, values = of.element, F.map_values(value) if of.kind == "map" else value

    def is_wrong(one: Column) -> Column:
        inner = _has_wrong(one, element)
        is_null = F.lit(False) if element.nullable else one.isNull()
        return is_null if inner is None else is_null | F.coalesce(inner, F.lit(False))

    return F.exists(values, is_wrong)


def _writes_nulls(one: JsonProperty) -> bool:
    """Whether NULLs within a property, and of itself, are written as null."""
    needs = _needs(one)
    if len(needs) > 1:
        raise DeclarationError(
            f"the JSON Schema of an output has fields in {quoted(one.name)} that are left out where they are NULL, and "
            "others that are null",
            hint="let none of its required fields be null, or let all of its other fields be null",
        )
    return needs == {True}


def _needs(one: JsonProperty) -> set[bool]:
    """How NULLs within a property must be written: as null (True), left out (False); both or none."""
    of: JsonType | None = one.of
    needs = {one.required} if one.required == one.of.nullable else set[bool]()
    while of:
        needs = needs.union(*(_needs(inner) for inner in of.properties))
        of = of.element
    return needs
