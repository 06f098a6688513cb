"""Finds record batches with a wrong checksum, i.e. damaged log segments of the broker."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.errors import BrokerError
from penstock.kafka.admin import LARGE_FETCH
from penstock.kafka.client import END_WAIT_MS, assign, client_config, close_checking
from penstock.kafka.limits import as_bytes

# Seconds to wait for a record or an error.
READ_TIMEOUT = 30.0


def find_corrupt_range(topic: str, partition: int, start: int, end: int, bootstrap: str) -> range | None:
    """Returns the offsets of the first run of corrupt batches within a range; None if all are intact."""
    with _PartitionReader(topic, partition, bootstrap) as reader:
        if (start_of_run := reader.first_corrupt_offset(start, end)) is None:
            return None
        end_of_run = start_of_run
        while end_of_run < end and (batch := reader.corrupt_batch_at(end_of_run)) is not None and batch <= end_of_run:
            end_of_run = _end_of_batch(reader, batch, end_of_run, end)
        return range(start_of_run, end_of_run)


def read_corrupt_records(
    topic: str, partition: int, offsets: range, bootstrap: str
) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Returns what can be read of corrupt batches: key and value, perhaps wrong, by offset."""
    with _PartitionReader(topic, partition, bootstrap, checks=False) as reader:
        return reader.read(offsets)


def _end_of_batch(reader: _PartitionReader, batch: int, known_inside: int, end: int) -> int:
    """Finds the offset after a corrupt batch by bisection: a fetch of any of its offsets returns all of it."""
    step = 1
    while (upper := min(known_inside + step, end)) < end and reader.corrupt_batch_at(upper) == batch:
        known_inside, step = upper, step * 2
    while upper - known_inside > 1:
        middle = (known_inside + upper) // 2
        if reader.corrupt_batch_at(middle) == batch:
            known_inside = middle
        else:
            upper = middle
    return upper


class _PartitionReader:
    """Reads a partition from any offset, with or without verification of checksums."""

    def __init__(self, topic: str, partition: int, bootstrap: str, *, checks: bool = True) -> None:
        self._topic, self._partition = topic, partition
        self._config = {
            **LARGE_FETCH,
            **client_config(bootstrap),
            "group.id": "penstock.broken",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": checks,
            "fetch.wait.max.ms": END_WAIT_MS,
            "fetch.error.backoff.ms": 10,
            "log_level": 2,
        }
        self._consumer: Consumer | None = None

    def __enter__(self) -> _PartitionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close_checking(consumer)

    def corrupt_batch_at(self, offset: int) -> int | None:
        """The first offset of the batch at an offset, or after it, if that batch is corrupt."""
        error, at = self._next(self._start(offset))
        return at if error == KafkaError._BAD_MSG else None

    def first_corrupt_offset(self, start: int, end: int) -> int | None:
        """The first corrupt offset of a range; None if all are intact."""
        if start >= end:
            return None
        consumer = self._start(start)
        while True:
            error, offset = self._next(consumer)
            if error == KafkaError._BAD_MSG:
                # The offset of the error is that of its batch, which may start before the range.
                return max(start, offset) if offset < end else None
            if error is not None or offset >= end - 1:
                return None
            start = offset + 1

    def read(self, offsets: range) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Keys and values of the records of a range, up to the first that cannot be read."""
        consumer = self._start(offsets.start)
        records: dict[int, tuple[bytes | None, bytes | None]] = {}
        while (message := consumer.poll(READ_TIMEOUT)) is not None and message.error() is None:
            if (offset := message.offset() or 0) not in offsets:
                break
            records[offset] = as_bytes(message.key()), as_bytes(message.value())
        return records

    def _start(self, offset: int) -> Consumer:
        """A new consumer: one that has met a corrupt batch may report the partition's end at its next offset."""
        self._close()
        self._consumer = Consumer(self._config)
        assign(self._consumer, [TopicPartition(self._topic, self._partition, offset)])
        return self._consumer

    def _next(self, consumer: Consumer) -> tuple[int | None, int]:
        """The code of an error, None for a record, and the offset."""
        deadline = time.monotonic() + READ_TIMEOUT
        while time.monotonic() < deadline:
            if (message := consumer.poll(1.0)) is None:
                continue
            error, offset = message.error(), message.offset() or 0
            if error is None or error.code() in (KafkaError._BAD_MSG, KafkaError._PARTITION_EOF):
                return (error.code() if error else None), offset
        raise BrokerError(
            f"partition {self._partition} of topic {self._topic} could not be read",
            got=f"no answer for {READ_TIMEOUT:g} s",
            hint="nothing if the broker returns: it is retried",
        )
