"""Writes a sink's batches into an InfluxDB 1.x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute

from penstock.errors import SinkError
from penstock.sinks.core.bulk import OK, BulkOutcome, BulkSettings, BulkWriter, ItemResult, ItemStatus, RequestRejected
from penstock.sinks.core.chunking import chunks
from penstock.sinks.core.connections import required_url
from penstock.sinks.core.latest_per_key import FutureUpsert, VersionedRow
from penstock.sinks.core.writer import DocumentWriter, SinkBatchResult
from penstock.sinks.influxdb import tombstones
from penstock.sinks.influxdb.client import InfluxClient, quoted
from penstock.sinks.influxdb.config import LIMITS, TOMBSTONE_SUFFIX, VERSION, InfluxDB
from penstock.sinks.influxdb.existing_points import (
    STATEMENTS,
    covered_cells,
    drop_stale_cells,
    latest_cells,
    read_versions,
    series_condition,
    version_queries,
)
from penstock.sinks.influxdb.points import DELETION, POINT, Points, read_points

if TYPE_CHECKING:
    from penstock.model.output import Output, Writer, WriterOwner

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


def open_database(owner: WriterOwner, outputs: Sequence[Output]) -> Writer:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, InfluxDB)
    return InfluxWriter(required_url(output.connection, output.name), output)


class InfluxWriter(DocumentWriter):
    """Writes points into a database, which it creates with its first rows if need be.

    Nothing fences another writer, and reading versions and writing are two steps. A driver that was paused in between
    and wakes up after its successor has started finishes the requests of that batch, and puts points back to what they
    were until they are next written. So may the server itself, if it hangs with a request and executes it after later
    ones.

    Args:
        url: of the server, with user and password if it asks for them.
        output: what is written.
    """

    product = "InfluxDB"

    def __init__(self, url: str, output: InfluxDB) -> None:
        super().__init__(output)
        self.output = output
        self._client = InfluxClient(url, output.database)
        self._bulk = BulkWriter[Line](BulkSettings(output.parallel, LIMITS.request_lines, LIMITS.request_bytes))
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
        rows, remembered = self._order_tombstones(points, table)
        refused, result.conflicts = self._write_latest(points, points.cells, result)
        # What a refused row hid is written now.
        cells = covered_cells(points.cells, refused)
        while cells.num_rows:
            more, _ = self._write_latest(points, cells, result)
            refused |= more
            cells = covered_cells(cells, more)
        result.refused |= refused | points.refused
        lines = tombstones.future_upsert_lines(points, rows, remembered, result.refused)
        if errors := self._send([Line(*line) for line in lines], result):
            raise SinkError("InfluxDB refuses to remember future upserts", got=next(iter(errors.values())))

    def _order_tombstones(
        self, points: Points, table: pa.Table
    ) -> tuple[Mapping[tombstones.Point, Sequence[VersionedRow]], Mapping[tombstones.Point, FutureUpsert]]:
        """Make tombstones newer than the future upserts before them.

        Returns:
            The rows of points that have tombstones or future upserts, and the future upserts that the store remembers.
        """
        if not self.output.versioned or self.output.tombstones == "ignore":
            return {}, {}
        rows = tombstones.rows_to_order(points, table)
        if not rows:
            return {}, {}
        answers = (answer for text in tombstones.future_queries(points, rows) for answer in self._client.query(text))
        remembered = tombstones.read_future_upserts(points, answers)
        points.cells = tombstones.raise_tombstone_cells(points, rows, remembered)
        return rows, remembered

    def _write_latest(self, points: Points, cells: pa.Table, result: SinkBatchResult) -> tuple[dict[int, str], int]:
        """Write the latest of some cells.

        Returns:
            Why rows are refused, by number, and how many are older than what the store has.
        """
        cells, stale = latest_cells(cells), 0
        if self.output.versioned:
            answers = (answer for text in version_queries(points) for answer in self._client.query(text))
            cells, stale = drop_stale_cells(cells, read_versions(points, answers))
        self._delete(points, cells.filter(pc.equal(cells["field"], DELETION)), result)
        lines = self._lines(points, cells.filter(pc.not_equal(cells["field"], DELETION)), "")
        return self._send(lines, result), stale

    def _delete(self, points: Points, cells: pa.Table, result: SinkBatchResult) -> None:
        """Delete points. Tombstones are written first: a deleted point without one could come back."""
        if not cells.num_rows:
            return
        if self.output.versioned and (refused := self._send(self._lines(points, cells, TOMBSTONE_SUFFIX), result)):
            raise SinkError("InfluxDB refuses to remember deletes", got=next(iter(refused.values())))
        columns: Any = cells
        statements = [
            f"DELETE FROM {quoted(series.measurement)} WHERE {series_condition(series)} AND time = {at}u"
            for number, at in zip(columns["series"].to_pylist(), columns["time"].to_pylist(), strict=True)
            for series in (points.series[number],)
        ]
        for some in chunks(statements, STATEMENTS, LIMITS.request_bytes, lambda text: len(text) + 1):
            list(self._client.query("; ".join(some)))

    def _lines(self, points: Points, cells: pa.Table, suffix: str) -> list[Line]:
        """A line for each row of a point, so that what InfluxDB refuses of it is the row's alone.

        Args:
            points: of the batch.
            cells: to write.
            suffix: of the measurement's name: `TOMBSTONE_SUFFIX` for deletions, or empty.
        """
        if not cells.num_rows:
            return []
        versions = _text(cells["version"])
        names = [f"{_escaped(name)}=" for name in points.fields]
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
        text = _joined(prefix, " ", pc.binary_join(rows["value_list"], b","), " ", _text(rows["time"]))
        return [Line(*one) for one in zip(text.to_pylist(), rows["row"].to_pylist(), strict=True)]

    def _send(self, lines: Sequence[Line], result: SinkBatchResult) -> dict[int, str]:
        """Why the store refuses rows, by number, after all others are written."""
        outcome = BulkOutcome[Line]()
        try:
            self._bulk.write(lines, outcome, self._request)
        finally:
            result.bytes += outcome.bytes
        return outcome.refused

    def _request(self, lines: Sequence[Line]) -> list[ItemResult]:
        if reason := self._client.write(b"\n".join(line.text for line in lines)):
            # It may be refused in part: what is written again changes nothing.
            raise RequestRejected(ItemResult(ItemStatus.REFUSED, reason))
        return [OK] * len(lines)

    def close(self) -> None:
        self._bulk.close()
        self._client.close()


def _joined(*parts: Any) -> Any:
    """The parts of each row concatenated, as bytes."""
    columns = [pa.scalar(part.encode()) if isinstance(part, str) else part.cast(pa.binary()) for part in parts]
    return pc.binary_join_element_wise(*columns, pa.scalar(b""))


def _text(numbers: Any) -> Any:
    return numbers.cast(pa.string())


def _escaped(field: str) -> str:
    return "".join(f"\\{c}" if c in ",= " else c for c in field)
