"""How far in event time the streams are whose rows a stream reads.

While one of them reads a backlog in pieces its time stands still, and what it writes is out of the order of time. So
rows that a stream wrote move the time of its readers no further than it has come itself, as the mark of its last
transaction says. That was read before the batch was planned: so the batch has all rows of earlier transactions.

A stream that has read all that its inputs hold, and has written nothing since, holds nobody; unless it waits for the
clock: it may have windows open, and beats move its time.
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
from penstock.kafka.admin import admin, end_offsets
from penstock.kafka.commit_marker import CommitMarkerReader

if TYPE_CHECKING:
    from penstock.model.input import Input
    from penstock.model.stream import Stream

log = logging.getLogger(__name__)

# Epoch ms: no time is later, and none is earlier.
NO_LIMIT, HOLD = 1 << 62, 0


@dataclass(frozen=True)
class UpstreamCommit:
    """A stream's last transaction. writes: topics; time: how far it has come, epoch ms; ends: next offsets of its
    inputs, none if rows may come without records. rests: whether it was the last one before as well, and its inputs
    held nothing more."""

    batch: tuple[str, int]
    topics: tuple[str, ...]
    event_time: int
    ends: TopicOffsets
    idle: bool = False

    @classmethod
    def parse(cls, value: bytes) -> UpstreamCommit | None:
        """By its mark; None if that does not say how far it has come."""
        try:
            found = json.loads(value)
            plan = BatchPlan.read(found["plans"].get(str(found["batch"]), ""))
            said = (found["query"], int(found["batch"])), tuple(found["output_topics"]), int(found["event_time"])
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return cls(*said, plan.ends if plan and not found["waits_for_clock"] else {})


@dataclass(frozen=True)
class UpstreamSnapshot:
    """What was known of streams at a time, by name. whole: whether no other may have written before."""

    commits: Mapping[str, UpstreamCommit]
    complete: bool = True


UNKNOWN = UpstreamSnapshot({}, complete=False)


def event_time_limit(given: Input, before: UpstreamSnapshot, after: UpstreamSnapshot) -> int:
    """How far the rows of an input may move time, epoch ms. before, after: looks around the planning of a batch."""

    def feeding(look: UpstreamSnapshot) -> dict[str, UpstreamCommit]:
        return {name: one for name, one in look.commits.items() if any(map(given.reads_topic, one.topics))}

    known, now = feeding(before), feeding(after)
    if not after.complete or now.keys() - known.keys():
        # Rows of the batch may be of a stream of which nothing was known before.
        return HOLD
    held = (one.event_time for name, one in known.items() if not (one.idle and now.get(name, one).batch == one.batch))
    return min(held, default=NO_LIMIT)


class UpstreamObserver(Protocol):
    """Looks at streams."""

    def __call__(self, before: UpstreamSnapshot, /) -> UpstreamSnapshot:
        """What is known of them now. before: what was known at the last look."""

    def close(self) -> None: ...


class UpstreamProgress:
    """What feeds the inputs of one run of a query."""

    def __init__(self, stream: Stream, look: UpstreamObserver) -> None:
        self._stream, self._look = stream, look
        self._pool = ThreadPoolExecutor(1, f"feeds of {stream.name}")
        self._before, self._planned = UNKNOWN, -1
        self._after: Future[UpstreamSnapshot] | None = None
        self.fed_inputs: Collection[str] = ()
        """The inputs whose records other streams write, as far as is known."""

    def open(self, planned: int) -> None:
        """Look before the query starts. planned: the last batch that is planned already, -1 for none."""
        self._before, self._planned = self._looked(UNKNOWN), planned

    def begin_batch(self) -> None:
        """Look again, now that a batch is planned, while it is computed."""
        self._after = self._pool.submit(self._looked, self._before)

    def limits(self, batch_id: int, inputs: Iterable[str]) -> dict[str, int]:
        """How far the rows of each input may move time, epoch ms, in the batch that has begun."""
        assert self._after is not None
        after = self._after.result()
        before = self._before if batch_id > self._planned else UNKNOWN
        self._before, self._planned = after, batch_id
        written = {topic for one in after.commits.values() for topic in one.topics}
        self.fed_inputs = [name for name, given in self._stream.sources.items() if any(map(given.reads_topic, written))]
        return {name: event_time_limit(self._stream.sources[name], before, after) for name in inputs}

    def _looked(self, before: UpstreamSnapshot) -> UpstreamSnapshot:
        try:
            return self._look(before)
        except (PenstockError, KafkaException) as e:
            log.warning("stream %s does not know how far those are that feed it: %s", self._stream.name, e)
            return UNKNOWN

    def close(self) -> None:
        """Give back what looks were taken with, behind the last one: a broker that is away holds up nobody."""
        self._pool.submit(self._look.close)
        self._pool.shutdown(wait=False)


class CommitMarkerObserver:
    """Looks at the marks of streams. names: whose; None for all that write what is read."""

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
        mine = self._stream.has_input_topic
        fed = {n: f for n, (_, f) in self._read.items() if f and n != self._stream.name and any(map(mine, f.topics))}
        same = {name for name, one in fed.items() if name in before.commits and before.commits[name].batch == one.batch}
        return UpstreamSnapshot(self._resting(fed, same), complete=not self._marks.may_be_hidden)

    def _resting(self, fed: Mapping[str, UpstreamCommit], same: Collection[str]) -> dict[str, UpstreamCommit]:
        """Those streams, and which of the same ones have read all that their inputs hold."""
        places = {(t, p) for name in same for t, parts in fed[name].ends.items() for p in parts}
        ends = end_offsets(admin(self._bootstrap), places, self._bootstrap) if places else {}

        def rests(one: UpstreamCommit) -> bool:
            read = [at >= ends.get((t, p), at) for t, parts in one.ends.items() for p, at in parts.items()]
            return bool(read) and all(read)

        return {name: replace(one, idle=name in same and rests(one)) for name, one in fed.items()}

    def close(self) -> None:
        self._marks.close()


def inputs_limited_by_upstream(stream: Stream) -> tuple[str, ...]:
    """The inputs of a stream whose time other streams may hold. A record's own time is when it was written, and what
    goes by that alone is moved by no order of reading."""
    if stream.kind == "sink":
        return ()
    found = stream.sources.items()
    return tuple(
        name
        for name, i in found
        if not i.uses_record_timestamp or (i.topic is not None and not stream.output_mode.drops_late)
    )


def open_upstream(
    stream: Stream, bootstrap: str, names: Collection[str] | None, planned: int
) -> UpstreamProgress | None:
    """What feeds a stream, looked at before its query starts; None if nothing of it can be fed.

    Args:
        stream: the reader.
        bootstrap: the brokers.
        names: the streams that write what it reads; None for all whose marks say so.
        planned: the last batch that is planned already, -1 for none.
    """
    if not inputs_limited_by_upstream(stream) or (names is not None and not names):
        return None
    found = UpstreamProgress(stream, CommitMarkerObserver(stream, bootstrap, names))
    found.open(planned)
    return found
