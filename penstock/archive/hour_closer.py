"""Closes the hours of an archive: joins small files and writes a manifest of the hour.

An hour is closed when its end is longer ago than `ArchiveOutput.wait` by the clock, and all records that the topic held
at that time are archived. A thread beside the writer checks this every few seconds. A record that arrives later opens
its hour again; after the same wait a manifest with the next revision is written.

The order of writes is: joined files, manifest, state. The state refers to the manifest and no longer to the small
files. It is one object, so a reader sees either the old files or the new ones. After a crash before the state is
written, the new objects are not referenced. Objects that are no longer referenced are deleted an hour later, because
readers may still use an older state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.archive import layout, parquet
from penstock.archive.layout import ArchiveFile, ArchiveState, ClosedHour, HourManifest, merge_spans
from penstock.errors import BrokerError, LeaseLost, PenstockError, SinkError, Wait
from penstock.kafka.admin import admin, log_end_offsets, partition_counts, topic_ids

if TYPE_CHECKING:
    from penstock.archive.stream import ArchiveOutput
    from penstock.archive.writer import ArchiveWriter
    from penstock.object_store.bucket import Bucket

log = logging.getLogger(__name__)

TopicIds = Mapping[str, str]
TopicEnds = tuple[TopicIds, Mapping[tuple[str, int], int]]
"""Topic ids by topic, and log end offsets by partition.

They include open transactions: a record of one may be much older than the commit that makes it readable.
"""
TopicEndsReader = Callable[[Sequence[str]], TopicEnds]

CHECK_INTERVAL = 10.0
"""Seconds between two checks."""
GARBAGE_GRACE = 3600.0
"""Seconds for which readers may use objects that the newest state no longer refers to."""


def read_topic_ends(topics: Sequence[str], bootstrap: str) -> TopicEnds:
    """The present ends of topics; a topic that does not exist has none.

    Raises:
        BrokerError: A partition does not answer.
    """
    client = admin(bootstrap)
    counts = partition_counts(client, bootstrap)
    partitions = {(t, p) for t in topics for p in range(counts.get(t, 0))}
    ends = log_end_offsets(client, partitions, bootstrap)
    if missing := sorted(partitions - ends.keys()):
        raise BrokerError("partitions do not answer", got=", ".join(f"{t}[{p}]" for t, p in missing[:5]))
    # The ids are read after the offsets: if a topic is recreated in between, the offsets do not match its id.
    return topic_ids(client, {t for t, _ in partitions}, bootstrap), ends


def unarchived(state: ArchiveState, ends: TopicEnds) -> list[str]:
    """The gaps between a state and the ends of the topic, a text for each partition."""
    ids, gaps = ends[0], []
    for (topic, p), end in sorted(ends[1].items()):
        archived_id = state.ids.get(topic, "")
        recreated = archived_id not in ("", ids.get(topic, archived_id))
        position = 0 if recreated else state.positions.get(topic, {}).get(p, 0)
        if position < end:
            gaps.append(f"{topic}[{p}] up to {position} of {end}{' of the recreated topic' if recreated else ''}")
    return gaps


class HourCloser:
    """Closes the hours of a writer's archive, in a thread of its own.

    Args:
        writer: The writer, whose state is changed.
        output: The archive.
        read_topic_ends: Reads the ends of topics.
        clock: Returns epoch seconds.
    """

    def __init__(
        self,
        writer: ArchiveWriter,
        output: ArchiveOutput,
        read_topic_ends: TopicEndsReader,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer, self._output, self._read_topic_ends, self._clock = writer, output, read_topic_ends, clock
        self._ends: dict[str, TopicEnds] = {}
        self._stop = threading.Event()
        self._last_error = ""

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"hours of {self._output.archive}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def close_due_hours(self) -> None:
        """Close the hours that are due, and delete unreferenced objects.

        An hour that cannot be closed does not stop the others; the first error is raised in the end.
        """
        due = list(self._due_hours())
        errors = list[Exception]()
        for hour in self._fully_archived(due) if due else ():
            if self._stop.is_set():
                break
            try:
                self._close(hour)
            except (LeaseLost, Wait):
                raise
            except Exception as e:
                errors.append(e)
        self._delete_garbage()
        if errors:
            raise errors[0]

    def _run(self) -> None:
        while not self._stop.wait(CHECK_INTERVAL):
            try:
                self.close_due_hours()
                self._last_error = ""
            except LeaseLost as e:
                log.info("archive %s: %s", self._output.archive, e)
                return
            except Exception as e:
                # The next check tries again; an hour that stays open loses nothing.
                if str(e) != self._last_error and not isinstance(e, Wait):
                    expected = isinstance(e, PenstockError | pa.ArrowException | OSError)
                    message = "archive %s: an hour cannot be closed: %s"
                    log.warning(message, self._output.archive, e, exc_info=not expected)
                self._last_error = str(e)

    def _due_hours(self) -> Iterator[str]:
        state, now = self._writer.state, self._clock()
        for hour in sorted(state.open):
            end = layout.hour_end(hour).timestamp()
            closed = state.closed.get(hour)
            if now >= max(end, closed.at if closed else 0.0) + self._output.wait:
                yield hour
            else:
                self._ends.pop(hour, None)

    def _fully_archived(self, hours: Sequence[str]) -> list[str]:
        """The hours for which all records that the topics held when the hour became due are archived."""
        ends = self._read_topic_ends(self._output.topics_read)
        for hour in hours:
            # A recreated topic may never reach the end offsets of the topic before it.
            if hour not in self._ends or self._ends[hour][0] != ends[0]:
                self._ends[hour] = ends
        return [hour for hour in hours if not unarchived(self._writer.state, self._ends[hour])]

    def _close(self, hour: str) -> None:
        writer, state = self._writer, self._writer.state
        new_files, previous = state.open[hour], state.closed.get(hour)
        closed_files = read_manifest(writer.store, previous).files if previous else ()
        files, replaced = self._join_small_files(hour, [*closed_files, *new_files])
        revision = previous.revision + 1 if previous else 1
        spans = merge_spans(file.spans for file in files)
        manifest = HourManifest(self._output.archive, hour, revision, spans, tuple(files))
        key = layout.manifest_name(hour, f"{writer.claim}-{writer.next_serial():09}", revision)
        writer.store.put(key, manifest.write())
        size, now = sum(file.size for file in files), self._clock()
        unreferenced = [*(file.key for file in replaced), *([previous.key] if previous else [])]
        with writer.lock:
            state = writer.state
            open_hours = {h: other for h, other in state.open.items() if h != hour}
            if late_files := tuple(file for file in state.open[hour] if file not in new_files):
                open_hours[hour] = late_files
            closed = {**state.closed, hour: ClosedHour(key, revision, manifest.rows, size, len(files), now)}
            garbage = {**state.garbage, **dict.fromkeys(unreferenced, now)}
            writer.commit(replace(state, open=open_hours, closed=closed, garbage=garbage))
            writer.counters.closed += 1
        self._ends.pop(hour, None)

    def _join_small_files(self, hour: str, files: Sequence[ArchiveFile]) -> tuple[list[ArchiveFile], list[ArchiveFile]]:
        """Join the small files of an hour; returns its files, and the files that were joined."""
        joined: list[ArchiveFile] = []
        replaced: list[ArchiveFile] = []
        for group in group_small_files(files, self._output.target):
            if len(group) == 1:
                joined += group
                continue
            joined.append(self._join_files(hour, group))
            replaced += group
        return joined, replaced

    def _join_files(self, hour: str, files: Sequence[ArchiveFile]) -> ArchiveFile:
        store, key = self._writer.store, self._writer.new_file_name(hour)

        def tables() -> Iterator[pa.Table]:
            for file in files:
                with store.open_input(file.key) as source:
                    yield from parquet.read_tables(source)

        with store.open_output(key) as out:
            spans = parquet.copy_records(tables(), out)
            size = out.tell()
        if spans != merge_spans(file.spans for file in files):
            raise SinkError(
                f"files of hour {hour} do not hold what was written to them",
                got=", ".join(store.url(file.key) for file in files[:5]),
                hint=f"find the file with `penstock archives verify {self._output.archive}`, and restore it from a "
                "version or backup of the bucket; the hour stays open",
            )
        return ArchiveFile(key, size, spans)

    def _delete_garbage(self) -> None:
        writer, now = self._writer, self._clock()
        expired = [key for key, since in writer.state.garbage.items() if now - since > GARBAGE_GRACE]
        if not expired:
            return
        for key in expired:
            writer.store.delete(key)
        with writer.lock:
            garbage = {key: since for key, since in writer.state.garbage.items() if key not in expired}
            writer.commit(replace(writer.state, garbage=garbage))


def read_manifest(store: Bucket, closed: ClosedHour) -> HourManifest:
    """The manifest of a closed hour.

    Raises:
        SinkError: The object is no manifest.
    """
    return HourManifest.read(store.get(closed.key), store.url(closed.key))


def group_small_files(files: Sequence[ArchiveFile], target: int) -> list[list[ArchiveFile]]:
    """Groups of files to join, in order of name; a file of at least half the target's size is a group of its own."""
    groups = [[file] for file in files if file.size * 2 >= target]
    group: list[ArchiveFile] = []
    for file in sorted((file for file in files if file.size * 2 < target), key=lambda file: file.key):
        group.append(file)
        if sum(member.size for member in group) >= target:
            groups.append(group)
            group = []
    return [*groups, group] if group else groups
