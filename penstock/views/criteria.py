"""What is asked of a view by its fields: criteria, order, page and counts, as SQL of its store."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Annotated, Any, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict, Field

from penstock.errors import PenstockError
from penstock.views.layout import INTEGERS, Column, Layout, entry
from penstock.views.store import CRITERIA

# What a request may hold.
TERMS, VALUES, ROWS, GROUPS, KEYS = 64, 1000, 1000, 10_000, 1000
LONGEST = 4096
TOGETHER = 100
WORDS = {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
KEY = "key"

Plain: TypeAlias = str | bool | int | float | None
Text = Annotated[str, Field(max_length=LONGEST)]


class Wrong(PenstockError):
    """What is asked cannot be answered as it is asked."""


class Asked(BaseModel):
    """where: by field, or `map.entry` of a map: a value, a list of values (one of them), or an object of `eq`, `in`,
    `lt`, `le`, `gt`, `ge`. partitions: of other instances alone, what of the view they ask for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    where: dict[Text, Any] = Field({}, max_length=TERMS)
    partitions: list[int] | None = Field(None, max_length=100_000)


class Search(Asked):
    """order: `key`, or a field that is no map; rows without it are left out then. cursor: of the page before."""

    order: Text = KEY
    descending: bool = False
    limit: int = Field(100, ge=1, le=ROWS)
    cursor: str | None = None


class Counts(Asked):
    """by: the fields, no maps, whose values are counted together; without any all are one. per: of those that are whole
    numbers or timestamps, how wide the steps are that they are counted in; a step is named by where it begins."""

    by: list[Text] = Field([], max_length=16)
    per: dict[Text, Annotated[int, Field(ge=1, le=1 << 53)]] = Field({}, max_length=16)


class Batch(BaseModel):
    """Keys, each at most once in the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[Text] = Field(max_length=KEYS)


@dataclass
class Query:
    """SQL and what is put in for its question marks."""

    sql: str = ""
    given: list[Any] = field(default_factory=list)

    def add(self, sql: str, *given: Any) -> None:
        self.sql += f" AND {sql}"
        self.given += given


def condition(layout: Layout, asked: Asked, whole: bool) -> Query:
    """Behind WHERE. whole: whether all partitions of the store are asked for."""
    found, values = Query("true"), 0
    for name, given in asked.where.items():
        column, part = _column(layout, name)
        for word, value in (_words(name, given) if isinstance(given, dict) else {"eq": given}).items():
            several = value if isinstance(value, list) else [value]
            values += len(several)
            if values > VALUES:
                raise Wrong("too many values in one request", got=f"more than {VALUES}", fix="ask in several requests")
            if isinstance(value, list) and word not in ("eq", "in"):
                raise Wrong(f"{name}: {word} takes one value", got="a list")
            made = [typed(column, name, one) for one in several]
            if column.is_map:
                _entries(found, column, name, part, word, made)
            else:
                _compared(found, column, name, word, made)
    if not whole and asked.partitions is not None:
        found.add(f"partition IN ({', '.join(str(int(p)) for p in asked.partitions)})")
    return found


def page(layout: Layout, asked: Search, where: Query) -> Query:
    """Rows `(key, value, what it is ordered by)`, one more than the page has."""
    by = _ordered(layout, asked.order)
    given = list(where.given)
    sql = where.sql
    if by is not None:
        sql += f" AND {by} IS NOT NULL"
    if asked.cursor is not None:
        at, key = _cursor(asked)
        sign = "<" if asked.descending else ">"
        sql += f" AND key {sign} ?" if by is None else f" AND ({by}, key) {sign} (?, ?)"
        given += [key] if by is None else [at, key]
    way = "DESC" if asked.descending else "ASC"
    order = f"key {way}" if by is None else f"{by} {way}, key {way}"
    # In the order of keys all rows lie already; whatever else is asked, one look through the index is the least.
    source = f"rows INDEXED BY {CRITERIA}" if layout.columns and (asked.where or by is not None) else "rows"
    inner = f"SELECT rowid AS id, {by or 'NULL'} AS at, key FROM {source} WHERE {sql} ORDER BY {order} LIMIT ?"
    outer = f"found.key {way}" if by is None else f"found.at {way}, found.key {way}"
    return Query(
        f"SELECT found.key, r.value, found.at FROM ({inner}) AS found JOIN rows AS r ON r.rowid = found.id "
        f"ORDER BY {outer}",
        [*given, asked.limit + 1],
    )


def counted(layout: Layout, asked: Counts, where: Query) -> Query:
    """Rows of the values of `by`, then their number."""
    names = [_grouped(layout, name).name for name in asked.by]
    steps = {_stepped(layout, asked, name): step for name, step in asked.per.items()}
    source = f"rows INDEXED BY {CRITERIA}" if layout.columns and (asked.where or names) else "rows"
    if not names:
        return Query(f"SELECT count(*) FROM {source} WHERE {where.sql}", where.given)
    # The index has its rows in this order, so that the first step need not sort them, and leaves few for the second.
    ordered = [column.name for column in layout.columns]
    first = ", ".join(ordered[: 1 + max(ordered.index(name) for name in names)])
    inner = f"SELECT {first}, count(*) AS n FROM {source} WHERE {where.sql} GROUP BY {first}"
    groups = ", ".join(_step(name, steps[name]) if name in steps else name for name in names)
    return Query(f"SELECT {groups}, sum(n) FROM ({inner}) GROUP BY {groups} LIMIT {GROUPS + 1}", where.given)


def cursor_of(asked: Search, at: Any, key: str) -> str:
    """Where the next page begins."""
    return base64.urlsafe_b64encode(orjson.dumps([asked.order, asked.descending, at, key])).decode()


def shown(column: Column, value: Any) -> Any:
    """A value of a column as callers see it."""
    return bool(value) if column.kind == "boolean" and value is not None else value


def typed(column: Column, name: str, value: Any) -> Any:
    """A value as it lies in a column; a map's entry as text."""
    if value is None and not column.is_map:
        return None
    kind = column.kind
    found = _typed(kind, value)
    if found is None:
        raise Wrong(f"{name} is asked by a value of another type", got=repr(value)[:200], fix=f"send {kind}")
    if column.is_map:
        return str(found).lower() if isinstance(found, bool) else str(found)
    return int(found) if isinstance(found, bool) else found


def _typed(kind: str, value: Any) -> Any:
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
                return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
            except (ValueError, OverflowError):
                return None
        case "float" | "double" if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) if abs(value) < 1e308 else None
    if kind in (*INTEGERS, "timestamp") and isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < 1 << 63 else None
    return None


def said(layout: Layout, given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Criteria as a query string says them: `field=value`, `map.entry=value`, `field.ge=value`; the same again: or."""
    where: dict[str, Any] = {}
    for name, text in given:
        column, part = _column(layout, name)
        kind, word = column.kind, part if not column.is_map and part else "eq"
        value: Any = text
        if kind == "boolean":
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif kind not in ("string", "date"):
            try:
                value = orjson.loads(text)
            except orjson.JSONDecodeError:
                value = text
        key = name if column.is_map or not part else name.removesuffix(f".{part}")
        words = where.setdefault(key, {})
        if word in words and word != "eq":
            raise Wrong(f"{name} is said twice", got=text[:200])
        words[word] = [*words[word], value] if word in words else [value] if word == "eq" else value
    return where


def _column(layout: Layout, name: str) -> tuple[Column, str | None]:
    """The column of a field or an entry of it, and the entry's name."""
    if name in layout.by:
        return layout.by[name], None
    first, _, part = name.partition(".")
    if (column := layout.by.get(first)) and (column.is_map or part in (*WORDS, "in")):
        return column, part
    known = ", ".join(f"{n}.…" if c.is_map else n for n, c in layout.by.items()) or "none: it has no `by`"
    raise Wrong("the view is not asked by this field", got=name[:200], fix=f"take one of: {known}")


def _words(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not given or any(word not in (*WORDS, "in") for word in given):
        raise Wrong(f"{name}: no such comparison", got=str(list(given))[:200], fix=f"take {', '.join(WORDS)}, in")
    return given


def _entries(found: Query, column: Column, name: str, part: str | None, word: str, values: Sequence[str]) -> None:
    if part is None or word not in ("eq", "in"):
        fix = f"ask by an entry, {column.field.name}.NAME, for one value or one of several"
        raise Wrong("a map is asked by its entries", got=f"{name} {word}"[:200], fix=fix)
    if values:
        # SQLite takes expressions of a thousand levels, and each OR is one.
        each = [f"instr({column.name}, ?) > 0"] * len(values)
        groups = [" OR ".join(each[n : n + TOGETHER]) for n in range(0, len(each), TOGETHER)]
        found.add(f"(({') OR ('.join(groups)}))", *(entry(part, value) for value in values))
    else:
        found.add("false")


def _compared(found: Query, column: Column, name: str, word: str, values: Sequence[Any]) -> None:
    if word not in ("eq", "in"):
        if values[0] is None:
            raise Wrong(f"{name}: {word} takes a value", got="null")
        found.add(f"{column.name} {WORDS[word]} ?", *values)
        return
    there = [value for value in values if value is not None]
    one_of = f"{column.name} IN ({', '.join('?' * len(there))})"
    found.add(one_of if len(there) == len(values) else f"({one_of} OR {column.name} IS NULL)", *there)


def _ordered(layout: Layout, name: str) -> str | None:
    return None if name == KEY else _grouped(layout, name).name


def _grouped(layout: Layout, name: str) -> Column:
    column = layout.by.get(name)
    if column is None or column.is_map:
        known = ", ".join(n for n, c in layout.by.items() if not c.is_map) or "none"
        raise Wrong("the view is not ordered or counted by this field", got=name[:200], fix=f"take one of: {known}")
    return column


def _stepped(layout: Layout, asked: Counts, name: str) -> str:
    column = layout.by.get(name)
    if name not in asked.by or column is None or column.kind not in (*INTEGERS, "timestamp") or column.is_map:
        fix = "give steps to whole numbers and timestamps that are counted `by`"
        raise Wrong("the view does not count this field in steps", got=name[:200], fix=fix)
    return column.name


def _step(column: str, wide: int) -> str:
    """Where the step begins that a value lies in; below zero too."""
    return f"{column} - (({column} % {wide:d}) + {wide:d}) % {wide:d}"


def _cursor(asked: Search) -> tuple[Any, str]:
    try:
        order, descending, at, key = orjson.loads(base64.urlsafe_b64decode(asked.cursor or ""))
    except (ValueError, TypeError, binascii.Error):
        order = descending = at = key = None
    plain = isinstance(at, str | int | float | None) and isinstance(key, str)
    if (order, descending) != (asked.order, asked.descending) or not plain:
        fix = "send the cursor of the page before, with the same order"
        raise Wrong("this is no cursor of these pages", got=str(asked.cursor)[:80], fix=fix)
    return at, key
