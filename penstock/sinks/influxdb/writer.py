"""Writes a sink's batches into an InfluxDB 1.x."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import compute

from penstock.errors import Refused, SinkError
from penstock.model.output import NO_COMMIT, CommitMarker, Writer, WriterOwner
from penstock.sinks.core import connections
from penstock.sinks.core.document import Figures
from penstock.sinks.core.latest_per_key import Ahead, Row
from penstock.sinks.influxdb import tombstones as ahead
from penstock.sinks.influxdb.client import Influx, quoted
from penstock.sinks.influxdb.config import GRAVES, LIMITS, VERSION, InfluxDB
from penstock.sinks.influxdb.existing_points import STATEMENTS, current, hidden, known, newest, pieces, questions, where
from penstock.sinks.influxdb.points import DELETION, POINT, Points, points

if TYPE_CHECKING:
    from penstock.model.output import Output

# Its stubs know neither bytes nor plain numbers.
pc: Any = compute
log = logging.getLogger(__name__)

# A line, and the row that it is of.
Line = tuple[bytes, int]


def open_database(owner: WriterOwner, outputs: Sequence[Output]) -> Writer:  # noqa: ARG001
    (output,) = outputs
    assert isinstance(output, InfluxDB)
    if not (url := connections.url(output.connection)):
        raise SinkError(
            f"no InfluxDB is known to write {output.name} to",
            got="neither PENSTOCK_INFLUXDB_URL nor AIRFLOW_CONN_INFLUXDB is set",
            hint="set one to http://user:password@host:8086, and start the driver anew (penstock streams release)",
        )
    return InfluxWriter(url, output)


class InfluxWriter:
    """Writes points into a database, which it creates with its first rows if need be.

    Nothing fences another writer there, and to ask for versions and to write are two steps: a driver that was paused in
    between and wakes up behind its heir ends that batch's requests, and puts points back to what they were until they
    are next written. So may the server itself, if it hung with a request and carries it out behind later ones.

    url: of the server, with user and password where it asks for them. figures: since it was opened.
    """

    def __init__(self, url: str, output: InfluxDB) -> None:
        self.figures = Figures()
        self.output = output
        self._influx = Influx(url, output.database)
        self._pool = ThreadPoolExecutor(output.parallel, thread_name_prefix=f"influxdb-{output.sink}")
        self._created = False

    def committed(self) -> CommitMarker:
        """NO_COMMIT: a batch that is run again is written again, and changes nothing."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:  # noqa: ARG002
        """Write a batch; the number of its rows that the store had no newer ones of.

        Refused, after all else is written, for rows that are no points, or that the store never takes.
        """
        given = rows.get(self.output.name)
        if given is None or not given.num_rows:
            return 0
        try:
            older, refused = self._write(given)
        finally:
            # Also of a batch that is given again: that it is too busy shows while it is.
            self.figures = replace(self.figures, retried=self._influx.retried, bytes=self._influx.sent)
        written = given.num_rows - older - len(refused)
        self.figures = replace(
            self.figures,
            written=self.figures.written + written,
            conflicts=self.figures.conflicts + older,
            refused=self.figures.refused + len(refused),
        )
        if refused:
            raise Refused(
                f"InfluxDB can never take {len(refused)} rows for {self.output.name}",
                rows={self.output.name: refused},
                got=next(iter(refused.values())),
                written=written,
            )
        return written

    def _write(self, given: pa.Table) -> tuple[int, dict[int, str]]:
        """How many rows the store had newer ones of, and why it never takes others, by number."""
        if not self._created:
            self._influx.create()
            self._created = True
        found = points(self.output, given)
        rows, kept = self._follow(found, given)
        refused, older = self._newest(found, found.cells)
        cells = hidden(found.cells, refused)
        while cells.num_rows:
            more, _ = self._newest(found, cells)
            refused |= more
            cells = hidden(cells, more)
        refused |= found.refused
        if wrong := self._send(ahead.lines(found, rows, kept, refused)):
            raise SinkError("InfluxDB does not remember what is ahead", got=next(iter(wrong.values())))
        return older, refused

    def _follow(
        self, found: Points, given: pa.Table
    ) -> tuple[Mapping[ahead.Point, Sequence[Row]], Mapping[ahead.Point, Ahead]]:
        """Let tombstones follow what lies before them. Of their points, and of those with upserts that are ahead: the
        rows, and what is kept."""
        if not self.output.versioned or self.output.tombstones == "ignore":
            return {}, {}
        if rows := ahead.concerned(found, given):
            answers = (answer for text in ahead.questions(found, rows) for answer in self._influx.query(text))
            kept = ahead.known(found, answers)
            found.cells = ahead.raised(found, rows, kept)
            return rows, kept
        return {}, {}

    def _newest(self, found: Points, cells: pa.Table) -> tuple[dict[int, str], int]:
        """Write the newest of some cells. Why the store never takes some rows, by number, and how many are older than
        what it has."""
        cells, older = newest(cells), 0
        if self.output.versioned:
            cells, older = self._current(found, cells)
        self._delete(found, cells.filter(pc.equal(cells["field"], DELETION)))
        return self._send(self._lines(found, cells.filter(pc.not_equal(cells["field"], DELETION)), "")), older

    def _current(self, found: Points, cells: pa.Table) -> tuple[pa.Table, int]:
        answers = (answer for text in questions(found) for answer in self._influx.query(text))
        return current(cells, known(found, answers))

    def _delete(self, found: Points, cells: pa.Table) -> None:
        """Graves first: a point that is gone without one could come back."""
        if not cells.num_rows:
            return
        if self.output.versioned and (refused := self._send(self._lines(found, cells, GRAVES))):
            raise SinkError("InfluxDB does not remember what is deleted", got=next(iter(refused.values())))
        told: Any = cells
        statements = [
            f"DELETE FROM {quoted(series.measurement)} WHERE {where(series)} AND time = {at}u"
            for number, at in zip(told["series"].to_pylist(), told["time"].to_pylist(), strict=True)
            for series in (found.series[number],)
        ]
        for some in pieces(statements, STATEMENTS, len):
            list(self._influx.query("; ".join(some)))

    def _lines(self, found: Points, cells: pa.Table, behind: str) -> list[Line]:
        """A line for each row of a point: what InfluxDB refuses of it is the row's alone."""
        if not cells.num_rows:
            return []
        versions = _text(cells["version"])
        names = [f"{_escaped(name)}=" for name in found.fields]
        if behind:
            value = _joined(f"{VERSION}=", versions, "i")
        else:
            value = _joined(pa.array(names).take(cells["field"]), cells["text"])
            if self.output.versioned:
                kept = [f",{VERSION}.{name}" for name in names]
                value = _joined(value, pa.array(kept).take(cells["field"]), versions, "i")
        cells = cells.append_column("value", value)
        lines: Any = cells.group_by([*POINT, "row"], use_threads=False).aggregate([("value", "list")])
        begin = pa.array([series.text(behind) for series in found.series], pa.binary()).take(lines["series"])
        text = _joined(begin, " ", pc.binary_join(lines["value_list"], b","), " ", _text(lines["time"]))
        return list(zip(text.to_pylist(), lines["row"].to_pylist(), strict=True))

    def _send(self, lines: Sequence[Line]) -> dict[int, str]:
        """Why the store never takes some rows, by number, after all others are written."""
        asked = [
            self._pool.submit(self._outcome, some) for some in pieces(lines, LIMITS.lines, lambda line: len(line[0]))
        ]
        _, waiting = wait(asked, return_when=FIRST_EXCEPTION)
        for one in waiting:
            one.cancel()
        # A request that ends behind the next batch would put points back.
        wait(asked)
        refused: dict[int, str] = {}
        for one in asked:
            if not one.cancelled():
                refused |= one.result()
        return refused

    def _outcome(self, lines: Sequence[Line]) -> dict[int, str]:
        """Of a request. One that is refused in part is halved until each line is told apart; others are written again,
        which changes nothing."""
        if not (why := self._influx.write(b"\n".join(line for line, _ in lines))):
            return {}
        if len(lines) == 1:
            return {lines[0][1]: why}
        half = len(lines) // 2
        return self._outcome(lines[:half]) | self._outcome(lines[half:])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._influx.close()


def _joined(*parts: Any) -> Any:
    """Parts of each row behind each other, as bytes."""
    made = [pa.scalar(part.encode()) if isinstance(part, str) else part.cast(pa.binary()) for part in parts]
    return pc.binary_join_element_wise(*made, pa.scalar(b""))


def _text(numbers: Any) -> Any:
    return numbers.cast(pa.string())


def _escaped(field: str) -> str:
    return "".join(f"\\{c}" if c in ",= " else c for c in field)
