"""Tombstones of InfluxDB behind upserts that are ahead of their record's own time.

Where the record of the newest such upsert of a point lies is kept beside its grave: the fields `_ahead`, its version,
and `_place` of `<measurement>.graves`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute

from penstock.sinks.core.document import ORIGIN
from penstock.sinks.core.latest_per_key import Ahead, Row, following
from penstock.sinks.influxdb.client import quoted
from penstock.sinks.influxdb.config import GRAVES
from penstock.sinks.influxdb.existing_points import STATEMENTS, pieces, where
from penstock.sinks.influxdb.points import Points

# Its stubs know neither bytes nor plain numbers.
pc: Any = compute
AHEAD, PLACE = "_ahead", "_place"
# A series, by its number, and a time.
Point = tuple[int, int]


def concerned(found: Points, given: pa.Table) -> dict[Point, list[Row]]:
    """The rows of each point that are tombstones, or ahead."""
    if "ahead" not in given.column_names:
        return {}
    told: Any = given
    numbers = pc.indices_nonzero(pc.or_(told["tombstone"], told["ahead"]))
    cells = found.cells.filter(pc.is_in(found.cells["row"], numbers.cast(pa.int64())))
    points: dict[int, Point] = {
        row: (series, time)
        for series, time, row in zip(*(cells[n].to_pylist() for n in ("series", "time", "row")), strict=True)
    }
    made: dict[Point, list[Row]] = {}
    for number, point in points.items():
        version, tombstone, ahead, *place = (
            given[name][number].as_py() for name in ("version", "tombstone", "ahead", *ORIGIN)
        )
        row = Row(number, "", version, tombstone, point[1], (place[0], place[1], place[2]), tombstone, ahead)
        made.setdefault(point, []).append(row)
    return made


def questions(found: Points, points: Iterable[Point]) -> Iterator[str]:
    """Requests for what is kept of some points."""
    times: dict[int, list[int]] = {}
    for series, time in points:
        times.setdefault(series, []).append(time)
    statements = [
        f"SELECT {quoted(AHEAD)}, {quoted(PLACE)} FROM {quoted(found.series[n].measurement + GRAVES)} "
        f"WHERE time >= {min(some)}u AND time <= {max(some)}u AND ({where(found.series[n])}) GROUP BY *"
        for n, some in times.items()
    ]
    for together in pieces(statements, STATEMENTS, len):
        yield "; ".join(together)


def known(found: Points, answers: Iterable[Mapping[str, Any]]) -> dict[Point, Ahead]:
    """What the answers say, by point."""
    numbers = {(one.measurement + GRAVES, frozenset(one.present)): n for n, one in enumerate(found.series)}
    kept: dict[Point, Ahead] = {}
    for answer in answers:
        tags = frozenset((k, v) for k, v in answer.get("tags", {}).items() if v)
        if (series := numbers.get((answer["name"], tags))) is None:
            continue
        for time, version, place in answer["values"]:
            if version is not None and place is not None:
                kept[series, time] = Ahead(version, tuple(json.loads(place)))
    return kept


def raised(found: Points, rows: Mapping[Point, Sequence[Row]], kept: Mapping[Point, Ahead]) -> pa.Table:
    """The cells, those of tombstones newer than what is ahead and lies before them."""
    made = {row.number: row.version for point, some in rows.items() for row in following(some, kept.get(point))}
    cells: Any = found.cells
    old = zip(cells["row"].to_pylist(), cells["version"].to_pylist(), strict=True)
    versions = pa.array([made.get(row, version) for row, version in old], pa.int64())
    raised: pa.Table = cells.set_column(cells.column_names.index("version"), "version", versions)
    return raised


def lines(
    found: Points, rows: Mapping[Point, Sequence[Row]], kept: Mapping[Point, Ahead], refused: Mapping[int, str]
) -> list[tuple[bytes, int]]:
    """A line for each point with an upsert that is ahead of what is kept of it, with the row's number."""
    made = []
    for (series, time), some in rows.items():
        early = [row for row in some if row.ahead and not row.deleted and row.number not in refused]
        if not early:
            continue
        last = max(early, key=lambda row: row.version)
        if (before := kept.get((series, time))) and before.version >= last.version:
            continue
        place = json.dumps(last.place).replace("\\", "\\\\").replace('"', '\\"').encode()
        begin = found.series[series].text(GRAVES)
        made.append(
            (b'%s %s=%di,%s="%s" %d' % (begin, AHEAD.encode(), last.version, PLACE.encode(), place, time), last.number)
        )
    return made
