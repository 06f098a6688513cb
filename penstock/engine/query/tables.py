"""The tables of a stream: loaded before its query starts, then brought up to date before each batch.

A batch that is run again gets each table as it was the first time. Bad records of a table's topic become dead letters.
They wait in the table's folder until a batch's transaction has them, which the offsets in its commit marker say.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa

from penstock.engine.checkpoint.local_folders import local_folder
from penstock.engine.commit.rejected import DEAD_LETTER_SCHEMA, origin_headers
from penstock.errors import DeclarationError
from penstock.kafka.record_lookup import metadata_at
from penstock.settings import settings
from penstock.tables.table_store import BATCH_ROWS, TableCorrupt, TableFiles, TableManifest, TableScan
from penstock.tables.topic_reader import TopicReader, table_ddl
from penstock.tables.topic_snapshot import (
    TopicSnapshot,
    check_partition_count,
    check_tombstones_kept,
    missed_records,
    take_snapshot,
    was_recreated,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.model.input import Table
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

PartitionOffsets = dict[int, int]
# Next offsets of tables that are being read, by topic, and the ends they are read to, by topic and partition.
ReportLoading = Callable[[dict[str, PartitionOffsets], dict[tuple[str, int], int]], None]


def tables_folder(root: str, stream: str) -> Path:
    """The folder of a stream's tables: next to its checkpoint, or in the home if that is not on a local disk."""
    url = urlparse(root)
    if url.scheme in ("", "file"):
        return Path(url.path) / f"{stream}.tables"
    if not settings().spark_master.startswith("local"):
        raise DeclarationError(
            f"stream {stream} has tables, which Spark's workers read from a shared folder",
            got=f"checkpoints in {root}, workers of {settings().spark_master}",
            hint="let PENSTOCK_CHECKPOINTS be a folder that is mounted everywhere, or run the app on a local master",
        )
    return settings().home / local_folder("tables", root) / f"{stream}.tables"


class BatchIdentity(NamedTuple):
    """What a batch is known by.

    Attributes:
        query: The id of its query.
        batch: Its number.
        plan: A digest of what it reads: an offset log that lost its end plans other records under the same number.
            Empty for a batch that a store has already, and which runs again with the tables that it had.
    """

    query: str
    batch: int
    plan: str = ""

    @classmethod
    def of(cls, query: str, batch: PlannedBatch, *, is_written: bool = False) -> BatchIdentity:
        plan = hashlib.sha256(json.dumps(batch.ends, sort_keys=True).encode()).hexdigest()[:16]
        return cls(query, batch.batch_id, "" if is_written else plan)


class StreamTable:
    """One table of a stream: its folder and the reader of its topic."""

    def __init__(self, table: Table, stream: str, folder: Path, bootstrap: str) -> None:
        self._table, self._stream, self._bootstrap = table, stream, bootstrap
        self._files = TableFiles(folder)
        self._feed: TopicReader | None = None
        # Dead letters of records below these offsets are written.
        self._written: PartitionOffsets = {}
        self._taking = 0
        self.offsets: PartitionOffsets = {}
        """Offsets below which all dead letters are written once the last returned ones are."""

    @property
    def topic(self) -> str:
        return self._table.source

    @property
    def id(self) -> str:
        return self._files.manifest.topic

    @property
    def next(self) -> PartitionOffsets:
        return dict(self._files.manifest.next_offsets)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows as they are when a batch is executed: the plan has the folder, not its content."""
        # A task costs some 20 ms of CPU, and its exchanges more: so no more tasks than can run at once.
        count = min(len(self.next), spark.sparkContext.defaultParallelism)
        rows = TableScan(str(self._files.folder), count)
        return spark.range(0, count, 1, count).mapInArrow(rows, table_ddl(self._table.fields))

    def open(self) -> TopicSnapshot | None:
        """Open the folder, or begin again; the present topic, if it must be read to its end before it is used."""
        now = take_snapshot(self.topic, self._bootstrap)
        try:
            self._files.open()
        except TableCorrupt as e:
            self._begin_again(now, str(e) if self._files.folder.exists() else "")
        if self._files.manifest.stream != self._stream:
            self._begin_again(now, f"its folder is of stream {self._files.manifest.stream}")
        if self._files.manifest.schema != self._table.schema:
            self._begin_again(now, "its schema is another")
        self._begin_again_if_needed(now)
        self._feed = TopicReader(self._table, self._bootstrap, self.next)
        return None if self._files.manifest.loaded else now

    def catch_up(self, now: TopicSnapshot, stopped: Callable[[], bool], on_progress: Callable[[], None]) -> None:
        """Read the topic up to its ends."""
        assert self._feed is not None
        for rows in self._feed.read_to(now.ends, stopped):
            if rows.next_offsets != self.next:
                self._files.append(rows.rows, rows.bad_records, rows.next_offsets)
            on_progress()
        if not self._files.manifest.unchanged_since:
            check_tombstones_kept(self.topic, self._files.manifest.complete_at, self._bootstrap)
        if not self._files.manifest.loaded:
            self._files.mark_loaded(now.at)

    def advance(
        self, of: BatchIdentity, stopped: Callable[[], bool], on_progress: Callable[[PartitionOffsets], None]
    ) -> None:
        """Make the table that of a batch: as the topic is now, or as it was if the batch had it before."""
        manifest = self._files.manifest
        if (manifest.query, manifest.batch) == (of.query, of.batch) and of.plan in ("", manifest.plan):
            return
        now = take_snapshot(self.topic, self._bootstrap)
        if self._begin_again_if_needed(now):
            self.close()
            self._feed = TopicReader(self._table, self._bootstrap, self.next)
        self.catch_up(now, stopped, lambda: on_progress(now.ends))
        self._files.mark_batch(of.query, of.batch, of.plan, now.at)

    def load_progress(self, mark: CommitMarker) -> None:
        """Learn from the commit marker of the last batch which dead letters are written."""
        same = mark.topic_ids.get(self.topic) == self.id
        self._written = dict(mark.offsets.get(self.topic, {})) if same else {}

    def unwritten_dead_letters(self, stream: str) -> list[dict[str, Any]]:
        """The oldest dead letters that no batch has written, as rows of their topic with `reason`."""
        letters: list[dict[str, Any]] = []
        self._taking, self.offsets = 0, self.next
        previous, ids = self.offsets, {self.topic: self.id}
        for table, next_offsets in self._files.bad_records():
            if len(letters) >= BATCH_ROWS:
                # The rest goes with the next batch: a transaction has a limit.
                self.offsets = previous
                break
            self._taking, previous = self._taking + 1, dict(next_offsets)
            letters += [
                {**row, "topic": self.topic}
                for row in table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
                if row["offset"] >= self._written.get(row["partition"], 0)
            ]
        positions = [(self.topic, row["partition"], row["offset"]) for row in letters]
        originals = metadata_at(positions, self._bootstrap)
        for row, position in zip(letters, positions, strict=True):
            row["headers"] = origin_headers(row, stream, "reason", row["reason"], ids, originals.get(position))
        return letters

    def dead_letters_written(self) -> None:
        """A batch has written the dead letters that were returned last."""
        self._files.drop_bad_records(self._taking)
        self._taking, self._written = 0, self.offsets

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _begin_again_if_needed(self, now: TopicSnapshot) -> bool:
        """Begin again if reading cannot continue where it ended; whether that was so."""
        manifest = self._files.manifest
        if was_recreated(manifest.topic, manifest.next_offsets, now):
            self._begin_again(now, "it was deleted and made again")
            # The marker is of the deleted topic.
            self._written = {}
            return True
        check_partition_count(self.topic, manifest.next_offsets, now)
        if why := missed_records(
            self.topic,
            manifest.next_offsets,
            manifest.complete_at,
            now,
            self._bootstrap,
            unchanged=manifest.unchanged_since,
        ):
            self._begin_again(now, why)
        return bool(why)

    def _begin_again(self, now: TopicSnapshot, why: str) -> None:
        if why:
            log.warning("table %s is read from its topic's beginning: %s", self.topic, why)
        self._files.begin(TableManifest(self._stream, self._table.schema, now.id, now.at, now.starts))


class StreamTables:
    """All tables of one stream; without any, each call does nothing. on_loading: called while tables load."""

    def __init__(self, stream: Stream, root: str, bootstrap: str, on_loading: ReportLoading) -> None:
        self._stream, self._on_loading = stream, on_loading
        self._tables: dict[str, StreamTable] = {}
        self._stopped = False
        if stream.tables:
            folder = tables_folder(root, stream.name)
            self._tables = {n: StreamTable(t, stream.name, folder / n, bootstrap) for n, t in stream.tables.items()}

    def load(self) -> None:
        """Read each table to the present end of its topic, unless that was done before; LeaseLost if it is stopped."""
        self.close()
        self._stopped = False
        since = time.monotonic()
        opened = {name: table.open() for name, table in self._tables.items()}
        waiting = {name: now for name, now in opened.items() if now is not None}
        ends = {name: now.ends for name, now in waiting.items()}
        self._report_progress(ends)
        for name, now in waiting.items():
            self._tables[name].catch_up(now, lambda: self._stopped, lambda: self._report_progress(ends))
        if waiting:
            log.info("stream %s: tables are loaded, in %.1f s", self._stream.name, time.monotonic() - since)

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True

    def frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        return {name: table.frame(spark) for name, table in self._tables.items()}

    def advance(self, of: BatchIdentity, stopped: Callable[[], bool]) -> None:
        """Bring all tables up to date for a batch; for one that is run again, leave them as they were."""
        for name, table in self._tables.items():
            table.advance(of, stopped, lambda ends, name=name: self._report_progress({name: ends}))  # type: ignore[misc]

    def load_progress(self, mark: CommitMarker) -> None:
        """Learn which dead letters are written. mark: of the last batch in the store that takes dead letters."""
        for table in self._tables.values():
            table.load_progress(mark)

    def unwritten_dead_letters(self) -> tuple[dict[str, pa.Table], int, str]:
        """Dead letters by topic, how many they are, and the reason of the first."""
        by_topic = {
            t.dead_letter_topic.name: self._tables[name].unwritten_dead_letters(self._stream.name)
            for name, t in self._stream.tables.items()
        }
        rows = {topic: pa.Table.from_pylist(r, schema=DEAD_LETTER_SCHEMA) for topic, r in by_topic.items() if r}
        letters = [row for r in by_topic.values() for row in r]
        return rows, len(letters), str(letters[0]["reason"]) if letters else ""

    def dead_letters_written(self) -> None:
        for table in self._tables.values():
            table.dead_letters_written()

    @property
    def offsets(self) -> dict[str, PartitionOffsets]:
        """For the commit marker: the offsets of each table's topic below which no dead letter waits."""
        return {table.topic: table.offsets for table in self._tables.values()}

    @property
    def ids(self) -> dict[str, str]:
        return {table.topic: table.id for table in self._tables.values()}

    def close(self) -> None:
        for table in self._tables.values():
            table.close()

    def _report_progress(self, ends: dict[str, PartitionOffsets]) -> None:
        reading = {self._tables[name]: table_ends for name, table_ends in ends.items() if table_ends}
        if reading:
            offsets = {table.topic: table.next for table in reading}
            self._on_loading(
                offsets,
                {(table.topic, p): end for table, table_ends in reading.items() for p, end in table_ends.items()},
            )


class TableLoader:
    """Loads the tables of one stream in a thread, so that the other streams of the app go on."""

    def __init__(self, tables: StreamTables, stream: str) -> None:
        self._tables, self._stream = tables, stream
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def is_loaded(self) -> bool:
        """Whether the tables are loaded; starts to load them if not. Raises what the loading failed with."""
        if self._thread is None:
            self._error = None
            self._thread = threading.Thread(target=self._load, name=f"tables of {self._stream}", daemon=True)
            self._thread.start()
        # Tables that are loaded already are only opened.
        self._thread.join(0.2)
        if self._thread.is_alive():
            return False
        self._thread = None
        if self._error is not None:
            raise self._error
        return True

    def stop(self, timeout: float) -> None:
        """Wait for the thread, once the tables are stopped."""
        self._tables.stop()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None

    def _load(self) -> None:
        try:
            self._tables.load()
        except Exception as e:
            self._error = e
