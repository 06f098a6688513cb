"""Rows as records: a JSON object of the key's columns, and one of all columns, in the order of the SELECT.

What a database's type becomes, without loss; the same row always gives the same bytes:

| in the database | in JSON |
|---|---|
| integers, also unsigned and 64 bits wide | a number |
| booleans of PostgreSQL | true, false (MariaDB's BOOLEAN is a TINYINT: a number) |
| DECIMAL, NUMERIC | a string with all its digits, `"12.30"` |
| FLOAT, DOUBLE, REAL | the shortest number that reads back as the same; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| text, ENUM, SET, UUID | a string |
| DATE | `"2026-02-28"` |
| DATETIME, TIMESTAMP without time zone | `"2026-02-28T23:59:59.123456"`, always six digits |
| TIMESTAMP WITH TIME ZONE | the same in UTC, with a `Z` |
| the same beyond Python's calendar: `infinity`, years before Christ or above 9999 | as the database writes it |
| TIME, also MariaDB's beyond a day or below zero | `"-838:59:59.000000"` |
| `24:00:00`, and TIME WITH TIME ZONE, of PostgreSQL | as the database writes it |
| text with bytes that are invalid in its encoding | none: its row becomes a dead letter |
| BINARY, BLOB, BYTEA, BIT | base64 |
| JSON | a string that holds the JSON text |
| arrays of PostgreSQL | an array of the above |
| arrays of its enums, domains and types of extensions | as the database writes it, `"{a,b}"` |
| NULL | null |
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any
from uuid import UUID

import orjson

from penstock.errors import PenstockError


@dataclass(frozen=True)
class Unreadable:
    """Text whose bytes are invalid in its encoding."""

    data: bytes

    def __str__(self) -> str:
        return self.data.decode(errors="backslashreplace")


def text_of(data: bytes) -> str | Unreadable:
    """Decode a text in UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Unreadable(data)


# orjson writes integers up to this as numbers.
INTEGER_LIMIT = 2**64


class EncodingError(PenstockError):
    """A column has a value of a type that cannot be encoded.

    Attributes:
        column: Its name.
        row: The number of the first row that has one; None if it is not known.
    """

    column = ""
    row: int | None = None


# Types that orjson writes directly.
NATIVE = {str, bool, type(None)}


def encode(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """Encode rows as JSON objects; EncodingError if a column has a type that cannot be encoded."""
    return objects(names, formed(names, list(zip(*rows, strict=True))))


def formed(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Columns, with values that JSON can have; EncodingError as `encode`."""
    return [_column(name, column) for name, column in zip(names, columns, strict=True)]


def objects(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """Columns of `formed` as a JSON object for each row; TypeError if a value is `Unreadable`."""
    return [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _column(name: str, values: Sequence[Any]) -> Sequence[Any]:
    kinds = set(map(type, values))
    # Most columns need no conversion.
    if kinds <= NATIVE or (kinds <= {int, *NATIVE} and _fits(values)):
        return values
    try:
        kinds.discard(type(None))
        if len(kinds) == 1 and (form := FORMS.get(kinds.pop())):
            return [None if value is None else form(value) for value in values]
        return [_plain(value) for value in values]
    except TypeError as e:
        what, hint = f"column {name} has a type that cannot be captured", "convert the column in the SELECT to text"
        error = EncodingError(what, got=e, hint=hint)
        error.column = name
        raise error from e


def _fits(values: Sequence[Any]) -> bool:
    numbers = [value for value in values if type(value) is int]
    return min(numbers) >= -INTEGER_LIMIT // 2 and max(numbers) < INTEGER_LIMIT


def digest(value: bytes) -> bytes:
    """An eight-byte digest of a record's value."""
    return blake2b(value, digest_size=8).digest()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    for kind, form in FORMS.items():
        if isinstance(value, kind):
            return form(value)
    raise TypeError(type(value).__name__)


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _datetime(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _time(value: time) -> str:
    if value.tzinfo is not None:
        raise TypeError("time with time zone")
    return value.isoformat(timespec="microseconds")


def _duration(value: timedelta) -> str:
    micros = abs(value) // timedelta(microseconds=1)
    seconds, micros = divmod(micros, 1_000_000)
    sign = "-" if value < timedelta(0) else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


# In this order: a datetime is a date too.
FORMS: dict[type, Callable[[Any], Any]] = {
    int: lambda n: n if -INTEGER_LIMIT // 2 <= n < INTEGER_LIMIT else str(n),
    float: _float,
    Decimal: lambda d: format(d, "f"),
    datetime: _datetime,
    date: date.isoformat,
    time: _time,
    timedelta: _duration,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    UUID: str,
    Unreadable: lambda value: value,
    list: lambda many: [_plain(one) for one in many],
}


def decode(value: Any, kind: type) -> Any:
    """Convert a value of a record's key to the Python type of its column."""
    parse = PARSERS.get(kind)
    return parse(value) if parse and isinstance(value, str) else value


def _microseconds(text: str) -> timedelta:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.removeprefix("-").split(":")
    whole_seconds, micros = seconds.split(".")
    return sign * timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(whole_seconds), microseconds=int(micros)
    )


PARSERS: dict[type, Callable[[str], Any]] = {
    bytes: base64.b64decode,
    memoryview: base64.b64decode,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    timedelta: _microseconds,
    Decimal: Decimal,
    UUID: UUID,
    int: int,
    float: float,
}
