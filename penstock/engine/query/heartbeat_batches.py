"""Batches of heartbeats alone: they move the watermark before they are planned, and so close windows themselves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from penstock.codec.heartbeat import HEARTBEAT_KEY, heartbeat_signer
from penstock.engine.jvm import heartbeat_watermark
from penstock.engine.query.watermark import is_cut
from penstock.kafka.client import assign, reader_config
from penstock.model.output_mode import millis

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.query.watermark import BatchLimits
    from penstock.model.stream import Stream

# Records of a partition that are read: more of them are a backlog, or no heartbeats.
MAX_RECORDS = 3
# Of a broker that does not answer; Spark asks it for the offsets of the batch just before.
TIMEOUT_S = 2.0


class HeartbeatBatches:
    """Reads the heartbeats of a stream's batches when they are planned.

    Args:
        stream: the stream; one that does not wait for the clock gets no heartbeats.
        spark: its session.
        bootstrap: the brokers.
        limits: says which batches are part of a larger one: those leave the watermark where it is.
    """

    def __init__(self, stream: Stream, spark: SparkSession, bootstrap: str, limits: BatchLimits) -> None:
        self._stream, self._spark, self._bootstrap, self._limits = stream, spark, bootstrap, limits
        self._signer = heartbeat_signer()
        self._consumer: Consumer | None = None
        self._watches = False

    def watch(self, query: StreamingQuery) -> None:
        """Let heartbeats move the watermark of the batches after the present one. Called in each batch of a query."""
        if self._watches or self._stream.output_mode.heartbeat_schedule is None:
            return
        delay = millis(self._stream.output_mode.watermark_delay)
        heartbeat_watermark.watch(query, self._spark, delay, self.time)
        self._watches = True

    def time(self, sources: Iterable[tuple[TopicOffsets, TopicOffsets]]) -> int | None:
        """Up to which time records of all partitions were sent, epoch ms.

        Args:
            sources: first and next offsets of each input.

        Returns:
            The earliest of the partitions' last heartbeats; None if there is another record, a partition without a
            heartbeat, no answer, or more to read than the batch takes.
        """
        ranges: dict[tuple[str, int], tuple[int, int]] = {}
        for start, ends in sources:
            if is_cut(self._limits.max_records, start, ends) or self._limits.is_split(ends):
                return None
            for topic, partition, end in ((t, p, end) for t, parts in ends.items() for p, end in parts.items()):
                read = start.get(topic, {}).get(partition, 0), end
                if ranges.setdefault((topic, partition), read) != read:
                    # Two inputs read a topic, and one of them does not come to its heartbeats in this batch.
                    return None
        if not ranges or not all(1 <= end - start <= MAX_RECORDS for start, end in ranges.values()):
            return None
        if self._consumer is None:
            self._consumer = Consumer(reader_config(self._bootstrap, f"{self._stream.group}-reader"))
        assign(self._consumer, [TopicPartition(*partition, start) for partition, (start, _) in ranges.items()])
        try:
            return self._read(self._consumer, ranges)
        finally:
            self._consumer.unassign()

    def _read(self, consumer: Consumer, ranges: dict[tuple[str, int], tuple[int, int]]) -> int | None:
        # In each partition, the offset of the next record.
        unread = {partition: start for partition, (start, _) in ranges.items()}
        last: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + TIMEOUT_S
        while unread:
            message = consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                return None
            partition = message.topic() or "", message.partition() or 0
            if partition not in unread:
                continue
            # It is told of an end, too: so a missing record is noticed at once.
            if message.error() or message.offset() != unread[partition] or message.key() != HEARTBEAT_KEY:
                return None
            at = self._signer.verified_time(*partition, message.value())
            if at is None:
                return None
            last[partition] = at
            unread[partition] += 1
            if unread[partition] == ranges[partition][1]:
                del unread[partition]
        return min(last.values())

    def close(self) -> None:
        """Disconnect; the query has ended."""
        self._watches = False
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
