"""What is asked of a view by its fields: criteria, order, page and counts, as SQL of its store."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, TypeAlias

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field

from penstock.codec.event_time import FIRST
from penstock.errors import PenstockError
from penstock.views.store.columns import INTEGERS, Column, ViewLayout, entry
from penstock.views.store.sqlite import CRITERIA

# What a request may hold.
TERMS, VALUES, ROWS, GROUPS, KEYS, PARTITIONS = 64, 1000, 1000, 10_000, 1000, 100_000
LONGEST = 4096
TOGETHER = 100
OPERATORS = {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
KEY = "key"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HINTS = {"timestamp": "a time as ISO 8601, such as 2026-01-31T00:00:00Z", "date": "a day such as 2026-01-31"}

Plain: TypeAlias = str | bool | int | float | None
Text = Annotated[str, Field(max_length=LONGEST)]


class BadQuery(PenstockError):
    """What is asked cannot be answered as it is asked."""


class ViewQuery(BaseModel):
    """where: by field, or `map.entry` of a map: a value, a list of values (one of them), or an object of `eq`, `in`,
    `lt`, `le`, `gt`, `ge`."""

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
    """order: `key`, or a field that is no map; rows without it are left out then. cursor: of the page before."""

    order: Text = KEY
    descending: bool = False
    limit: int = Field(100, ge=1, le=ROWS)
    cursor: str | None = None


class Counts(ViewQuery):
    """by: the fields, no maps, whose values are counted together; without any all are one. per: of those that are whole
    numbers or timestamps, how wide the steps are that they are counted in; a step is named by where it begins."""

    by: list[Text] = Field([], max_length=16)
    per: dict[Text, Annotated[int, Field(ge=1, le=1 << 53)]] = Field({}, max_length=16)


class PartialSearch(Search, PartitionScope):
    """A page of some partitions."""


class PartialCounts(Counts, PartitionScope):
    """Counts of some partitions."""


class KeyLookup(BaseModel):
    """Keys, each at most once in the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[Text] = Field(max_length=KEYS)


@dataclass
class SqlQuery:
    """SQL and what is put in for its question marks."""

    sql: str = ""
    given: list[Any] = field(default_factory=list)

    def add(self, sql: str, *given: Any) -> None:
        self.sql += f" AND {sql}"
        self.given += given


def where_clause(layout: ViewLayout, asked: ViewQuery, partitions: Sequence[int] | None = None) -> SqlQuery:
    """Behind WHERE. partitions: those that are asked for, None for all of the store."""
    found, values = SqlQuery("true"), 0
    for name, given in asked.where.items():
        column, part = _find_column(layout, name)
        for word, value in (_check_operators(name, given) if isinstance(given, dict) else {"eq": given}).items():
            several = value if isinstance(value, list) else [value]
            values += len(several)
            if values > VALUES:
                raise BadQuery(
                    "too many values in one request", got=f"more than {VALUES}", hint="ask in several requests"
                )
            if isinstance(value, list) and word not in ("eq", "in"):
                raise BadQuery(f"{name}: {word} takes one value", got="a list")
            made = [to_column_value(column, name, one) for one in several]
            if column.is_map:
                _add_map_entries(found, column, name, part, word, made)
            else:
                _add_comparison(found, column, name, word, made)
    if partitions is not None:
        found.add(f"partition IN ({', '.join(str(int(p)) for p in partitions)})")
    return found


def search_sql(layout: ViewLayout, asked: Search, where: SqlQuery) -> SqlQuery:
    """Rows `(key, value, what it is ordered by)`, one more than the page has."""
    by = _order_column(layout, asked.order)
    given = list(where.given)
    sql = where.sql
    if by is not None:
        sql += f" AND {by} IS NOT NULL"
    if asked.cursor is not None:
        at, key = _cursor(layout, asked)
        sign = "<" if asked.descending else ">"
        sql += f" AND key {sign} ?" if by is None else f" AND ({by}, key) {sign} (?, ?)"
        given += [key] if by is None else [at, key]
    way = "DESC" if asked.descending else "ASC"
    order = f"key {way}" if by is None else f"{by} {way}, key {way}"
    # In the order of keys all rows lie already; whatever else is asked, one look through the index is the least.
    source = f"rows INDEXED BY {CRITERIA}" if layout.columns and (asked.where or by is not None) else "rows"
    inner = f"SELECT rowid AS id, {by or 'NULL'} AS at, key FROM {source} WHERE {sql} ORDER BY {order} LIMIT ?"
    outer = f"found.key {way}" if by is None else f"found.at {way}, found.key {way}"
    return SqlQuery(
        f"SELECT found.key, r.value, found.at FROM ({inner}) AS found JOIN rows AS r ON r.rowid = found.id "
        f"ORDER BY {outer}",
        [*given, asked.limit + 1],
    )


def counts_sql(layout: ViewLayout, asked: Counts, where: SqlQuery) -> SqlQuery:
    """Rows of the values of `by`, then their number."""
    names = [_plain_column(layout, name).name for name in asked.by]
    steps = {column.name: column.step(asked.per[column.field.name]) for column in _columns_with_step(layout, asked)}
    source = f"rows INDEXED BY {CRITERIA}" if layout.columns and (asked.where or names) else "rows"
    if not names:
        return SqlQuery(f"SELECT count(*) FROM {source} WHERE {where.sql}", where.given)
    # The index has its rows in this order, so that the first step need not sort them, and leaves few for the second.
    ordered = [column.name for column in layout.columns]
    first = ", ".join(ordered[: 1 + max(ordered.index(name) for name in names)])
    inner = f"SELECT {first}, count(*) AS n FROM {source} WHERE {where.sql} GROUP BY {first}"
    groups = ", ".join(_step_start(name, steps[name]) if name in steps else name for name in names)
    return SqlQuery(f"SELECT {groups}, sum(n) FROM ({inner}) GROUP BY {groups} LIMIT {GROUPS + 1}", where.given)


def make_cursor(layout: ViewLayout, asked: Search, at: Any, key: str) -> str:
    """Where the next page begins. at: as it lies in the column that the page is ordered by, if it is."""
    if asked.order != KEY:
        at = to_json_value(layout.by[asked.order], at)
    return base64.urlsafe_b64encode(orjson.dumps([asked.order, asked.descending, at, key])).decode()


def to_json_value(column: Column, value: Any) -> Any:
    """A value of a column as callers see it."""
    if value is None:
        return None
    match column.kind:
        case "boolean":
            return bool(value)
        case "timestamp":
            return iso_time(value)
        case kind if kind in INTEGERS:
            # SQLite goes over to other numbers where a step begins below the least one.
            return int(value)
    return value


def iso_time(micros: int) -> str:
    """A time as views write it. micros: since 1970; a step may begin before the calendar, and is named by its first."""
    at = (EPOCH + timedelta(microseconds=max(micros, FIRST))).replace(tzinfo=None)
    return f"{at.isoformat(timespec='microseconds')}Z"


def to_column_value(column: Column, name: str, value: Any) -> Any:
    """A value as it lies in a column; a map's entry as text."""
    if value is None and not column.is_map:
        return None
    kind = column.kind
    found = _parse_value(kind, value)
    if found is None:
        got = repr(value)[:200] if not isinstance(value, int) or abs(value) < 1 << 64 else "a number of over 64 bits"
        raise BadQuery(f"{name} is asked by a value of another type", got=got, hint=f"send {HINTS.get(kind, kind)}")
    if column.is_map:
        return str(found).lower() if isinstance(found, bool) else str(found)
    return int(found) if isinstance(found, bool) else found


def _parse_value(kind: str, value: Any) -> Any:
    """None if it is none of the kind."""
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
    """A FLOAT as it lies in its column: what it is written as."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def from_query_string(layout: ViewLayout, given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Criteria as a query string says them: `field=value`, `map.entry=value`, `field.ge=value`; the same again: or."""
    where: dict[str, Any] = {}
    for name, text in given:
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
            raise BadQuery(f"{name} is from_query_string twice", got=text[:200])
        words[word] = [*words[word], value] if word in words else [value] if word == "eq" else value
    return where


def _find_column(layout: ViewLayout, name: str) -> tuple[Column, str | None]:
    """The column of a field or an entry of it, and the entry's name."""
    if name in layout.by:
        return layout.by[name], None
    first, _, part = name.partition(".")
    if (column := layout.by.get(first)) and (column.is_map or part in (*OPERATORS, "in")):
        return column, part
    known = ", ".join(f"{n}.…" if c.is_map else n for n, c in layout.by.items()) or "none: it has no `by`"
    raise BadQuery("the view is not asked by this field", got=name[:200], hint=f"take one of: {known}")


def _check_operators(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not given or any(word not in (*OPERATORS, "in") for word in given):
        raise BadQuery(
            f"{name}: no such comparison", got=str(list(given))[:200], hint=f"take {', '.join(OPERATORS)}, in"
        )
    return given


def _add_map_entries(
    found: SqlQuery, column: Column, name: str, part: str | None, word: str, values: Sequence[str]
) -> None:
    if part is None or word not in ("eq", "in"):
        hint = f"ask by an entry, {column.field.name}.NAME, for one value or one of several"
        raise BadQuery("a map is asked by its entries", got=f"{name} {word}"[:200], hint=hint)
    if values:
        # SQLite takes expressions of a thousand levels, and each OR is one.
        each = [f"instr({column.name}, ?) > 0"] * len(values)
        groups = [" OR ".join(each[n : n + TOGETHER]) for n in range(0, len(each), TOGETHER)]
        found.add(f"(({') OR ('.join(groups)}))", *(entry(part, value) for value in values))
    else:
        found.add("false")


def _add_comparison(found: SqlQuery, column: Column, name: str, word: str, values: Sequence[Any]) -> None:
    if word not in ("eq", "in"):
        if values[0] is None:
            raise BadQuery(f"{name}: {word} takes a value", got="null")
        found.add(f"{column.name} {OPERATORS[word]} ?", *values)
        return
    there = [value for value in values if value is not None]
    one_of = f"{column.name} IN ({', '.join('?' * len(there))})"
    found.add(one_of if len(there) == len(values) else f"({one_of} OR {column.name} IS NULL)", *there)


def _order_column(layout: ViewLayout, name: str) -> str | None:
    return None if name == KEY else _plain_column(layout, name).name


def _plain_column(layout: ViewLayout, name: str) -> Column:
    column = layout.by.get(name)
    if column is None or column.is_map:
        known = ", ".join(n for n, c in layout.by.items() if not c.is_map) or "none"
        raise BadQuery("the view is not ordered or counted by this field", got=name[:200], hint=f"take one of: {known}")
    return column


def _columns_with_step(layout: ViewLayout, asked: Counts) -> Iterator[Column]:
    for name in asked.per:
        column = layout.by.get(name)
        if name not in asked.by or column is None or column.kind not in (*INTEGERS, "timestamp") or column.is_map:
            hint = "give steps to whole numbers and timestamps that are counted `by`"
            raise BadQuery("the view does not count this field in steps", got=name[:200], hint=hint)
        yield column


def _step_start(column: str, wide: int) -> str:
    """Where the step begins that a value lies in; below zero too."""
    return f"{column} - {column} % {wide:d} - ({column} % {wide:d} < 0) * {wide:d}"


def _cursor(layout: ViewLayout, asked: Search) -> tuple[Any, str]:
    """What it is ordered by, as it lies in its column, and the key."""
    try:
        order, descending, at, key = orjson.loads(base64.urlsafe_b64decode(asked.cursor or ""))
    except (ValueError, TypeError):
        order = descending = at = key = None
    kind = "" if asked.order == KEY else layout.by[asked.order].kind
    place = _parse_value(kind, at) if kind else None
    fits = (order, descending) == (asked.order, asked.descending) and isinstance(key, str)
    if not fits or (place is None if kind else at is not None):
        hint = "send the cursor of the page before, with the same order"
        raise BadQuery("this is no cursor of these pages", got=str(asked.cursor)[:80], hint=hint)
    return place, key
