"""Offsets that cannot be read: reading goes on behind them, and what they held is put aside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.engine.commit.rejected import RejectedRecords, origin_headers
from penstock.kafka.log_corruption import read_corrupt_records
from penstock.model.output import CommitMarker
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.commit.dead_letter_index import DeadLetterIndex
    from penstock.model.stream import Stream


@dataclass(frozen=True)
class CorruptOffsets:
    """Offsets of one partition that are never read, and why: what says so of each of their records."""

    topic: str
    partition: int
    offsets: range
    why: str

    def behind(self, topic: str, partition: int, at: int) -> int:
        """An offset; if it is one of these, the first behind them."""
        mine = (topic, partition) == (self.topic, self.partition) and at in self.offsets
        return self.offsets.stop if mine else at

    def passed(self, mark: CommitMarker) -> CommitMarker:
        """The mark of one who has gone on behind them."""
        offsets = {t: {p: self.behind(t, p, at) for p, at in parts.items()} for t, parts in mark.offsets.items()}
        return replace(mark, offsets=offsets)

    def letters(self, stream: Stream, kept: DeadLetterIndex, bootstrap: str) -> RejectedRecords:
        """One for each offset, with what is left of its record."""
        left = read_corrupt_records(self.topic, self.partition, self.offsets, bootstrap)
        found = RejectedRecords(first_reason=self.why)
        given = next(one for one in stream.sources.values() if one.reads_topic(self.topic))
        target = given.dead_letter_topic or (None if given.schema else DEAD_LETTERS)
        for offset in self.offsets:
            place = {"topic": self.topic, "partition": self.partition, "offset": offset}
            if kept.contains(place, target.name if target else ""):
                continue
            found.dead += 1
            if target:
                key, value = left.get(offset, (None, None))
                headers = origin_headers(place, stream.name, "reason", self.why, kept.topic_ids)
                if offset not in left:
                    headers.append(("penstock.cut", b"key, value"))
                found.by_topic.setdefault(target.name, []).append({"key": key, "value": value, "headers": headers})
        return found
