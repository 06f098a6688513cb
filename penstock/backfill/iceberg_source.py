"""An Iceberg table of any program, read for a backfill: the rows of one snapshot, in the columns that the table has.

Tried with pyiceberg 0.12.0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import ResidualEvaluator, UnpartitionedResidualEvaluator
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files, schema_to_pyarrow
from pyiceberg.table import ManifestGroupPlanner

from penstock.archive import catalog
from penstock.archive.snapshots import first_whole_second
from penstock.archive.state import Span, merge_spans
from penstock.backfill.iceberg_columns import TableColumns
from penstock.backfill.job import BackfillJob, epoch_ms, utc_text
from penstock.backfill.retry import OnWait, retry_while_away
from penstock.backfill.skipped_records import SkippedRecords
from penstock.backfill.source import OnFile
from penstock.backfill.transform import copy_query, files_as_table, open_duckdb
from penstock.codec.json_sql import quote_name
from penstock.errors import DeclarationError, InputNotReady, SinkError, Wait
from penstock.model.backfill import IcebergTable
from penstock.object_store.bucket import ACCESS_DENIED, UNAVAILABLE, ObjectNotFound

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import DataScan, FileScanTask, Table

# Rows and bytes of the table that are read together; those of the interval are one file.
ROWS_PER_FILE, BYTES_PER_FILE = 50_000, 64 << 20
# The text of a row has the names and all values. Rows have no offsets that last, so none is part of it: the sum of the
# hashes is the same when the table's files are written anew.
SPAN_SQL = "SELECT count(*), (sum(md5_number_upper(encode({row}::VARCHAR))::HUGEINT) % 18446744073709551616)::UBIGINT"


class IcebergSource:
    """The rows of a table whose event time is in the interval.

    Args:
        job: The job.
        waits: Called with the reason before each wait.

    Attributes:
        skipped_records: Rows without an event time, or without a value that the schema requires.
    """

    def __init__(self, job: BackfillJob, waits: OnWait) -> None:
        source = job.backfill.source
        assert isinstance(source, IcebergTable)
        self._job, self._source, self._waits = job, source, waits
        self._begin = epoch_ms(job.begin) * 1000 if job.begin else None
        self._end = epoch_ms(job.end) * 1000
        self.skipped_records = SkippedRecords()
        self.files = self.rows = 0
        self.spans: Mapping[str, Span] = {}
        self.ids: Mapping[str, str] = {}
        self.empty_text = f"nothing is in {source.path} for this interval"

    def fetch(self, folder: Path, on_file: OnFile) -> list[Path]:
        paths = retry_while_away(partial(self._read, folder, on_file), self._waits)
        self.files, self.rows = len(paths), sum(span.rows for span in self.spans.values())
        return paths

    def _read(self, folder: Path, on_file: OnFile) -> list[Path]:
        """Read the rows: each attempt starts again, with the newest snapshot unless a time is given."""
        rows = self._job.backfill.rows
        assert rows is not None
        paths, skipped, self.spans = list[Path](), Counter[str](), {}
        table = self._open()
        scan = self._scan(table)
        label = f"backfill {self._job.name}"
        columns = TableColumns.of(label, scan.projection(), self._job.backfill.fields, rows.event_time)
        with open_duckdb(folder) as connection:
            selected = self._selected(scan, columns)
            nothing = schema_to_pyarrow(selected, include_field_ids=False).empty_table()
            queries = _Queries(label, connection, columns, self._begin, self._end)
            queries.check(nothing)
            for chunk in self._chunks(table, scan, columns):
                path = folder / f"{len(paths):06}.parquet"
                count, total, reasons = queries.write(chunk, path)
                skipped += reasons
                if count:
                    first = sum(span.rows for span in self.spans.values())
                    span = Span(count, first, first + count - 1, total)
                    self.spans = merge_spans([self.spans, {f"{self._source.path}/0": span}])
                    paths.append(path)
                on_file(count)
            if not paths:
                # Its columns are those of `records`.
                paths.append(folder / "000000.parquet")
                queries.write(nothing, paths[0])
        self.skipped_records = SkippedRecords()
        for reason, number in sorted(skipped.items()):
            self.skipped_records.add_many(number, self._source.path, reason)
        return paths

    def _open(self) -> Table:
        source = self._source
        with self._errors():
            tables = catalog.open_named(source.catalog) if source.catalog else catalog.open_catalog()
            try:
                return tables.load_table(source.name)
            except NoSuchTableError as e:
                raise SinkError(
                    "the catalog has no such Iceberg table",
                    got=source.path,
                    hint="check the name of the IcebergTable and its catalog; without `catalog` it is that of the "
                    "archives: PENSTOCK_ICEBERG_CATALOG, or the control database",
                ) from e

    def _scan(self, table: Table) -> DataScan:
        """A scan of the present snapshot, or of that of the time that the job gives.

        Raises:
            SinkError: No snapshot of that time is kept.
        """
        if (at := self._job.as_of) is None:
            # By no id: a snapshot has the columns of its own time, and newer ones may have come since.
            return table.scan()
        snapshot = table.snapshot_as_of_timestamp(epoch_ms(at))
        if snapshot is None or table.snapshot_by_id(snapshot.snapshot_id) is None:
            kept = {one.snapshot_id for one in table.snapshots()}
            times = [one.timestamp_ms for one in table.history() if one.snapshot_id in kept]
            raise SinkError(
                f"{self._source.path} keeps no snapshot of that time",
                got=at.isoformat(),
                hint=f"take a time from {utc_text(first_whole_second(min(times)))} on"
                if times
                else "the table has no snapshot",
            )
        return table.scan(snapshot_id=snapshot.snapshot_id)

    def _selected(self, scan: DataScan, columns: TableColumns) -> Schema:
        return scan.projection().select(*columns.names)

    def _chunks(self, table: Table, scan: DataScan, columns: TableColumns) -> Iterator[pa.Table]:
        """All rows of the files that may hold some of the interval: files in order of their names."""
        snapshot = scan.snapshot()
        try:
            with self._errors():
                within = scan.filter(columns.file_filter(table.schema(), self._begin, self._end))
                tasks = sorted(_plan_files(within), key=lambda task: str(task.file.file_path))
                self.rows = sum(task.file.record_count for task in tasks)
                deletes = _read_all_delete_files(table.io, tasks)
                reader = ArrowScan(table.metadata, table.io, self._selected(scan, columns), AlwaysTrue())
            pending, rows, size = list[pa.Table](), 0, 0
            for task in tasks:
                with self._errors(f"file {task.file.file_path} of {self._source.path}"):
                    # The public methods hold all rows of a file, and of several files at once.
                    for batch in reader._record_batches_from_scan_tasks_and_deletes([task], deletes):
                        pending.append(pa.Table.from_batches([batch]))
                        rows, size = rows + batch.num_rows, size + batch.nbytes
                        if rows >= ROWS_PER_FILE or size >= BYTES_PER_FILE:
                            yield pa.concat_tables(pending, promote_options="permissive")
                            pending, rows, size = [], 0, 0
            if pending:
                yield pa.concat_tables(pending, promote_options="permissive")
        except ObjectNotFound as e:
            if snapshot is None or self._open().snapshot_by_id(snapshot.snapshot_id):
                raise
            raise InputNotReady(
                f"backfill {self._job.name}: the snapshot of {self._source.path} was expired while it was read",
                got=snapshot.snapshot_id,
                hint="run it again",
            ) from e

    @contextmanager
    def _errors(self, what: str = "") -> Iterator[None]:
        """Raise what the catalog and the store raise within the block as errors of Penstock.

        Args:
            what: What is read; the table if it is empty.
        """
        what = what or self._source.path
        try:
            with catalog.errors(what, self._source.catalog):
                yield
        except (NotImplementedError, pa.ArrowException) as e:
            raise SinkError(
                f"{what} cannot be read", got=f"{type(e).__name__}: {e}"[:300], hint="see its message"
            ) from e
        except FileNotFoundError as e:
            raise ObjectNotFound(
                f"a file of {self._source.path} does not exist",
                got=str(e)[:300],
                hint="restore it, or remove it from the table",
            ) from e
        except OSError as e:
            text = str(e)[:300]
            if isinstance(e, ConnectionError | TimeoutError) or UNAVAILABLE.search(str(e)):
                raise Wait(f"the store of {self._source.path} does not answer", got=text, seconds=1.0) from e
            hint = "allow the user to read the table's files" if ACCESS_DENIED.search(str(e)) else "see its message"
            raise SinkError(f"{what} cannot be read from its store", got=text, hint=hint) from e


class _FilePlanner(ManifestGroupPlanner):
    """Plans which files are read, and not what is left of the condition for the rows of each: that is not needed, and
    pyiceberg fails to say it of a file whose partition is NULL."""

    def _build_residual_evaluator(self, _spec_id: int) -> Callable[[DataFile], ResidualEvaluator]:
        return lambda _: UnpartitionedResidualEvaluator(self.table_metadata.schema(), AlwaysTrue())


def _plan_files(scan: DataScan) -> Iterable[FileScanTask]:
    """The files of a scan, with their deletes."""
    if scan.catalog and scan.catalog.supports_server_side_planning():
        return scan.plan_files()
    snapshot = scan.snapshot()
    planner = _FilePlanner(scan.table_metadata, scan.io, scan.row_filter, scan.case_sensitive, scan.options)
    return planner.plan_files(snapshot.manifests(scan.io)) if snapshot else []


class _Queries:
    """Writes the rows of an interval, as `records` has them, with their event time."""

    def __init__(
        self, label: str, connection: duckdb.DuckDBPyConnection, columns: TableColumns, begin: int | None, end: int
    ) -> None:
        self._label, self._connection = label, connection
        at, reason = columns.event_time, columns.skip_reason
        names = [quote_name(name) for name in columns.output]
        added = [f"make_timestamptz({at}) AS event_time"] if columns.adds_event_time else []
        source = f"(SELECT {', '.join(columns.select)} FROM chunk)"
        within = f"{at} < {end}" if begin is None else f"{at} >= {begin} AND {at} < {end}"
        self._rows = f"SELECT {', '.join([*names, *added])} FROM {source} WHERE {within} AND {reason} IS NULL"
        skipped = f"({within} OR {at} IS NULL) AND {reason} IS NOT NULL"
        self._skipped = f"SELECT {reason}, count(*) FROM {source} WHERE {skipped} GROUP BY 1"
        self._expression = f"{columns.expression} FROM {source}" if columns.expression else ""
        packed = ", ".join(f"{name} := {name}" for name in names)
        self._span = SPAN_SQL.format(row=f"struct_pack({packed})")

    def check(self, nothing: pa.Table) -> None:
        """DeclarationError if the expression of the event time is invalid."""
        self._connection.register("chunk", nothing)
        try:
            problem = self._problem()
        except duckdb.Error as e:
            problem = str(e).splitlines()[0]
        if problem:
            raise DeclarationError(
                f"{self._label}: its event time cannot be computed",
                got=problem,
                hint="write timestamp_millis(column), a column, or another expression of DuckDB over the columns, of "
                "the type TIMESTAMP, DATE or VARCHAR",
            )

    def _problem(self) -> str:
        """Why the expression of the event time gives no time; empty if it does. A DuckDB error if it is invalid."""
        self._connection.execute(f"DESCRIBE {self._rows}").fetchall()
        if not self._expression:
            return ""
        [(_, kind, *_)] = self._connection.execute(f"DESCRIBE SELECT {self._expression}").fetchall()
        return "" if re.match("TIMESTAMP|DATE|VARCHAR", kind) else f"it gives {kind}"

    def write(self, chunk: pa.Table, path: Path) -> tuple[int, int, Mapping[str, int]]:
        """Write the rows of a chunk that are in the interval.

        Returns:
            Their number, the sum of their hashes, and the number of skipped rows by reason.
        """
        self._connection.register("chunk", chunk)
        try:
            copy_query(self._connection, self._rows, path)
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException) as e:
            raise DeclarationError(
                f"{self._label}: its event time cannot be computed of some rows",
                got=str(e).splitlines()[0],
                hint="write an expression that gives NULL for them, with try_cast or try_strptime",
            ) from e
        [(count, total)] = self._connection.execute(f"{self._span} FROM {files_as_table([path])}").fetchall()
        skipped = dict(self._connection.execute(self._skipped).fetchall())
        return count, total or 0, skipped
