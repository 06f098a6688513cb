"""One view in one instance: a thread that brings its store up to what its topic holds."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.control import ProgressRow
from penstock.control.repositories.view_instances import ViewPartitions
from penstock.errors import DeclarationError, LeaseLost, PenstockError
from penstock.model.input import Table
from penstock.model.topic import Topic
from penstock.model.view import ServedView, View
from penstock.settings import settings
from penstock.supervision.thread_run import ThreadRun
from penstock.tables.table_store import DELETED
from penstock.tables.topic_reader import TopicBatch, TopicReader
from penstock.tables.topic_snapshot import (
    TopicSnapshot,
    check_partition_count,
    check_tombstones_kept,
    missed_records,
    take_snapshot,
    was_recreated,
)
from penstock.views.cluster.partition_assignment import assigned_partitions, partition_of, partitions_of, smaller_count
from penstock.views.store.columns import ViewLayout
from penstock.views.store.sqlite import StoreDamaged, ViewStore

log = logging.getLogger(__name__)

# Seconds between two looks at the topic, when the last found something and when it did not.
POLL_EVERY, IDLE_POLL_EVERY = 0.5, 1.0
# Seconds after which the store notes again that it is up to the end, and its rows are counted again.
NOTE_EVERY, COUNT_EVERY = 60.0, 10.0
# Ends of a log that are waited for; while there are so many, those that follow are not noted.
MAX_WAITING_ENDS = 60
# Records in the wrong partition that a view remembers of what it reads at once. Where there are more it is the topic.
MAX_MISPLACED = 1000
# So many keys lie as with fewer partitions by chance in one of some thousand topics.
MIN_MISPLACED = 10
BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0)
STOP_TIMEOUT = 20.0


class PartitionState(NamedTuple):
    """One partition. next, end: offsets, the log's end as it was when it was asked for last; at: monotonic, before an
    end was asked for that is reached since; made: which of its files the store has it in."""

    next: int
    end: int
    at: float
    made: int


class EndOffsets:
    """When an end of a partition's log was asked for that is reached since. at: monotonic, None for never.

    Ends of the log, not of a committed reader: an open transaction hides later records that are committed.
    """

    def __init__(self, at: float | None = None) -> None:
        self.at = at
        self._ends: deque[tuple[float, int]] = deque()

    def asked(self, at: float, end: int) -> None:
        """Take in where the log ended, at `at` or later."""
        if len(self._ends) < MAX_WAITING_ENDS:
            self._ends.append((at, end))

    def read(self, following: int) -> None:
        """Take in up to where it is read."""
        while self._ends and following >= self._ends[0][1]:
            self.at, _ = self._ends.popleft()


@dataclass
class ViewStatistics:
    """Figures of a view that are not in its row of progress."""

    keys: int = 0
    bytes: int = 0
    dead: int = 0
    reason: str = ""
    rebuilt: str = ""
    """Why the store was last created again in this process."""


class ViewRun(ThreadRun):
    """A view as one instance keeps it, in a thread of its own. figures: its row of progress.

    In that row, rows in are records, rows out changes of keys, the dead ones no record of the schema, the batch is a
    transaction of the store, and the state what the store holds.
    """

    def __init__(self, served: ServedView, topic: Topic, root: Path, bootstrap: str, figures: ProgressRow) -> None:
        super().__init__(f"view-{served.view.name}", figures, STOP_TIMEOUT)
        self.view: View = served.view
        self.statistics = ViewStatistics()
        self.count = 0
        """Partitions of the topic; 0 until they are known."""
        self.served: dict[int, PartitionState] = {}
        """Those of this instance that can be answered for."""
        self.refused: DeclarationError | None = None
        """Why the topic cannot be served as it is, until that has changed."""
        self._assigned: list[int] = []
        self._end_offsets: dict[int, EndOffsets] = {}
        self.layout = ViewLayout(served.view)
        self.store = ViewStore(self.layout, root / f"{served.view.name}.db")
        self._instance, self._topic, self._bootstrap = served.instance, topic, bootstrap
        self._table = Table(topic, served.view.schema)
        self._failures = 0
        self._noted = self._counted = 0.0
        # Epoch ms of the last end that was asked for and is reached; 0 if the store was opened since.
        self._read_at = 0

    def reconcile(self) -> None:
        """Start the thread if it does not run."""
        if not self.active:
            self.start()

    def report(self) -> ProgressRow:
        now = time.monotonic()
        self.update_rate(now)
        partitions = self.served
        self.figures.behind_ms = int((now - min(h.at for h in partitions.values())) * 1000) if partitions else None
        row = replace(self.figures)
        # In the copy: the view's own thread may say meanwhile that it fails.
        if row.state == "running" and not (row.rows_per_s or row.lag):
            row.state = "idle"
        return row

    @property
    def ready(self) -> bool:
        """Whether all that this instance keeps of it is loaded, which may be nothing."""
        return self.count > 0 and self.served.keys() >= set(self._assigned)

    @property
    def waits(self) -> str:
        """What it waits for, as long as it is not ready."""
        figures = self.figures
        if self.refused:
            return self.refused.what
        if figures.error and figures.state != "running":
            return f"{figures.state}, after an error"
        lacking = sorted(set(self._assigned) - self.served.keys())
        if figures.state == "running" and lacking:
            return (
                f"partitions {lacking[:20]} are hidden by a transaction that is open: it ends at its timeout, or see "
                "kafka-transactions.sh list, abort"
            )
        return f"{figures.state}, {figures.lag or 0} records to read"

    @property
    def holds(self) -> ViewPartitions:
        return {"count": self.count, "loaded": sorted(self.served)}

    # The thread

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                self._follow(stopping)
            except LeaseLost:
                break  # it is stopped
            except StoreDamaged as e:
                # The next open finds no store and creates it.
                self._failed(e)
                self.store.path.unlink(missing_ok=True)
                self.statistics.rebuilt = str(e)
            except PenstockError as e:
                self.refused = e if isinstance(e, DeclarationError) else self.refused
                self._failed(e)
                stopping.wait(BACKOFF[min(self._failures, len(BACKOFF)) - 1])
            except Exception as e:
                # An unexpected error must show as a failing view, not as a thread that has ended.
                log.exception("view %s", self.view.name)
                self._failed(e)
                stopping.wait(BACKOFF[-1])
        self.served = {}
        self.store.close()

    def _follow(self, stopping: threading.Event) -> None:
        asked_at, now = time.monotonic(), take_snapshot(self._topic.name, self._bootstrap, "view")
        partitions = self._open(asked_at, now)
        feed = TopicReader(self._table, self._bootstrap, {p: self.store.next[p] for p in partitions})
        with closing(feed):
            while not stopping.is_set():
                if why := self._rebuild_reason(now):
                    self._rebuild(now, partitions, why)
                    return
                busy = self._read_to_ends(feed, now, asked_at, stopping.is_set)
                stopping.wait(POLL_EVERY if busy else IDLE_POLL_EVERY)
                if not stopping.is_set():
                    asked_at, now = time.monotonic(), take_snapshot(self._topic.name, self._bootstrap, "view")

    def _open(self, asked_at: float, now: TopicSnapshot) -> list[int]:
        """Open the store or create it; returns the partitions of this instance. asked_at: monotonic, before `now`."""
        s = settings()
        partitions = assigned_partitions(self._instance, len(now.ends), s.views_instances, s.views_standby)
        self.served, self._assigned, self.count = {}, partitions, len(now.ends)
        try:
            self.store.open()
        except StoreDamaged as e:
            self._rebuild(
                now, partitions, str(e) if self.store.path.exists() else self.statistics.rebuilt or "there was none"
            )
        others = self.store.next.keys() - set(partitions)
        self.store.without(others)
        fresh, missing = self.store.meta.fresh, set(partitions) - self.store.next.keys()
        # A clock that was set back says no less than one that was set forth.
        reached_at = asked_at - abs(now.at - fresh) / 1000 if fresh else None
        self._end_offsets = {p: EndOffsets(None if p in missing else reached_at) for p in partitions}
        if missing:
            self.store.add({p: now.starts[p] for p in missing})
        self.figures.state = "loading"
        self._counted = self._noted = 0.0
        self._read_at = 0
        return partitions

    def _rebuild_reason(self, now: TopicSnapshot) -> str:
        following, meta, name = self.store.next, self.store.meta, self._topic.name
        if self.store.corruption:
            return f"its store is damaged: {self.store.corruption}"
        if was_recreated(meta.topic, following, now):
            return "its topic was deleted and made again"
        check_partition_count(name, dict.fromkeys(range(meta.count), 0), now, "view")
        return missed_records(name, following, self._read_at or meta.at, now, self._bootstrap, unchanged=meta.whole)

    def _rebuild(self, now: TopicSnapshot, partitions: list[int], why: str) -> None:
        log.warning("view %s is read from its topic's beginning: %s", self.view.name, why)
        self.served, self.statistics.rebuilt, self._read_at = {}, why, 0
        self.store.begin(now.id, len(now.ends), now.at, {p: now.starts[p] for p in partitions})

    def _read_to_ends(
        self, feed: TopicReader, now: TopicSnapshot, asked_at: float, stopped: Callable[[], bool]
    ) -> bool:
        """Read to where a committed reader comes; whether there was anything new. asked: monotonic, before `now`."""
        began, changed, partitions = time.monotonic(), False, self._assigned
        ends = {p: now.log_ends[p] for p in partitions}
        for p, end in ends.items():
            self._end_offsets[p].asked(asked_at, end)
        self._update_progress(ends)
        for batch in feed.read_to({p: now.ends[p] for p in partitions}, stopped):
            if batch.next_offsets != self.store.next:
                self._apply(batch)
                changed = True
            self._update_progress(ends)
        if not self.store.meta.whole:
            check_tombstones_kept(self._topic.name, self._read_at or self.store.meta.at, self._bootstrap, "view")
        if misplaced := self.store.read("SELECT key, partition FROM misplaced LIMIT ?", (MAX_MISPLACED,)):
            self.served = {}
            raise self._misplaced_error(misplaced)
        if changed:
            self.figures.batch_at = int(time.time() * 1000)
            self.figures.batch_ms = int((time.monotonic() - began) * 1000)
            self.figures.batch_id = (self.figures.batch_id or 0) + 1
        for p, reach in self._end_offsets.items():
            reach.read(self.store.next[p])
        reached = {p: reach.at for p, reach in self._end_offsets.items() if reach.at is not None}
        if not self.store.meta.whole or asked_at - self._noted > NOTE_EVERY:
            ago = int((asked_at - min(reached.values(), default=asked_at)) * 1000)
            self.store.reached(now.at, now.at - ago if len(reached) == len(partitions) else 0)
            self._noted = asked_at
        self._read_at = now.at
        following, generation = self.store.next, self.store.generation
        self.served = {
            p: PartitionState(following[p], max(ends[p], following[p]), at, generation) for p, at in reached.items()
        }
        if not self._counted or (changed and asked_at - self._counted > COUNT_EVERY):
            ((self.statistics.keys,),) = self.store.read("SELECT count(*) FROM rows")
            self._counted = asked_at
        self._failures, self.refused = 0, None
        self.figures.state, self.figures.error = "running", None
        self.figures.watermark = now.at
        self._update_progress(ends)
        return changed

    def _apply(self, batch: TopicBatch) -> None:
        rows, misplaced = dict[int, pa.Table](), dict[int, pa.Table]()
        dead, reason = len(batch.bad_records), str(batch.bad_records["reason"][-1]) if len(batch.bad_records) else ""
        for partition, table in batch.rows.items():
            is_placed = pa.array(partitions_of(table["key"], self.count) == partition)
            rows[partition] = table
            if not pc.all(is_placed).as_py():
                rows[partition], misplaced[partition] = table.filter(is_placed), table.filter(pc.invert(is_placed))
        misplaced_keys = [
            (key, partition)
            for partition, table in misplaced.items()
            for key in map(str, table.filter(pc.invert(table[DELETED]))["key"].to_pylist())
        ]
        if len(misplaced_keys) >= MAX_MISPLACED:
            raise self._misplaced_error(misplaced_keys)
        read_before, dead_before = sum(self.store.next.values()), self.store.meta.dead
        self.store.apply(rows, batch.next_offsets, dead, reason, misplaced)
        self.figures.rows_in += sum(batch.next_offsets.values()) - read_before
        self.figures.rows_out += sum(len(table) for table in rows.values())
        self.figures.dead += self.store.meta.dead - dead_before

    def _update_progress(self, ends: dict[int, int]) -> None:
        following, topic = self.store.next, self._topic.name
        # Update the partitions that are served; others are not added here.
        self.served = {p: h._replace(next=following[p], end=max(ends[p], following[p])) for p, h in self.served.items()}
        lag = sum(max(0, end - following[p]) for p, end in ends.items())
        self.statistics.dead, self.statistics.reason = self.store.meta.dead, self.store.meta.reason
        self.statistics.bytes = self.store.bytes
        self.figures.lag, self.figures.state_rows, self.figures.state_bytes = (
            lag,
            self.statistics.keys,
            self.statistics.bytes,
        )
        self.figures.topics = {topic: {"lag": lag, "offsets": {str(p): following[p] for p in ends}}}

    def _misplaced_error(self, keys: Sequence[tuple[str, int]]) -> DeclarationError:
        """The error for records, some keys and where they lie, that are not where their keys say."""
        name, (key, partition) = self._topic.name, keys[0]
        number = f"{len(keys)} keys" if len(keys) < MAX_MISPLACED else f"{MAX_MISPLACED} keys or more"
        got = f"{number}, as {key[:80]!r} in partition {partition}, not in {partition_of(key, self.count)}"
        tombstone_hint = f"write a tombstone with that key into partition {partition}"
        if earlier := smaller_count(keys, self.count):
            got += f"; they fit {earlier} partitions, and there are {self.count}"
            added = "if partitions were added, copy the topic into a new one with that many partitions"
            hint = added if len(keys) >= MIN_MISPLACED else f"{added}; if it is a stray record, {tombstone_hint}"
        elif len(keys) < MAX_MISPLACED:
            hint = f"if it is a stray record, {tombstone_hint}; else use the partitioner of Kafka's Java clients"
        else:
            hint = "use the partitioner of Kafka's Java clients (librdkafka's murmur2_random)"
        return DeclarationError(
            f"records of topic {name} are in other partitions than their keys say",
            got=got,
            hint=hint,
        )

    def _failed(self, e: Exception) -> None:
        self._failures += 1
        self.figures.state, self.figures.rows_per_s = "failing", 0.0
        self.figures.error, self.figures.error_at = str(e), int(time.time() * 1000)
        self.figures.restarts += 1
        log.error("view %s failed: %s", self.view.name, e)
