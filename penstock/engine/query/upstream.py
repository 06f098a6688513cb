"""How far in event time the streams have come that write the inputs of a stream.

While such an upstream stream reads a backlog, its watermark stands still, and its rows are out of the order of time.
So its rows move the watermark of its readers no further than it has come itself, as the commit marker of its last
transaction says. That marker is read before the batch is planned: so the batch has all rows of earlier transactions.

An upstream stream that has read all its inputs, and has written nothing since, limits no reader, unless it waits for
the clock: it may have open windows, and heartbeats move its watermark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaException

from penstock.engine.checkpoint.offset_log import BatchPlan, TopicOffsets
from penstock.errors import PenstockError
from penstock.kafka.admin import admin, end_offsets, partition_counts
from penstock.kafka.commit_marker import CommitMarkerReader

if TYPE_CHECKING:
    from penstock.model.input import Input
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Epoch ms: the latest and the earliest time.
NO_LIMIT, HOLD = 1 << 62, 0


@dataclass(frozen=True)
class UpstreamCommit:
    """The last transaction of an upstream stream.

    Attributes:
        batch: query id and number of the batch.
        topics: the topics that it writes.
        event_time: how far in event time it has come, epoch ms.
        ends: next offsets of its inputs; none if it may write rows without new records.
        idle: whether it has written nothing since the last observation, and its inputs hold nothing more.
    """

    batch: tuple[str, int]
    topics: tuple[str, ...]
    event_time: int
    ends: TopicOffsets
    idle: bool = False

    @classmethod
    def parse(cls, value: bytes) -> UpstreamCommit | None:
        """Parse a commit marker; None if it does not say how far the stream has come."""
        try:
            marker = json.loads(value)
            plan = BatchPlan.read(marker["plans"].get(str(marker["batch"]), ""))
            fields = (marker["query"], int(marker["batch"])), tuple(marker["output_topics"]), int(marker["event_time"])
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return cls(*fields, plan.ends if plan and not marker["waits_for_clock"] else {})


@dataclass(frozen=True)
class UpstreamSnapshot:
    """The upstream commits at one time, by stream. complete: whether no other stream may have written before."""

    commits: Mapping[str, UpstreamCommit]
    complete: bool = True


UNKNOWN = UpstreamSnapshot({}, complete=False)


def event_time_limit(input_: Input, before: UpstreamSnapshot, after: UpstreamSnapshot) -> int:
    """How far the rows of an input may move the watermark, epoch ms.

    Args:
        input_: the input.
        before: observed before the batch was planned.
        after: observed after that.
    """

    def commits_of_input(snapshot: UpstreamSnapshot) -> dict[str, UpstreamCommit]:
        return {
            name: commit for name, commit in snapshot.commits.items() if any(map(input_.reads_topic, commit.topics))
        }

    earlier, later = commits_of_input(before), commits_of_input(after)
    if not after.complete or later.keys() - earlier.keys():
        # The batch may have rows of a stream that was unknown before.
        return HOLD
    limits = (
        commit.event_time
        for name, commit in earlier.items()
        if not (commit.idle and later.get(name, commit).batch == commit.batch)
    )
    return min(limits, default=NO_LIMIT)


class UpstreamObserver(Protocol):
    """Observes upstream streams."""

    def __call__(self, before: UpstreamSnapshot, /) -> UpstreamSnapshot:
        """What is known now. before: the last observation."""

    def close(self) -> None: ...


class UpstreamProgress:
    """The progress of the streams that write the inputs, during one run of a query."""

    def __init__(self, stream: Stream, observer: UpstreamObserver) -> None:
        self._stream, self._observer = stream, observer
        self._pool = ThreadPoolExecutor(1, f"feeds of {stream.name}")
        self._before, self._planned = UNKNOWN, -1
        self._after: Future[UpstreamSnapshot] | None = None
        self.fed_inputs: Collection[str] = ()
        """The inputs that other streams write, as far as is known."""

    def open(self, planned: int) -> None:
        """Observe before the query starts. planned: the last batch that is planned already, -1 for none."""
        self._before, self._planned = self._observe(UNKNOWN), planned

    def begin_batch(self) -> None:
        """Observe again, now that a batch is planned, while it is computed."""
        self._after = self._pool.submit(self._observe, self._before)

    def limits(self, batch_id: int, inputs: Iterable[str]) -> dict[str, int]:
        """How far the rows of each input may move the watermark in the batch that has begun, epoch ms."""
        assert self._after is not None
        after = self._after.result()
        before = self._before if batch_id > self._planned else UNKNOWN
        self._before, self._planned = after, batch_id
        written = {topic for commit in after.commits.values() for topic in commit.topics}
        self.fed_inputs = [
            name for name, input_ in self._stream.sources.items() if any(map(input_.reads_topic, written))
        ]
        return {name: event_time_limit(self._stream.sources[name], before, after) for name in inputs}

    def _observe(self, before: UpstreamSnapshot) -> UpstreamSnapshot:
        try:
            return self._observer(before)
        except (PenstockError, KafkaException) as e:
            log.warning("stream %s does not know how far those are that feed it: %s", self._stream.name, e)
            return UNKNOWN

    def close(self) -> None:
        """Close the observer after the last observation, without waiting for the broker."""
        self._pool.submit(self._observer.close)
        self._pool.shutdown(wait=False)


class CommitMarkerObserver:
    """Observes commit markers. names: the streams to observe; None for all that write the inputs."""

    def __init__(self, stream: Stream, bootstrap: str, names: Collection[str] | None) -> None:
        self._stream, self._bootstrap = stream, bootstrap
        self._marks = CommitMarkerReader(bootstrap, names)
        self._read: dict[str, tuple[bytes, UpstreamCommit | None]] = {}

    def __call__(self, before: UpstreamSnapshot) -> UpstreamSnapshot:
        marks = self._marks.read()
        self._read = {
            name: self._read[name] if self._read.get(name, (b"",))[0] is value else (value, UpstreamCommit.parse(value))
            for name, value in marks.items()
        }
        is_input = self._stream.has_input_topic
        commits = {
            n: f for n, (_, f) in self._read.items() if f and n != self._stream.name and any(map(is_input, f.topics))
        }
        unchanged = {
            name
            for name, commit in commits.items()
            if name in before.commits and before.commits[name].batch == commit.batch
        }
        return UpstreamSnapshot(self._with_idle(commits, unchanged), complete=not self._marks.may_be_hidden)

    def _with_idle(
        self, commits: Mapping[str, UpstreamCommit], unchanged: Collection[str]
    ) -> dict[str, UpstreamCommit]:
        """Mark the unchanged streams that have read all that their inputs hold as idle."""
        partitions = {(t, p) for name in unchanged for t, parts in commits[name].ends.items() for p in parts}
        client = admin(self._bootstrap)
        ends = end_offsets(client, partitions, self._bootstrap) if partitions else {}
        # A partition without a leader may hold more, a deleted topic holds nothing more.
        topics = partition_counts(client, self._bootstrap) if partitions - ends.keys() else {}

        def is_read(topic: str, partition: int, at: int) -> bool:
            end = ends.get((topic, partition))
            return topic not in topics if end is None else at >= end

        def is_idle(commit: UpstreamCommit) -> bool:
            read = [is_read(t, p, at) for t, parts in commit.ends.items() for p, at in parts.items()]
            return bool(read) and all(read)

        return {name: replace(commit, idle=name in unchanged and is_idle(commit)) for name, commit in commits.items()}

    def close(self) -> None:
        self._marks.close()


def inputs_limited_by_upstream(stream: Stream) -> tuple[str, ...]:
    """The inputs whose watermark other streams may limit. An input that goes by the record's own time alone, which is
    when it was written, does not depend on the order of reading."""
    if stream.kind == "sink":
        return ()
    inputs = stream.sources.items()
    return tuple(
        name
        for name, input_ in inputs
        if not input_.uses_record_timestamp or (input_.topic is not None and not stream.output_mode.drops_late)
    )


def open_upstream(
    stream: Stream, bootstrap: str, names: Collection[str] | None, planned: int
) -> UpstreamProgress | None:
    """The upstream progress of a stream, observed before its query starts; None if no input can be limited.

    Args:
        stream: the reader.
        bootstrap: the brokers.
        names: the streams that write its inputs; None for all whose commit markers say so.
        planned: the last batch that is planned already, -1 for none.
    """
    if not inputs_limited_by_upstream(stream) or (names is not None and not names):
        return None
    progress = UpstreamProgress(stream, CommitMarkerObserver(stream, bootstrap, names))
    progress.open(planned)
    return progress
