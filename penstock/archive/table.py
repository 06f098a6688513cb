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

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    ArrowScan,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.types import TimestamptzType

from penstock.archive import catalog, file_io, records
from penstock.archive.archive_file import ArchiveFile
from penstock.archive.columns import PARTITIONS, PROPERTIES, SCHEMA, check_form
from penstock.archive.data_file import write_data_file
from penstock.archive.decoded import (
    PartitionValues,
    evolve,
    project,
    split_by_partition,
)
from penstock.archive.library_fixes import ArchiveTransaction, thread_safe
from penstock.archive.register import ARCHIVE, STATE, refuse_older_catalog, refuse_older_state, refuse_unknown_table
from penstock.archive.snapshots import snapshot_as_of, superseded_snapshot
from penstock.archive.state import (
    ArchiveState,
    Spans,
    first_of_hour,
    hour_end,
    hour_of,
    hour_start,
    last_of_hour,
)  # fmt: skip
from penstock.codec.value_fields import fields_type
from penstock.errors import LeaseLost, SinkError, Wait

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table

    from penstock.archive.stream import ArchiveOutput
    from penstock.object_store.bucket import Bucket

ATTEMPTS = 5


class ArchiveTable:
    """The table of an archive as of the last `refresh` or commit, which another thread may make at any time.

    The library's table is replaced by both, and never changed: what is read of one is of one state.

    Args:
        table: The table.
        bucket: The folder of the table.
    """

    def __init__(self, table: Table, bucket: Bucket) -> None:
        self._table, self.bucket = table, bucket
        self._snapshot: int | None = None
        self._interval = timedelta(0)
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
        """The table of an archive, which is made if there is none, and follows the declaration.

        Raises:
            SinkError: As `find`; or a decoded field has another type than in the table.
            Wait: As `find`; or another writer changes the table at the same time.
        """
        found = cls.find(output) or cls._make(output)
        with found._errors():
            try:
                evolve(found._table, fields_type(output.decode) if output.decode else None, output.partition_by)
            except CommitFailedException as e:
                raise Wait(f"another program changes table {found.name}", got=str(e)[:300], seconds=0.5) from e
        return found

    @classmethod
    def _make(cls, output: ArchiveOutput) -> ArchiveTable:
        bucket, name = file_io.open_bucket(output.bucket, output.prefix), output.table
        bucket.ensure_exists()
        try:
            refuse_unknown_table(bucket, output.archive)
        except SinkError:
            # Another writer may have made it since the catalog was asked.
            if found := cls.find(output):
                return found
            raise
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
        found = cls(table, file_io.open_bucket(output.bucket, output.prefix))
        check_form(table, name)
        found._interval = output.snapshot_interval
        return found

    @property
    def is_partitioned(self) -> bool:
        """Whether hours are partitioned."""
        return len(self._table.spec().fields) > 1

    @property
    def spec_id(self) -> int:
        """Of the partitions that new files have."""
        return self._table.spec().spec_id

    @property
    def state(self) -> ArchiveState:
        """What is archived.

        Raises:
            SinkError: The table is at another snapshot than the state was committed with: somebody has rolled it back.
        """
        table = self._table
        text, snapshot = table.properties.get(STATE, ""), table.current_snapshot()
        while snapshot and snapshot.summary and STATE not in snapshot.summary.additional_properties:
            parent = snapshot.parent_snapshot_id
            snapshot = table.snapshot_by_id(parent) if parent is not None else None
        if snapshot and snapshot.summary and snapshot.summary[STATE] != text:
            raise SinkError(
                f"table {self.name} was rolled back, so it lacks records that count as archived",
                got=f"snapshot {snapshot.snapshot_id}",
                hint="make its newest snapshot the current one again; to undo a change, write the rows instead",
            )
        return ArchiveState.read(text, self.name)

    @property
    def snapshot_id(self) -> int | None:
        """Of the newest snapshot."""
        snapshot = self._table.current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    def property(self, name: str) -> str:
        """A property of the table; empty if it has none of this name."""
        return str(self._table.properties.get(name, ""))

    def as_of(self, at: datetime) -> ArchiveTable:
        """The table as it was at a time, to read its files.

        Raises:
            SinkError: No snapshot of that time is kept.
        """
        table = ArchiveTable(self._table, self.bucket)
        table._snapshot = snapshot_as_of(self._table, at, self.name)
        return table

    def refresh(self) -> None:
        """Read the table again. As `find`.

        Raises:
            SinkError: Also if the catalog names an older state than the last one.
        """
        before = self._table
        with self._errors():
            fresh = copy(before).refresh()
        refuse_older_state(before, fresh)
        check_form(fresh, self.name)
        self._table = fresh

    def refresh_as(self, claim: tuple[int, str]) -> None:
        """Read the table again as the writer with a claim.

        Raises:
            LeaseLost: There is a newer writer.
        """
        self.refresh()
        if (newest := self.state.claim) != claim:
            raise LeaseLost(f"archive {self.name} has a newer writer", got=f"{newest}, and this is {claim}")

    def claim(self) -> tuple[int, str]:
        """Fence every earlier writer of the archive.

        Returns:
            The claim that commits need.

        Raises:
            Wait: Other writers open the archive too.
            SinkError: The catalog is older than the table.
        """
        with self._errors():
            refuse_older_catalog(self.bucket, self._table)
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

    def commit(
        self,
        state: ArchiveState,
        added: Sequence[DataFile] = (),
        removed: Sequence[ArchiveFile] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Add and remove files, and say what is archived then.

        Args:
            state: What is archived then.
            added: New files.
            removed: Files that are replaced.
            properties: Further properties of the table.

        Raises:
            LeaseLost: There is a newer writer.
            Wait: Another program has changed the table, or the catalog or the store does not answer. After that
                `refresh` tells what is archived.
        """
        try:
            superseded = None if removed else superseded_snapshot(self._table, self._interval)
            if superseded is not None:
                # Somebody may have tagged it since the last commit.
                self.refresh_as(state.claim)
                superseded = superseded_snapshot(self._table, self._interval)
            self._commit(state, added, [file.task.file for file in removed], properties, superseded)
        except CommitFailedException as e:
            self.refresh_as(state.claim)
            raise Wait(f"another program has changed table {self.name}", got=str(e)[:300], seconds=0.5) from e

    def _commit(
        self,
        state: ArchiveState,
        added: Sequence[DataFile] = (),
        removed: Sequence[DataFile] = (),
        properties: Mapping[str, str] | None = None,
        superseded: int | None = None,
    ) -> None:
        text = state.to_json()
        with self._errors():
            change = ArchiveTransaction(copy(self._table))
            change.set_properties({**(properties or {}), STATE: text})
            update = change.update_snapshot({STATE: text})
            with thread_safe(update.overwrite()) if removed else update.merge_append() as files:
                for one in added:
                    files.append_data_file(one)
                for one in removed:
                    files.delete_data_file(one)
            if superseded is not None:
                with ExpireSnapshots(change) as old:
                    old.by_id(superseded)
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
            parts.append(f"event_time >= '{first_of_hour(start).isoformat()}'")
        if end is not None:
            parts.append(f"event_time <= '{last_of_hour(end).isoformat()}'")
        rows = " AND ".join(parts) or AlwaysTrue()
        if self._snapshot is not None and self._table.snapshot_by_id(self._snapshot) is None:
            raise SinkError(
                f"table {self.name} no longer keeps the snapshot that is read",
                got=self._snapshot,
                hint="take a later time; an archive declares `keep_snapshots`",
            )
        with self._errors():
            scan = self._table.scan(rows, snapshot_id=self._snapshot)
            found = [self._file(task) for task in scan.plan_files()]
        return sorted(found, key=lambda file: (file.hour, file.key))

    def files_of_hour(self, hour: str) -> list[ArchiveFile]:
        """The files of an hour."""
        return self.files(hour_start(hour), hour_end(hour))

    def _file(self, task: FileScanTask) -> ArchiveFile:
        entry, location = task.file, f"{self._table.location()}/"
        if not entry.file_path.startswith(location) or entry.partition[0] is None:
            raise SinkError(
                f"table {self.name} has a file without event times, or outside of its folder, which cannot be read",
                got=entry.file_path,
                hint="another program has written it: remove it from the table",
            )
        stamps = [bounds.get(6) for bounds in (entry.lower_bounds, entry.upper_bounds) if bounds]
        times: list[Any] = [from_bytes(TimestamptzType(), value) for value in stamps if value is not None]
        return ArchiveFile(
            entry.file_path.removeprefix(location),
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

    def project(self, rows: pa.RecordBatch, file: pa.Schema) -> pa.Table:
        """Rows of a data file with the columns that the table has now."""
        return project(self._table, rows, file)

    def split(self, rows: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
        """Records of an hour by the values of the fields by which it is partitioned."""
        return split_by_partition(self._table, rows)

    def write_file(self, hour: str, tables: Iterable[pa.Table], values: PartitionValues = ()) -> tuple[DataFile, Spans]:
        """Write records of an hour into a new file, which counts when it is committed.

        Args:
            hour: The hour.
            tables: The records; columns that the table has and they lack are NULL.
            values: Of the fields by which an hour is partitioned.

        Returns:
            Its entry, and its records by partition.
        """
        return write_data_file(self._table, self.bucket, hour, tables, values)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with self.bucket.errors("metadata"), catalog.errors(f"table {self.name}"):  # which may be OSErrors too
            yield
