"""The Iceberg table of an archive: its files, and commits that only its newest writer can make.

A commit of the table is refused if its branch `main` has moved since the table was read: the library is told not to
try again by itself (`commit.retry.num-retries`), since it would append to whatever is there. A writer that opens the
archive moves the branch by a snapshot without files that holds its claim. So an older writer that wakes up cannot
commit any more: it reads the table again, and finds the newer claim.

What is archived, the offsets above all, is a property of the table that the same commit sets. So a batch counts wholly
or not at all, and a commit whose outcome is unknown is known when the table is read again.

Tried with pyiceberg 0.12.0.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    ArrowScan,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from penstock.archive import catalog, file_io, records
from penstock.archive.register import STATE, metadata_files
from penstock.archive.state import EPOCH, HOUR, ArchiveState, Spans, hour_end, hour_of, hour_start, merge_spans
from penstock.errors import LeaseLost, SinkError, Wait

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table

    from penstock.archive.stream import ArchiveOutput
    from penstock.object_store.bucket import Bucket

HEADER = StructType(NestedField(10, "key", StringType()), NestedField(11, "value", BinaryType()))
SCHEMA = Schema(
    NestedField(1, "topic", StringType(), doc="topic of the record"),
    NestedField(2, "partition", IntegerType(), doc="its partition"),
    NestedField(3, "offset", LongType(), doc="its offset"),
    NestedField(4, "key", BinaryType()),
    NestedField(5, "value", BinaryType(), doc="null for a tombstone"),
    NestedField(6, "timestamp", TimestamptzType(), doc="the record's own time"),
    NestedField(7, "headers", ListType(9, HEADER, element_required=False)),
    NestedField(8, "event_time", TimestamptzType(), doc="event time by the archive's declaration"),
)
PARTITIONS = PartitionSpec(PartitionField(8, 1000, HourTransform(), "hour"))
CLAIM, ARCHIVE = "penstock.claim", "penstock.archive"
SPANS = "penstock.spans"
"""Key of a data file's own metadata: `{"topic/partition": [rows, first offset, last offset, sum of hashes]}`."""
PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Keys and values are not repeated in metadata, which more people may read.
    "write.metadata.metrics.default": "none",
    **{
        f"write.metadata.metrics.column.{name}": "full"
        for name in ("topic", "partition", "offset", "timestamp", "event_time")
    },
}
ATTEMPTS = 5


@dataclass(frozen=True)
class ArchiveFile:
    """A data file of the table.

    Attributes:
        key: Below the folder of the table.
        hour: Of its records' event times.
        timestamps: First and last timestamp of its records; None if they are unknown.
        task: How the library reads it, without the rows that another program has deleted of it.
    """

    key: str
    hour: str
    size: int
    rows: int
    timestamps: tuple[datetime, datetime] | None
    task: FileScanTask

    @property
    def has_deletes(self) -> bool:
        return bool(self.task.delete_files)


class ArchiveTable:
    """The table of an archive as of the last `refresh`.

    Args:
        table: The table.
        bucket: The folder of the table.
    """

    def __init__(self, table: Table, bucket: Bucket) -> None:
        self._table, self.bucket = table, bucket
        self._snapshot: int | None = None
        self.name = ".".join(table.name())

    @classmethod
    def find(cls, output: ArchiveOutput) -> ArchiveTable | None:
        """The table of an archive; None if nothing has been archived yet.

        Raises:
            SinkError: The table is not that of this archive, or the catalog or the store refuses.
            Wait: The catalog or the store does not answer.
        """
        name = output.table
        with catalog.errors(f"table {name}"):
            try:
                table = catalog.open_catalog().load_table(name)
            except NoSuchTableError:
                return None
        return cls._of(table, output)

    @classmethod
    def create(cls, output: ArchiveOutput) -> ArchiveTable:
        """The table of an archive, which is made if there is none. As `find`."""
        if found := cls.find(output):
            return found
        bucket, name = file_io.open_bucket(output.bucket, output.prefix), output.table
        bucket.ensure_exists()
        # Version 0 alone is a table whose making was cut off.
        if any((versions := metadata_files(bucket)).values()):
            # To make one beside it would hide its records, and two catalogs would delete each other's files.
            raise SinkError(
                f"the folder of archive {output.archive} has a table that the catalog does not know",
                got=bucket.url(max(versions, key=versions.__getitem__)),
                hint="if the catalog that knew it is lost: penstock archives register "
                f"{output.archive}; if another one knows it, declare another prefix",
            )
        tables: Catalog = catalog.open_catalog()
        with catalog.errors(f"table {name}"):
            tables.create_namespace_if_not_exists(name.rpartition(".")[0])
            try:
                table = tables.create_table(
                    name, SCHEMA, location=output.location, partition_spec=PARTITIONS,
                    properties={**PROPERTIES, ARCHIVE: output.archive, STATE: ArchiveState().to_json()},
                )  # fmt: skip
            except TableAlreadyExistsError:
                # Another writer was faster.
                table = tables.load_table(name)
        return cls._of(table, output)

    @classmethod
    def _of(cls, table: Table, output: ArchiveOutput) -> ArchiveTable:
        name, owner = ".".join(table.name()), table.properties.get(ARCHIVE)
        if owner != output.archive:
            raise SinkError(
                f"table {name} is not that of archive {output.archive}",
                got=f"archive {owner}" if owner else "a table of another program",
                hint="declare another table for the archive: table=",
            )
        if table.location() != output.location:
            raise SinkError(
                f"table {name} is not where archive {output.archive} says",
                got=table.location(),
                hint=f"the archive says {output.location}: correct its bucket and prefix, or declare another table",
            )
        return cls(table, file_io.open_bucket(output.bucket, output.prefix))

    @property
    def state(self) -> ArchiveState:
        """What is archived."""
        return ArchiveState.read(self._table.properties.get(STATE, ""), self.name)

    @property
    def snapshot_id(self) -> int | None:
        """Of the newest snapshot."""
        snapshot = self._table.current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    def as_of(self, at: datetime) -> ArchiveTable:
        """The table as it was at a time, to read its files.

        Raises:
            SinkError: No snapshot of that time is kept.
        """
        snapshot = self._table.snapshot_as_of_timestamp((at - EPOCH) // timedelta(milliseconds=1))
        if snapshot is None:
            kept = [EPOCH + timedelta(milliseconds=one.timestamp_ms) for one in self._table.history()]
            raise SinkError(
                f"table {self.name} keeps no snapshot of that time",
                got=at.isoformat(),
                hint=f"take a time from {min(kept).isoformat()} on; an archive declares `keep_snapshots`"
                if kept
                else "nothing has been archived yet",
            )
        table = ArchiveTable(self._table, self.bucket)
        table._snapshot = snapshot.snapshot_id
        return table

    def refresh(self) -> None:
        """Read the table again. As `find`."""
        with self._errors():
            self._table.refresh()

    def claim(self) -> tuple[int, str]:
        """Fence every earlier writer of the archive.

        Returns:
            The claim that commits need.

        Raises:
            Wait: Other writers open the archive too.
        """
        for _ in range(ATTEMPTS):
            state = self.state
            claim = (state.claim[0] + 1, uuid.uuid4().hex[:8])
            try:
                self._commit(ArchiveState(claim, state.positions, state.ids, state.begins, state.recreated))
            except CommitFailedException:
                self.refresh()
            else:
                return claim
        raise Wait(f"other writers open table {self.name} at the same time", seconds=1.0)

    def commit(self, state: ArchiveState, added: Sequence[DataFile] = (), removed: Sequence[ArchiveFile] = ()) -> None:
        """Add and remove files, and say what is archived then.

        Raises:
            LeaseLost: There is a newer writer.
            Wait: Another program has changed the table, or the catalog or the store does not answer. After that
                `refresh` tells what is archived.
        """
        try:
            self._commit(state, added, [file.task.file for file in removed])
        except CommitFailedException as e:
            self.refresh()
            if self.state.claim != state.claim:
                raise LeaseLost(
                    f"archive {self.name} has a newer writer",
                    got=f"{self.state.claim}, and this is {state.claim}",
                ) from e
            raise Wait(f"another program has changed table {self.name}", got=str(e)[:300], seconds=0.5) from e

    def _commit(self, state: ArchiveState, added: Sequence[DataFile] = (), removed: Sequence[DataFile] = ()) -> None:
        with self._errors():
            change = self._table.transaction()
            change.set_properties({STATE: state.to_json()})
            update = change.update_snapshot({CLAIM: f"{state.claim[0]}-{state.claim[1]}"})
            with _thread_safe(update.overwrite()) if removed else update.merge_append() as files:
                for one in added:
                    files.append_data_file(one)
                for one in removed:
                    files.delete_data_file(one)
            self._table = change.commit_transaction()

    def files(self, start: datetime | None = None, end: datetime | None = None, where: str = "") -> list[ArchiveFile]:
        """The files of the hours that overlap an interval, in order of their hours and names.

        Args:
            start: The first time.
            end: The time behind the last.
            where: A condition of SQL; files that cannot hold such records are left out.
        """
        parts = [f"({where})"] if where else []
        if start is not None:
            parts.append(f"event_time >= '{_first_of_hour(start).isoformat()}'")
        if end is not None:
            parts.append(f"event_time <= '{_last_of_hour(end).isoformat()}'")
        rows = " AND ".join(parts) or AlwaysTrue()
        with self._errors():
            scan = self._table.scan(rows, snapshot_id=self._snapshot)
            found = [self._file(task) for task in scan.plan_files()]
        return sorted(found, key=lambda file: (file.hour, file.key))

    def files_of_hour(self, hour: str) -> list[ArchiveFile]:
        """The files of an hour."""
        return self.files(hour_start(hour), hour_end(hour))

    def _file(self, task: FileScanTask) -> ArchiveFile:
        entry = task.file
        stamps = [bounds.get(6) for bounds in (entry.lower_bounds, entry.upper_bounds) if bounds]
        times: list[Any] = [from_bytes(TimestamptzType(), value) for value in stamps if value is not None]
        return ArchiveFile(
            entry.file_path.removeprefix(f"{self._table.location()}/"),
            hour_of(entry.partition[0]),
            entry.file_size_in_bytes,
            entry.record_count,
            (records.clamped_time(times[0]), records.clamped_time(times[1])) if len(times) == 2 else None,
            task,
        )

    def batches(self, start: datetime | None = None, end: datetime | None = None) -> pa.RecordBatchReader:
        """All rows of an interval of event time in parts, as the library reads them: not verified."""
        bounds = ((">=", start), ("<", end))
        rows = " AND ".join(f"event_time {than} '{at.isoformat()}'" for than, at in bounds if at) or AlwaysTrue()
        with self._errors():
            return self._table.scan(rows).to_arrow_batch_reader()

    def read_rows(self, file: ArchiveFile) -> pa.Table:
        """The records of a file as the library reads them, as `records.SCHEMA`."""
        with self._errors():
            scan = ArrowScan(self._table.metadata, self._table.io, SCHEMA, AlwaysTrue())
            return scan.to_table([file.task]).select(records.SCHEMA.names).cast(records.SCHEMA)

    def write_file(self, hour: str, tables: Iterable[pa.Table]) -> tuple[DataFile, Spans]:
        """Write records of an hour into a new file, which counts when it is committed.

        Returns:
            Its entry, and its records by partition.
        """
        schema, properties = self._table.schema(), self._table.properties
        key = f"data/hour={hour_start(hour):%Y-%m-%d-%H}/{uuid.uuid4()}.parquet"
        arrow, spans = schema_to_pyarrow(schema), dict[str, Any]()
        with self.bucket.open_output(key) as out:
            with pq.ParquetWriter(out, arrow, compression="zstd", write_page_checksum=True) as writer:
                for rows in tables:
                    writer.write_table(rows.cast(arrow), row_group_size=records.ROW_GROUP_ROWS)
                    spans = merge_spans([spans, records.spans_of(rows)])
                writer.add_key_value_metadata({SPANS: json.dumps(spans)})
            size, metadata = out.tell(), writer.writer.metadata
        statistics = data_file_statistics_from_parquet_metadata(
            metadata, compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema)
        )
        entry = DataFile.from_args(
            content=DataFileContent.DATA, file_path=f"{self._table.location()}/{key}", file_format=FileFormat.PARQUET,
            partition=Record((hour_start(hour) - EPOCH) // HOUR), file_size_in_bytes=size, sort_order_id=None,
            spec_id=self._table.spec().spec_id, equality_ids=None, key_metadata=None,
            **statistics.to_serialized_dict(),
        )  # fmt: skip
        return entry, spans

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with catalog.errors(f"table {self.name}"), self.bucket.errors("metadata"):
            yield


def _thread_safe(change: Any) -> Any:
    """Let each look for the manifests that name removed files have a state of its own: the library shares one among
    threads, which then miss a manifest now and then, and refuses the commit (ValidationException)."""
    build = change._build_manifest_evaluator

    def evaluator(spec: int) -> Callable[[Any], bool]:
        def matches(manifest: Any) -> bool:
            found: bool = build(spec)(manifest)
            return found

        return matches

    change._build_manifest_evaluator = evaluator
    return change


def _first_of_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _last_of_hour(end: datetime) -> datetime:
    """The last microsecond of the hour of the last microsecond before a time."""
    last = end - datetime.resolution
    return hour_end(f"{last:%Y-%m-%dT%H}")
