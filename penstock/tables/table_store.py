"""A table on disk: what each key of a compacted topic says last, in Arrow files that Spark's workers map into memory.

A table is a folder of files that are never changed and one manifest that names those that count; a new manifest takes
the old one's place at once, so that a crash leaves the table as it was before or as it is after. Of each partition the
manifest names some files, oldest first: of a key the last one wins. Two files become one where the older is not twice
as long as the newer, so there are few, and each row is written again a logarithm of times.
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

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
NEW_MANIFEST = f"{MANIFEST}.fresh"
# What one piece of a file holds, and so what a worker passes on at a time.
BATCH_ROWS = 50_000
DELETED = "_gone"


class TableCorrupt(PenstockError):
    """A table's folder does not match its manifest."""


class TableWriteError(PenstockError):
    """A table's folder cannot be written."""


@dataclass(frozen=True)
class BadRecords:
    """Invalid records of the topic; next_offsets: the offsets after them, by partition."""

    file: ArrowFile
    next_offsets: Mapping[int, int]


@dataclass(frozen=True)
class TableManifest:
    """The valid state of a table's folder.

    Attributes:
        stream: the owner.
        schema: DDL of the values.
        topic: the broker's topic id.
        complete_at: epoch ms since which nothing that was deleted from the topic is missing: when reading began, or
            when the end offsets up to which it was read were requested.
        next_offsets: offset at which to continue, by partition.
        loaded: whether the table was read to the end once.
        query: id of the query of `batch`.
        batch: the last batch for which the table was prepared.
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
    files_by_partition: Mapping[int, tuple[ArrowFile, ...]] = field(default_factory=dict)
    bad_records: tuple[BadRecords, ...] = ()
    unchanged_since: bool = False

    @property
    def files(self) -> dict[str, ArrowFile]:
        """By name."""
        every = (
            *(file for files in self.files_by_partition.values() for file in files),
            *(dead.file for dead in self.bad_records),
        )
        return {file.name: file for file in every}

    @property
    def text(self) -> str:
        body = json.dumps({"layout": FORMAT_VERSION, **asdict(self)})
        return f"{body}\n{zlib.crc32(body.encode())}\n"

    @classmethod
    def read(cls, folder: Path) -> TableManifest:
        """Damaged if there is none, or none of this layout."""
        try:
            body, _, crc = (folder / MANIFEST).read_text().partition("\n")
            found: dict[str, Any] = json.loads(body)
            if found.pop("layout") != FORMAT_VERSION:
                raise TableCorrupt("a table is kept in another layout", got=str(folder))
            if zlib.crc32(body.encode()) != int(crc):
                raise TableCorrupt("the manifest of a table was changed", got=str(folder))
            found["next_offsets"] = _int_keys(found["next_offsets"])
            parts = found["files_by_partition"].items()
            found["files_by_partition"] = {int(p): tuple(ArrowFile(**f) for f in files) for p, files in parts}
            bad = found["bad_records"]
            found["bad_records"] = tuple(BadRecords(ArrowFile(**b["file"]), _int_keys(b["next_offsets"])) for b in bad)
            return cls(**found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise TableCorrupt("a table has no manifest that can be read", got=f"{folder}: {e!r}") from e


def _int_keys(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): at for partition, at in offsets.items()}


class TableFiles:
    """The folder of one table, written by one thread of one driver.

    Rows are `key STRING`, the fields of the schema and `_gone BOOL`: whether the key was removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = TableManifest("", "", "")

    def open(self) -> None:
        """Take up what is there; Damaged if it is not whole."""
        self.manifest = TableManifest.read(self.folder)
        for file in self.manifest.files.values():
            self._check_intact(file)
        # Left by a crash before they were named.
        with self._write_errors():
            for path in (*self.folder.glob("*.arrow"), self.folder / NEW_MANIFEST):
                if path.name not in self.manifest.files:
                    path.unlink(missing_ok=True)

    def begin(self, manifest: TableManifest) -> None:
        """Make it an empty table."""
        with self._write_errors():
            if self.folder.exists():
                (self.folder / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._replace_manifest(manifest)

    def append(self, rows: Mapping[int, pa.Table], dead: pa.Table, following: Mapping[int, int]) -> None:
        """Take in the newest rows of some partitions, each key once, and records that are none."""
        now = self.manifest
        with self._write_errors():
            parts = {
                **now.files_by_partition,
                **{p: self._append_file(now.files_by_partition.get(p, ()), table, p) for p, table in rows.items()},
            }
            more = (
                [BadRecords(self._write_file(dead.schema, dead.to_batches(BATCH_ROWS), "dead"), following)]
                if len(dead)
                else []
            )
            self._replace_manifest(
                replace(
                    now,
                    files_by_partition=parts,
                    bad_records=(*now.bad_records, *more),
                    next_offsets=following,
                    unchanged_since=False,
                )
            )

    def mark_batch(self, query: str, batch: int, at: int) -> None:
        """Records that the table as it is belongs to a batch, read up to the end requested at `at`."""
        # Each batch does this, and after a loss of power the manifest of before names the same files.
        with self._write_errors():
            self._replace_manifest(
                replace(self.manifest, query=query, batch=batch, complete_at=at, unchanged_since=True), sync=False
            )

    def mark_loaded(self, at: int) -> None:
        """Records that the table was read up to the end requested at `at`."""
        with self._write_errors():
            self._replace_manifest(replace(self.manifest, loaded=True, complete_at=at, unchanged_since=True))

    def bad_records(self) -> Iterator[tuple[pa.Table, Mapping[int, int]]]:
        """Yields invalid records, oldest first, with the offsets after them."""
        for dead in self.manifest.bad_records:
            yield read_mapped(self.folder / dead.file.name), dead.next_offsets

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
                hint="see that its folder can be written and its disk has room; it is tried again by itself",
            ) from e

    def _check_intact(self, file: ArrowFile) -> None:
        if not is_intact(self.folder, file):
            raise TableCorrupt(
                "a file of a table is missing or changed",
                got=str(self.folder / file.name),
                hint="nothing: the table is read anew",
            )

    def _append_file(self, files: tuple[ArrowFile, ...], rows: pa.Table, partition: int) -> tuple[ArrowFile, ...]:
        """A partition's files after some rows came, put together where that is due."""
        made = [self._write_file(rows.schema, rows.to_batches(BATCH_ROWS), str(partition))]
        kept = [*files, *made]
        while len(kept) > 1 and kept[-2].rows < 2 * kept[-1].rows:
            older, newer = kept[-2:]
            # Else damage would get a checksum of its own.
            self._check_intact(older)
            # A removed key must be remembered only while an older file may have it.
            both = merge_files(self.folder, (older, newer), gone=len(kept) > 2)
            made.append(self._write_file(rows.schema, both, str(partition)))
            kept[-2:] = made[-1:]
        for passing in made[:-1]:
            (self.folder / passing.name).unlink()
        return tuple(kept)

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

    def _replace_manifest(self, to: TableManifest, *, sync: bool = True) -> None:
        fresh = self.folder / NEW_MANIFEST
        with fresh.open("w") as out:
            out.write(to.text)
            out.flush()
            if sync:
                os.fsync(out.fileno())
        fresh.rename(self.folder / MANIFEST)
        if sync:
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        # Its own files only: a driver that wakes up behind its lease takes nothing from its heir.
        for name in self.manifest.files.keys() - to.files.keys():
            (self.folder / name).unlink(missing_ok=True)
        self.manifest = to


def merge_files(folder: Path, files: tuple[ArrowFile, ...], *, gone: bool = False) -> Iterator[pa.RecordBatch]:
    """Yields the rows of files, oldest first, each key from its newest file. gone: include deleted keys."""
    newer: list[pa.ChunkedArray[Any]] = []
    for file in reversed(files):
        table = read_mapped(folder / file.name)
        keys = table["key"]
        if newer:
            known = pa.chunked_array([chunk for one in newer for chunk in one.chunks], keys.type)
            table = table.filter(pc.invert(pc.is_in(keys, value_set=known)))
        newer.append(keys)
        if not gone:
            table = table.filter(pc.invert(table[DELETED]))
        yield from table.to_batches(BATCH_ROWS)


@dataclass(frozen=True)
class TableScan:
    """Reads the table in Spark's workers: for each number below count the rows of the partitions that fall to it, as
    the manifest then has them: there are more partitions than numbers where a task reads several.
    """

    folder: str
    count: int

    def __call__(self, partitions: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = Path(self.folder)
        manifest = TableManifest.read(folder)
        self._of_this_batch(manifest)
        for given in partitions:
            for number in given.column(0).to_pylist():
                for partition, files in manifest.files_by_partition.items():
                    if partition % self.count == number:
                        yield from (batch.drop_columns([DELETED]) for batch in merge_files(folder, files))

    @staticmethod
    def _of_this_batch(manifest: TableManifest) -> None:
        """Spark collects what it broadcasts before it hands over the batch: before the table is brought up to date."""
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context and context.getLocalProperty("streaming.sql.batchId")
        query = context and context.getLocalProperty("sql.streaming.queryId")
        if number and query and (query, int(number)) != (manifest.query, manifest.batch):
            raise PenstockError(
                "a table is read before its batch begins, as it was before the batch",
                got=f"batch {number}, and the table of batch {manifest.batch}",
                hint="join it on equal keys, and leave out broadcast hints and subqueries over it",
            )
