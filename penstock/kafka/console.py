"""Sends and reads records of a topic for the command line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.codec.heartbeat import HEARTBEAT_KEY
from penstock.errors import BrokerError
from penstock.kafka import record_lookup
from penstock.kafka.admin import admin, all_end_offsets, first_offsets, offsets_for_times, partition_counts
from penstock.kafka.client import assign, client_config
from penstock.kafka.dead_letters import READ_TIMEOUT, RecordLocation, open_consumer
from penstock.kafka.record_lookup import TopicRecord

# Seconds until the brokers have acknowledged all records.
DELIVERY_TIMEOUT = 30
# Seconds that a poll waits for records.
POLL_TIMEOUT = 0.5
# Seconds between two looks for partitions that were added to a topic that is followed.
NEW_PARTITIONS_INTERVAL = 5.0

Start = Literal["beginning", "end"] | datetime


class OutgoingRecord(NamedTuple):
    """A record to send. value None: a tombstone. timestamp: epoch ms, 0 for now."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int = 0


def send(topic: str, records: Sequence[OutgoingRecord], bootstrap: str) -> list[RecordLocation]:
    """Writes records to a topic, in order, with the partitioner of the Java clients.

    Returns:
        The location of each record, in order.

    Raises:
        BrokerError: the topic does not exist, or a record was not written; those before it may have been.
    """
    _partitions(topic, bootstrap)
    written: dict[int, RecordLocation] = {}
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {
        **client_config(bootstrap),
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "delivery.timeout.ms": DELIVERY_TIMEOUT * 1000,
        # The size limit of the topic applies, not that of the client.
        "message.max.bytes": 1_000_000_000,
        "log_level": 2,
    }
    producer = Producer(settings)

    def delivered(error: KafkaError | None, message: Message, number: int) -> None:
        if error is not None:
            errors.append(error)
        else:
            written[number] = RecordLocation(topic, message.partition() or 0, message.offset() or 0)

    for number, record in enumerate(records):
        while True:
            try:
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    timestamp=record.timestamp,
                    on_delivery=partial(delivered, number=number),
                )
                break
            except BufferError:
                producer.poll(POLL_TIMEOUT)
            except KafkaException as e:
                raise BrokerError(f"record {number + 1} cannot be sent to topic {topic}", got=e.args[0]) from e
    unsent = producer.flush(DELIVERY_TIMEOUT)
    if errors or unsent:
        reason = errors[0] if errors else f"no answer for {DELIVERY_TIMEOUT} s"
        got = f"{len(written)} of {len(records)} written; {reason}"
        refused = bool(errors) and errors[0].code() == KafkaError.INVALID_RECORD
        hint = (
            "a record of a compacted topic needs a key, and a time that the topic's settings allow" if refused else ""
        )
        raise BrokerError(f"not all records were written to topic {topic}", got=got, hint=hint)
    return [written[number] for number in range(len(records))]


def read(
    topic: str,
    bootstrap: str,
    start: Start,
    *,
    key: bytes | None = None,
    count: int | None = None,
    follow: bool = False,
    heartbeats: bool = False,
) -> Iterator[TopicRecord]:
    """Reads the committed records of a topic, those of one partition in the order of their offsets.

    Args:
        topic: its name.
        bootstrap: the brokers.
        start: `beginning`, `end`, or the time of the first record of each partition to read.
        key: only records with this key.
        count: end after this number of records; None for no limit.
        follow: wait for new records, forever; else end at the offsets at which the partitions ended at the start.
        heartbeats: include the heartbeats that Penstock writes.

    Raises:
        BrokerError: the topic does not exist or cannot be read.
    """
    starts, ends = _span(topic, bootstrap, start)
    partitions = {p for p, at in starts.items() if follow or at < ends[p]}
    if count == 0 or not partitions:
        return
    count_read = 0
    with open_consumer(bootstrap) as reader:
        assign(reader, [TopicPartition(topic, p, starts[p]) for p in partitions])
        messages = _follow(reader, topic, starts) if follow else _messages(reader, topic, ends, partitions)
        for record in map(record_lookup.to_record, messages):
            if not _matches(record, key, heartbeats=heartbeats):
                continue
            yield record
            count_read += 1
            if count_read == count:
                return


def read_newest(
    topic: str, bootstrap: str, count: int, *, key: bytes | None = None, heartbeats: bool = False
) -> list[TopicRecord]:
    """The newest committed records of a topic by timestamp, oldest first; arguments and errors are those of `read`."""
    _partitions(topic, bootstrap)
    return record_lookup.newest_records(
        [topic], count, bootstrap, lambda record: _matches(record, key, heartbeats=heartbeats)
    )


def _matches(record: TopicRecord, key: bytes | None, *, heartbeats: bool) -> bool:
    return (heartbeats or record.key != HEARTBEAT_KEY) and (key is None or record.key == key)


def _messages(reader: Consumer, topic: str, ends: dict[int, int], partitions: set[int]) -> Iterator[Message]:
    while partitions:
        # There is always a record or the event of the partition's end.
        message = reader.poll(READ_TIMEOUT)
        if message is None:
            raise BrokerError(f"topic {topic} cannot be read", got=f"no answer for {READ_TIMEOUT:g} s")
        partition, offset = message.partition() or 0, message.offset() or 0
        if _is_end(message, topic):
            partitions.discard(partition)
            continue
        if offset < ends[partition]:
            yield message
        if offset >= ends[partition] - 1:
            partitions.discard(partition)


def _follow(reader: Consumer, topic: str, starts: dict[int, int]) -> Iterator[Message]:
    """Yields the records as they come, those of partitions that are added meanwhile too."""
    following, looked_at = dict(starts), time.monotonic()
    while True:
        message = reader.poll(POLL_TIMEOUT)
        if message is not None and not _is_end(message, topic):
            following[message.partition() or 0] = (message.offset() or 0) + 1
            yield message
        if time.monotonic() - looked_at < NEW_PARTITIONS_INTERVAL:
            continue
        looked_at = time.monotonic()
        # Without an answer the next look finds them.
        with suppress(KafkaException):
            present = reader.list_topics(topic, timeout=2.0).topics[topic].partitions.keys()
            if added := present - following.keys():
                following |= dict.fromkeys(added, 0)
                assign(reader, [TopicPartition(topic, p, at) for p, at in following.items()])


def _is_end(message: Message, topic: str) -> bool:
    """Whether this is the event of a partition's end; BrokerError if it is another error."""
    error = message.error()
    if error and error.code() != KafkaError._PARTITION_EOF:
        raise BrokerError(f"topic {topic} cannot be read", got=error)
    return error is not None


def _span(topic: str, bootstrap: str, start: Start) -> tuple[dict[int, int], dict[int, int]]:
    """The start and end offsets, by partition."""
    client, partitions = admin(bootstrap), [(topic, p) for p in range(_partitions(topic, bootstrap))]
    ends = {p: at for (_, p), at in all_end_offsets(client, partitions, bootstrap).items()}
    if start == "end":
        return ends, ends
    if start == "beginning":
        starts: Iterable[tuple[tuple[str, int], int | None]] = first_offsets(client, partitions, bootstrap).items()
    else:
        ms = int(start.timestamp() * 1000)
        starts = offsets_for_times(client, dict.fromkeys(partitions, ms), bootstrap).items()
    return {p: ends[p] if at is None else at for (_, p), at in starts if p in ends}, ends


def _partitions(topic: str, bootstrap: str) -> int:
    counts = partition_counts(admin(bootstrap), bootstrap)
    if topic not in counts:
        raise BrokerError(
            f"topic {topic} does not exist",
            hint="list the declared topics with `penstock topics`, create them with `penstock topics --apply`",
        )
    return counts[topic]
