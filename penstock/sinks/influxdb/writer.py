"""Writes a sink's batches into an InfluxDB 1.x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from more_itertools import constrained_batches
from pyarrow import compute

from penstock.errors import SinkError
from penstock.sinks.core.bulk import OK, BulkWriter, ItemResult, RequestRejected, SinkBatchResult
from penstock.sinks.core.latest_per_key import FutureUpsert
from penstock.sinks.core.writer import DocumentWriter
from penstock.sinks.influxdb import tombstones
from penstock.sinks.influxdb.client import InfluxClient, quoted
from penstock.sinks.influxdb.config import LIMITS, TOMBSTONE_SUFFIX, VERSION, InfluxDB
from penstock.sinks.influxdb.existing_points import (
    STATEMENTS,
    covered_cells,
    drop_stale_cells,
    latest_cells,
    read_versions,
    refuse_contradicting_rows,
    series_condition,
    version_queries,
)
from penstock.sinks.influxdb.points import DELETION, POINT, Point, Points, escaped, read_points

# Its stubs accept neither bytes nor plain numbers.
pc: Any = compute


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the line protocol. row: the number of the row that it was made of."""

    text: bytes
    row: int

    @property
    def size(self) -> int:
        return len(self.text) + 1


class InfluxWriter(DocumentWriter[InfluxDB]):
    """Writes points into a database, which it creates with its first rows if need be.

    Nothing fences another writer, and reading versions and writing are two steps. A driver that was paused in between
    and wakes up after its successor has started finishes the requests of that batch, and puts points back to what they
    were until they are next written. So may the server itself, if it hangs with a request and executes it after later
    ones.
    """

    product = "InfluxDB"

    def __init__(self, url: str, output: InfluxDB) -> None:
        super().__init__(url, output)
        self._client = InfluxClient(url, output.database)
        self._bulk = BulkWriter[Line](output.parallel, LIMITS.request_lines, LIMITS.request_bytes)
        self._created = False

    def _write_batch(self, table: pa.Table, result: SinkBatchResult) -> None:
        if not table.num_rows:
            return
        retried = self._client.retried
        try:
            self._write_points(table, result)
        finally:
            result.retried += self._client.retried - retried
        result.written = table.num_rows - result.conflicts - len(result.refused)

    def _write_points(self, table: pa.Table, result: SinkBatchResult) -> None:
        if not self._created:
            self._client.create_database()
            self._created = True
        points = read_points(self.output, table)
        refuse_contradicting_rows(self.output, points, table)
        result.refused |= points.refused
        ordered = self.output.versioned and self.output.tombstones != "ignore"
        rows = tombstones.rows_to_order(points, table) if ordered else {}
        queries = version_queries(points, future=bool(rows)) if self.output.versioned else ()
        future: dict[Point, FutureUpsert] = {}
        present = read_versions(points, (answer for text in queries for answer in self._client.query(text)), future)
        if rows:
            points.cells = tombstones.raise_tombstone_cells(points.cells, rows, future)
        latest, result.conflicts = drop_stale_cells(latest_cells(points.cells), present)
        cells = covered_cells(points.cells, self._write_cells(points, latest, result))
        while cells.num_rows:
            # What a refused row hid is written now.
            latest, _ = drop_stale_cells(latest_cells(cells), present)
            cells = covered_cells(cells, self._write_cells(points, latest, result))
        lines = tombstones.future_upsert_lines(points, rows, future, result.refused)
        self._remember([Line(*line) for line in lines], "future upserts", result)

    def _write_cells(self, points: Points, cells: pa.Table, result: SinkBatchResult) -> dict[int, str]:
        """Write cells, and delete points. Why the store refuses rows, by number, after all others are written."""
        self._delete(points, cells.filter(pc.equal(cells["field"], DELETION)), result)
        lines = self._lines(points, cells.filter(pc.not_equal(cells["field"], DELETION)), "")
        return self._bulk.write(lines, result, self._request).refused

    def _delete(self, points: Points, cells: pa.Table, result: SinkBatchResult) -> None:
        """Delete points. Tombstones are written first: a deleted point without one could come back."""
        if self.output.versioned:
            self._remember(self._lines(points, cells, TOMBSTONE_SUFFIX), "deletes", result)
        statements = [
            f"DELETE FROM {quoted(points.series[one['series']].measurement)} "
            f"WHERE {series_condition(points.series[one['series']])} AND time = {one['time']}u"
            for one in cells.select(POINT).to_pylist()
        ]
        for some in constrained_batches(statements, LIMITS.request_bytes, STATEMENTS, strict=False):
            list(self._client.query("; ".join(some)))

    def _remember(self, lines: Sequence[Line], what: str, result: SinkBatchResult) -> None:
        if refused := self._bulk.write(lines, result, self._request).refused:
            raise SinkError(f"InfluxDB refuses to remember {what}", got=next(iter(refused.values())))

    def _lines(self, points: Points, cells: pa.Table, suffix: str) -> list[Line]:
        """A line for each row of a point, so that what InfluxDB refuses of it is the row's alone.

        Args:
            points: of the batch.
            cells: to write.
            suffix: of the measurement's name: `TOMBSTONE_SUFFIX` for deletions, or empty.
        """
        if not cells.num_rows:
            return []
        versions = cells["version"].cast(pa.string())
        names = [f"{escaped(name, ',= ')}=" for name in points.fields]
        if suffix:
            value = _joined(f"{VERSION}=", versions, "i")
        else:
            value = _joined(pa.array(names).take(cells["field"]), cells["text"])
            if self.output.versioned:
                version_names = [f",{VERSION}.{name}" for name in names]
                value = _joined(value, pa.array(version_names).take(cells["field"]), versions, "i")
        cells = cells.append_column("value", value)
        rows: Any = cells.group_by([*POINT, "row"], use_threads=False).aggregate([("value", "list")])
        prefix = pa.array([series.line_prefix(suffix) for series in points.series], pa.binary()).take(rows["series"])
        times = rows["time"].cast(pa.string())
        text = _joined(prefix, " ", pc.binary_join(rows["value_list"], b","), " ", times)
        return [Line(*one) for one in zip(text.to_pylist(), rows["row"].to_pylist(), strict=True)]

    def _request(self, lines: Sequence[Line]) -> list[ItemResult]:
        if reason := self._client.write(b"\n".join(line.text for line in lines)):
            # It may be refused in part: what is written again changes nothing.
            raise RequestRejected(reason)
        return [OK] * len(lines)

    def close(self) -> None:
        self._bulk.close()
        self._client.close()


def _joined(*parts: Any) -> Any:
    """The parts of each row concatenated, as bytes."""
    columns = [pa.scalar(part.encode()) if isinstance(part, str) else part.cast(pa.binary()) for part in parts]
    return pc.binary_join_element_wise(*columns, pa.scalar(b""))
