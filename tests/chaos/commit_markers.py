"""Progress of streams, read from the commit markers of their batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition

from penstock.kafka.admin import admin, end_offsets
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS
from tests.support.wait import wait_until

# Short, so that a broker that hangs delays this client no longer than the clients that are measured.
SOCKET_MS = 5000


class CommitMarkers:
    """Reads the commit markers of streams from `penstock.commits`, from now on."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "commit-markers",
                "isolation.level": "read_committed",
                "socket.timeout.ms": SOCKET_MS,
                "log_level": 0,
            }
        )
        self._last_marker: dict[str, tuple[CommitMarker, float]] = {}
        partitions = [(COMMITS.name, p) for p in range(COMMITS.partitions)]

        def ends() -> dict[tuple[str, int], int] | None:
            """None while some partitions of a new topic have no leader."""
            offsets_ = end_offsets(admin(bootstrap), partitions, bootstrap)
            return offsets_ if len(offsets_) == len(partitions) else None

        now = wait_until(ends, what="every partition of penstock.commits has a leader")
        assert now
        self._consumer.assign([TopicPartition(topic, p, offset) for (topic, p), offset in now.items()])

    def wait(self, streams: Sequence[str], topic: str, partitions: Mapping[int, int], timeout: float = 900) -> float:
        """Wait until all streams have processed a topic up to these offsets; epoch seconds when the last had."""
        deadline, reached_at = time.monotonic() + timeout, dict[str, float]()

        def check_reached(stream: str) -> None:
            marker, at = self._last_marker[stream]
            offsets = marker.offsets.get(topic, {})
            if stream not in reached_at and all(offsets.get(p, 0) >= end for p, end in partitions.items()):
                reached_at[stream] = at

        for stream in self._last_marker.keys() & set(streams):
            check_reached(stream)
        while missing := set(streams) - reached_at.keys():
            if time.monotonic() > deadline:
                raise SystemExit(f"{', '.join(missing)} did not reach the end of {topic} within {timeout:g} s")
            if (stream := self.next()) in missing:
                check_reached(stream)
        return max(reached_at.values())

    def next(self) -> str:
        """The stream of the next marker; empty if there is none within 0.2 s."""
        message = self._consumer.poll(0.2)
        if message is None or message.error():
            return ""
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        self._last_marker[key.decode()] = CommitMarker.read(value or b""), message.timestamp()[1] / 1000
        return key.decode()

    def offsets(self, streams: Sequence[str]) -> dict[str, int]:
        """Sum of the processed offsets of each stream that has written a batch."""
        last = dict(self._last_marker)
        return {
            stream: sum(at for parts in last[stream][0].offsets.values() for at in parts.values())
            for stream in streams
            if stream in last
        }

    def close(self) -> None:
        self._consumer.close()
