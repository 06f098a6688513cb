"""Topics on which prompt heartbeats would change nothing.

A topic is idle while no record follows its heartbeats, and the streams that wait for its time have read all records
before and hold no state: no window is open and no timer runs, so its time need not advance when a window would be due.
Each heartbeat costs every reader a batch. An idle topic gets one every `IDLE_EVERY`, and is asked for new records every
second.

What is late for a stream must not depend on this for the readers of its rows. So a topic is idle only while those are
that its readers feed, and its heartbeats are sent with theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta

from penstock.catalog import HeartbeatReader, HeartbeatTopics
from penstock.errors import BrokerError
from penstock.supervision.event_clock.gating import HeartbeatGate

# At most so long between two heartbeats of an idle topic: a watermark older than a minute is reported as late.
IDLE_EVERY = timedelta(seconds=30)
# Seconds between two looks.
LOOK_EVERY = 1.0
# The control database's clock is estimated, and a reader's measurement takes a moment.
MARGIN_MS = 2_000

Offsets = Mapping[int, int]


class IdleTopics:
    """Finds the topics that are idle. Not thread-safe.

    Args:
        windowed: What `Catalog.heartbeat_topics` returns.
        gate: Has the progress of the readers.
        end_offsets: The log end offsets of partitions, by (topic, partition).
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        windowed: HeartbeatTopics,
        gate: HeartbeatGate,
        end_offsets: Callable[[list[tuple[str, int]]], Mapping[tuple[str, int], int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._windowed, self._gate, self._end_offsets, self._clock = windowed, gate, end_offsets, clock
        by_reader: dict[str, set[str]] = {}
        for name, topic in windowed.items():
            for reader in topic.readers:
                by_reader.setdefault(reader.name, set()).add(name)
        self._upstream = {
            name: windowed.keys() & {clock for writer in topic.writers.values() for clock in writer.clocks}
            for name, topic in windowed.items()
        }
        """By topic, those whose heartbeats close the windows that its rows come from."""
        # The time of a reader is that of its slowest input, so one that gets records needs the heartbeats of all.
        self._together = {
            name: set[str]().union(*(by_reader[r.name] for r in topic.readers))
            | {other for other, upstream in self._upstream.items() if name in upstream}
            for name, topic in windowed.items()
        }
        """By topic, those that are idle if it is."""
        self._sent: dict[str, Offsets] = {}
        self._quiet_since: dict[str, int] = {}
        """By topic, the time since which only heartbeats were written, epoch ms of the control database."""
        self._reported: dict[str, int] = {}
        """By topic, the reports by which its readers first held nothing."""
        self._look_at = float("-inf")
        self.topics: frozenset[str] = frozenset()
        """The idle topics, by the last look."""

    def sent(self, topic: str, offsets: Offsets) -> None:
        """Note a heartbeat. offsets: Of the heartbeat, by partition."""
        follows = offsets == {p: at + 1 for p, at in self._sent.pop(topic, {}).items()}
        if offsets and (now := self._gate.now()) is not None:
            self._sent[topic] = offsets
            if not follows:
                self._quiet_since[topic] = now

    def every(self, topic: str) -> timedelta:
        """The time between two heartbeats of a topic while it is idle."""
        declared = self._windowed[topic].topic.heartbeat_every
        return min(IDLE_EVERY, timedelta(seconds=declared)) if declared else IDLE_EVERY

    def upstream(self, topics: AbstractSet[str]) -> set[str]:
        """The idle topics whose heartbeats are sent with those of some topics."""
        return set[str]().union(*(self._upstream[topic] & self.topics for topic in topics & self.topics))

    def look(self) -> frozenset[str]:
        """Find the idle topics, every second at most; returns those that are idle no more, or newly."""
        if self._clock() < self._look_at:
            return frozenset()
        self._look_at = self._clock() + LOOK_EVERY
        quiet = [topic for topic in self._sent if self._holds_nothing(topic)]
        ends = self._ends(quiet)
        idle = {n for n in quiet if all(ends.get((n, p)) == at + 1 for p, at in self._sent[n].items())}
        stopped = {topic for topic in self._windowed if not self._gate.running(topic)}
        while awake := {topic for topic in idle if not self._together[topic] <= idle | stopped}:
            idle -= awake
        before, self.topics = self.topics, frozenset(idle)
        return before ^ self.topics

    def _holds_nothing(self, topic: str) -> bool:
        """Whether the readers of a topic have read its records and hold no state, by two reports of each."""
        readers = self._gate.running(topic)
        since = self._quiet_since[topic] + MARGIN_MS
        reports = [self._report(reader, since) for reader in readers]
        if not readers or None in reports:
            self._reported.pop(topic, None)
            return False
        newest, oldest = (pick(at for at in reports if at is not None) for pick in (max, min))
        return oldest > self._reported.setdefault(topic, newest)

    def _report(self, reader: HeartbeatReader, since: int) -> int | None:
        """When a reader last reported, if it had read all records of that time and held none; else None."""
        row = self._gate.rows.get(reader.name)
        if row is None or row.state_rows != 0 or row.state not in ("running", "idle"):
            return None
        return row.reported_at if row.caught_up_at is not None and row.caught_up_at > since else None

    def _ends(self, topics: list[str]) -> Mapping[tuple[str, int], int]:
        partitions = [(topic, partition) for topic in topics for partition in self._sent[topic]]
        try:
            return self._end_offsets(partitions) if partitions else {}
        except BrokerError:
            return {}  # the next heartbeat says so
