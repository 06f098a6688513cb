"""Orders InfluxDB's tombstones behind future upserts.

The position of the record of a point's newest future upsert is kept beside its tombstone: the fields `_future`, its
version, and `_position` of `<measurement>.tombstones`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute

from penstock.sinks.core.latest_per_key import FutureUpsert, VersionedRow, raise_tombstones
from penstock.sinks.influxdb.config import FUTURE_FIELD, POSITION_FIELD, TOMBSTONE_SUFFIX
from penstock.sinks.influxdb.points import POINT, Point, Points

# Its stubs accept neither bytes nor plain numbers.
pc: Any = compute


def rows_to_order(points: Points, table: pa.Table) -> dict[Point, list[VersionedRow]]:
    """The rows of each point that are tombstones or future upserts."""
    if "future" not in table.column_names:
        return {}
    columns: Any = table
    numbers = pc.indices_nonzero(pc.or_(columns["tombstone"], columns["future"]))
    cells = points.cells.filter(pc.is_in(points.cells["row"], numbers.cast(pa.int64())))
    point_of = {one["row"]: (one["series"], one["time"]) for one in cells.select(["row", *POINT]).to_pylist()}
    rows: dict[Point, list[VersionedRow]] = {}
    for number, one in zip(numbers.to_pylist(), columns.take(numbers).drop_columns("doc").to_pylist(), strict=True):
        if number in point_of:
            position = one["topic"], one["partition"], one["offset"]
            deleted, future = one["tombstone"], one["future"]
            row = VersionedRow(number, "", one["version"], deleted, None, position, deleted, future)
            rows.setdefault(point_of[number], []).append(row)
    return rows


def raise_tombstone_cells(
    cells: Any, rows: Mapping[Point, Sequence[VersionedRow]], remembered: Mapping[Point, FutureUpsert]
) -> pa.Table:
    """The cells; those of tombstones are made newer than the future upserts before them."""
    versions = {
        row.number: row.version for point, some in rows.items() for row in raise_tombstones(some, remembered.get(point))
    }
    present = zip(cells["row"].to_pylist(), cells["version"].to_pylist(), strict=True)
    column = pa.array([versions.get(row, version) for row, version in present], pa.int64())
    raised: pa.Table = cells.set_column(cells.column_names.index("version"), "version", column)
    return raised


def future_upsert_lines(
    points: Points,
    rows: Mapping[Point, Sequence[VersionedRow]],
    remembered: Mapping[Point, FutureUpsert],
    refused: Mapping[int, str],
) -> list[tuple[bytes, int]]:
    """A line and the row's number for each point whose newest future upsert is newer than the remembered one."""
    lines = []
    for point, some in rows.items():
        upserts = [row for row in some if row.future and not row.deleted and row.number not in refused]
        last = max(upserts, key=lambda row: row.version, default=None)
        if last and not (point in remembered and remembered[point].version >= last.version):
            position = json.dumps(last.position).replace("\\", "\\\\").replace('"', '\\"')
            prefix = points.series[point[0]].line_prefix(TOMBSTONE_SUFFIX)
            values = f'{FUTURE_FIELD}={last.version}i,{POSITION_FIELD}="{position}"'
            lines.append((b"%s %s %d" % (prefix, values.encode(), point[1]), last.number))
    return lines
