"""A stream's output: one Kafka transaction per batch, with the input offsets and the batch's number inside.

Exactly once: the transaction holds the records, the offsets of the consumer group `penstock.<stream>` and, in their
metadata, the query and the batch. A batch that is run again finds its number committed and is not written again.
Fencing: the transactional id is the stream's, so the newest driver's producer shuts out every older one, also one that
wakes up in the middle of a batch (KIP-98).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from penstock.errors import BrokerError, LeaseLost

START_TIMEOUT = 30.0
# A transaction is open only while its records are sent; the broker ends one whose driver died in it after this time.
TRANSACTION_TIMEOUT_MS = 30_000

Offsets = Mapping[str, Mapping[int, int]]
FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}

# A broker that has just started, or whose coordinators move, answers so for a moment.
MOVING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def _coordinator_moves(e: BaseException) -> bool:
    return isinstance(e, KafkaException) and e.args[0].code() in MOVING


@dataclass(frozen=True)
class Message:
    """A record to be written: key and value as bytes, None for none (a value None is a tombstone)."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = -1


class Output:
    """The transactional producer of one stream; opening it fences every earlier one of the same stream."""

    def __init__(self, name: str, group: str, bootstrap: str) -> None:
        self.name = name
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": group,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "compression.type": "lz4",
                "linger.ms": 2,
                "queue.buffering.max.messages": 500_000,
                # The Java clients' partitioner: a key must land where any other client would look for it.
                "partitioner": "murmur2_random",
                "client.id": group,
            }
        )
        self._offsets = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            self._producer.init_transactions(START_TIMEOUT)
        except KafkaException as e:
            raise self._error("could not open its transactions", e) from e

    def committed(self, partitions: Iterable[tuple[str, int]]) -> tuple[str, int]:
        """Query id and number of the last batch whose output is committed; ('', -1) if none is."""
        asked = [TopicPartition(topic, partition) for topic, partition in partitions]
        if not asked:
            return "", -1
        patiently = Retrying(
            retry=retry_if_exception(_coordinator_moves),
            stop=stop_after_delay(START_TIMEOUT),
            wait=wait_fixed(0.2),
            reraise=True,
        )
        try:
            found = patiently(self._offsets.committed, asked, timeout=START_TIMEOUT)
        except KafkaException as e:
            raise self._error("could not read its committed offsets", e) from e
        marks = [json.loads(at.metadata) for at in found if at.metadata and not at.error]
        newest = max(marks, key=lambda mark: (mark["at"], mark["batch"]), default=None)
        return (str(newest["query"]), int(newest["batch"])) if newest else ("", -1)

    def write(self, messages: Iterable[Message], offsets: Offsets, *, query: str, batch: int, at: int) -> int:
        """Write one batch atomically; returns the number of records. at: epoch ms of the batch, orders the marks.

        Raises LeaseLost if a newer driver has opened the stream's output, BrokerError if the broker did not take it;
        either way nothing of the batch is visible to a committed reader.
        """
        mark = json.dumps({"query": query, "batch": batch, "at": at}, separators=(",", ":"))
        positions = [
            TopicPartition(topic, partition, offset, metadata=mark)
            for topic, parts in offsets.items()
            for partition, offset in parts.items()
        ]
        count = 0
        try:
            self._producer.begin_transaction()
            for message in messages:
                self._send(message)
                count += 1
            if positions:
                self._producer.send_offsets_to_transaction(
                    positions, self._offsets.consumer_group_metadata(), START_TIMEOUT
                )
            self._producer.commit_transaction(START_TIMEOUT)
        except KafkaException as e:
            raise self._error("could not commit a batch", e) from e
        return count

    def _send(self, message: Message) -> None:
        while True:
            try:
                self._producer.produce(
                    message.topic,
                    key=message.key,
                    value=message.value,
                    headers=list(message.headers),
                    partition=message.partition,
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _error(self, what: str, e: KafkaException) -> BrokerError | LeaseLost:
        error = e.args[0]
        if error.code() in FENCED:
            return LeaseLost(
                f"stream {self.name} {what}: a newer driver has opened its output, or the broker gave up on it",
                got=error,
                fix="nothing: nothing of the batch is visible, and the stream goes on from its checkpoint",
            )
        return BrokerError(
            f"stream {self.name} {what}",
            got=error,
            fix="nothing, if the broker comes back: the batch is run again",
        )

    def close(self) -> None:
        """Close without waiting for the broker: an open transaction is left to the next owner, who aborts it."""
        self._producer.purge()
        self._offsets.close()
