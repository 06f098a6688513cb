"""InfluxDB 1.x as a place for a sink's rows.

A point is its measurement, tags and time. Each of its fields is of the newest row that gave it a value, in whatever
order they came: the field's version is kept beside it, as the field `_version.<field>`. A NULL says nothing of a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.sinks.core.document import Documents

if TYPE_CHECKING:
    from pyspark.sql import Column

# A name of a field that says how new another field is; alone, when a point was deleted.
VERSION = "_version"
# Of a field of every point where tombstones mark.
DELETED = "deleted"
# Behind a measurement's name: what was deleted of it.
GRAVES = ".graves"
# InfluxDB takes neither as the name of a tag or field, or drops what is in it.
RESERVED = {"time", "_field", "_measurement", VERSION}
TYPES = {"integer", "float", "string", "boolean"}
# InfluxDB takes the backslash away from a measurement's name, and the point for one of another measurement.
ESCAPES = re.compile(r'\\[,= "]')


@dataclass(frozen=True)
class Limits:
    """What InfluxDB 1.x holds. Times in µs since 1970; key: bytes of a measurement with its tags; request: bytes."""

    first: int = -9_223_372_036_854_775
    last: int = 9_223_372_036_854_775
    key: int = 65_535
    # Less than a reverse proxy takes by default (nginx: 1 MiB), and than InfluxDB does (25 MB).
    request: int = 1_000_000
    # What InfluxDB's own documentation advises for one request.
    lines: int = 5000


LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class InfluxDB(Documents):
    """A measurement of a database, or one for each value of a column.

    tags, time: columns; time: the row's `at` if empty. fields: columns with the type each is written as (integer,
    float, string, boolean, or empty for its own); every other column if there are none. versioned: False writes each
    row as it comes, without asking what is there: for rows that are never changed.
    """

    connection: str = "influxdb"
    database: str
    measurement: str = ""
    measurement_column: str = ""
    tags: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    time: str = ""
    versioned: bool = True

    writer: ClassVar[str] = "penstock.sinks.influxdb.writer:open_database"

    def __post_init__(self) -> None:
        said = next(self._amiss(), None)
        if said:
            what, got, hint = said
            raise DeclarationError(f"sink {self.sink}: {what}", got=got, hint=hint)

    def _amiss(self) -> Iterator[tuple[str, object, str]]:
        names = [*self.tags, *(name for name, _ in self.fields)]
        if not self.database or bool(self.measurement) == bool(self.measurement_column):
            given = (self.database, self.measurement, self.measurement_column)
            hint = "UPSERT INTO influxdb.<database>.<measurement>, or influxdb.<database> and MEASUREMENT (column)"
            yield "no database and one measurement", given, hint
        if self.measurement and (why := unfit(self.measurement)):
            yield why, self.measurement, "give it another name"
        if self.suffix or self.expire_seconds:
            hint = "leave SUFFIX and EXPIRE out; how long a database keeps its points says its retention policy"
            yield "InfluxDB keeps times apart by itself", self.suffix or f"EXPIRE {self.expire_seconds} s", hint
        if wrong := [name for name in names if reserved(name)]:
            yield "a name that a tag or field of InfluxDB cannot have", wrong[0], "give the column another name: AS"
        if self.tombstones == "mark" and DELETED in names:
            yield f"a column named {DELETED}, which MARK writes", DELETED, "give the column another name: AS"
        special = [*names, *(name for name in (self.time, self.measurement_column) if name)]
        if len(set(special)) < len(special):
            yield (
                "a column that is two things at once",
                ", ".join(special),
                "a tag, a field, the time or the measurement",
            )
        if strange := [kind for _, kind in self.fields if kind and kind not in TYPES]:
            yield "no type of a field", strange[0], f"one of {', '.join(sorted(TYPES))}"

    @property
    def name(self) -> str:
        return f"influxdb:{self.database}.{self.measurement or f'({self.measurement_column})'}"

    def fields_among(self, columns: Iterable[str]) -> Sequence[tuple[str, str]]:
        """Which columns of the SELECT are fields, each with the type it is written as, or empty for its own."""
        taken = {name.lower() for name in (*self.tags, self.time, self.measurement_column)}
        return self.fields or [(name, "") for name in columns if name.lower() not in taken]

    def body(self) -> list[Column]:
        return [F.col("doc")]


def reserved(name: str) -> bool:
    """Whether a tag or field cannot be called so. What a backslash stands before cannot be escaped by another."""
    return name in RESERVED or name.startswith(f"{VERSION}.") or not name.isprintable() or not name or "\\" in name


def unfit(measurement: str) -> str:
    """Why InfluxDB has no measurement of exactly this name; empty if it can have one."""
    if not measurement:
        return "its measurement has no name"
    if measurement.startswith("#"):
        return f"its measurement would make a comment of its line: {measurement[:100]}"
    if ESCAPES.search(measurement):
        return f"its measurement has a backslash before a comma, a blank, = or a quotation mark: {measurement[:100]!r}"
    return ending(measurement)


def ending(name: str) -> str:
    """Why a measurement or the value of a tag does not stay within its line; empty if it does."""
    if name.endswith("\\") or any(c < " " or c == "\x7f" for c in name):
        return f"a name with a control character, or a backslash at its end: {name[:100]!r}"
    return ""
