"""Closes an archive's hours: a manifest that says what each holds, in few files instead of many.

An hour is closed once it ended longer ago than the archive waits, by the clock, and all that lay in the topic then is
archived. That needs neither records nor beats: a thread beside the writer looks every few seconds. A record that comes
later opens its hour again, and a manifest of the next revision follows, after as long a wait.

Small files are joined into new ones first; then the manifest is put, and then the state that names it and no more the
joined files. The state is one object, so a reader sees the old files or the new ones. Cut off before it, the new ones
count nowhere. What is named no more is removed an hour later, for readers that began before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
"""The broker's ids of topics, and where each of their partitions ends, open transactions included: what is in one may
have been sent long before it can be read."""
TopicEndsReader = Callable[[Sequence[str]], TopicEnds]

# Seconds between two looks.
CHECK_INTERVAL = 10.0
# Seconds for which readers may go on reading what a newer state names no more.
GARBAGE_GRACE = 3600.0


def broker_topic_ends(bootstrap: str) -> TopicEndsReader:
    """As the broker says. BrokerError if a partition does not answer."""
    return partial(read_topic_ends, bootstrap=bootstrap)


def read_topic_ends(topics: Sequence[str], bootstrap: str) -> TopicEnds:
    """Where topics end now; those that are not there have no end. BrokerError if a partition does not answer."""
    client = admin(bootstrap)
    there = partition_counts(client, bootstrap)
    places = {(t, p) for t in topics for p in range(there.get(t, 0))}
    ends = log_end_offsets(client, places, bootstrap)
    if silent := sorted(places - ends.keys()):
        raise BrokerError("partitions do not answer", got=", ".join(f"{t}[{p}]" for t, p in silent[:5]))
    # Behind the offsets: so those of a topic that is made again meanwhile count for nothing.
    return topic_ids(client, {t for t, _ in places}, bootstrap), ends


def unarchived(state: ArchiveState, ends: TopicEnds) -> list[str]:
    """What a topic's ends have that is not archived, for people, a partition each."""
    ids, found = ends[0], []
    for (topic, p), end in sorted(ends[1].items()):
        known = state.ids.get(topic, "")
        anew = known not in ("", ids.get(topic, known))
        have = 0 if anew else state.positions.get(topic, {}).get(p, 0)
        if have < end:
            found.append(f"{topic}[{p}] up to {have} of {end}{' of the topic as it was made again' if anew else ''}")
    return found


class HourCloser:
    """Closes the hours of a writer's archive. clock: epoch seconds."""

    def __init__(
        self,
        writer: ArchiveWriter,
        output: ArchiveOutput,
        reached: TopicEndsReader,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer, self._output, self._read_topic_ends, self._clock = writer, output, reached, clock
        self._ends: dict[str, TopicEnds] = {}
        self._stop = threading.Event()
        self._last_error = ""

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"hours of {self._output.archive}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def close_due_hours(self) -> None:
        """Close the hours that are due, and remove what nobody needs any more.

        The first error of an hour that cannot be closed is raised when the others are.
        """
        due = list(self._due_hours())
        failed = list[Exception]()
        for hour in self._fully_archived(due) if due else ():
            if self._stop.is_set():
                break
            try:
                self._close(hour)
            except (LeaseLost, Wait):
                raise
            except Exception as e:
                failed.append(e)
        self._delete_garbage()
        if failed:
            raise failed[0]

    def _run(self) -> None:
        while not self._stop.wait(CHECK_INTERVAL):
            try:
                self.close_due_hours()
                self._last_error = ""
            except LeaseLost as e:
                log.info("archive %s: %s", self._output.archive, e)
                return
            except Exception as e:
                # The next look tries again; until then hours stay open, and nothing is lost by that.
                if str(e) != self._last_error and not isinstance(e, Wait):
                    foreseen = isinstance(e, PenstockError | pa.ArrowException | OSError)
                    said = "archive %s: an hour cannot be closed: %s"
                    log.warning(said, self._output.archive, e, exc_info=not foreseen)
                self._last_error = str(e)

    def _due_hours(self) -> Iterator[str]:
        state, now = self._writer.state, self._clock()
        for hour in sorted(state.open):
            ended = layout.hour_end(hour).timestamp()
            closed = state.closed.get(hour)
            if now >= max(ended, closed.at if closed else 0.0) + self._output.wait:
                yield hour
            else:
                self._ends.pop(hour, None)

    def _fully_archived(self, due: Sequence[str]) -> list[str]:
        """The hours up to whose due time all is archived."""
        now = self._read_topic_ends(self._output.topics_read)
        for hour in due:
            # A topic that was made again never comes to where the one before ended.
            if hour not in self._ends or self._ends[hour][0] != now[0]:
                self._ends[hour] = now
        return [hour for hour in due if not unarchived(self._writer.state, self._ends[hour])]

    def _close(self, hour: str) -> None:
        writer, state = self._writer, self._writer.state
        fresh, before = state.open[hour], state.closed.get(hour)
        had = read_manifest(writer.store, before).files if before else ()
        files, replaced = self._join_small_files(hour, [*had, *fresh])
        revision = before.revision + 1 if before else 1
        manifest = HourManifest(
            self._output.archive, hour, revision, merge_spans(file.spans for file in files), tuple(files)
        )
        key = layout.manifest_name(hour, f"{writer.claim}-{writer.next_serial():09}", revision)
        writer.store.put(key, manifest.write())
        size, now = sum(file.size for file in files), self._clock()
        gone = [*(file.key for file in replaced), *([before.key] if before else [])]
        with writer.lock:
            state = writer.state
            left = tuple(file for file in state.open[hour] if file not in fresh)
            hours = {**{h: f for h, f in state.open.items() if h != hour}, **({hour: left} if left else {})}
            closed = {**state.closed, hour: ClosedHour(key, revision, manifest.rows, size, len(files), now)}
            writer.commit(
                replace(state, open=hours, closed=closed, garbage={**state.garbage, **dict.fromkeys(gone, now)})
            )
            writer.counters.closed += 1
        self._ends.pop(hour, None)

    def _join_small_files(self, hour: str, files: Sequence[ArchiveFile]) -> tuple[list[ArchiveFile], list[ArchiveFile]]:
        """The files of an hour, small ones joined; and those that were."""
        kept: list[ArchiveFile] = []
        replaced: list[ArchiveFile] = []
        for part in group_small_files(files, self._output.target):
            if len(part) == 1:
                kept += part
                continue
            kept.append(self._join_files(hour, part))
            replaced += part
        return kept, replaced

    def _join_files(self, hour: str, files: Sequence[ArchiveFile]) -> ArchiveFile:
        store, key = self._writer.store, self._writer.new_file_name(hour)

        def all_of() -> Iterator[pa.Table]:
            for file in files:
                with store.open_input(file.key) as source:
                    yield from parquet.read_tables(source)

        with store.open_output(key) as out:
            found = parquet.copy_records(all_of(), out)
            size = out.tell()
        if found != merge_spans(file.spans for file in files):
            raise SinkError(
                f"files of hour {hour} do not hold what was written to them",
                got=", ".join(store.url(file.key) for file in files[:5]),
                hint=f"`penstock archives verify {self._output.archive}` tells which; bring it back from a version or "
                "backup of the bucket. The hour stays open",
            )
        return ArchiveFile(key, size, found)

    def _delete_garbage(self) -> None:
        writer, now = self._writer, self._clock()
        old = [key for key, since in writer.state.garbage.items() if now - since > GARBAGE_GRACE]
        if not old:
            return
        for key in old:
            writer.store.delete(key)
        with writer.lock:
            left = {key: since for key, since in writer.state.garbage.items() if key not in old}
            writer.commit(replace(writer.state, garbage=left))


def read_manifest(store: Bucket, closed: ClosedHour) -> HourManifest:
    """The manifest of a closed hour. SinkError if it is none."""
    return HourManifest.read(store.get(closed.key), store.url(closed.key))


def group_small_files(files: Sequence[ArchiveFile], target: int) -> list[list[ArchiveFile]]:
    """Files that are to become one, in order of name; those of half the target's size and more stay as they are."""
    found = [[file] for file in files if file.size * 2 >= target]
    part: list[ArchiveFile] = []
    for file in sorted((file for file in files if file.size * 2 < target), key=lambda file: file.key):
        part.append(file)
        if sum(one.size for one in part) >= target:
            found.append(part)
            part = []
    return [*found, part] if part else found
