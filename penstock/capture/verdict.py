"""Whether a capture can be paged by the columns of a page: their types, and that each value is of its type."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any, NoReturn

from penstock.capture.database import Page, SourceError
from penstock.capture.orders import CLASSES, Order
from penstock.capture.records import place
from penstock.declare.capture import Capture

SLOW = "no index serves that, so each query reads the whole table"


class Unproven(SourceError):
    """A capture cannot be paged by its key or its cursor, or nothing shows that it can."""


def refuse(capture: Capture, what: str, got: str, fix: str) -> NoReturn:
    raise Unproven(f"capture {capture.name} {what}", got=got, fix=fix)


def orders(capture: Capture, order_of: Callable[[Hashable], Order], page: Page) -> dict[str, Order]:
    """The order of key and cursor. Unproven if a type has none, or not the one it is compared by here."""
    found = {}
    for name in (*capture.key, capture.cursor):
        order = found[name] = order_of(page.about[place(capture, page, name)])
        what = f"cannot be paged by a column of type {order.kind}"
        if order.why_not:
            cure = f"select {order.cure.format(name)} AS {name}, but {SLOW}: " if name in capture.key else ""
            refuse(capture, what, f"{name}: {order.why_not}", f"{cure}another {_clause(capture, name)} is better")
        if name == capture.cursor and not order.cursor:
            got = f"{name}: a cursor is compared here too and has a greatest value, which this type lacks"
            refuse(capture, what, got, "declare another CURSOR: a time or a number that grows")
    return found


def of_values(capture: Capture, name: str, values: Iterable[Any]) -> Order:
    """The order of a column without a type of its own. Unproven if its values are of several."""
    classes = {CLASSES[type(value)] for value in values}
    if len(classes) > 1:
        got, fix = (
            f"{name}: {' and '.join(sorted(classes))}",
            "give them one type, by CAST in the SELECT or in the table",
        )
        refuse(capture, "cannot be paged by values of several types", got, fix)
    kinds = tuple(kind for kind, its in CLASSES.items() if its in classes)
    return Order(next(iter(classes), ""), kinds, collated=kinds == (str,))


def fit(capture: Capture, page: Page, orders: Mapping[str, Order]) -> None:
    """Unproven if a key or cursor has a value that is not of its column's type, as `0000-00-00` is no date."""
    for name in (*capture.key, capture.cursor):
        at, order = place(capture, page, name), orders[name]
        values = [row[at] for row in page.rows if row[at] is not None]
        if not order.types:
            of_values(capture, name, values)
            continue
        kinds = set(map(type, values))
        if not kinds <= set(order.types):
            _no_value(capture, name, order, next(value for value in values if type(value) not in order.types))
        if name == capture.cursor and kinds & {float, Decimal} and not all(map(math.isfinite, values)):
            _no_value(capture, name, order, next(value for value in values if not math.isfinite(value)))


def in_order(capture: Capture, page: Page) -> None:
    """Unproven if rows that the database put in order of cursor are not so here."""
    at = place(capture, page, capture.cursor)
    if found := next(((a[at], b[at]) for a, b in pairwise(page.rows) if not a[at] <= b[at]), None):
        got = f"{capture.cursor}: {found[0]!r} before {found[1]!r}"
        refuse(
            capture, "has a cursor in another order than it has here", got, "declare another CURSOR: a time or a number"
        )


def _no_value(capture: Capture, name: str, order: Order, value: Any) -> NoReturn:
    fix = "give such rows another value"
    if name == capture.cursor:
        fix += f", or NULL: by UPDATE, or by NULLIF({name}, '{value}') AS {name}, but {SLOW}"
    refuse(
        capture,
        f"met a value of {name} that has no place in its order",
        f"{value} in a column of type {order.kind}",
        fix,
    )


def _clause(capture: Capture, name: str) -> str:
    return "KEY" if name in capture.key else "CURSOR"
