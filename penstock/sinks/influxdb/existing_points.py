"""Finds the latest cells of a batch: among themselves, and compared with what InfluxDB has of their points."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from more_itertools import constrained_batches
from pyarrow import compute

from penstock.sinks.core.document import POSITION
from penstock.sinks.core.latest_per_key import FutureUpsert
from penstock.sinks.influxdb.client import literal, quoted
from penstock.sinks.influxdb.config import (
    DELETED_FIELD,
    FUTURE_FIELD,
    LIMITS,
    POSITION_FIELD,
    TOMBSTONE_SUFFIX,
    VERSION,
    InfluxDB,
)
from penstock.sinks.influxdb.points import CELL, DELETION, POINT, Point, Points, Series

# Its stubs accept neither bytes nor plain numbers.
pc: Any = compute

# Series of one statement, and most spans of time in which their points are searched.
SERIES = 50
SPANS = 10
# Statements of one request.
STATEMENTS = 50
SCHEMA = pa.schema([("series", pa.int32()), ("time", pa.int64()), ("field", pa.int32()), ("version", pa.int64())])


def refuse_contradicting_rows(output: InfluxDB, points: Points, rows: pa.Table) -> None:
    """Refuse rows of one record of which nothing says which should stay.

    Rows of one record may give different fields of a point. They contradict each other if several give the same field,
    or if one of them deletes the point.

    Args:
        output: of the rows.
        points: of the rows; loses the cells of those that are refused.
        rows: the columns of `DocumentOutput.columns`.
    """
    numbered: Any = rows.select(POSITION).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    records = numbered.group_by(POSITION).aggregate([("row", "min"), ("row", "count")])
    records = records.filter(pc.greater(records["row_count"], 1)).rename_columns([*POSITION, "record", "count"])
    if not records.num_rows:
        return
    record_of = numbered.join(records, list(POSITION), join_type="inner").select(["row", "record"])
    cells: Any = points.cells.join(record_of, "row", join_type="inner").select(["record", *CELL, "row", "text"])
    if output.tombstones == "mark":
        marks = pc.equal(cells["field"], points.fields.index(DELETED_FIELD))
        deletes = pc.and_(marks, pc.equal(cells["text"], b"true"))
        fields = pc.if_else(deletes, pa.scalar(DELETION, pa.int32()), cells["field"])
        # All other rows say that their point is not deleted.
        cells = cells.set_column(cells.column_names.index("field"), "field", fields)
        cells = cells.filter(pc.or_(deletes, pc.invert(marks)))
    of_field = cells.group_by(["record", *CELL]).aggregate([("row", "count")])
    of_field = of_field.filter(pc.greater(of_field["row_count"], 1))
    of_point = cells.group_by(["record", *POINT]).aggregate([("field", "min"), ("row", "count_distinct")])
    deleted = pc.equal(of_point["field_min"], DELETION)
    of_point = of_point.filter(pc.and_(deleted, pc.greater(of_point["row_count_distinct"], 1)))
    refused: dict[int, str] = {}
    for keys, found, reason in (
        (["record", *CELL], of_field, "its record makes several rows of one field of a point"),
        (["record", *POINT], of_point, "its record makes several rows of a point that it deletes"),
    ):
        numbers = cells.join(found.select(keys), keys, join_type="inner")["row"]
        refused |= dict.fromkeys(numbers.to_pylist(), reason)
    points.refused |= refused
    points.cells = points.cells.filter(pc.invert(pc.is_in(points.cells["row"], pa.array(list(refused), pa.int64()))))


def latest_cells(cells: pa.Table) -> pa.Table:
    """The latest of each cell; of equal versions the later row. Fields before a deletion of their point are dropped."""
    cells = cells.sort_by([("version", "ascending"), ("row", "ascending")])
    cells = cells.append_column("at", pa.array(range(cells.num_rows), pa.int64()))
    last = cells.group_by(CELL).aggregate([("at", "max")])
    cells = cells.take(last["at_max"])
    deletions = (
        cells.filter(pc.equal(cells["field"], DELETION)).select([*POINT, "at"]).rename_columns([*POINT, "deleted_at"])
    )
    joined = cells.join(deletions, POINT, join_type="left outer")
    return joined.filter(pc.greater_equal(joined["at"], pc.fill_null(joined["deleted_at"], -1))).drop_columns(
        ["at", "deleted_at"]
    )


def covered_cells(cells: pa.Table, refused: Mapping[int, str]) -> pa.Table:
    """The cells of other rows for the points of refused rows, which covered them."""
    by = pc.is_in(cells["row"], pa.array(list(refused), pa.int64()))
    points = cells.filter(by).group_by(POINT).aggregate([])
    return cells.filter(pc.invert(by)).join(points, POINT, join_type="inner")


def drop_stale_cells(cells: pa.Table, present: pa.Table) -> tuple[pa.Table, int]:
    """The cells of which the store has no newer version, and how many rows have others. present: `CELL`, `version`."""
    tombstones = present.filter(pc.equal(present["field"], DELETION)).select([*POINT, "version"])
    whole = present.group_by(POINT).aggregate([("version", "max")])
    joined = cells
    for name, table, keys in (
        ("own", present.select([*CELL, "version"]), CELL),
        ("tombstone", tombstones, POINT),
        ("whole", whole, POINT),
    ):
        joined = joined.join(table.rename_columns([*keys, name]), keys, join_type="left outer")
    own = pc.if_else(pc.equal(joined["field"], DELETION), joined["whole"], joined["own"])
    newest = pc.max_element_wise(own, joined["tombstone"])
    fresh = pc.fill_null(pc.greater_equal(joined["version"], newest), fill_value=True)
    stale = pc.count_distinct(joined.filter(pc.invert(fresh))["row"]).as_py()
    return joined.filter(fresh).select(cells.column_names), stale


def version_queries(points: Points, *, future: bool = False) -> Iterator[str]:
    """Requests for the versions of the points that the store may have. future: and for remembered future upserts."""
    times: dict[str, dict[int, set[int]]] = {}
    cells: Any = points.cells
    for series, time in zip(cells["series"].to_pylist(), cells["time"].to_pylist(), strict=True):
        times.setdefault(points.series[series].measurement, {}).setdefault(series, set()).add(time)
    versions = ", ".join(quoted(name) for name in (VERSION, *(f"{VERSION}.{name}" for name in points.fields)))
    statements = []
    for measurement, of_series in times.items():
        tombstones = quoted(measurement + TOMBSTONE_SUFFIX)
        selects = [f"{versions} FROM {quoted(measurement)}, {tombstones}"]
        selects += [f"{quoted(FUTURE_FIELD)}, {quoted(POSITION_FIELD)} FROM {tombstones}"] if future else []
        conditions = [(f"({series_condition(points.series[n])})", some) for n, some in of_series.items()]
        for part in constrained_batches(
            conditions, LIMITS.request_bytes, SERIES, lambda one: len(one[0]) + 1, strict=False
        ):
            either = " OR ".join(condition for condition, _ in part)
            for first, last in _spans(set().union(*(some for _, some in part))):
                where = f"WHERE time >= {first}u AND time <= {last}u AND ({either}) GROUP BY *"
                statements += [f"SELECT {select} {where}" for select in selects]
    for together in constrained_batches(
        statements, LIMITS.request_bytes, STATEMENTS, lambda text: len(text) + 1, strict=False
    ):
        yield "; ".join(together)


def read_versions(points: Points, answers: Iterable[Mapping[str, Any]], future: dict[Point, FutureUpsert]) -> pa.Table:
    """The series of the answers as a table of `series`, `time`, `field` (DELETION for a deletion) and `version`.

    Args:
        points: of the batch.
        answers: to `version_queries`.
        future: gets the remembered future upserts.
    """
    numbers = {(one.measurement, frozenset(one.present)): n for n, one in enumerate(points.series)}
    fields = {f"{VERSION}.{name}": n for n, name in enumerate(points.fields)} | {VERSION: DELETION}
    columns: tuple[list[int], list[int], list[int], list[int | None]] = ([], [], [], [])
    for answer in answers:
        tags = frozenset((k, v) for k, v in answer.get("tags", {}).items() if v)
        name = answer["name"]
        for measurement, is_tombstone in ((name, False), (name.removesuffix(TOMBSTONE_SUFFIX), True)):
            series = numbers.get((measurement, tags))
            if series is None or (is_tombstone and measurement == name):
                continue
            times, *versions = zip(*answer["values"], strict=True)
            if FUTURE_FIELD in answer["columns"]:
                for time, version, position in answer["values"] if is_tombstone else ():
                    if version is not None and position is not None:
                        future[series, time] = FutureUpsert(version, tuple(json.loads(position)))
                continue
            for column, values in zip(answer["columns"][1:], versions, strict=True):
                field = fields[column]
                if (field == DELETION) == is_tombstone:
                    columns[0].extend([series] * len(times))
                    columns[1].extend(times)
                    columns[2].extend([field] * len(times))
                    columns[3].extend(map(_version, values))
    table = pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)
    table = table.filter(table["version"].is_valid())
    return table.group_by(CELL).aggregate([("version", "max")]).rename_columns(SCHEMA.names)


def series_condition(series: Series) -> str:
    """The condition that selects a series of its measurement."""
    # Without tags there must be some condition, and every point has a time.
    return (
        " AND ".join(f"{quoted(tag)} = {literal(value)}" for tag, value in series.tags) or f"time >= {LIMITS.first_us}u"
    )


def _spans(times: set[int]) -> Iterator[tuple[int, int]]:
    """The first and last time of spans that hold all times, split at long gaps."""
    ordered = sorted(times)
    long = (ordered[-1] - ordered[0]) / SPANS
    first = last = ordered[0]
    for time in ordered[1:]:
        if time - last > long:
            yield first, last
            first = time
        last = time
    yield first, last


def _version(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
