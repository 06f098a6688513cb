"""Orders InfluxDB's tombstones behind future upserts.

The position of the record of a point's newest future upsert is kept beside its tombstone: the fields `_future`, its
version, and `_position` of `<measurement>.tombstones`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute

from penstock.sinks.core.chunking import chunks
from penstock.sinks.core.document import POSITION
from penstock.sinks.core.latest_per_key import FutureUpsert, VersionedRow, raise_tombstones
from penstock.sinks.influxdb.client import quoted
from penstock.sinks.influxdb.config import LIMITS, TOMBSTONE_SUFFIX
from penstock.sinks.influxdb.existing_points import STATEMENTS, series_condition
from penstock.sinks.influxdb.points import Points

# Its stubs accept neither bytes nor plain numbers.
pc: Any = compute
FUTURE_FIELD, POSITION_FIELD = "_future", "_position"
# A series, by its number, and a time.
Point = tuple[int, int]


def rows_to_order(points: Points, table: pa.Table) -> dict[Point, list[VersionedRow]]:
    """The rows of each point that are tombstones or future upserts."""
    if "future" not in table.column_names:
        return {}
    columns: Any = table
    numbers = pc.indices_nonzero(pc.or_(columns["tombstone"], columns["future"]))
    cells = points.cells.filter(pc.is_in(points.cells["row"], numbers.cast(pa.int64())))
    point_of: dict[int, Point] = {
        row: (series, time)
        for series, time, row in zip(*(cells[n].to_pylist() for n in ("series", "time", "row")), strict=True)
    }
    rows: dict[Point, list[VersionedRow]] = {}
    for number, point in point_of.items():
        version, tombstone, future, *position = (
            table[name][number].as_py() for name in ("version", "tombstone", "future", *POSITION)
        )
        row = VersionedRow(
            number, "", version, tombstone, point[1], (position[0], position[1], position[2]), tombstone, future
        )
        rows.setdefault(point, []).append(row)
    return rows


def future_queries(points: Points, wanted: Iterable[Point]) -> Iterator[str]:
    """Requests for the remembered future upserts of some points."""
    times: dict[int, list[int]] = {}
    for series, time in wanted:
        times.setdefault(series, []).append(time)
    statements = [
        f"SELECT {quoted(FUTURE_FIELD)}, {quoted(POSITION_FIELD)} "
        f"FROM {quoted(points.series[n].measurement + TOMBSTONE_SUFFIX)} "
        f"WHERE time >= {min(some)}u AND time <= {max(some)}u AND ({series_condition(points.series[n])}) GROUP BY *"
        for n, some in times.items()
    ]
    for together in chunks(statements, STATEMENTS, LIMITS.request_bytes, lambda text: len(text) + 1):
        yield "; ".join(together)


def read_future_upserts(points: Points, answers: Iterable[Mapping[str, Any]]) -> dict[Point, FutureUpsert]:
    """The future upserts of the answers, by point."""
    numbers = {(one.measurement + TOMBSTONE_SUFFIX, frozenset(one.present)): n for n, one in enumerate(points.series)}
    upserts: dict[Point, FutureUpsert] = {}
    for answer in answers:
        tags = frozenset((k, v) for k, v in answer.get("tags", {}).items() if v)
        if (series := numbers.get((answer["name"], tags))) is None:
            continue
        for time, version, position in answer["values"]:
            if version is not None and position is not None:
                upserts[series, time] = FutureUpsert(version, tuple(json.loads(position)))
    return upserts


def raise_tombstone_cells(
    points: Points, rows: Mapping[Point, Sequence[VersionedRow]], remembered: Mapping[Point, FutureUpsert]
) -> pa.Table:
    """The cells; those of tombstones are made newer than the future upserts before them."""
    versions = {
        row.number: row.version for point, some in rows.items() for row in raise_tombstones(some, remembered.get(point))
    }
    cells: Any = points.cells
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
    for (series, time), some in rows.items():
        upserts = [row for row in some if row.future and not row.deleted and row.number not in refused]
        if not upserts:
            continue
        last = max(upserts, key=lambda row: row.version)
        if (before := remembered.get((series, time))) and before.version >= last.version:
            continue
        position = json.dumps(last.position).replace("\\", "\\\\").replace('"', '\\"').encode()
        prefix = points.series[series].line_prefix(TOMBSTONE_SUFFIX)
        fields = (FUTURE_FIELD.encode(), last.version, POSITION_FIELD.encode(), position)
        lines.append((b'%s %s=%di,%s="%s" %d' % (prefix, *fields, time), last.number))
    return lines
