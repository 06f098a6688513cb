"""Which cells of a batch are the newest: among themselves, and beside what InfluxDB has of their points already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import compute

from penstock.sinks.influxdb.client import literal, quoted
from penstock.sinks.influxdb.config import GRAVES, LIMITS, VERSION
from penstock.sinks.influxdb.points import CELL, DELETION, POINT, Points, Series

# Its stubs know neither bytes nor plain numbers.
pc: Any = compute
T = TypeVar("T")

# Series asked for by one statement, and spans of time, at most, that their points are looked for in.
SERIES = 50
SPANS = 10
# Statements of one request, which InfluxDB takes no more of than of lines.
STATEMENTS = 50
SCHEMA = pa.schema([("series", pa.int32()), ("time", pa.int64()), ("field", pa.int32()), ("version", pa.int64())])


def newest(cells: pa.Table) -> pa.Table:
    """Of each cell the newest, of equal versions the later row; fields behind a deletion of their point."""
    cells = cells.sort_by([("version", "ascending"), ("row", "ascending")])
    cells = cells.append_column("at", pa.array(range(cells.num_rows), pa.int64()))
    last = cells.group_by(CELL).aggregate([("at", "max")])
    cells = cells.take(last["at_max"])
    gone = cells.filter(pc.equal(cells["field"], DELETION)).select([*POINT, "at"]).rename_columns([*POINT, "gone"])
    joined = cells.join(gone, POINT, join_type="left outer")
    return joined.filter(pc.greater_equal(joined["at"], pc.fill_null(joined["gone"], -1))).drop_columns(["at", "gone"])


def hidden(cells: pa.Table, refused: Mapping[int, str]) -> pa.Table:
    """The cells of other rows that stand for the same points as rows which the store refuses."""
    by = pc.is_in(cells["row"], pa.array(list(refused), pa.int64()))
    points = cells.filter(by).group_by(POINT).aggregate([])
    return cells.filter(pc.invert(by)).join(points, POINT, join_type="inner")


def current(cells: pa.Table, known: pa.Table) -> tuple[pa.Table, int]:
    """The cells that the store has no newer version of, and how many rows have others. known: `CELL`, `version`."""
    graves = known.filter(pc.equal(known["field"], DELETION)).select([*POINT, "version"])
    whole = known.group_by(POINT).aggregate([("version", "max")])
    joined = cells
    for name, table, keys in (
        ("own", known.select([*CELL, "version"]), CELL),
        ("grave", graves, POINT),
        ("whole", whole, POINT),
    ):
        joined = joined.join(table.rename_columns([*keys, name]), keys, join_type="left outer")
    own = pc.if_else(pc.equal(joined["field"], DELETION), joined["whole"], joined["own"])
    there = pc.max_element_wise(own, joined["grave"])
    fresh = pc.fill_null(pc.greater_equal(joined["version"], there), fill_value=True)
    old = pc.count_distinct(joined.filter(pc.invert(fresh))["row"]).as_py()
    return joined.filter(fresh).select(cells.column_names), old


def questions(points: Points) -> Iterator[str]:
    """Requests for all versions that matter."""
    times: dict[int, set[int]] = {}
    told: Any = points.cells
    for series, time in zip(told["series"].to_pylist(), told["time"].to_pylist(), strict=True):
        times.setdefault(series, set()).add(time)
    by_measurement: dict[str, list[int]] = {}
    for series in times:
        by_measurement.setdefault(points.series[series].measurement, []).append(series)
    wanted = ", ".join(quoted(name) for name in (VERSION, *(f"{VERSION}.{name}" for name in points.fields)))
    statements = []
    for measurement, numbers in by_measurement.items():
        conditions = [(f"({where(points.series[n])})", times[n]) for n in numbers]
        for some in pieces(conditions, SERIES, lambda one: len(one[0])):
            one_of = " OR ".join(condition for condition, _ in some)
            for first, last in _spans(set().union(*(found for _, found in some))):
                statements.append(
                    f"SELECT {wanted} FROM {quoted(measurement)}, {quoted(measurement + GRAVES)} "
                    f"WHERE time >= {first}u AND time <= {last}u AND ({one_of}) GROUP BY *"
                )
    for together in pieces(statements, STATEMENTS, len):
        yield "; ".join(together)


def known(points: Points, answers: Iterable[Mapping[str, Any]]) -> pa.Table:
    """The series of the answers as a table of `series`, `time`, `field` (DELETION for a deletion) and `version`."""
    numbers = {(one.measurement, frozenset(one.present)): n for n, one in enumerate(points.series)}
    fields = {f"{VERSION}.{name}": n for n, name in enumerate(points.fields)} | {VERSION: DELETION}
    columns: tuple[list[int], list[int], list[int], list[int | None]] = ([], [], [], [])
    for answer in answers:
        tags = frozenset((k, v) for k, v in answer.get("tags", {}).items() if v)
        name = answer["name"]
        for measurement, graves in ((name, False), (name.removesuffix(GRAVES), True)):
            series = numbers.get((measurement, tags))
            if series is None or (graves and measurement == name):
                continue
            times, *found = zip(*answer["values"], strict=True)
            for column, values in zip(answer["columns"][1:], found, strict=True):
                field = fields[column]
                if (field == DELETION) == graves:
                    columns[0].extend([series] * len(times))
                    columns[1].extend(times)
                    columns[2].extend([field] * len(times))
                    columns[3].extend(map(_version, values))
    table = pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)
    table = table.filter(table["version"].is_valid())
    return table.group_by(CELL).aggregate([("version", "max")]).rename_columns(SCHEMA.names)


def where(series: Series) -> str:
    """The condition that tells a series from the others of its measurement."""
    # Every point has a time; a condition is needed where there are no tags.
    return " AND ".join(f"{quoted(tag)} = {literal(value)}" for tag, value in series.tags) or f"time >= {LIMITS.first}u"


def _spans(times: set[int]) -> Iterator[tuple[int, int]]:
    """The first and last of some spans that hold all times, split where nothing lies for long."""
    ordered = sorted(times)
    long = (ordered[-1] - ordered[0]) / SPANS
    first = last = ordered[0]
    for time in ordered[1:]:
        if time - last > long:
            yield first, last
            first = time
        last = time
    yield first, last


def pieces(items: Sequence[T], most: int, size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The items in pieces that are not too large; one that is larger by itself is alone."""
    start = total = 0
    for at, item in enumerate(items):
        if at > start and (at - start == most or total + size(item) >= LIMITS.request):
            yield items[start:at]
            start, total = at, 0
        total += size(item) + 1
    if start < len(items):
        yield items[start:]


def _version(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
