"""Queries of a view by its fields: criteria, order, pages and counts, as SQL of its store."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field

from penstock.codec.event_time import FIRST
from penstock.errors import PenstockError
from penstock.views.store.columns import INTEGERS, Column, ViewLayout, entry
from penstock.views.store.sqlite import CRITERIA

# What a request may hold.
TERMS, VALUES, ROWS, GROUPS, KEYS, PARTITIONS = 64, 1000, 1000, 10_000, 1000, 100_000
MAX_TEXT = 4096
ORS_PER_GROUP = 100
OPERATORS = {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
KEY = "key"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HINTS = {"timestamp": "a time as ISO 8601, such as 2026-01-31T00:00:00Z", "date": "a day such as 2026-01-31"}

Plain: TypeAlias = str | bool | int | float | None
Text = Annotated[str, Field(max_length=MAX_TEXT)]


class BadQuery(PenstockError):
    """The query is not valid for this view."""


class ViewQuery(BaseModel):
    """A query by fields.

    Attributes:
        where: By field, or by `map.entry` of a map: a value, a list of alternatives, or an object of `eq`, `in`, `lt`,
            `le`, `gt`, `ge`.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    where: dict[Text, Any] = Field({}, max_length=TERMS)


class PartitionScope(BaseModel):
    """The part of a query that another instance is asked for.

    Attributes:
        partitions: The partitions to read.
        store: `ViewLayout.version` of the asking instance. Parts of different layouts cannot be merged.
    """

    partitions: Annotated[list[Annotated[int, Field(ge=0)]], FailFast()] = Field([], max_length=PARTITIONS)
    store: Text = ""


class Search(ViewQuery):
    """A page of rows.

    Attributes:
        order: `key`, or a field that is not a map; rows in which it is null are then left out.
        cursor: As the page before gave it.
    """

    order: Text = KEY
    descending: bool = False
    limit: int = Field(100, ge=1, le=ROWS)
    cursor: str | None = None


class Counts(ViewQuery):
    """Numbers of rows by groups.

    Attributes:
        by: The fields to group by, no maps; without any there is one group.
        per: Width of the steps into which a whole number or a timestamp (ms) is rounded down, by field.
    """

    by: list[Text] = Field([], max_length=16)
    per: dict[Text, Annotated[int, Field(ge=1, le=1 << 53)]] = Field({}, max_length=16)


class PartialSearch(Search, PartitionScope):
    """A page of some partitions."""


class PartialCounts(Counts, PartitionScope):
    """Counts of some partitions."""


class KeyLookup(BaseModel):
    """Several keys; the answer has each once."""

    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[Text] = Field(max_length=KEYS)


@dataclass
class Condition:
    """The condition of a WHERE clause, and its parameters."""

    sql: str = "true"
    parameters: list[Any] = field(default_factory=list)

    def add(self, sql: str, *parameters: Any) -> None:
        self.sql += f" AND {sql}"
        self.parameters += parameters


class SqlQuery(NamedTuple):
    """A query of the store.

    Attributes:
        select: The statement up to the end of its condition.
        rest: What follows the condition.
        parameters: Values of the question marks.
    """

    select: str
    rest: str
    parameters: list[Any]

    def sql(self, partitions: Sequence[int] | None = None) -> str:
        """The statement for some partitions, or for all of the store."""
        if partitions is None:
            return self.select + self.rest
        return f"{self.select} AND partition IN ({', '.join(str(int(p)) for p in partitions)}){self.rest}"


def _condition(layout: ViewLayout, query: ViewQuery) -> Condition:
    condition, values = Condition(), 0
    for name, criterion in query.where.items():
        column, entry_name = _find_column(layout, name)
        comparisons = _check_operators(name, criterion) if isinstance(criterion, dict) else {"eq": criterion}
        for operator, value in comparisons.items():
            operands = value if isinstance(value, list) else [value]
            values += len(operands)
            if values > VALUES:
                raise BadQuery("too many values in one request", got=f"over {VALUES}", hint="send several requests")
            if isinstance(value, list) and operator not in ("eq", "in"):
                raise BadQuery(f"{name}: {operator} takes one value", got="a list")
            stored = [to_column_value(column, name, operand) for operand in operands]
            if column.is_map:
                _add_map_entries(condition, column, name, entry_name, operator, stored)
            else:
                _add_comparison(condition, column, name, operator, stored)
    return condition


def search_sql(layout: ViewLayout, query: Search) -> SqlQuery:
    """The query of a page's rows `(key, value, value of the order)`, one more than the page has."""
    condition, by = _condition(layout, query), _order_column(layout, query.order)
    if by is not None:
        condition.add(f"{by} IS NOT NULL")
    if query.cursor is not None:
        at, key = _cursor(layout, query)
        sign = "<" if query.descending else ">"
        if by is None:
            condition.add(f"key {sign} ?", key)
        else:
            condition.add(f"({by}, key) {sign} (?, ?)", at, key)
    direction = "DESC" if query.descending else "ASC"
    order = f"key {direction}" if by is None else f"{by} {direction}, key {direction}"
    # The rows lie in the order of keys; for every other query a scan of the index reads least.
    source = f"rows INDEXED BY {CRITERIA}" if layout.columns and (query.where or by is not None) else "rows"
    outer = f"found.key {direction}" if by is None else f"found.at {direction}, found.key {direction}"
    return SqlQuery(
        f"SELECT found.key, r.value, found.at FROM (SELECT rowid AS id, {by or 'NULL'} AS at, key FROM {source} "
        f"WHERE {condition.sql}",
        f" ORDER BY {order} LIMIT ?) AS found JOIN rows AS r ON r.rowid = found.id ORDER BY {outer}",
        [*condition.parameters, query.limit + 1],
    )


def counts_sql(layout: ViewLayout, query: Counts) -> SqlQuery:
    """The query of the groups: the values of `by`, then the number of rows."""
    names = [_plain_column(layout, name).name for name in query.by]
    steps = {column.name: column.step(query.per[column.field.name]) for column in _columns_with_step(layout, query)}
    source = f"rows INDEXED BY {CRITERIA}" if layout.columns and (query.where or names) else "rows"
    condition = _condition(layout, query)
    if not names:
        return SqlQuery(f"SELECT count(*) FROM {source} WHERE {condition.sql}", "", condition.parameters)
    # The index has its rows in this order, so that the first step need not sort them, and leaves few for the second.
    ordered = [column.name for column in layout.columns]
    first = ", ".join(ordered[: 1 + max(ordered.index(name) for name in names)])
    groups = ", ".join(_step_start(name, steps[name]) if name in steps else name for name in names)
    return SqlQuery(
        f"SELECT {groups}, sum(n) FROM (SELECT {first}, count(*) AS n FROM {source} WHERE {condition.sql}",
        f" GROUP BY {first}) GROUP BY {groups} LIMIT {GROUPS + 1}",
        condition.parameters,
    )


def make_cursor(layout: ViewLayout, query: Search, at: Any, key: str) -> str:
    """The cursor of the next page. at: the last row's value in the column of the order, if there is one."""
    if query.order != KEY:
        at = to_json_value(layout.by[query.order], at)
    return base64.urlsafe_b64encode(orjson.dumps([query.order, query.descending, at, key])).decode()


def to_json_value(column: Column, value: Any) -> Any:
    """A column's value as clients see it."""
    if value is None:
        return None
    match column.kind:
        case "boolean":
            return bool(value)
        case "timestamp":
            return iso_time(value)
        case kind if kind in INTEGERS:
            # SQLite gives a real number where a step begins below the smallest integer.
            return int(value)
    return value


def iso_time(micros: int) -> str:
    """A time as views write it. micros: since 1970; a step that begins before the calendar is named by its start."""
    at = (EPOCH + timedelta(microseconds=max(micros, FIRST))).replace(tzinfo=None)
    return f"{at.isoformat(timespec='microseconds')}Z"


def to_column_value(column: Column, name: str, value: Any) -> Any:
    """A query's value as the column stores it; that of a map's entry as text."""
    if value is None and not column.is_map:
        return None
    kind = column.kind
    parsed = _parse_value(kind, value)
    if parsed is None:
        got = repr(value)[:200] if not isinstance(value, int) or abs(value) < 1 << 64 else "a number of over 64 bits"
        raise BadQuery(f"the value for {name} has another type", got=got, hint=f"send {HINTS.get(kind, kind)}")
    if column.is_map:
        return str(parsed).lower() if isinstance(parsed, bool) else str(parsed)
    return int(parsed) if isinstance(parsed, bool) else parsed


def _parse_value(kind: str, value: Any) -> Any:
    """None if the value is not of the kind."""
    match kind:
        case "string" if isinstance(value, str):
            return value
        case "boolean" if isinstance(value, bool):
            return value
        case "timestamp" | "date" if isinstance(value, str):
            try:
                if kind == "date":
                    return date.fromisoformat(value).isoformat()
                at = datetime.fromisoformat(value)
                return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
            except (ValueError, OverflowError):
                return None
        case "float" | "double" if isinstance(value, int | float) and not isinstance(value, bool):
            if not abs(value) <= sys.float_info.max:
                return None
            return float(value) if kind == "double" else _single(value)
    if kind in INTEGERS and isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < 1 << 63 else None
    return None


def _single(value: float) -> float:
    """A FLOAT as the column stores it: the number it is written as."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def from_query_string(layout: ViewLayout, parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Criteria of a query string: `field=value`, `map.entry=value`, `field.ge=value`; a repeated one means or."""
    where: dict[str, Any] = {}
    for name, text in parameters:
        column, part = _find_column(layout, name)
        kind, word = column.kind, part if not column.is_map and part else "eq"
        value: Any = text
        if kind == "boolean":
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif kind not in ("string", "date", "timestamp"):
            try:
                value = orjson.loads(text)
            except orjson.JSONDecodeError:
                value = text
        key = name if column.is_map or not part else name.removesuffix(f".{part}")
        words = where.setdefault(key, {})
        if word in words and word != "eq":
            raise BadQuery(f"{name} occurs twice", got=text[:200])
        words[word] = [*words[word], value] if word in words else [value] if word == "eq" else value
    return where


def _find_column(layout: ViewLayout, name: str) -> tuple[Column, str | None]:
    """The column of a field or of a map's entry, and the entry's name or the operator."""
    if name in layout.by:
        return layout.by[name], None
    first, _, part = name.partition(".")
    if (column := layout.by.get(first)) and (column.is_map or part in (*OPERATORS, "in")):
        return column, part
    fields = ", ".join(f"{n}.…" if c.is_map else n for n, c in layout.by.items()) or "none: it has no `by`"
    raise BadQuery("the view cannot be queried by this field", got=name[:200], hint=f"use one of: {fields}")


def _check_operators(name: str, comparisons: Mapping[str, Any]) -> Mapping[str, Any]:
    if not comparisons or any(word not in (*OPERATORS, "in") for word in comparisons):
        raise BadQuery(
            f"{name}: no such comparison", got=str(list(comparisons))[:200], hint=f"use {', '.join(OPERATORS)}, in"
        )
    return comparisons


def _add_map_entries(
    condition: Condition, column: Column, name: str, part: str | None, word: str, values: Sequence[str]
) -> None:
    if part is None or word not in ("eq", "in"):
        hint = f"query by an entry, {column.field.name}.NAME, for one value or one of several"
        raise BadQuery("a map is queried by its entries", got=f"{name} {word}"[:200], hint=hint)
    if values:
        # SQLite limits the depth of an expression to 1000, and each OR is a level.
        each = [f"instr({column.name}, ?) > 0"] * len(values)
        groups = [" OR ".join(each[n : n + ORS_PER_GROUP]) for n in range(0, len(each), ORS_PER_GROUP)]
        condition.add(f"(({') OR ('.join(groups)}))", *(entry(part, value) for value in values))
    else:
        condition.add("false")


def _add_comparison(condition: Condition, column: Column, name: str, word: str, values: Sequence[Any]) -> None:
    if word not in ("eq", "in"):
        if values[0] is None:
            raise BadQuery(f"{name}: {word} takes a value", got="null")
        condition.add(f"{column.name} {OPERATORS[word]} ?", *values)
        return
    not_null = [value for value in values if value is not None]
    one_of = f"{column.name} IN ({', '.join('?' * len(not_null))})"
    condition.add(one_of if len(not_null) == len(values) else f"({one_of} OR {column.name} IS NULL)", *not_null)


def _order_column(layout: ViewLayout, name: str) -> str | None:
    return None if name == KEY else _plain_column(layout, name).name


def _plain_column(layout: ViewLayout, name: str) -> Column:
    column = layout.by.get(name)
    if column is None or column.is_map:
        fields = ", ".join(n for n, c in layout.by.items() if not c.is_map) or "none"
        raise BadQuery(
            "the view cannot be ordered or counted by this field", got=name[:200], hint=f"use one of: {fields}"
        )
    return column


def _columns_with_step(layout: ViewLayout, query: Counts) -> Iterator[Column]:
    for name in query.per:
        column = layout.by.get(name)
        if name not in query.by or column is None or column.kind not in (*INTEGERS, "timestamp") or column.is_map:
            hint = "give steps for whole numbers and timestamps of `by`"
            raise BadQuery("this field cannot be counted in steps", got=name[:200], hint=hint)
        yield column


def _step_start(column: str, wide: int) -> str:
    """SQL of the start of a value's step, also below zero."""
    return f"{column} - {column} % {wide:d} - ({column} % {wide:d} < 0) * {wide:d}"


def _cursor(layout: ViewLayout, query: Search) -> tuple[Any, str]:
    """The value of the order, as its column stores it, and the key."""
    try:
        order, descending, at, key = orjson.loads(base64.urlsafe_b64decode(query.cursor or ""))
    except (ValueError, TypeError):
        order = descending = at = key = None
    kind = "" if query.order == KEY else layout.by[query.order].kind
    position = _parse_value(kind, at) if kind else None
    is_valid = (order, descending) == (query.order, query.descending) and isinstance(key, str)
    if not is_valid or (position is None if kind else at is not None):
        hint = "send the cursor of the page before, with the same order"
        raise BadQuery("the cursor is not of these pages", got=str(query.cursor)[:80], hint=hint)
    return position, key
