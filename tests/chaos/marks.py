"""How far streams have come, by the marks that they commit with their batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition

from penstock.kafka.admin import admin, end_offsets
from penstock.model.output import CommitMarker
from penstock.model.topic import COMMITS
from tests.support.wait import wait_until

# A client must not wait for a broker that hangs for longer than those wait that it measures.
SOCKET_MS = 5000


class Marks:
    """Follows the marks that streams leave in `penstock.commits`, from now on."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "marks",
                "isolation.level": "read_committed",
                "socket.timeout.ms": SOCKET_MS,
                "log_level": 0,
            }
        )
        self._seen: dict[str, tuple[CommitMarker, float]] = {}
        wanted = [(COMMITS.name, p) for p in range(COMMITS.partitions)]

        def ends() -> dict[tuple[str, int], int] | None:
            """Of a topic that was just made, some partitions may have no leader yet."""
            found = end_offsets(admin(bootstrap), wanted, bootstrap)
            return found if len(found) == len(wanted) else None

        now = wait_until(ends, what="every partition of the marks has a leader")
        assert now
        self._consumer.assign([TopicPartition(topic, p, offset) for (topic, p), offset in now.items()])

    def wait(self, streams: Sequence[str], topic: str, wanted: Mapping[int, int], timeout: float = 900) -> float:
        """When the last of the streams had written all of a topic up to the wanted offsets, epoch seconds."""
        deadline, done = time.monotonic() + timeout, dict[str, float]()

        def look(stream: str) -> None:
            mark, at = self._seen[stream]
            offsets = mark.offsets.get(topic, {})
            if stream not in done and all(offsets.get(p, 0) >= end for p, end in wanted.items()):
                done[stream] = at

        for stream in self._seen.keys() & set(streams):
            look(stream)
        while missing := set(streams) - done.keys():
            if time.monotonic() > deadline:
                raise SystemExit(f"{', '.join(missing)} did not come to the end of {topic} within {timeout:g} s")
            if (stream := self.next()) in missing:
                look(stream)
        return max(done.values())

    def next(self) -> str:
        """The stream of the next mark; empty if none comes for a moment."""
        message = self._consumer.poll(0.2)
        if message is None or message.error():
            return ""
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        self._seen[key.decode()] = CommitMarker.read(value or b""), message.timestamp()[1] / 1000
        return key.decode()

    def offsets(self, streams: Sequence[str]) -> dict[str, int]:
        """How far each stream has come in its inputs, of those that have written a batch."""
        seen = dict(self._seen)
        return {
            stream: sum(at for parts in seen[stream][0].offsets.values() for at in parts.values())
            for stream in streams
            if stream in seen
        }

    def close(self) -> None:
        self._consumer.close()
