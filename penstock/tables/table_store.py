"""A table on disk: the latest value of each key of a compacted topic, in Arrow files that Spark's workers memory-map.

A table is a folder of immutable files and one manifest that refers to the valid ones. The manifest is replaced
atomically, so a crash leaves the table as it was before or after. It has the files of each partition, oldest first; the
newest file that has a key wins. Two files are merged if the older has less than twice the rows of the newer, so there
are few files, and each row is rewritten a logarithmic number of times.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.arrow_files import ArrowFile, describe_file, is_intact, read_mapped
from penstock.errors import PenstockError

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
NEW_MANIFEST = f"{MANIFEST}.new"
# Rows of a record batch of a file, and so of the batches that a worker passes on.
BATCH_ROWS = 50_000
DELETED = "_deleted"
# The local property by which the tasks of a dry run know the query whose batch it runs: its own has another id.
QUERY_PROPERTY = "penstock.query"


class TableCorrupt(PenstockError):
    """A table's folder does not match its manifest."""


class TableWriteError(PenstockError):
    """A table's folder cannot be written."""


@dataclass(frozen=True)
class BadRecords:
    """Invalid records of the topic, and the offsets after them by partition."""

    file: ArrowFile
    next_offsets: Mapping[int, int]


@dataclass(frozen=True)
class TableManifest:
    """The valid state of a table's folder.

    Attributes:
        stream: the owner.
        schema: DDL of the values.
        topic: the broker's topic id.
        complete_at: epoch ms; the table has every deletion up to this time. It is when reading began, or when the end
            offsets up to which it was read were requested.
        next_offsets: offset at which to continue, by partition.
        loaded: whether the table was read to the end once.
        query: id of the query of `batch`.
        batch: the last batch for which the table was prepared.
        plan: a digest of what that batch was planned to read.
        files_by_partition: oldest first.
        bad_records: invalid records that no batch has written yet, oldest first.
        unchanged_since: whether nothing was read since `complete_at`.
    """

    stream: str
    schema: str
    topic: str
    complete_at: int = 0
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    loaded: bool = False
    query: str = ""
    batch: int = -1
    plan: str = ""
    files_by_partition: Mapping[int, tuple[ArrowFile, ...]] = field(default_factory=dict)
    bad_records: tuple[BadRecords, ...] = ()
    unchanged_since: bool = False

    @property
    def files(self) -> dict[str, ArrowFile]:
        """By name."""
        partitions = self.files_by_partition.values()
        all_files = (*(f for files in partitions for f in files), *(records.file for records in self.bad_records))
        return {file.name: file for file in all_files}

    @property
    def text(self) -> str:
        body = json.dumps({"layout": FORMAT_VERSION, **asdict(self)})
        return f"{body}\n{zlib.crc32(body.encode())}\n"

    @classmethod
    def read(cls, folder: Path) -> TableManifest:
        """Read the manifest of a folder.

        Raises:
            TableCorrupt: There is none, it is damaged, or it has another layout.
        """
        try:
            body, _, crc = (folder / MANIFEST).read_text().partition("\n")
            fields: dict[str, Any] = json.loads(body)
            if fields.pop("layout") != FORMAT_VERSION:
                raise TableCorrupt("a table has another layout", got=str(folder))
            if zlib.crc32(body.encode()) != int(crc):
                raise TableCorrupt("the manifest of a table is damaged", got=str(folder))
            fields["next_offsets"] = _int_keys(fields["next_offsets"])
            files_by_partition = fields["files_by_partition"].items()
            fields["files_by_partition"] = {
                int(p): tuple(ArrowFile(**f) for f in files) for p, files in files_by_partition
            }
            records = fields["bad_records"]
            fields["bad_records"] = tuple(
                BadRecords(ArrowFile(**b["file"]), _int_keys(b["next_offsets"])) for b in records
            )
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise TableCorrupt("the manifest of a table cannot be read", got=f"{folder}: {e!r}") from e


def _int_keys(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}


class TableFiles:
    """The folder of one table, written by one thread of one driver.

    Rows are `key STRING`, the fields of the schema and `_deleted BOOL`: whether the key was deleted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = TableManifest("", "", "")

    def open(self) -> None:
        """Open an existing table.

        Raises:
            TableCorrupt: The manifest or a file is missing or damaged.
        """
        self.manifest = TableManifest.read(self.folder)
        for file in self.manifest.files.values():
            self._check_intact(file)
        # Files that a crash left before the manifest referred to them.
        with self._write_errors():
            for path in (*self.folder.glob("*.arrow"), self.folder / NEW_MANIFEST):
                if path.name not in self.manifest.files:
                    path.unlink(missing_ok=True)

    def begin(self, manifest: TableManifest) -> None:
        """Create an empty table in the place of what exists."""
        with self._write_errors():
            if self.folder.exists():
                (self.folder / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._replace_manifest(manifest)

    def append(self, rows: Mapping[int, pa.Table], bad_records: pa.Table, next_offsets: Mapping[int, int]) -> None:
        """Add rows of some partitions, each key once, and invalid records."""
        manifest = self.manifest
        with self._write_errors():
            files = {
                **manifest.files_by_partition,
                **{p: self._append_file(manifest.files_by_partition.get(p, ()), table, p) for p, table in rows.items()},
            }
            new_bad_records = (
                [
                    BadRecords(
                        self._write_file(bad_records.schema, bad_records.to_batches(BATCH_ROWS), "dead"), next_offsets
                    )
                ]
                if len(bad_records)
                else []
            )
            self._replace_manifest(
                replace(
                    manifest,
                    files_by_partition=files,
                    bad_records=(*manifest.bad_records, *new_bad_records),
                    next_offsets=next_offsets,
                    unchanged_since=False,
                )
            )

    def mark_batch(self, query: str, batch: int, plan: str, at: int) -> None:
        """Records that the table as it is belongs to a batch, read up to the end requested at `at`."""
        # Without fsync, as each batch does this, and the manifest before has the same files.
        with self._write_errors():
            self._replace_manifest(
                replace(self.manifest, query=query, batch=batch, plan=plan, complete_at=at, unchanged_since=True),
                sync=False,
            )

    def mark_loaded(self, at: int) -> None:
        """Records that the table was read up to the end requested at `at`."""
        with self._write_errors():
            self._replace_manifest(replace(self.manifest, loaded=True, complete_at=at, unchanged_since=True))

    def bad_records(self) -> Iterator[tuple[pa.Table, Mapping[int, int]]]:
        """Yields invalid records, oldest first, with the offsets after them."""
        for records in self.manifest.bad_records:
            yield read_mapped(self.folder / records.file.name), records.next_offsets

    def drop_bad_records(self, count: int) -> None:
        """Drops the oldest parts of the invalid records."""
        if count:
            with self._write_errors():
                self._replace_manifest(replace(self.manifest, bad_records=self.manifest.bad_records[count:]))

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise TableWriteError(
                "a table cannot be kept on disk",
                got=f"{self.folder}: {e.strerror or e}",
                hint="check that the folder is writable and its disk has space; it is retried",
            ) from e

    def _check_intact(self, file: ArrowFile) -> None:
        if not is_intact(self.folder, file):
            raise TableCorrupt(
                "a file of a table is missing or changed",
                got=str(self.folder / file.name),
                hint="nothing: the table is read again",
            )

    def _append_file(self, files: tuple[ArrowFile, ...], rows: pa.Table, partition: int) -> tuple[ArrowFile, ...]:
        """The files of a partition after rows are added, merged if due."""
        written = [self._write_file(rows.schema, rows.to_batches(BATCH_ROWS), str(partition))]
        files_of_partition = [*files, *written]
        while len(files_of_partition) > 1 and files_of_partition[-2].rows < 2 * files_of_partition[-1].rows:
            older, newer = files_of_partition[-2:]
            # Otherwise a damaged file would get a valid checksum.
            self._check_intact(older)
            # A deleted key is kept only while an older file may have it.
            merged = merge_files(self.folder, (older, newer), deleted=len(files_of_partition) > 2)
            written.append(self._write_file(rows.schema, merged, str(partition)))
            files_of_partition[-2:] = written[-1:]
        for superseded in written[:-1]:
            (self.folder / superseded.name).unlink()
        return tuple(files_of_partition)

    def _write_file(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], name: str) -> ArrowFile:
        path = self.folder / f"{name}-{uuid4().hex}.arrow"
        rows = 0
        with path.open("wb") as out, pa.ipc.new_file(out, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
            writer.close()
            out.flush()
            os.fsync(out.fileno())
        return describe_file(path, rows)

    def _replace_manifest(self, manifest: TableManifest, *, sync: bool = True) -> None:
        path = self.folder / NEW_MANIFEST
        with path.open("w") as out:
            out.write(manifest.text)
            out.flush()
            if sync:
                os.fsync(out.fileno())
        path.rename(self.folder / MANIFEST)
        if sync:
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        # Only files of this process: one that wakes up after its lease expired must not delete those of its successor.
        for name in self.manifest.files.keys() - manifest.files.keys():
            (self.folder / name).unlink(missing_ok=True)
        self.manifest = manifest


def merge_files(folder: Path, files: tuple[ArrowFile, ...], *, deleted: bool = False) -> Iterator[pa.RecordBatch]:
    """Yields the rows of files, oldest first, each key from its newest file; with `deleted` also deleted keys."""
    newer: list[pa.ChunkedArray[Any]] = []
    for file in reversed(files):
        table = read_mapped(folder / file.name)
        keys = table["key"]
        if newer:
            newer_keys = pa.chunked_array([chunk for column in newer for chunk in column.chunks], keys.type)
            table = table.filter(pc.invert(pc.is_in(keys, value_set=newer_keys)))
        newer.append(keys)
        if not deleted:
            table = table.filter(pc.invert(table[DELETED]))
        yield from table.to_batches(BATCH_ROWS)


@dataclass(frozen=True)
class TableScan:
    """Reads the table in Spark's workers: for each number below `count` the rows of all partitions p with
    `p % count == number`, by the present manifest.
    """

    folder: str
    count: int

    def __call__(self, partitions: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = Path(self.folder)
        manifest = TableManifest.read(folder)
        self._of_this_batch(manifest)
        for batch in partitions:
            for number in batch.column(0).to_pylist():
                for partition, files in manifest.files_by_partition.items():
                    if partition % self.count == number:
                        yield from (rows.drop_columns([DELETED]) for rows in merge_files(folder, files))

    @staticmethod
    def _of_this_batch(manifest: TableManifest) -> None:
        """Refuse a broadcast: Spark collects it before the batch starts, when the table is not up to date."""
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context and context.getLocalProperty("streaming.sql.batchId")
        query = context and (
            context.getLocalProperty(QUERY_PROPERTY) or context.getLocalProperty("sql.streaming.queryId")
        )
        if number and query and (query, int(number)) != (manifest.query, manifest.batch):
            raise PenstockError(
                "a table is read before its batch begins, with the rows of an earlier batch",
                got=f"batch {number}, and the table of batch {manifest.batch}",
                hint="join it on equal keys, without broadcast hints and subqueries over it",
            )
