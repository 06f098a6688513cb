"""Batches of a topic's log whose checksum does not fit: a segment that was damaged on the broker's disk."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.errors import BrokerError

# Seconds in which a record comes, or an error in its place.
PATIENCE = 30.0


def broken(topic: str, partition: int, start: int, end: int, bootstrap: str) -> list[range]:
    """The offsets of broken batches between two offsets; some that lie close together may be taken for one."""
    found: list[range] = []
    with _Reader(topic, partition, bootstrap) as reader:
        while (first := reader.broken_from(start, end)) is not None:
            start = _behind(reader, first, end)
            found.append(range(first, start))
    return found


def _behind(reader: _Reader, broken: int, end: int) -> int:
    """The first offset behind a broken batch: whatever offset of one is asked for, all of it comes."""
    step = 1
    while (good := min(broken + step, end)) < end and not reader.reads(good):
        broken, step = good, step * 2
    while good - broken > 1:
        middle = (broken + good) // 2
        if reader.reads(middle):
            good = middle
        else:
            broken = middle
    return good


class _Reader:
    """Reads a partition from here and there, with checksums."""

    def __init__(self, topic: str, partition: int, bootstrap: str) -> None:
        self._topic, self._partition = topic, partition
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "penstock.broken",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "check.crcs": True,
                "fetch.error.backoff.ms": 10,
                "log_level": 2,
            }
        )

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def reads(self, offset: int) -> bool:
        """Whether a good record, or none, comes first from an offset on."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])
        return self._next()[0] != KafkaError._BAD_MSG

    def broken_from(self, start: int, end: int) -> int | None:
        """The first broken offset of a range; None if all of it is good."""
        if start >= end:
            return None
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])
        while True:
            error, offset = self._next()
            if error == KafkaError._BAD_MSG:
                # An error's offset is that of its batch, which may begin before.
                return max(start, offset)
            if error is not None or offset >= end - 1:
                return None
            start = offset + 1

    def _next(self) -> tuple[int | None, int]:
        """The code of an error, None for a record, and the offset."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if (message := self._consumer.poll(1.0)) is None:
                continue
            error, offset = message.error(), message.offset() or 0
            if error is None or error.code() in (KafkaError._BAD_MSG, KafkaError._PARTITION_EOF):
                return (error.code() if error else None), offset
        raise BrokerError(
            f"partition {self._partition} of topic {self._topic} could not be looked through",
            got=f"no answer for {PATIENCE:g} s",
            fix="nothing, if the broker comes back: it is tried again",
        )
