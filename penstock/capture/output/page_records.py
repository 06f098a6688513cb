"""Converts a page of rows to records of the topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.capture.checks.column_types import AS_BYTES, AS_TEXT
from penstock.capture.output.encode import EncodingError, Unreadable, formed, objects
from penstock.capture.output.schema_columns import arrow_columns
from penstock.capture.polling.keyset_queries import DELETED
from penstock.capture.source.base import SourcePage
from penstock.codec.registry_values import ValueEncoder
from penstock.errors import PenstockError
from penstock.model.capture import Capture
from penstock.model.checks.schema_checks import COLUMNS_NOT_OF_SCHEMA, SELECT_FIELDS, column_mismatch

Columns = Mapping[str, Sequence[Any]]
"""The values of each column, by its name."""


@dataclass(frozen=True)
class PageRecords:
    """Keys and values of rows; a value None is a tombstone.

    Attributes:
        unreadable: Why a row cannot have a record, by key. Its value is for the dead letter.
    """

    keys: list[bytes]
    values: list[bytes | None]
    unreadable: Mapping[bytes, str] = field(default_factory=dict)


def records(capture: Capture, page: SourcePage, encoder: ValueEncoder[Any] | None = None) -> PageRecords:
    """The keys and values of a page.

    Args:
        capture: The capture.
        page: The page.
        encoder: Of the topic's schema; None for JSON.

    Raises:
        PenstockError: A key is NULL, not unique or not selected, or the columns are not those of the schema.
        EncodingError: A column has a type that cannot be encoded.
    """
    require(capture, page)
    if not page.rows:
        return PageRecords([], [])
    columns = dict(zip(page.names, zip(*page.rows, strict=True), strict=True))
    deleted = columns.pop(DELETED, None) or [0] * len(page.rows)
    try:
        # Of JSON all columns are formed, by a schema only those of the key.
        formed_columns = _formed(columns if encoder is None else {name: columns[name] for name in capture.key})
        keys = _keys(capture, formed_columns)
        values, reasons = _by_schema(encoder, columns) if encoder else _json(capture.dialect, formed_columns)
    except EncodingError as e:
        if e.row is not None and encoder:
            e.got = f"{e.got}, first of key {keys[e.row].decode()}"
        as_text = f"select {AS_TEXT[capture.dialect].format(e.column)} AS {e.column}"
        e.restate(e.what, f"{as_text}, or {'declare another type' if encoder else 'leave it out'}")
        raise
    rows = list(zip(keys, [None if d else v for v, d in zip(values, deleted, strict=True)], strict=True))
    unreadable = {rows[number][0]: reason for number, reason in reasons.items() if rows[number][1] is not None}
    return PageRecords(keys, [value for _, value in rows], unreadable)


def _formed(columns: Columns) -> Columns:
    return dict(zip(columns, formed(list(columns), list(columns.values())), strict=True))


def _keys(capture: Capture, formed_columns: Columns) -> list[bytes]:
    """The keys of a page."""
    key_columns = [formed_columns[name] for name in capture.key]
    if any(None in column for column in key_columns):
        raise PenstockError(
            f"capture {capture.name} met a row without a key",
            got=f"NULL in {', '.join(capture.key)}",
            hint="declare as KEY columns that are NOT NULL, or leave such rows out by WHERE",
        )
    keys = objects(capture.key, key_columns)
    if len(set(keys)) < len(keys):
        duplicate = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise PenstockError(
            f"capture {capture.name} met two rows with one key",
            got=duplicate.decode(),
            hint="declare as KEY what tells rows apart, e.g. the primary key",
        )
    return keys


def _json(dialect: str, formed_columns: Columns) -> tuple[list[bytes], dict[int, str]]:
    """The values of a page as JSON, and by their number why rows cannot have a record."""
    names, columns = list(formed_columns), list(formed_columns.values())
    try:
        return objects(names, columns), {}
    except TypeError:
        reasons = enumerate(_unreadable_reasons(dialect, names, columns))
        return _readable_objects(names, columns), {number: reason for number, reason in reasons if reason}


def _by_schema(encoder: ValueEncoder[Any], columns: Columns) -> tuple[list[bytes], dict[int, str]]:
    """As `_json`, by a schema. A row that cannot have a record has JSON, for its dead letter."""
    arrow, wrong = arrow_columns(encoder.schema, columns)
    values, reasons = encoder.encode(arrow, wrong)
    reasons |= wrong
    names = list(columns)
    for number in reasons:
        row = formed(names, [columns[name][number : number + 1] for name in names])
        [values[number]] = _readable_objects(names, row)
    return [value or b"" for value in values], reasons


def _readable_objects(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    return objects(names, [[_readable(value) for value in column] for column in columns])


def _unreadable_reasons(dialect: str, names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yields for each row why it cannot have a record; empty if it can."""
    for row in zip(*columns, strict=True):
        unreadable = next((pair for pair in zip(names, row, strict=True) if _is_unreadable(pair[1])), None)
        if unreadable is None:
            yield ""
            continue
        name, value = unreadable
        yield (
            f"column {name} is text with bytes that are invalid in its encoding: {_readable(value)}; correct it, or "
            f"select {AS_BYTES[dialect].format(name)} AS {name}"
        )


def _is_unreadable(value: Any) -> bool:
    return isinstance(value, Unreadable) or (isinstance(value, list) and any(map(_is_unreadable, value)))


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return str(value) if isinstance(value, Unreadable) else value


def columns_of(page: SourcePage) -> tuple[tuple[str, str], ...]:
    """(name, type) of the columns that a record has."""
    return tuple(column for column in page.columns if column[0] != DELETED)


def require(capture: Capture, page: SourcePage) -> list[str]:
    """The names of the columns that a record has; PenstockError if key or cursor is missing, or a field of
    the topic's schema."""
    names = [name for name, _ in columns_of(page)]
    if DELETED in page.names and not capture.deleted_sql:
        raise PenstockError(
            f"capture {capture.name} selects a column whose name is taken",
            got=DELETED,
            hint="give it another name by AS, and name the others one by one in place of `*`",
        )
    if lacking := {capture.cursor, *capture.key} - set(names):
        raise PenstockError(
            f"capture {capture.name} selects no column {', '.join(sorted(lacking))}",
            got=", ".join(names),
            hint="name key and cursor as the SELECT does",
        )
    schema = capture.topic.registry_schema
    if schema and (got := column_mismatch(schema, names)):
        raise PenstockError(f"capture {capture.name}: {COLUMNS_NOT_OF_SCHEMA}", got=got, hint=SELECT_FIELDS)
    return names


def last(capture: Capture, page: SourcePage, names: Iterable[str]) -> tuple[Any, ...]:
    """Columns of the last row of a page; PenstockError if key or cursor is missing."""
    require(capture, page)
    return tuple(page.rows[-1][page.names.index(name)] for name in names)


def column_index(capture: Capture, page: SourcePage, name: str) -> int:
    """The index of a column in a page; PenstockError if key or cursor is missing."""
    require(capture, page)
    return page.names.index(name)
