"""Which cells of a batch are written, compared with existing points: in memory, in every order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.sink import Tombstones
from penstock.sinks.influxdb.config import InfluxDB
from penstock.sinks.influxdb.existing_points import (
    SCHEMA,
    drop_stale_cells,
    latest_cells,
    read_versions,
    refuse_contradicting_rows,
)
from penstock.sinks.influxdb.points import DELETION, read_points
from tests.support.influxdb import documents, row

AT = datetime(2026, 1, 2, tzinfo=UTC)
OUTPUT = InfluxDB(sink="s", database="d", measurement="m", tags=("t",), time="at")
TYPES: dict[str, Any] = {"t": pa.string(), "at": pa.timestamp("us", "UTC"), "v": pa.int64(), "w": pa.int64()}
FIELDS = {0: "v", 1: "w", DELETION: "gone"}


def there(*versions: tuple[int, int]) -> pa.Table:
    """What the store has of the one point: field and version."""
    micros = int(AT.timestamp()) * 10**6
    rows = [dict(zip(SCHEMA.names, (0, micros, *one), strict=True)) for one in versions]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def kept(*rows: dict[str, Any], known: pa.Table | None = None) -> tuple[dict[str, int], int]:
    """Of each field that is written its row, and how many rows are older than what is there."""
    given = [{**one, "doc": {"t": "t", "at": AT, **one["doc"]}} for one in rows]
    cells: Any
    cells, older = drop_stale_cells(
        latest_cells(read_points(OUTPUT, documents(*given, **TYPES)).cells), there() if known is None else known
    )
    written = zip(cells["field"].to_pylist(), cells["row"].to_pylist(), strict=True)
    return {FIELDS[field]: number for field, number in written}, older


def test_of_a_batch_each_field_is_of_its_newest_row_in_every_order() -> None:
    rows = [row(1, v=1, w=1), row(2, v=2), row(3, deleted=True), row(4, w=4), row(5, v=5)]
    for order in permutations(range(5)):
        found, older = kept(*[rows[n] for n in order])
        assert ({name: order[at] for name, at in found.items()}, older) == ({"gone": 2, "w": 3, "v": 4}, 0)


def test_of_equal_versions_the_later_row_is_written() -> None:
    assert kept(row(1, v=1), row(1, v=2)) == ({"v": 1}, 0)
    assert kept(row(1, v=1), row(1, deleted=True)) == ({"gone": 1}, 0)
    assert kept(row(1, deleted=True), row(1, v=1)) == ({"gone": 0, "v": 1}, 0)


def test_what_is_there_wins_only_if_it_is_greater() -> None:
    assert kept(row(5, v=1, w=1), known=there((0, 6))) == ({"w": 0}, 1)
    assert kept(row(5, v=1, w=1), known=there((0, 5), (1, 4))) == ({"v": 0, "w": 0}, 0)
    assert kept(row(5, v=1), known=there((DELETION, 6))) == ({}, 1)
    assert kept(row(7, v=1), known=there((DELETION, 6), (0, 5))) == ({"v": 0}, 0)


def test_a_deletion_gives_way_to_anything_newer_of_its_point() -> None:
    assert kept(row(5, deleted=True), known=there((1, 6))) == ({}, 1)
    assert kept(row(5, deleted=True), known=there((0, 4), (1, 5), (DELETION, 5))) == ({"gone": 0}, 0)
    assert kept(row(4, deleted=True), known=there((DELETION, 5))) == ({}, 1)


def test_a_tag_that_is_null_or_empty_is_one_series() -> None:
    rows = [row(20, t="", at=AT, v=1), row(10, t=None, at=AT, v=2)]
    points = read_points(OUTPUT, documents(*rows, **TYPES))
    assert [series.present for series in points.series] == [[]]
    assert latest_cells(points.cells)["row"].to_pylist() == [0]


@pytest.mark.parametrize("tombstones", ["delete", "mark", "ignore"])
def test_rows_of_one_record_do_not_contradict_each_other(tombstones: Tombstones) -> None:
    def refused(*rows: dict[str, Any]) -> list[int]:
        output = replace(OUTPUT, tombstones=tombstones)
        table = documents(*({**one, "doc": {"t": "t", "at": AT, **one["doc"]}} for one in rows), **TYPES)
        points = read_points(output, table)
        refuse_contradicting_rows(output, points, table)
        assert not points.refused.keys() & set(points.cells["row"].to_pylist())
        return sorted(points.refused)

    assert refused(row(1, offset=0, v=1), row(1, offset=0, v=2), row(1, offset=0, w=1), row(2, offset=1, v=3)) == [0, 1]
    assert refused(row(1, offset=0, v=1), row(2, offset=0, v=1, w=2), row(1, v=1)) == [0, 1]
    assert refused(row(1, offset=0, v=1), row(1, offset=0, w=2)) == []
    assert refused(row(1, offset=0, v=1), row(1, offset=0, t="u", v=2)) == []
    assert refused(row(1, offset=0, v=1), row(1, offset=0, at=AT + timedelta(microseconds=1), v=2)) == []
    assert refused(row(1, v=1), row(1, v=2)) == []
    deleted = [] if tombstones == "ignore" else [0, 1]
    assert refused(row(1, offset=0, deleted=True), row(1, offset=0, v=2), row(1, deleted=True)) == deleted
    assert refused(row(1, offset=0, deleted=True), row(1, offset=0, deleted=True)) == deleted
    assert refused(row(1, offset=0, deleted=True), row(1, offset=0, t="u", v=2)) == []


def test_answers_are_read_to_the_last_digit_and_only_of_own_series() -> None:
    found = read_points(OUTPUT, documents(row(1, t="t", at=AT, v=1), row(1, t="", at=AT, v=1), **TYPES))
    columns = ["time", "_version", "_version.v", "_version.w"]

    def series(name: str, values: list[Any], **tags: str) -> dict[str, Any]:
        return {"name": name, "tags": tags, "columns": columns, "values": [[7, *values]]}

    table = read_versions(
        found,
        [
            series("m", [None, 2**63 - 1, None], t="t", other=""),
            series("m.tombstones", [3, None, None], t="t"),
            series("m", [None, 4, 5], t=""),
            series("m", [None, 9, 9], t="t", other="x"),
            series("n", [None, 9, 9], t="t"),
        ],
        {},
    )
    rows = {tuple(one.values()) for one in table.to_pylist()}
    assert rows == {(0, 7, 0, 2**63 - 1), (0, 7, DELETION, 3), (1, 7, 0, 4), (1, 7, 1, 5)}
