"""Checks whether a capture can be paged by the columns of a page: their types, and the types of all values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice, pairwise
from math import isfinite
from operator import itemgetter, le
from types import NoneType
from typing import Any, NoReturn

from penstock.capture.checks.column_types import CLASSES, Ordering
from penstock.capture.output.page_records import column_index
from penstock.capture.source.base import ZONED, SourceError, SourcePage
from penstock.model.capture import Capture

SLOW = "no index serves that, so each query reads the whole table"


class PagingError(SourceError):
    """A capture cannot be paged by its key or cursor; `columns` are those concerned."""

    columns: tuple[str, ...] = ()


def refuse(capture: Capture, columns: Iterable[str], what: str, got: str, hint: str) -> NoReturn:
    error = PagingError(f"capture {capture.name} {what}", got=got, hint=hint)
    error.columns = tuple(columns)
    raise error


def orderings(capture: Capture, order_of: Callable[[Hashable], Ordering], page: SourcePage) -> dict[str, Ordering]:
    """The orderings of key and cursor; PagingError if a type has none, or another than Python."""
    result = {}
    for name in (*capture.key, capture.cursor):
        order = result[name] = order_of(page.about[column_index(capture, page, name)])
        what = f"cannot be paged by a column of type {order.kind}"
        if order.why_not:
            advice = f"select {order.instead.format(name)} AS {name}, but {SLOW}: " if name in capture.key else ""
            hint = f"{advice}another {_clause(capture, name)} is better"
            refuse(capture, [name], what, f"{name}: {order.why_not}", hint)
        if name == capture.cursor and not order.cursor:
            got = f"{name}: a cursor is compared here too and has a greatest value, which this type lacks"
            refuse(capture, [name], what, got, "declare another CURSOR: a time or a number that grows")
    return result


def ordering_of_values(capture: Capture, name: str, values: Iterable[Any]) -> Ordering:
    """The ordering of a column without a type; PagingError if its values have several types."""
    classes = {CLASSES.get(type(value), "bytes that are no text") for value in values}
    if len(classes) > 1:
        hint = "give them one type, by CAST in the SELECT or in the table"
        got = f"{name}: {' and '.join(sorted(classes))}"
        refuse(capture, [name], "cannot be paged by values of several types", got, hint)
    kinds = tuple(kind for kind, type_class in CLASSES.items() if type_class in classes)
    return Ordering(next(iter(classes), ""), kinds, collated=kinds == (str,))


def check_values(capture: Capture, page: SourcePage, orderings: Mapping[str, Ordering]) -> None:
    """Raises PagingError if a key or cursor has a value of another type than its column, e.g. `0000-00-00`."""
    for name in (*capture.key, capture.cursor):
        values, order = _values(capture, page, name), orderings[name]
        kinds = set(map(type, values)) - {NoneType}
        if not order.types:
            ordering_of_values(capture, name, (value for value in values if value is not None))
        elif not kinds <= set(order.types):
            _no_value(capture, name, order, (v for v in values if v is not None and type(v) not in order.types))
        if name == capture.cursor and kinds & {float, Decimal}:
            _no_value(capture, name, order, (value for value in values if value is not None and not isfinite(value)))
        if order.longest:
            _no_value(capture, name, order, (value for value in values if value and len(value) > order.longest))


def zone_changed(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a column of times was given a zone or lost it, so that the same time has another value.

    Args:
        name: The column.
        before: Types of columns by name, as a page has them.
        after: The same later; a column that either lacks has not changed.
    """
    return name in before and name in after and before[name].startswith(ZONED) != after[name].startswith(ZONED)


def check_cursor_order(capture: Capture, page: SourcePage) -> None:
    """Raises PagingError if Python orders the cursors of a page differently."""
    values = _values(capture, page, capture.cursor)
    if not all(map(le, values, islice(values, 1, None))):
        a, b = next((a, b) for a, b in pairwise(values) if not a <= b)
        got, hint = f"{capture.cursor}: {a!r} before {b!r}", "declare another CURSOR: a time or a number"
        refuse(capture, [capture.cursor], "has a cursor in another order than it has here", got, hint)


def _values(capture: Capture, page: SourcePage, name: str) -> list[Any]:
    return list(map(itemgetter(column_index(capture, page, name)), page.rows))


def _no_value(capture: Capture, name: str, order: Ordering, values: Iterator[Any]) -> None:
    value = next(values, None)
    if value is None:
        return
    short = len(str(value)) < 60
    excerpt = str(value) if short else f"{str(value)[:40]}... of {len(value)} characters"
    hint = "give such rows another value"
    if name == capture.cursor:
        hint += ", or NULL: by UPDATE"
        if short:
            literal = str(value).replace("inf", "9e999") if capture.dialect == "sqlite" else f"'{excerpt}'"
            hint += f", or by NULLIF({name}, {literal}) AS {name}, but {SLOW}"
    got = f"{excerpt} in a column of type {order.kind}"
    refuse(capture, [name], f"met a value of {name} that has no place in its order", got, hint)


def _clause(capture: Capture, name: str) -> str:
    return "KEY" if name in capture.key else "CURSOR"
