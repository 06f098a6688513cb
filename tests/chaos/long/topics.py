"""Topics read by a consumer of the checker's own, each record once: what was read is kept."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

PATIENCE = 60.0


class Seen(NamedTuple):
    """A committed record. at: epoch ms that its producer gave it."""

    partition: int
    offset: int
    at: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


class Topics:
    """What the topics of a broker hold, by name."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "chaos-checker",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
                "auto.offset.reset": "earliest",
            }
        )
        self._found: defaultdict[str, list[Seen]] = defaultdict(list)
        self._next: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def names(self) -> set[str]:
        return set(self._consumer.list_topics(timeout=PATIENCE).topics)

    def read(self, topic: str) -> list[Seen]:
        """All committed records of a topic, in the order of each partition; none of a topic that is not there."""
        there = self._consumer.list_topics(timeout=PATIENCE).topics.get(topic)
        if there is None:
            return []
        starts = {p: self._next[topic].get(p, 0) for p in there.partitions}
        self._consumer.assign([TopicPartition(topic, p, at) for p, at in starts.items()])
        open_ones, deadline = set(starts), time.monotonic() + PATIENCE
        while open_ones:
            found = self._consumer.consume(1000, timeout=0.2)
            if not found and time.monotonic() > deadline:
                raise OSError(f"{topic}: the broker says nothing for {PATIENCE:g} s")
            for message in found:
                partition, error = message.partition() or 0, message.error()
                if error and error.code() == KafkaError._PARTITION_EOF:
                    open_ones.discard(partition)
                    continue
                if error:
                    raise OSError(f"{topic}: {error}")
                offset = message.offset() or 0
                if offset < starts[partition]:
                    continue
                starts[partition] = offset + 1
                given: Any = message.headers() or ()
                headers = {name: (value or b"").decode() for name, value in given}
                self._found[topic].append(
                    Seen(partition, offset, message.timestamp()[1], message.key(), message.value(), headers)
                )
        self._consumer.unassign()
        self._next[topic] = starts
        return self._found[topic]

    def close(self) -> None:
        self._consumer.close()
