"""Closes the hours of an archive: joins small files, and says what each hour holds.

An hour is closed when its end is longer ago than `ArchiveOutput.wait` by the clock, and all records that the topic held
at that time are archived. A thread beside the writer checks this every few seconds. A record that arrives later opens
its hour again; after the same wait it is closed with the next revision.

The joined files replace the small ones in one commit of the table. The row that closes the hour follows it
(`penstock.archive.closed_hours`). After a crash between the two the hour is still open, and there is nothing to join.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.archive.closed_hours import ClosedHour
from penstock.archive.reader import read_batches, spans_of_file
from penstock.archive.state import ArchiveState, Spans, hour_end, hour_start, merge_spans, span_difference
from penstock.errors import BrokerError, LeaseLost, PenstockError, SinkError, Wait
from penstock.kafka.admin import admin, log_end_offsets, partition_counts, topic_ids

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from penstock.archive.archive_file import ArchiveFile
    from penstock.archive.stream import ArchiveOutput
    from penstock.archive.writer import ArchiveWriter

log = logging.getLogger(__name__)

TopicIds = Mapping[str, str]
TopicEnds = tuple[TopicIds, Mapping[tuple[str, int], int]]
"""Topic ids by topic, and log end offsets by partition.

They include open transactions: a record of one may be much older than the commit that makes it readable.
"""
TopicEndsReader = Callable[[Sequence[str]], TopicEnds]

CHECK_INTERVAL = 10.0
"""Seconds between two checks."""
STOP_TIMEOUT = 10.0
"""Seconds that `HourCloser.stop` waits for a commit that has begun."""


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
        writer: The writer, whose table is changed.
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
        self._closed_at: dict[str, float] = {}
        self._found_at = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hours of {output.archive}", daemon=True)
        self._last_error = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop it. What it has begun is ended, unless that takes longer than `STOP_TIMEOUT`."""
        self._stop.set()
        self._thread.join(STOP_TIMEOUT)

    def close_due_hours(self) -> None:
        """Close the hours that are due.

        An hour that cannot be closed does not stop the others; the first error is raised in the end.
        """
        self._find_open_hours()
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
        if errors:
            raise errors[0]

    def _find_open_hours(self) -> None:
        """Once an hour, look for open hours that the writer does not know, as another one may have opened them."""
        if (now := int(self._clock() // 3600)) > self._found_at > 0:
            found = self._writer.find_open_hours()
            with self._writer.lock:
                self._writer.open_hours |= found
        self._found_at = now

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
        now = self._clock()
        for hour in sorted(self._writer.open_hours):
            if now >= max(hour_end(hour).timestamp(), self._closed_at.get(hour, 0.0)) + self._output.wait:
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
        writer = self._writer
        with writer.lock:
            writer.look_again()
            # What is written from here on opens it again.
            writer.open_hours.discard(hour)
            found, snapshot = writer.table.files_of_hour(hour), writer.table.snapshot_id
        try:
            files, joined = self._join_small_files(hour, found)
            previous = writer.closed_hours.read(hour_start(hour), hour_start(hour)).get(hour)
            spans, now = merge_spans(one for *_, one in files), self._clock()
            closed = ClosedHour(
                hour, previous.revision + 1 if previous else 1, now, sum(s.rows for s in spans.values()),
                sum(size for size, _ in files), len(files), joined or snapshot or 0, spans,
            )  # fmt: skip
            with writer.lock:
                # A writer that was replaced meanwhile promises nothing.
                writer.look_again(always=True)
                if self._stop.is_set():
                    raise Wait(f"archive {self._output.archive} is being closed", seconds=0.0)
                if not previous or previous.spans != spans:
                    writer.closed_hours.add([closed])
        except BaseException:
            with writer.lock:
                writer.open_hours.add(hour)
            raise
        self._closed_at[hour] = now
        writer.counters.closed += 1
        self._ends.pop(hour, None)

    def _join_small_files(self, hour: str, files: Sequence[ArchiveFile]) -> tuple[list[tuple[int, Spans]], int | None]:
        """Join the small files of an hour.

        Returns:
            The size and the records of each file that it has then, and the snapshot that has them; None if nothing was
            joined.
        """
        writer, table = self._writer, self._writer.table
        result: list[tuple[int, Spans]] = []
        added: list[DataFile] = []
        removed: list[ArchiveFile] = []
        for group in group_small_files(files, self._output.target):
            spans_of_files = [spans_of_file(table, file) for file in group]
            # Those of other partitions than the table has now stay as they are.
            if len(group) == 1 or group[0].spec_id != table.spec_id:
                result += zip((file.size for file in group), spans_of_files, strict=True)
                continue
            spans = merge_spans(spans_of_files)
            parts = (part for file in group for part in read_batches(table, file, all_columns=True))
            entry, written = table.write_file(hour, parts, group[0].values)
            if difference := span_difference(spans, written):
                raise SinkError(
                    f"files of hour {hour} do not hold what was written to them",
                    got=f"{difference}; in {', '.join(table.bucket.url(file.key) for file in group[:5])}",
                    hint=f"find the file with `penstock archives verify {self._output.archive}`, and restore it from a "
                    "version or backup of the bucket; the hour stays open",
                )
            result.append((entry.file_size_in_bytes, written))
            added.append(entry)
            removed += group
        if not added:
            return result, None
        with writer.lock:
            writer.look_again()
            present = {file.key for file in table.files_of_hour(hour) if not file.has_deletes}
            if gone := [file.key for file in removed if file.key not in present]:
                raise Wait(f"another program has changed files of hour {hour}", got=gone[0], seconds=0.0)
            writer.commit(writer.state, added, removed)
            return result, table.snapshot_id


def group_small_files(files: Sequence[ArchiveFile], target: int) -> list[list[ArchiveFile]]:
    """Groups of files of one partition to join, in order of name; a file of at least half the target's size is a group
    of its own, and so is one that another program has deleted rows of."""
    groups: list[list[ArchiveFile]] = []
    begun: dict[object, list[ArchiveFile]] = {}
    for file in sorted(files, key=lambda file: file.key):
        if file.size * 2 >= target or file.has_deletes:
            groups.append([file])
            continue
        group = begun.setdefault((file.spec_id, file.values), [])
        group.append(file)
        if sum(member.size for member in group) >= target:
            groups.append(begun.pop((file.spec_id, file.values)))
    return [*groups, *begun.values()]
