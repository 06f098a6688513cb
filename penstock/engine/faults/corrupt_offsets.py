"""Corrupt offsets of a log: reading continues after them, and their records become dead letters."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.engine.commit.rejected import RejectedRecords, origin_headers
from penstock.engine.jvm import bridge
from penstock.errors import Blocked, BrokerError
from penstock.kafka.admin import admin, first_offsets
from penstock.kafka.log_corruption import find_corrupt_range, read_corrupt_records
from penstock.model.output import CommitMarker
from penstock.model.topic import DEAD_LETTERS

if TYPE_CHECKING:
    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.commit.dead_letter_index import DeadLetterIndex
    from penstock.model.stream import Stream


log = logging.getLogger(__name__)

# Spark's Kafka reader cannot get past a corrupt record batch.
CORRUPT_LOG = re.compile(
    r"fetching the next record from (?P<topic>\S+)-(?P<partition>\d+)\. If needed, please seek past"
)


@dataclass(frozen=True)
class CorruptOffsets:
    """Offsets of one partition that are never read, and why, as the dead letters of their records say it."""

    topic: str
    partition: int
    offsets: range
    why: str

    def skip(self, topic: str, partition: int, at: int) -> int:
        """An offset; if it is corrupt, the first one after the corrupt range."""
        is_corrupt = (topic, partition) == (self.topic, self.partition) and at in self.offsets
        return self.offsets.stop if is_corrupt else at

    def skip_marker(self, mark: CommitMarker) -> CommitMarker:
        """A marker as if reading had continued after them."""
        offsets = {t: {p: self.skip(t, p, at) for p, at in parts.items()} for t, parts in mark.offsets.items()}
        return replace(mark, offsets=offsets)

    def without_passed(self, mark: CommitMarker) -> CorruptOffsets:
        """The offsets that a marker has not passed: the dead letters of the others were written with it.

        A driver that died may have found fewer of them than its successor.
        """
        at = mark.offsets.get(self.topic, {}).get(self.partition, self.offsets.start)
        return replace(self, offsets=range(max(at, self.offsets.start), self.offsets.stop))

    def dead_letters(self, stream: Stream, index: DeadLetterIndex, bootstrap: str) -> RejectedRecords:
        """One for each offset, with what is left of its record."""
        remains = read_corrupt_records(self.topic, self.partition, self.offsets, bootstrap)
        rejected = RejectedRecords(first_reason=self.why)
        input_ = next(input_ for input_ in stream.sources.values() if input_.reads_topic(self.topic))
        target = input_.dead_letter_topic or (None if input_.schema else DEAD_LETTERS)
        for offset in self.offsets:
            position = {"topic": self.topic, "partition": self.partition, "offset": offset}
            if index.contains(position, target.name if target else ""):
                continue
            rejected.dead += 1
            if target:
                key, value = remains.get(offset, (None, None))
                headers = origin_headers(position, stream.name, "reason", self.why, index.topic_ids)
                if offset not in remains:
                    headers.append(("penstock.cut", b"key, value"))
                rejected.by_topic.setdefault(target.name, []).append({"key": key, "value": value, "headers": headers})
        return rejected


def find_corrupt_offsets(
    stream: Stream, batch: PlannedBatch, error: Exception, bootstrap: str, *, written: bool
) -> CorruptOffsets | None:
    """The offsets that made a batch fail, if the broker's log is corrupt; None if it is not.

    Args:
        stream: The stream.
        batch: The batch that failed.
        error: Why it failed.
        bootstrap: The broker.
        written: Whether a store has the batch: then it must be read as it was, for its state.

    Raises:
        Blocked: The log is corrupt, and it is unknown which offsets to skip.
    """
    texts = [text for name, text in bridge.error_chain(error) if name.startswith("org.apache.kafka.")]
    if not (match := next(filter(None, map(CORRUPT_LOG.search, texts)), None)):
        return None
    topic, partition = match["topic"], int(match["partition"])
    end = batch.ends[topic][partition]
    first = first_offsets(admin(bootstrap), [(topic, partition)], bootstrap).get((topic, partition), 0)
    start = min(max(batch.starts.get(topic, {}).get(partition, 0), first), end)
    corrupt = None
    # Where the checksum fits, the other client does not get past it either, and says nothing.
    with suppress(BrokerError):
        corrupt = None if written else find_corrupt_range(topic, partition, start, end, bootstrap)
    if not corrupt:
        raise Blocked(
            f"stream {stream.name} cannot read what is corrupt in the broker's log",
            got=f"topic {topic}, partition {partition}, offsets {start} to {end - 1}: {texts[-1][:300]}",
            hint="restore the partition from a replica; or go on behind these offsets, which are then lost, with "
            f"`penstock streams reset {stream.name} --to`, which takes offsets",
        ) from error
    log.error(
        "stream %s: the broker's log is corrupt: offsets %d to %d become dead letters",
        stream.name, corrupt[0], corrupt[-1], extra={"topic": topic, "partition": partition},
    )  # fmt: skip
    reason = f"its batch is corrupt in the broker's log, and what is left of it may be wrong: {texts[-1][:200]}"
    return CorruptOffsets(topic, partition, corrupt, reason)
