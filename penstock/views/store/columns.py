"""The columns of a view's store: one for each field of `query_by`, and the value as JSON.

A map is stored as text, each entry as `RS name US value` and one RS after the last, so that an entry is found
by looking for it; the three characters that would be mistaken are written as others.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec import json_sql
from penstock.codec.columnar import connection
from penstock.model.types import Field, Type
from penstock.model.view import View
from penstock.tables.table_store import DELETED
from penstock.tables.topic_reader import DECODER_LOCK

# Of how rows lie in a store, and of what instances tell each other of them.
VERSION = 3
RS, US, ESCAPE = "\x1e", "\x1f", "\x1c"
ESCAPED = {ESCAPE: f"{ESCAPE}0", RS: f"{ESCAPE}1", US: f"{ESCAPE}2"}
# A text, which may hold anything, or what DuckDB writes for a number that JSON does not have.
ODD = re.compile(r'"(?:[^"\\]|\\.)*"|-?(?:NaN|Infinity)')
INTEGERS = ("tinyint", "smallint", "int", "bigint")
REALS = ("float", "double")


@dataclass(frozen=True)
class Column:
    """A field that the view is asked by; name: its column's in the store."""

    field: Field
    name: str

    @property
    def kind(self) -> str:
        """The kind of a value that it is asked by: of a map, of an entry's."""
        return self.field.type.element.kind if self.is_map and self.field.type.element else self.field.type.kind

    @property
    def is_map(self) -> bool:
        return self.field.type.kind == "map"

    @property
    def affinity(self) -> str:
        if self.is_map:
            return "TEXT"
        return "REAL" if self.kind in REALS else "TEXT" if self.kind in ("string", "date") else "INTEGER"

    @property
    def sql(self) -> str:
        """DuckDB's, of the field as it was decoded."""
        column = json_sql.quote_name(self.field.name)
        if self.is_map:
            each = f"{_escaped('e.key')} || chr(31) || {_escaped('CAST(e.value AS VARCHAR)')}"
            entries = f"list_filter(map_entries({column}), lambda e: e.value IS NOT NULL)"
            return f"chr(30) || array_to_string(list_transform({entries}, lambda e: {each}), chr(30)) || chr(30)"
        match self.kind:
            case "boolean":
                return f"CAST({column} AS INTEGER)"
            case "timestamp":
                return f"epoch_us({column})"
            case "date":
                return f"CAST({column} AS VARCHAR)"
            case "float" | "double":
                # What comes first or last without being a number has no place in an order.
                return f"CASE WHEN isfinite({column}) THEN {_json_sql(column, self.field.type)} END"
        return column

    def step(self, wide: int) -> int:
        """A step of counts as it is in the column. wide: of times, milliseconds."""
        return wide * 1000 if self.kind == "timestamp" else wide


@dataclass(frozen=True)
class ViewLayout:
    """Of one view."""

    view: View

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        fields = {f.name: f for f in self.view.fields}
        return tuple(Column(fields[name], f"by_{n}") for n, name in enumerate(self.view.query_fields))

    @cached_property
    def by(self) -> dict[str, Column]:
        """Columns by the names of their fields."""
        return {column.field.name: column for column in self.columns}

    @cached_property
    def version(self) -> str:
        """Of what instances must have in common to put their parts together."""
        text = f"{VERSION} {self.view.schema} {' '.join(self.view.query_fields)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def _sql(self) -> str:
        names = [json_sql.quote_name(f.name) for f in self.view.fields]
        packed = ", ".join(
            f"{name} := {_json_sql(name, f.type)}" for name, f in zip(names, self.view.fields, strict=True)
        )
        columns = "".join(f", {column.sql} AS {column.name}" for column in self.columns)
        value = f"CAST(to_json(struct_pack({packed})) AS VARCHAR)"
        return f"SELECT key, {value} AS value{columns} FROM rows_in WHERE NOT {DELETED}"

    def rows(self, decoded: pa.Table) -> list[tuple[Any, ...]]:
        """The rows of a table as the store takes them: key, value, columns. What is gone is left out."""
        with DECODER_LOCK:
            con = connection()
            con.register("rows_in", decoded)
            try:
                result: pa.Table = con.sql(self._sql).to_arrow_table()
            finally:
                con.unregister("rows_in")
        values = result["value"]
        if pc.any(pc.match_substring_regex(values, "NaN|Infinity")).as_py():
            result = result.set_column(
                1, "value", pa.array([_sound(str(value)) for value in values.to_pylist()], pa.string())
            )
        return list(zip(*(column.to_pylist() for column in result.columns), strict=True))


def _json_sql(of: str, kind: Type, depth: int = 0) -> str:
    """SQL of a value whose JSON by DuckDB is the one that a view answers: times as ISO 8601 in UTC, a FLOAT as it is
    written, a DECIMAL as text, BINARY in base64."""
    e = f"e{depth}"
    match kind.kind:
        case "timestamp":
            return f"strftime(make_timestamp(epoch_us({of})), '%Y-%m-%dT%H:%M:%S.%fZ')"
        case "decimal":
            return f"CAST({of} AS VARCHAR)"
        case "binary":
            return f"to_base64({of})"
        case "float":
            return f"CAST(CAST({of} AS VARCHAR) AS DOUBLE)"
        case "array" if kind.element and (each := _json_sql(e, kind.element, depth + 1)) != e:
            return f"list_transform({of}, lambda {e}: {each})"
        case "map" if kind.element and (each := _json_sql(f"{e}.value", kind.element, depth + 1)) != f"{e}.value":
            pairs = f"list_transform(map_entries({of}), lambda {e}: struct_pack(k := {e}.key, v := {each}))"
            return f"map_from_entries({pairs})"
        case "struct":
            parts = [(json_sql.quote_name(f.name), f.type) for f in kind.fields]
            converted = [_json_sql(f"({of}).{name}", part, depth) for name, part in parts]
            if converted != [f"({of}).{name}" for name, _ in parts]:
                packed = ", ".join(f"{name} := {sql}" for (name, _), sql in zip(parts, converted, strict=True))
                return f"CASE WHEN {of} IS NOT NULL THEN struct_pack({packed}) END"
    return of


def _sound(value: str) -> str:
    """JSON in which numbers that are none are texts, as records have them."""
    return ODD.sub(lambda one: one[0] if one[0].startswith('"') else f'"{one[0]}"', value)


def _escaped(of: str) -> str:
    for char, text in ESCAPED.items():
        of = f"replace({of}, chr({ord(char)}), chr({ord(text[0])}) || '{text[1]}')"
    return of


def escaped(text: str) -> str:
    for char, instead in ESCAPED.items():
        text = text.replace(char, instead)
    return text


def entry(name: str, value: str) -> str:
    """The text by which an entry of a map is stored in its column."""
    return f"{RS}{escaped(name)}{US}{escaped(value)}{RS}"
