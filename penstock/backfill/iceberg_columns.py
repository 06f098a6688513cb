"""The columns of an Iceberg table as a backfill reads them: in which types, by which times, and which files can be left
out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    IsNull,
    LessThanOrEqual,
    Or,
    Reference,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UUIDType,
)

from penstock.codec.event_time import MICROS_PER_UNIT, TIMESTAMP_CALL, event_time_sql
from penstock.codec.json_sql import duckdb_type, literal, quote_name
from penstock.errors import DeclarationError
from penstock.model.types import Field, Type

KINDS: dict[type[IcebergType], str] = {
    BooleanType: "boolean", IntegerType: "int", LongType: "bigint", FloatType: "float", DoubleType: "double",
    StringType: "string", UUIDType: "string", BinaryType: "binary", FixedType: "binary", DateType: "date",
    TimestampType: "timestamp", TimestamptzType: "timestamp",
}  # fmt: skip
# Whose every value another type has too.
WIDER = {"int": ("bigint", "double"), "float": ("double",)}
INTEGERS, NANOSECONDS = (IntegerType, LongType), (TimestampNanoType, TimestamptzNanoType)
# Microseconds of a value of a column by which the table's files are told apart.
UNITS: dict[type[IcebergType], int] = {TimestampType: 1, TimestamptzType: 1, DateType: 86_400_000_000}
EVENT_TIME = "event_time"


@dataclass(frozen=True)
class TableColumns:
    """The columns that are read of a table.

    Attributes:
        names: their names in the table.
        select: SQL of each as `records` has it.
        output: their names in `records`.
        event_time: SQL of the event time over these, BIGINT in epoch microseconds, NULL if it has none.
        expression: SQL of which the event time is a cast, and whose type has to be a time or a text; else empty.
        required: the columns that are declared NOT NULL.
        time_field: the column that is the event time, if it is one, and the microseconds of its unit.
    """

    names: tuple[str, ...]
    select: tuple[str, ...]
    output: tuple[str, ...]
    event_time: str
    expression: str
    required: tuple[str, ...]
    time_field: tuple[NestedField, int] | None

    @classmethod
    def of(cls, what: str, table: Schema, declared: Sequence[Field], event_time: str) -> TableColumns:
        """The columns of a declared schema, or all.

        Args:
            what: Names the backfill in messages.
            table: The columns of the table.
            declared: The fields of the declared schema; none for all columns.
            event_time: The declared expression.

        Raises:
            DeclarationError: The table has no such columns, or not in these types.
        """
        if declared:
            columns = [_column(what, table, field) for field in declared]
            select = [
                f"CAST({quote_name(column.name)} AS {duckdb_type(field.type)}) AS {quote_name(field.name)}"
                for column, field in zip(columns, declared, strict=True)
            ]
            output = [field.name for field in declared]
        else:
            columns, output = list(table.fields), [field.name for field in table.fields]
            select = [quote_name(name) for name in output]
            if twice := _same_but_for_case(table.as_struct()):
                raise DeclarationError(
                    f"{what}: its table has columns or fields whose names differ in case only",
                    got=", ".join(twice),
                    hint="name the columns that are to be read: RowsQuery(..., schema='id BIGINT, ...')",
                )
        named = {name.lower(): column for name, column in zip(output, columns, strict=True)}
        is_name = re.fullmatch(r"[A-Za-z_]\w*|`[^`]+`", event_time.strip())
        if is_name and (name := _column_name(event_time)) not in named:
            raise DeclarationError(
                f"{what}: its rows have no column {name}, which is their event time",
                got=", ".join(output),
                hint="correct `event_time` of the RowsQuery",
            )
        return cls(
            tuple(column.name for column in columns),
            tuple(select),
            tuple(output),
            *_event_time_sql(event_time, named),
            tuple(field.name for field in declared if field.required),
            _time_field(event_time, named),
        )

    @property
    def adds_event_time(self) -> bool:
        """Whether `records` gets a column for the event time; a column of that name stays what it is."""
        return EVENT_TIME not in map(str.lower, self.output)

    @property
    def skip_reason(self) -> str:
        """SQL of why a row is left out; NULL if it is not."""
        cases = [(f"{self.event_time} IS NULL", "they have no event time")]
        cases += [(f"{quote_name(name)} IS NULL", f"field {name} is NULL") for name in self.required]
        return f"CASE {' '.join(f'WHEN {test} THEN {literal(reason)}' for test, reason in cases)} END"

    def file_filter(self, table: Schema, begin: int | None, end: int) -> BooleanExpression:
        """A condition for the files that may hold rows of an interval, or rows without an event time.

        Args:
            table: The present columns of the table, by whose names the condition is.
            begin: The first microsecond; None for all before the end.
            end: The microsecond behind the last.
        """
        column, unit = self.time_field or (None, 1)
        name = table.find_column_name(column.field_id) if column else None
        if column is None or name is None or table.find_field(column.field_id).field_type != column.field_type:
            return AlwaysTrue()
        rows: BooleanExpression = LessThanOrEqual(term=Reference(name), value=(end - 1) // unit)
        if begin is not None:
            rows = And(GreaterThanOrEqual(term=Reference(name), value=begin // unit), rows)
        return Or(IsNull(term=Reference(name)), rows)


def _column(what: str, table: Schema, field: Field) -> NestedField:
    """The column of a declared field."""
    same = [column for column in table.fields if column.name == field.name]
    found = same or [column for column in table.fields if column.name.lower() == field.name.lower()]
    if len(found) != 1:
        raise DeclarationError(
            f"{what}: its table has no column {field.name}",
            got=", ".join(column.name for column in table.fields),
            hint="correct the schema, or leave it out: the table has one",
        )
    if not _fits(have := _type(found[0].field_type), field.type):
        raise DeclarationError(
            f"{what}: column {field.name} of its table has values that the declared type has not",
            got=f"{found[0].field_type}, declared {field.type}",
            hint=f"declare {have.ddl}" if _is_known(have) else "leave the schema out, and convert it in the query",
        )
    return found[0]


def _same_but_for_case(of: IcebergType) -> list[str]:
    """The names of fields of one struct, at any depth, that differ in case only."""
    match of:
        case StructType():
            names = [field.name for field in of.fields]
            lower = [name.lower() for name in names]
            same = [name for name in names if lower.count(name.lower()) > 1]
            return same or [name for field in of.fields for name in _same_but_for_case(field.field_type)]
        case ListType():
            return _same_but_for_case(of.element_type)
        case MapType():
            return _same_but_for_case(of.value_type)
    return []


def _column_name(event_time: str) -> str:
    """The name of the column, in small letters, if the event time is one."""
    return event_time.strip().strip("`").lower()


def _type(of: IcebergType) -> Type:
    """The type of a schema that has the values of an Iceberg type; one of its own kind if there is none."""
    match of:
        case DecimalType():
            return Type("decimal", precision=of.precision, scale=of.scale)
        case ListType():
            return Type("array", _type(of.element_type))
        case MapType() if isinstance(of.key_type, StringType):
            return Type("map", _type(of.value_type))
        case StructType():
            return Type("struct", fields=tuple(Field(field.name, _type(field.field_type)) for field in of.fields))
    return Type(KINDS.get(type(of), f"iceberg {of}"))


def _is_known(of: Type) -> bool:
    inner = [field.type for field in of.fields] + ([of.element] if of.element else [])
    return not of.kind.startswith("iceberg ") and all(map(_is_known, inner))


def _fits(have: Type, declared: Type) -> bool:
    """Whether a declared type has every value of a column's."""
    if have.kind != declared.kind:
        return declared.kind in WIDER.get(have.kind, ())
    if have.kind == "decimal":
        digits = have.precision - have.scale
        return declared.scale >= have.scale and declared.precision - declared.scale >= digits
    if have.element and declared.element:
        return _fits(have.element, declared.element)
    fields = {field.name.lower(): field.type for field in have.fields}
    names = {field.name.lower() for field in declared.fields}
    return names == fields.keys() and all(_fits(fields[field.name.lower()], field.type) for field in declared.fields)


def _event_time_sql(event_time: str, columns: dict[str, NestedField]) -> tuple[str, str]:
    """SQL of the event time, and the expression of which it is a cast; empty if it is none."""
    if sql := event_time_sql(event_time, [Field(name, _type(one.field_type)) for name, one in columns.items()]):
        return f"({sql})", ""
    name, expression = _column_name(event_time), f"({event_time}\n)"
    if name in columns:
        expression = quote_name(name)
        if isinstance(columns[name].field_type, NANOSECONDS):
            # Rounded down; a cast rounds to the nearest.
            nanos = f"epoch_ns({expression})"
            return f"({nanos} // 1000 - ({nanos} % 1000 < 0)::BIGINT)", ""
    return f"epoch_us(TRY_CAST({expression} AS TIMESTAMPTZ))", expression


def _time_field(event_time: str, columns: dict[str, NestedField]) -> tuple[NestedField, int] | None:
    call = TIMESTAMP_CALL.fullmatch(event_time)
    column = columns.get(_column_name(call[2] if call else event_time))
    if column is None or "." in column.name:
        return None
    if call:
        return (column, MICROS_PER_UNIT[call[1].lower()]) if isinstance(column.field_type, INTEGERS) else None
    unit = UNITS.get(type(column.field_type))
    return (column, unit) if unit else None
