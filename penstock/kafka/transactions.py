"""One Kafka transaction per batch of a stream or a capture, with the marker of the batch inside.

Exactly once: the transaction contains the records and, in a compacted topic, a marker of the writer's progress. The
marker of a stream names query and batch: a batch that is run again finds its marker and is not written again. Fencing:
each writer has its own transactional id, so the newest producer shuts out all older ones, even in the middle of a batch
(KIP-98).

The marker is a record and not an offset of a consumer group: the broker deletes the offsets of an idle group, and
librdkafka 2.16 can wait forever in send_offsets_to_transaction after a restart of the broker.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from penstock.errors import BrokerError, LeaseLost, RecordTooLarge
from penstock.kafka.admin import admin, log_end_offsets
from penstock.kafka.client import assign, client_config, reader_config
from penstock.kafka.limits import (
    MAX_MESSAGE_BYTES,
    RECORD_OVERHEAD,
    ProducerBatch,
    ProducerRecord,
    SizeLimit,
    size_limits,
)
from penstock.model.topic import Topic

# Seconds for a call to the broker; longer than a restart of it takes.
TIMEOUT = 30.0
# A transaction is open only while its records are sent; the broker aborts one whose driver died after this time.
TRANSACTION_TIMEOUT_MS = 30_000
# Bytes of a record batch, unless a topic accepts less.
BATCH_BYTES = 1_000_000
# Characters of a key in a message.
KEY_CHARS = 100
# The limit of the topic applies after compression; that of the client would apply before.
NO_SIZE_LIMIT = 1_000_000_000

FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}

RETRY_HINT = "nothing if the broker returns: the batch is retried"
# Hints for errors that last.
ERROR_HINTS = {
    KafkaError.MSG_SIZE_TOO_LARGE: f"raise {MAX_MESSAGE_BYTES} of the topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow Penstock in the broker's ACLs to write to the topic",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "allow the transactional id in the broker's ACLs",
}


def marker_partition(marks: Topic, name: str) -> int:
    """Returns the partition of a commit marker's key."""
    return zlib.crc32(name.encode()) % marks.partitions


class TransactionalWriter:
    """A producer that writes records and a marker atomically; opening it fences all earlier ones of its group.

    Args:
        name: The marker's key.
        group: Transactional id, and consumer group of the reader of markers.
        bootstrap: The brokers.
        marks: The compacted topic of the marker.
        what: Kind of the writer, for messages; empty if the name says it.
        topics: The output topics.
    """

    def __init__(
        self, name: str, group: str, bootstrap: str, marks: Topic, what: str, topics: Sequence[str] = ()
    ) -> None:
        self.name, self.what, self.bootstrap = name, f"{what} {name}".strip(), bootstrap
        self._marker_partition = TopicPartition(marks.name, marker_partition(marks, name), 0)
        self._limits = size_limits(topics, bootstrap)
        shared = {**client_config(bootstrap, group), "log_level": 2}
        self._producer = Producer(
            {
                **shared,
                "transactional.id": group,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "compression.type": "lz4",
                "linger.ms": 2,
                "queue.buffering.max.messages": 500_000,
                "message.max.bytes": NO_SIZE_LIMIT,
                "batch.size": max(
                    1, min([BATCH_BYTES, *(limit.max_bytes - RECORD_OVERHEAD for limit in self._limits.values())])
                ),
                # The Java clients' partitioner: other clients expect a key in this partition.
                "partitioner": "murmur2_random",
            }
        )
        self._consumer = Consumer({**reader_config(bootstrap, group), **shared})
        try:
            # Without a connection librdkafka waits half a second before it looks for the transaction coordinator.
            self._producer.list_topics(marks.name, timeout=TIMEOUT)
            self._producer.init_transactions(TIMEOUT)
        except KafkaException as e:
            self.close()
            raise self._error("could not open its transactions", e) from e

    def read_marker(self) -> bytes | None:
        """Returns the value of the last committed marker; None if there is none."""
        topic, partition = self._marker_partition.topic, self._marker_partition.partition
        deadline = time.monotonic() + TIMEOUT + TRANSACTION_TIMEOUT_MS / 1000
        value = None
        try:
            # A committed reader stops at another writer's open transaction, and this writer's marker may be after it.
            end = self._marker_log_end(deadline)
            assign(self._consumer, [self._marker_partition])
            at = 0
            while at < end:
                message = self._consumer.poll(1.0)
                if message is not None and not message.error() and message.key() == self.name.encode():
                    value = message.value()
                at = self._consumer.position([TopicPartition(topic, partition)])[0].offset
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"{self.what} could not read its marker",
                        got=f"{topic}[{partition}] up to {at} of {end}",
                        hint="nothing if the broker was away; else abort the open transaction of another producer "
                        "(kafka-transactions.sh list, abort)",
                    )
            self._consumer.unassign()
        except KafkaException as e:
            raise self._error(f"could not read its marker in {topic}", e) from e
        return value

    def _marker_log_end(self, deadline: float) -> int:
        """Returns the log end of the marker's partition; waits for the leader of a new topic."""
        partition = (self._marker_partition.topic, self._marker_partition.partition)
        while True:
            ends = log_end_offsets(admin(self.bootstrap), [partition], self.bootstrap)
            if partition in ends:
                return ends[partition]
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"{self.what} could not read its marker",
                    got=f"{partition[0]}[{partition[1]}] has no leader",
                    hint="nothing if the broker returns: it is retried",
                )
            time.sleep(0.1)

    def commit(self, messages: Iterable[ProducerRecord] | ProducerBatch, mark: bytes) -> int:
        """Write a batch and its marker atomically.

        Returns:
            The number of records.

        Raises:
            LeaseLost: A newer process has opened this output.
            BrokerError: The broker did not accept the batch. Nothing of it is visible to a committed reader.
        """
        count = 0
        try:
            self._producer.begin_transaction()
            if isinstance(messages, ProducerBatch):
                count = self._send_all(messages)
            else:
                for message in messages:
                    self._check_size(message)
                    self._send(message)
                    count += 1
            self._send(
                ProducerRecord(
                    self._marker_partition.topic, self.name.encode(), mark, partition=self._marker_partition.partition
                )
            )
            self._producer.commit_transaction(TIMEOUT)
        except KafkaException as e:
            raise self._error("could not commit a batch", e) from e
        return count

    def flush(self) -> None:
        """Wait until the broker has the records of the open transaction, which committed readers then wait for.

        Raises:
            BrokerError: It did not answer.
        """
        if self._producer.flush(TIMEOUT):
            raise BrokerError(f"{self.what} could not send its records", got=f"no answer for {TIMEOUT:g} s")

    def size_limit(self, topic: str) -> SizeLimit | None:
        """Returns the size limit of an output topic; None if the broker does not report it."""
        return self._limits.get(topic)

    def _check_size(self, message: ProducerRecord) -> None:
        """Raises BrokerError for an oversized record: the broker would not say which one it is."""
        limit = self._limits.get(message.topic)
        if limit is None or limit.accepts(message):
            return
        key = (message.key or b"")[:KEY_CHARS].decode(errors="replace")
        raise RecordTooLarge(
            f"{self.what}: a record is larger than topic {message.topic} takes",
            got=f"key {key!r}, a value of {len(message.value or b''):,} bytes, {MAX_MESSAGE_BYTES}={limit.max_bytes}",
            hint=f"raise {MAX_MESSAGE_BYTES} of topic {message.topic}, or shorten the record",
        )

    def _send(self, message: ProducerRecord) -> None:
        topic, key, value, headers, partition, timestamp = message
        while True:
            try:
                self._producer.produce(
                    topic, key=key, value=value, headers=list(headers), partition=partition, timestamp=timestamp
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _send_all(self, batch: ProducerBatch) -> int:
        """Sends a batch; only records that may be oversized are checked one by one."""
        limit = self._limits.get(batch.topic)
        for message in batch.larger_than(limit.max_bytes) if limit else ():
            self._check_size(message)
        produce, topic = self._producer.produce, batch.topic
        columns = zip(batch.keys, batch.values, batch.headers(), batch.timestamps, strict=True)
        for key, value, headers, at in columns:
            while True:
                try:
                    # Positional arguments: keywords make the call half as slow again.
                    produce(topic, value, key, -1, None, None, at, headers)
                except BufferError:
                    self._producer.poll(0.1)
                else:
                    break
        return len(batch.keys)

    def _error(self, what: str, e: KafkaException) -> BrokerError | LeaseLost:
        error = e.args[0]
        if error.code() in FENCED:
            return LeaseLost(
                f"{self.what} {what}: a newer process has opened its output, or its transaction timed out",
                got=error,
                hint="nothing: the batch is not visible, and the newer process continues from the last marker",
            )
        return BrokerError(f"{self.what} {what}", got=error, hint=ERROR_HINTS.get(error.code(), RETRY_HINT))

    def close(self) -> None:
        """Close at once; the next owner aborts an open transaction.

        A producer that is not closed keeps trying to initialise its transactions, and would fence its successor.
        """
        with suppress(KafkaException), warnings.catch_warnings():
            # It warns if it cannot abort an open transaction, which the next owner does.
            warnings.simplefilter("ignore", RuntimeWarning)
            self._producer.purge()
            self._producer.close()
        self._consumer.close()
