"""Data loss: whether the records that a stream reads next exist, checked at each start and in each batch.

Spark goes on silently where records are missing (`failOnDataLoss=false`): it does not recognise a topic that was
recreated, and offers no way to go on behind a loss. Here every gap is found, reported, counted, and passed only as the
input declares: by itself, or once somebody has accepted exactly this gap.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.control.repositories.data_loss import DataLoss, DataLossLog
from penstock.errors import Blocked, BrokerError, ControlError, DeclarationError
from penstock.kafka.admin import STALE_METADATA_TIMEOUT, admin, first_offsets, log_end_offsets, topic_ids
from penstock.model.output import CommitMarker

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import Checkpoint, PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.model.input import Input
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

SHOWN = 5
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
    """What must change before a query goes on behind gaps.

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

    def deleted_topics(self, topics: Collection[str]) -> Blocked | None:
        """The error if one of some missing topics was read before; None if none was."""
        starts, _ = self._checkpoint.pending_offsets()
        gone = [f"{t}, read up to offset {_format_offsets(starts[t])}" for t in sorted(starts.keys() & set(topics))]
        if not gone:
            return None
        return Blocked(
            f"stream {self._stream.name} waits for topics that were deleted",
            got="; ".join(gone),
            hint=f"{self._stream.create_hint}; "
            f"`penstock streams go-on {self._stream.name}` then reads them from their first records",
        )

    def check_at_start(self, mark: CommitMarker) -> InputChanges:
        """How to go on behind the gaps before what is read next; Blocked if one may not be passed."""
        starts, ends = self._checkpoint.pending_offsets()
        known = mark.topic_ids if mark.query == self._checkpoint.query_id else {}
        # The marker may name a topic that the checkpoint has forgotten.
        there, gaps = self._look(starts, ends, known, [topic for topic in known if self._readers(topic)])
        self._decide(gaps, at_start=True)
        self._passed(gaps)
        gone = frozenset(gap.topic for gap in gaps if gap.kind in ("recreated", "deleted"))
        places = [(gap.topic, gap.partition) for gap in gaps if gap.kind in ("removed", "cut")]
        tables = {table.source for table in self._stream.tables.values()}
        ids = {**{t: i for t, i in mark.topic_ids.items() if t in tables}, **there.ids}
        return InputChanges(gone, {place: there.logs[place] for place in places}, ids)

    def check_before(self, batch: PlannedBatch, mark: CommitMarker, query: str) -> dict[str, str]:
        """Check before a batch is read; the ids of its topics. DeclarationError if the query must start again."""
        # A marker of another query says nothing of what this one read.
        self._starts, self._ids = batch.starts, mark.topic_ids if mark.query == query else {}
        return self._pass(batch)

    def check_after(self, batch: PlannedBatch) -> None:
        """Check again once it is read: records that were deleted meanwhile may be missing in it."""
        self._pass(batch)

    def _pass(self, batch: PlannedBatch) -> dict[str, str]:
        there, found = self._look(*_offsets_read(self._starts, batch.ends), self._ids)
        gaps = [_within_batch(gap, batch.ends) for gap in found]
        if gaps:
            self._decide(gaps)
        changed = [gap for gap in gaps if gap.kind != "removed" and gap.topic in batch.ends]
        if changed:
            raise DeclarationError(
                f"stream {self._stream.name} reads topics that are not what they were",
                got=_format_gaps(changed),
                hint="nothing: it starts again with what is there",
            )
        self._passed(gaps)
        self._starts = {topic: dict(parts) for topic, parts in self._starts.items() if topic in there.ids}
        for gap in gaps:
            if gap.kind == "removed":
                self._starts.setdefault(gap.topic, {})[gap.partition] = gap.end
        self._ids = there.ids
        return {topic: there.ids[topic] for topic in batch.ends if topic in there.ids}

    def _look(
        self, starts: TopicOffsets, ends: TopicOffsets, known: TopicIds, more: Iterable[str] = ()
    ) -> tuple[BrokerLogs, list[DataLoss]]:
        """Ask for missing topics and silent partitions for a while: brokers start slowly, and topics too."""
        deadline = time.monotonic() + STALE_METADATA_TIMEOUT
        while True:
            there, silent = self._there(starts, ends, known, more)
            gaps = list(_find_gaps(starts, ends, known, there))
            late = time.monotonic() > deadline
            if silent and late:
                raise BrokerError(
                    f"stream {self._stream.name}: partitions of its inputs do not answer",
                    got=", ".join(sorted(f"{topic}[{p}]" for topic, p in silent)[:SHOWN]),
                    hint="nothing, if the broker comes back: it is tried again",
                )
            if late or not (silent or any(gap.kind in ("cut", "deleted") for gap in gaps)):
                return there, gaps
            time.sleep(0.2)

    def _there(
        self, starts: TopicOffsets, ends: TopicOffsets, known: TopicIds, more: Iterable[str]
    ) -> tuple[BrokerLogs, set[tuple[str, int]]]:
        """What the broker has, and the partitions that do not answer."""
        client, at = admin(self._bootstrap), self._bootstrap
        places = {(topic, p) for offsets in (starts, ends) for topic, parts in offsets.items() for p in parts}
        firsts, lasts = first_offsets(client, places, at), log_end_offsets(client, places, at)
        # Ids are read last, so that offsets of a topic just recreated are not taken for those of the old one.
        ids = topic_ids(client, {*starts, *ends, *more}, at)
        same = {(t, p) for t, p in places if t in ids and known.get(t, ids[t]) == ids[t]}
        answered = same & firsts.keys() & lasts.keys()
        return BrokerLogs(ids, {place: (firsts[place], lasts[place]) for place in answered}), same - answered

    def _decide(self, gaps: list[DataLoss], *, at_start: bool = False) -> None:
        """Blocked if a gap must be accepted and is not. at_start: also withdraw gaps reported before."""
        needed = {gap for gap in gaps if gap.kind == "deleted" and any(i.topic for i in self._readers(gap.topic))}
        asked = [g for g in gaps if g not in needed and any(i.fails_on_data_loss for i in self._readers(g.topic))]
        accepted: set[DataLoss] = set()
        if asked or at_start:
            try:
                accepted = self._book.report_data_loss(self._stream.name, asked)
            except ControlError as e:
                log.warning("gaps of stream %s cannot be told or accepted: %s", self._stream.name, e)
        if needed and (blocked := self.deleted_topics([gap.topic for gap in needed])):
            raise blocked
        if unanswered := [gap for gap in asked if gap not in accepted]:
            raise Blocked(
                f"stream {self._stream.name} does not find all that it was to read",
                got=_format_gaps(unanswered),
                hint=f"`penstock streams go-on {self._stream.name}` goes on with what is there",
            )

    def _passed(self, gaps: list[DataLoss]) -> None:
        for gap in gaps:
            log.warning("stream %s goes on behind a gap: %s", self._stream.name, gap)
        if gaps:
            try:
                self._book.pass_data_loss(self._stream.name, gaps)
            except ControlError as e:
                log.warning("gaps of stream %s cannot be counted: %s", self._stream.name, e)

    def _readers(self, topic: str) -> list[Input]:
        return [given for given in self._stream.sources.values() if given.reads_topic(topic)]


def _find_gaps(starts: TopicOffsets, ends: TopicOffsets, known: TopicIds, there: BrokerLogs) -> Iterator[DataLoss]:
    """The gaps in the offsets from `starts` on; `ends` are read next."""
    for topic in sorted(starts.keys() | ends.keys()):
        now = there.ids.get(topic)
        if now is None:
            yield DataLoss(topic, "deleted", topic_id=known.get(topic, ""))
            continue
        # Also where it is only planned: its offsets are of the old topic.
        if known.get(topic, now) != now:
            yield DataLoss(topic, "recreated", topic_id=now)
            continue
        begun, wanted = starts.get(topic), ends.get(topic, {})
        for partition in sorted((begun or {}).keys() | wanted.keys()):
            if (topic, partition) not in there.logs:
                continue
            first, end = there.logs[topic, partition]
            # A partition that was added later is read from its beginning, a new topic from its first record.
            at = first if begun is None else begun.get(partition, 0)
            upto = max(at, wanted.get(partition, at))
            if first > at:
                yield DataLoss(topic, "removed", partition, at, first, first - at, now)
            if end < upto:
                yield DataLoss(topic, "cut", partition, end, upto, max(0, upto - max(at, end)), now)


def _offsets_read(starts: TopicOffsets, ends: TopicOffsets) -> tuple[TopicOffsets, TopicOffsets]:
    """All topics of a batch, and the partitions that it reads: a thousand others may be idle."""
    wanted = {(t, p) for t, parts in ends.items() for p, end in parts.items() if starts.get(t, {}).get(p) != end}

    def narrow(offsets: TopicOffsets) -> TopicOffsets:
        return {t: {p: at for p, at in parts.items() if (t, p) in wanted} for t, parts in offsets.items()}

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
    more = f"; and {len(gaps) - SHOWN} more" if len(gaps) > SHOWN else ""
    return "; ".join(map(str, gaps[:SHOWN])) + more
