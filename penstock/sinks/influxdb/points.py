"""Turns a batch's rows into points of InfluxDB, in columns.

A cell is the value that a row gives a field of a point: `series INT` and `field INT`, indexes (`field` is DELETION for
a row that deletes its point), `time BIGINT` in µs, `version BIGINT`, `row BIGINT` and `text BINARY`, the value as a
line has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import compute

from penstock.errors import SinkError
from penstock.sinks.core.spark_types import spark_only_type
from penstock.sinks.influxdb.config import (
    DELETED_FIELD,
    LIMITS,
    TOMBSTONE_SUFFIX,
    InfluxDB,
    is_reserved,
    line_end_error,
    measurement_error,
)

# Its stubs accept neither bytes nor plain numbers.
pc: Any = compute
DELETION = -1
# A series, by its number, and a time.
Point = tuple[int, int]
POINT = ["series", "time"]
CELL = [*POINT, "field"]
DAY_US = 86_400_000_000
# Days that a timestamp can have before and after 1970; a date can have more.
TIMESTAMP_DAYS = 100_000_000
# The end of the year 32767, the last that Arrow can write as text, µs since 1970.
LAST_TEXT_US = 11_248_738 * DAY_US - 1
ARROW_TYPES = {"integer": pa.int64(), "float": pa.float64(), "string": pa.binary(), "boolean": pa.bool_()}


@dataclass(frozen=True)
class Series:
    """A measurement with its tags; an empty tag counts as absent."""

    measurement: str
    tags: tuple[tuple[str, str], ...]

    @property
    def present(self) -> list[tuple[str, str]]:
        return [(tag, value) for tag, value in self.tags if value]

    def line_prefix(self, suffix: str = "") -> bytes:
        """The beginning of a line. suffix: of the measurement's name."""
        tags = "".join(f",{escaped(tag, ',= ')}={escaped(value, ',= ')}" for tag, value in sorted(self.present))
        return (escaped(self.measurement + suffix, ", ") + tags).encode()


@dataclass
class Points:
    """The cells of a batch. refused: why rows make no point, by number."""

    series: list[Series] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    cells: pa.Table = field(default_factory=lambda: pa.table({}))


def read_points(output: InfluxDB, rows: pa.Table) -> Points:
    """The cells of rows as `DocumentOutput.columns` gives them. SinkError if a column is missing or cannot be used."""
    return _PointReader(output, rows.combine_chunks()).read()


def point_schema(output: InfluxDB, shape: pa.StructType) -> dict[str, Any]:
    """The measurement of an output, and the role of its columns. SinkError if such columns make no point."""
    own = {f.name.lower(): str(f.type) for f in shape}
    fields = output.fields_among(f.name for f in shape)
    columns = {
        "doc": pa.array([{}], shape), "refused": pa.nulls(1, pa.binary()),
        "deleted": pa.array([False]), "at": pa.nulls(1, pa.timestamp("us", "UTC")), "version": pa.array([0]),
    }  # fmt: skip
    # A row without values checks the types.
    read_points(output, pa.table(columns))
    return {
        "database": output.database,
        "measurement": output.measurement or f"each value of {output.measurement_column}",
        "tags": output.tags,
        "time": output.time or "event time",
        "fields": {name: kind or own.get(name.lower(), "") for name, kind in fields},
        "versions": output.versioned,
    }


class _PointReader:
    def __init__(self, output: InfluxDB, rows: pa.Table) -> None:
        self._output, self._rows, self._count = output, rows, rows.num_rows
        doc = rows["doc"]
        self._doc = doc.combine_chunks() if isinstance(doc, pa.ChunkedArray) else doc
        self._columns = {f.name.lower(): at for at, f in enumerate(self._doc.type)}
        self._points = Points()

    def read(self) -> Points:
        points, output = self._points, self._output
        if not self._count:
            return points
        self._refuse(pc.is_valid(self._rows["refused"]), lambda at: _text(self._rows["refused"][at]))
        deleted = pc.and_(self._rows["deleted"], output.tombstones != "ignore")
        ignored = pc.and_(self._rows["deleted"], output.tombstones == "ignore")
        time = self._micros(output.time) if output.time else _micros(self._rows["at"])
        has_time = pc.is_valid(time) if output.time else pa.repeat(pa.scalar(value=False), self._count)
        self._refuse(pc.and_not(deleted, has_time), lambda _: "it deletes a point and does not say which")
        self._refuse(pc.and_(pc.is_null(time), pc.invert(ignored)), lambda _: "its point has no time")
        out = pc.or_(pc.less(time, LIMITS.first_us), pc.greater(time, LIMITS.last_us))
        self._refuse(out, lambda at: f"its time is outside the years 1677 to 2262: {time[at]} µs")
        series = self._series(pc.invert(ignored))
        self._cells(series, time, deleted, ignored)
        return points

    def _cells(self, series: Any, time: Any, deleted: Any, ignored: Any) -> None:
        points, parts = self._points, []
        rows = pa.array(range(self._count), pa.int64())
        whole = {"series": series, "time": time, "version": self._rows["version"], "row": rows}

        def add(name: str, values: Any, wanted: Any) -> None:
            number = DELETION
            if name:
                number = len(points.fields)
                points.fields.append(name)
            columns = {**whole, "field": pa.repeat(pa.scalar(number, pa.int32()), self._count), "text": values}
            parts.append(pa.table(columns).filter(pc.and_(wanted, pc.is_valid(values))))

        written = pc.invert(pc.or_(deleted, ignored))
        has_value = pa.repeat(pa.scalar(value=False), self._count)
        for name, kind in self._fields():
            values = self._values(name, kind, written)
            has_value = pc.or_(has_value, pc.is_valid(values))
            add(name, values, written)
        self._refuse(pc.and_(written, pc.invert(has_value)), lambda _: "all fields of its point are NULL")
        if self._output.tombstones == "mark":
            add(DELETED_FIELD, pc.cast(deleted, pa.string()).cast(pa.binary()), pc.invert(ignored))
        if self._output.tombstones == "delete":
            add("", pa.repeat(pa.scalar(b""), self._count), deleted)
        refused = pa.array(sorted(points.refused), pa.int64())
        cells = pa.concat_tables(parts)
        points.cells = cells.filter(pc.invert(pc.is_in(cells["row"], refused)))

    def _fields(self) -> Sequence[tuple[str, str]]:
        fields = self._output.fields_among(f.name for f in self._doc.type)
        if names := [name for name, _ in fields if is_reserved(name)]:
            hint = "give the column another name: AS"
            raise self._error("a name that a field of InfluxDB cannot have", names[0], hint)
        return fields

    def _column(self, name: str) -> Any:
        # As in Spark, case is ignored.
        if name.lower() not in self._columns:
            columns = ", ".join(f.name for f in self._doc.type) or "none"
            raise self._error(
                f"the SELECT has no column {name}", columns, "name the columns of the SELECT as the clauses do"
            )
        return pc.struct_field(self._doc, [self._columns[name.lower()]])

    def _error(self, what: str, got: str, hint: str) -> SinkError:
        return SinkError(f"sink {self._output.sink}: {what}", got=got, hint=hint)

    def _unusable(self, name: str, kind: str) -> SinkError:
        hint = "take its parts as columns of their own, or its text: to_json, or a cast to STRING"
        return self._error(f"{name} is not a value of InfluxDB", kind, hint)

    def _micros(self, name: str) -> Any:
        values = self._column(name)
        if pa.types.is_null(values.type):
            return values.cast(pa.int64())
        if not (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
            raise self._error(f"{name} is not a time", str(values.type), "e.g. timestamp_millis(column)")
        return _micros(values)

    def _series(self, wanted: Any) -> Any:
        """The number of each row's series; rows with impossible names are refused."""
        output, points = self._output, self._points
        named = [output.measurement.encode()] * self._count
        if output.measurement_column:
            named = self._names(output.measurement_column, wanted)
        series_of: dict[tuple[bytes, ...], int | str] = {}
        numbers = []
        rows = zip(named, *(self._names(tag, wanted) for tag in output.tags), strict=True)
        for at, (names, is_wanted) in enumerate(zip(rows, wanted.to_pylist(), strict=True)):
            number = series_of.get(names)
            if number is None:
                series = self._new_series(names)
                number = series_of[names] = series if isinstance(series, str) else len(points.series)
                if isinstance(series, Series):
                    points.series.append(series)
            if isinstance(number, str) and is_wanted:
                points.refused.setdefault(at, number)
            numbers.append(number if isinstance(number, int) else 0)
        return pa.array(numbers, pa.int32())

    def _new_series(self, names: Sequence[bytes]) -> Series | str:
        """A series, or why it is impossible."""
        try:
            measurement, *values = [name.decode() for name in names]
        except UnicodeDecodeError:
            return "its measurement or a tag of it is not UTF-8"
        tags = tuple(zip(self._output.tags, values, strict=True))
        if why := measurement_error(measurement) or next(filter(None, map(line_end_error, values)), ""):
            return why
        series = Series(measurement, tags)
        if (size := len(series.line_prefix(TOMBSTONE_SUFFIX))) > LIMITS.key_bytes:
            return f"its measurement and tags take {size} bytes, InfluxDB has {LIMITS.key_bytes}"
        return series

    def _names(self, name: str, wanted: Any) -> list[bytes]:
        """Measurements or tags; NULL is empty, as both are the same series."""
        values = self._column(name)
        if kind := _type_error(values.type):
            raise self._error(f"{name} is not a name", kind, "take a STRING or a number")
        return list(pc.fill_null(self._as_text(name, values, wanted).cast(pa.binary()), b"").to_pylist())

    def _values(self, name: str, kind: str, written: Any) -> Any:
        """Values as a line has them; rows with a value that InfluxDB does not have are refused."""
        values = self._column(name)
        if wrong := _type_error(values.type):
            raise self._unusable(name, wrong)
        if kind and not pa.types.is_null(values.type):
            values = self._cast_values(name, kind, values, written)
        type_ = values.type
        if pa.types.is_integer(type_):
            return pc.binary_join_element_wise(values.cast(pa.string()), "i", "").cast(pa.binary())
        if pa.types.is_floating(type_):
            not_finite = pc.and_(pc.is_valid(values), pc.invert(pc.is_finite(values)))
            self._refuse(pc.and_(written, not_finite), lambda at: f"its field {name} is {values[at]}")
            return values.cast(pa.string()).cast(pa.binary())
        if pa.types.is_decimal(type_) or pa.types.is_boolean(type_):
            return values.cast(pa.string()).cast(pa.binary())
        raw = self._as_text(name, values, written).cast(pa.binary())
        for one, by in ((b"\\", b"\\\\"), (b'"', b'\\"')):
            raw = pc.replace_substring(raw, one, by)
        quote = pa.scalar(b'"')
        return pc.binary_join_element_wise(quote, raw, quote, pa.scalar(b""))

    def _cast_values(self, name: str, kind: str, values: Any, written: Any) -> Any:
        wanted = ARROW_TYPES[kind]
        if kind == "string":
            return self._as_text(name, values, written)
        if values.type == wanted or (kind == "float" and pa.types.is_decimal(values.type)):
            return values
        if pa.types.is_binary(values.type):
            raise self._unusable(name, f"BINARY, which cannot be cast to {kind}")
        text = values.cast(pa.string()) if _is_text(values.type) else values
        try:
            return pc.cast(text, wanted)
        except pa.ArrowNotImplementedError:
            raise self._unusable(name, f"{values.type}, which cannot be cast to {kind}") from None
        except pa.ArrowInvalid:
            pass
        # Some value cannot be cast: cast them one by one.
        new_values = [_cast(value, wanted) for value in text]
        uncastable = pa.array([new is None and old.is_valid for new, old in zip(new_values, text, strict=True)])
        self._refuse(
            pc.and_(written, uncastable), lambda at: f"its field {name} cannot be cast to {kind}: {str(text[at])[:100]}"
        )
        return pa.array(new_values, wanted)

    def _as_text(self, name: str, values: Any, wanted: Any) -> Any:
        """Values as text; wanted rows with a time that has no text are refused."""
        if _is_text(values.type):
            return values
        if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
            micros = _micros(values)
            has_none = pc.or_(pc.less(micros, -LAST_TEXT_US), pc.greater(micros, LAST_TEXT_US))
            self._refuse(pc.and_(wanted, has_none), lambda _: f"its {name} is a time more than 30,000 years away")
        return values.cast(pa.string())

    def _refuse(self, where: Any, why: Callable[[int], str]) -> None:
        for at in pc.indices_nonzero(pc.fill_null(where, fill_value=False)).to_pylist():
            self._points.refused.setdefault(at, why(at))


def _type_error(kind: pa.DataType) -> str:
    """The name of a type that no point can have; empty for all others."""
    return spark_only_type(kind) or (str(kind) if pa.types.is_nested(kind) or pa.types.is_duration(kind) else "")


def _micros(times: Any) -> Any:
    if pa.types.is_date32(times.type):
        days = times.cast(pa.int32()).cast(pa.int64())
        last = pc.multiply(pc.sign(days), TIMESTAMP_DAYS)
        return pc.multiply(pc.if_else(pc.greater(pc.abs(days), TIMESTAMP_DAYS), last, days), DAY_US)
    zone = getattr(times.type, "tz", None)
    return times.cast(pa.timestamp("us", zone)).cast(pa.int64())


def _is_text(type_: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_null)
    return any(fits(type_) for fits in tests)


def _cast(value: Any, wanted: Any) -> object:
    try:
        return value.cast(wanted).as_py()
    except pa.ArrowInvalid:
        return None


def _text(value: Any) -> str:
    return str(value.as_py().decode(errors="replace"))


def escaped(name: str, special: str) -> str:
    return "".join(f"\\{c}" if c in special else c for c in name)
