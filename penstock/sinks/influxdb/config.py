"""Declares an InfluxDB 1.x measurement as a sink's output, and its limits.

A point is identified by its measurement, tags and time. Each of its fields has the value of the newest row that gave it
one, in whatever order rows came: the field's version is kept beside it, as the field `_version.<field>`. A NULL leaves
a field as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.model.sink import Sink
from penstock.sinks.core.document import DocumentOutput

if TYPE_CHECKING:
    from pyspark.sql import Column

# The field with the version of another field; alone, the version of a deletion.
VERSION = "_version"
# The field that marks deleted points.
DELETED_FIELD = "deleted"
# The suffix of the measurement with the tombstones of another one.
TOMBSTONE_SUFFIX = ".tombstones"
# Fields of that measurement: the version of a point's newest future upsert, and the position of its record.
FUTURE_FIELD, POSITION_FIELD = "_future", "_position"
# InfluxDB refuses these as names of a tag or field, or drops their values.
RESERVED = {"time", "_field", "_measurement", VERSION}
TYPES = {"integer", "float", "string", "boolean"}
# InfluxDB drops the backslash of a measurement's name, so that the point belongs to another measurement.
ESCAPES = re.compile(r'\\[,= "]')


@dataclass(frozen=True)
class InfluxDBLimits:
    """Limits of InfluxDB 1.x, and of one request.

    Attributes:
        first_us, last_us: times of points, µs since 1970.
        key_bytes: of a measurement with its tags.
        request_bytes: less than a reverse proxy takes by default (nginx: 1 MiB), and than InfluxDB does (25 MB).
        request_lines: what InfluxDB's own documentation advises.
    """

    first_us: int = -9_223_372_036_854_775
    last_us: int = 9_223_372_036_854_775
    key_bytes: int = 65_535
    request_bytes: int = 1_000_000
    request_lines: int = 5000


LIMITS = InfluxDBLimits()


@dataclass(frozen=True, kw_only=True)
class InfluxDB(DocumentOutput):
    """A measurement of a database, or one for each value of a column.

    Attributes:
        database: its database.
        measurement: its name; empty if `measurement_column` gives it.
        tags: columns.
        fields: columns with the type each is written as: integer, float, string, boolean, or empty for its own. Every
            other column if there are none.
        time: a column; the row's `at` if empty.
        versioned: False writes each row as it comes, without reading what exists: for rows that never change.
    """

    connection: str = "influxdb"
    database: str
    measurement: str = ""
    measurement_column: str = ""
    tags: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    time: str = ""
    versioned: bool = True

    writer: ClassVar[str] = "penstock.sinks.influxdb.writer:InfluxWriter.open"
    store_schema: ClassVar[str] = "penstock.sinks.influxdb.points:point_schema"

    @property
    def replacement_obstacle(self) -> str:
        return f"{self.name} is a measurement: InfluxDB has neither aliases nor a way to rename one"

    def __post_init__(self) -> None:
        if mistake := next(self._mistakes(), None):
            what, got, hint = mistake
            raise DeclarationError(f"sink {self.sink}: {what}", got=got, hint=hint)

    def _mistakes(self) -> Iterator[tuple[str, object, str]]:
        names = [*self.tags, *(name for name, _ in self.fields)]
        if not self.database or bool(self.measurement) == bool(self.measurement_column):
            target = (self.database, self.measurement, self.measurement_column)
            hint = "UPSERT INTO influxdb.<database>.<measurement>, or influxdb.<database> and MEASUREMENT (column)"
            yield "not a database and one measurement", target, hint
        if self.measurement and (why := measurement_error(self.measurement)):
            yield why, self.measurement, "give it another name"
        if self.suffix or self.expire_seconds:
            hint = "leave SUFFIX and EXPIRE out; the retention policy of the database says how long points are kept"
            yield "InfluxDB partitions by time itself", self.suffix or f"EXPIRE {self.expire_seconds} s", hint
        if wrong := [name for name in names if is_reserved(name)]:
            yield "a name that a tag or field of InfluxDB cannot have", wrong[0], "give the column another name: AS"
        if self.tombstones == "mark" and DELETED_FIELD in names:
            yield (
                f"a column named {DELETED_FIELD}, which MARK writes",
                DELETED_FIELD,
                "give the column another name: AS",
            )
        special = [*names, *(name for name in (self.time, self.measurement_column) if name)]
        if len(set(special)) < len(special):
            yield (
                "a column with two roles",
                ", ".join(special),
                "a tag, a field, the time or the measurement",
            )
        if unknown := [kind for _, kind in self.fields if kind and kind not in TYPES]:
            yield "not a type of a field", unknown[0], f"one of {', '.join(sorted(TYPES))}"

    @classmethod
    def declared_by(cls, sink: Sink) -> dict[str, Any]:
        database, *measurement = sink.target
        return {
            "database": database,
            "measurement": "".join(measurement),
            "measurement_column": sink.measurement,
            "tags": sink.tags,
            "fields": tuple(sink.fields.items()),
            "time": sink.time,
            "versioned": sink.version != "none",
        }

    @property
    def name(self) -> str:
        return f"influxdb:{self.database}.{self.measurement or f'({self.measurement_column})'}"

    def fields_among(self, columns: Iterable[str]) -> Sequence[tuple[str, str]]:
        """Which columns of the SELECT are fields, each with the type it is written as, or empty for its own.

        The field that MARK writes replaces a column of its name.
        """
        marks = (DELETED_FIELD,) if self.tombstones == "mark" else ()
        taken = {name.lower() for name in (*self.tags, self.time, self.measurement_column, *marks)}
        return self.fields or [(name, "") for name in columns if name.lower() not in taken]

    def body(self) -> list[Column]:
        return [F.col("doc")]


def is_reserved(name: str) -> bool:
    """Whether a tag or field cannot have a name. A character behind a backslash cannot be escaped by another."""
    return name in RESERVED or name.startswith(f"{VERSION}.") or not name.isprintable() or not name or "\\" in name


def measurement_error(measurement: str) -> str:
    """Why InfluxDB cannot have a measurement of exactly this name; empty if it can."""
    if not measurement:
        return "its measurement has no name"
    if measurement.startswith("#"):
        return f"its measurement would make a comment of its line: {measurement[:100]}"
    if ESCAPES.search(measurement):
        return f"its measurement has a backslash before a comma, a blank, = or a quotation mark: {measurement[:100]!r}"
    return line_end_error(measurement)


def line_end_error(name: str) -> str:
    """Why a measurement or the value of a tag does not stay within its line; empty if it does."""
    if name.endswith("\\") or any(c < " " or c == "\x7f" for c in name):
        return f"a name with a control character, or a backslash at its end: {name[:100]!r}"
    return ""
