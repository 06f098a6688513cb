"""Reads topics with a plain consumer; each record is read once and kept in memory."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

TIMEOUT = 60.0


class CommittedRecord(NamedTuple):
    """A committed record. at: the producer's timestamp, epoch ms."""

    partition: int
    offset: int
    at: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


class Topics:
    """The committed records of a broker's topics, by topic."""

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
        self._records: defaultdict[str, list[CommittedRecord]] = defaultdict(list)
        self._next: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def names(self) -> set[str]:
        return set(self._consumer.list_topics(timeout=TIMEOUT).topics)

    def read(self, topic: str) -> list[CommittedRecord]:
        """All committed records of a topic, in the order of each partition; empty if there is no such topic."""
        metadata = self._consumer.list_topics(timeout=TIMEOUT).topics.get(topic)
        if metadata is None:
            return []
        starts = {p: self._next[topic].get(p, 0) for p in metadata.partitions}
        self._consumer.assign([TopicPartition(topic, p, at) for p, at in starts.items()])
        unfinished, deadline = set(starts), time.monotonic() + TIMEOUT
        while unfinished:
            messages = self._consumer.consume(1000, timeout=0.2)
            if not messages and time.monotonic() > deadline:
                raise OSError(f"{topic}: no answer from the broker for {TIMEOUT:g} s")
            for message in messages:
                partition, error = message.partition() or 0, message.error()
                if error and error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
                    continue
                if error:
                    raise OSError(f"{topic}: {error}")
                offset = message.offset() or 0
                if offset < starts[partition]:
                    continue
                starts[partition] = offset + 1
                pairs: Any = message.headers() or ()
                headers = {name: (value or b"").decode() for name, value in pairs}
                self._records[topic].append(
                    CommittedRecord(partition, offset, message.timestamp()[1], message.key(), message.value(), headers)
                )
        self._consumer.unassign()
        self._next[topic] = starts
        return self._records[topic]

    def close(self) -> None:
        self._consumer.close()
