"""A page of rows as the records that go to the topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.capture.database import Page
from penstock.capture.encode import formed, objects
from penstock.capture.pages import DELETED
from penstock.declare.capture import Capture
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Records:
    """Keys and values, one of each for a row; a value None is a tombstone."""

    keys: list[bytes]
    values: list[bytes | None]


def records(capture: Capture, page: Page) -> Records:
    """A page's rows as keys and values. PenstockError if a key is NULL, comes twice or is not selected."""
    require(capture, page)
    if not page.rows:
        return Records([], [])
    names = page.names
    columns = formed(names, page.rows)
    of_key = [columns[names.index(name)] for name in capture.key]
    if any(None in column for column in of_key):
        raise PenstockError(
            f"capture {capture.name} met a row without a key",
            got=f"NULL in {', '.join(capture.key)}",
            fix="declare as KEY columns that are NOT NULL, or leave such rows out by WHERE",
        )
    keys = objects(capture.key, of_key)
    if len(set(keys)) < len(keys):
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise PenstockError(
            f"capture {capture.name} met two rows with one key",
            got=twice.decode(),
            fix="declare as KEY what tells rows apart, e.g. the primary key",
        )
    if names[-1] != DELETED:
        return Records(keys, list(objects(names, columns)))
    values = objects(names[:-1], columns[:-1])
    said = zip(values, columns[-1], strict=True)
    return Records(keys, [None if deleted else value for value, deleted in said])


def columns_of(page: Page) -> tuple[tuple[str, str], ...]:
    """(name, type) of the columns that go to the topic."""
    return tuple(column for column in page.columns if column[0] != DELETED)


def require(capture: Capture, page: Page) -> list[str]:
    """The names of the columns that go to the topic. PenstockError if key or cursor is not among them."""
    names = [name for name, _ in columns_of(page)]
    if lacking := {capture.cursor, *capture.key} - set(names):
        raise PenstockError(
            f"capture {capture.name} selects no column {', '.join(sorted(lacking))}",
            got=", ".join(names),
            fix="name key and cursor as the SELECT does",
        )
    return names


def last(capture: Capture, page: Page, names: Iterable[str]) -> tuple[Any, ...]:
    """Some columns of a page's last row. PenstockError if key or cursor is not among its columns."""
    require(capture, page)
    return tuple(page.rows[-1][page.names.index(name)] for name in names)


def place(capture: Capture, page: Page, name: str) -> int:
    """Where a column stands in a page. PenstockError if it does not."""
    require(capture, page)
    return page.names.index(name)
