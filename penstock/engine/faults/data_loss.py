"""Data loss: whether the records that a stream reads next exist, checked at each start and in each batch.

Spark goes on silently where records are missing (`failOnDataLoss=false`): it does not recognise a topic that was
recreated, and offers no way to continue after a loss. Here every gap is found, reported and counted. It is skipped only
as the input declares: at once, or after an operator has accepted exactly this gap.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.control.repositories.data_loss import DataLoss, DataLossLog
from penstock.errors import Blocked, BrokerError, ControlError, DeclarationError
from penstock.kafka.admin import (
    STALE_METADATA_TIMEOUT,
    admin,
    first_offsets,
    log_end_offsets,
    partition_counts,
    topic_ids,
)
from penstock.model.output import CommitMarker

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.model.input import Input
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

MAX_LISTED = 5
LogRanges = Mapping[tuple[str, int], tuple[int, int]]
TopicIds = Mapping[str, str]


@dataclass(frozen=True)
class BrokerLogs:
    """What the broker has.

    Attributes:
        ids: The ids of topics that exist, by topic.
        logs: First offset and end, by topic and partition.
    """

    ids: TopicIds
    logs: LogRanges


@dataclass(frozen=True)
class InputChanges:
    """What must change before a query continues after gaps.

    Attributes:
        gone: Topics that are deleted or recreated.
        logs: First offset and end of partitions with gaps, by topic and partition.
        ids: The ids of all topics that exist.
    """

    gone: frozenset[str]
    logs: LogRanges
    ids: TopicIds

    def offset(self, topic: str, partition: int, at: int) -> int:
        first, end = self.logs.get((topic, partition), (at, at))
        return min(max(at, first), end)

    def mapping(self, topic: str, partition: int, at: int) -> int | None:
        """An offset of the log that there is now; None if its topic is gone."""
        return None if topic in self.gone else self.offset(topic, partition, at)

    def keeps(self, topic: str, partition: int, at: int) -> bool:
        """Whether an offset may still be of the record that it was of."""
        _, end = self.logs.get((topic, partition), (0, at + 1))
        return topic not in self.gone and at < end

    def within(self, mark: CommitMarker) -> CommitMarker:
        """A marker with the offsets at which reading goes on."""
        offsets = {t: {p: self.offset(t, p, at) for p, at in parts.items()} for t, parts in mark.offsets.items()}
        return replace(mark, offsets=offsets)

    def without(self, mark: CommitMarker) -> CommitMarker:
        """A marker without topics that are deleted or recreated."""
        stays = {t for t in mark.offsets if t not in mark.topic_ids or mark.topic_ids[t] == self.ids.get(t)} - self.gone
        offsets = {t: parts for t, parts in mark.offsets.items() if t in stays}
        return replace(mark, offsets=offsets, topic_ids={t: i for t, i in mark.topic_ids.items() if t in stays})


class InputCheck:
    """Checks the inputs of one stream. book: where gaps are recorded and accepted."""

    def __init__(self, stream: Stream, bootstrap: str, checkpoint: Checkpoint, book: DataLossLog) -> None:
        self._stream, self._bootstrap, self._checkpoint, self._book = stream, bootstrap, checkpoint, book
        self._starts: TopicOffsets = {}
        self._ids: TopicIds = {}
        self._ids_at_start: TopicIds = {}

    def check_topics_exist(self) -> None:
        """Name the missing topics: Spark's source would wait for them, and the broker might create an output."""
        existing = partition_counts(admin(self._bootstrap), self._bootstrap)
        needed = {topic.name for topic in self._stream.topics()}
        if missing := sorted(needed - existing.keys()):
            if deleted := self.deleted_topics(missing):
                raise deleted
            raise DeclarationError(
                f"stream {self._stream.name} needs topics the broker does not have",
                got=", ".join(missing),
                hint=self._stream.create_hint,
            )

    def deleted_topics(self, topics: Collection[str]) -> Blocked | None:
        """The error if one of some missing topics was read before; None if none was."""
        starts, _ = self._checkpoint.pending_offsets()
        deleted = [f"{t}, read up to offset {_format_offsets(starts[t])}" for t in sorted(starts.keys() & set(topics))]
        if not deleted:
            return None
        return Blocked(
            f"stream {self._stream.name} waits for topics that were deleted",
            got="; ".join(deleted),
            hint=f"{self._stream.create_hint}; "
            f"`penstock streams go-on {self._stream.name}` then reads them from their first records",
        )

    def check_at_start(self, mark: CommitMarker, first_ids: TopicIds) -> InputChanges:
        """How to continue after the gaps before the next offsets; Blocked if a gap may not be skipped.

        Args:
            mark: The marker of the last batch that is written.
            first_ids: The ids of the topics that a reset's offsets are of. They, and those that the first batch was to
                read, count until the query's own marker says them.
        """
        starts, ends = self._checkpoint.pending_offsets()
        is_own = mark.query == self._checkpoint.query_id
        known_ids = mark.topic_ids if is_own else {**self._checkpoint.topic_ids(), **first_ids}
        # The marker may name a topic that the checkpoint has forgotten.
        logs, gaps = self._look(starts, ends, known_ids, [topic for topic in known_ids if self._readers(topic)])
        self._decide(gaps, at_start=True)
        self._note_passed(gaps)
        self._ids_at_start = logs.ids
        replaced = frozenset(gap.topic for gap in gaps if gap.kind in ("recreated", "deleted"))
        partitions = [(gap.topic, gap.partition) for gap in gaps if gap.kind in ("removed", "cut")]
        tables = {table.source for table in self._stream.tables.values()}
        ids = {**{t: i for t, i in mark.topic_ids.items() if t in tables}, **logs.ids}
        return InputChanges(replaced, {partition: logs.logs[partition] for partition in partitions}, ids)

    def check_before(self, batch: PlannedBatch, mark: CommitMarker, query: str) -> dict[str, str]:
        """Check before a batch is read; the ids of its topics. DeclarationError if the query must start again."""
        # A marker of another query says nothing of what this one read.
        is_own = mark.query == query
        self._starts, self._ids = batch.starts, mark.topic_ids if is_own else self._ids_at_start
        ids = self._pass(batch)
        if not is_own:
            self._checkpoint.save_topic_ids(ids)
        return ids

    def check_after(self, batch: PlannedBatch) -> None:
        """Check again once it is read: records that were deleted meanwhile may be missing in it."""
        self._pass(batch)

    def _pass(self, batch: PlannedBatch) -> dict[str, str]:
        logs, all_gaps = self._look(*_offsets_read(self._starts, batch.ends), self._ids)
        gaps = [_within_batch(gap, batch.ends) for gap in all_gaps]
        if gaps:
            self._decide(gaps)
        changed = [gap for gap in gaps if gap.kind != "removed" and gap.topic in batch.ends]
        if changed:
            raise DeclarationError(
                f"stream {self._stream.name} reads topics that have changed",
                got=_format_gaps(changed),
                hint="nothing: it starts again with the present topics",
            )
        self._note_passed(gaps)
        self._starts = {topic: dict(parts) for topic, parts in self._starts.items() if topic in logs.ids}
        for gap in gaps:
            if gap.kind == "removed":
                self._starts.setdefault(gap.topic, {})[gap.partition] = gap.end
        self._ids = logs.ids
        return {topic: logs.ids[topic] for topic in batch.ends if topic in logs.ids}

    def _look(
        self, starts: TopicOffsets, ends: TopicOffsets, known_ids: TopicIds, other_topics: Iterable[str] = ()
    ) -> tuple[BrokerLogs, list[DataLoss]]:
        """Ask for missing topics and silent partitions for a while: brokers start slowly, and topics too."""
        deadline = time.monotonic() + STALE_METADATA_TIMEOUT
        while True:
            logs, silent = self._read_logs(starts, ends, known_ids, other_topics)
            gaps = list(_find_gaps(starts, ends, known_ids, logs))
            is_timed_out = time.monotonic() > deadline
            if silent and is_timed_out:
                raise BrokerError(
                    f"stream {self._stream.name}: partitions of its inputs do not answer",
                    got=", ".join(sorted(f"{topic}[{p}]" for topic, p in silent)[:MAX_LISTED]),
                    hint="nothing, if the broker returns: the stream tries again",
                )
            if is_timed_out or not (silent or any(gap.kind in ("cut", "deleted") for gap in gaps)):
                return logs, gaps
            time.sleep(0.2)

    def _read_logs(
        self, starts: TopicOffsets, ends: TopicOffsets, known_ids: TopicIds, other_topics: Iterable[str]
    ) -> tuple[BrokerLogs, set[tuple[str, int]]]:
        """What the broker has, and the partitions that do not answer."""
        client, at = admin(self._bootstrap), self._bootstrap
        partitions = {(topic, p) for offsets in (starts, ends) for topic, parts in offsets.items() for p in parts}
        firsts, lasts = first_offsets(client, partitions, at), log_end_offsets(client, partitions, at)
        # Ids are read last, so that offsets of a topic just recreated are not taken for those of the old one.
        ids = topic_ids(client, {*starts, *ends, *other_topics}, at)
        unchanged = {(t, p) for t, p in partitions if t in ids and known_ids.get(t, ids[t]) == ids[t]}
        answered = unchanged & firsts.keys() & lasts.keys()
        return BrokerLogs(
            ids, {partition: (firsts[partition], lasts[partition]) for partition in answered}
        ), unchanged - answered

    def _decide(self, gaps: list[DataLoss], *, at_start: bool = False) -> None:
        """Blocked if a gap must be accepted and is not. at_start: also withdraw gaps reported before."""
        deleted = {gap for gap in gaps if gap.kind == "deleted" and any(i.topic for i in self._readers(gap.topic))}
        to_accept = [g for g in gaps if g not in deleted and any(i.fails_on_data_loss for i in self._readers(g.topic))]
        accepted: set[DataLoss] = set()
        if to_accept or at_start:
            try:
                accepted = self._book.report_data_loss(self._stream.name, to_accept)
            except ControlError as e:
                log.warning("gaps of stream %s cannot be told or accepted: %s", self._stream.name, e)
        if deleted and (blocked := self.deleted_topics([gap.topic for gap in deleted])):
            raise blocked
        if refused := [gap for gap in to_accept if gap not in accepted]:
            raise Blocked(
                f"stream {self._stream.name} misses records that it should read",
                got=_format_gaps(refused),
                hint=f"`penstock streams go-on {self._stream.name}` continues with the existing records",
            )

    def _note_passed(self, gaps: list[DataLoss]) -> None:
        for gap in gaps:
            log.warning("stream %s goes on behind a gap: %s", self._stream.name, gap)
        if gaps:
            try:
                self._book.pass_data_loss(self._stream.name, gaps)
            except ControlError as e:
                log.warning("gaps of stream %s cannot be counted: %s", self._stream.name, e)

    def _readers(self, topic: str) -> list[Input]:
        return [input_ for input_ in self._stream.sources.values() if input_.reads_topic(topic)]


def _find_gaps(starts: TopicOffsets, ends: TopicOffsets, known_ids: TopicIds, logs: BrokerLogs) -> Iterator[DataLoss]:
    """The gaps in the offsets from `starts` on; `ends` are read next."""
    for topic in sorted(starts.keys() | ends.keys()):
        topic_id = logs.ids.get(topic)
        if topic_id is None:
            yield DataLoss(topic, "deleted", topic_id=known_ids.get(topic, ""))
            continue
        # Also where it is only planned: its offsets are of the old topic.
        if known_ids.get(topic, topic_id) != topic_id:
            yield DataLoss(topic, "recreated", topic_id=topic_id)
            continue
        start_offsets, end_offsets = starts.get(topic), ends.get(topic, {})
        for partition in sorted((start_offsets or {}).keys() | end_offsets.keys()):
            if (topic, partition) not in logs.logs:
                continue
            first, end = logs.logs[topic, partition]
            # A partition that was added later is read from its beginning, a new topic from its first record.
            at = first if start_offsets is None else start_offsets.get(partition, 0)
            upto = max(at, end_offsets.get(partition, at))
            if first > at:
                yield DataLoss(topic, "removed", partition, at, first, first - at, topic_id)
            if end < upto:
                yield DataLoss(topic, "cut", partition, end, upto, max(0, upto - max(at, end)), topic_id)


def _offsets_read(starts: TopicOffsets, ends: TopicOffsets) -> tuple[TopicOffsets, TopicOffsets]:
    """All topics of a batch, and the partitions that it reads: a thousand others may be idle."""
    partitions = {(t, p) for t, parts in ends.items() for p, end in parts.items() if starts.get(t, {}).get(p) != end}

    def narrow(offsets: TopicOffsets) -> TopicOffsets:
        return {t: {p: at for p, at in parts.items() if (t, p) in partitions} for t, parts in offsets.items()}

    return narrow(starts), narrow(ends)


def _within_batch(gap: DataLoss, ends: TopicOffsets) -> DataLoss:
    """The part of a gap that is within a batch; the next batch finds the rest."""
    end = ends.get(gap.topic, {}).get(gap.partition)
    if gap.kind != "removed" or end is None or not gap.start < end < gap.end:
        return gap
    return replace(gap, end=end, records=end - gap.start)


def _format_offsets(parts: Mapping[int, int]) -> str:
    return ", ".join(f"{at} of [{p}]" for p, at in sorted(parts.items()))


def _format_gaps(gaps: list[DataLoss]) -> str:
    more = f"; and {len(gaps) - MAX_LISTED} more" if len(gaps) > MAX_LISTED else ""
    return "; ".join(map(str, gaps[:MAX_LISTED])) + more
