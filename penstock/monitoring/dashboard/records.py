"""The newest records of a topic, or those of one key, read from the end within bounds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer

from penstock.codec.heartbeat import HEARTBEAT_KEY
from penstock.kafka.admin import admin, all_end_offsets, first_offsets, partition_counts
from penstock.kafka.dead_letters import open_consumer, read_range
from penstock.kafka.record_lookup import TopicRecord, to_record
from penstock.monitoring.dashboard.dead_letters import shown_text
from penstock.views.cluster.partition_assignment import partition_of

LIMIT = 20
# Offsets of each partition that are read for the newest records; for a key, of its partition, and as many at a time.
BACK, KEY_BACK, CHUNK = 100, 50_000, 5_000
PARTITIONS = 100
TIMEOUT = 5.0
"""Seconds after which a search by key goes no further back."""


@dataclass(frozen=True)
class TopicRecords:
    """Records of a topic, the newest first; none of a topic that does not exist, which has no partition.

    Attributes:
        partition: the one of the key that was searched; None without a key.
        begin, end: offsets of that partition that were read, from the first up to before the last.
        first: offset at which the partition begins.
    """

    topic: str
    partitions: int
    records: list[dict[str, Any]]
    partition: int | None = None
    begin: int = 0
    end: int = 0
    first: int = 0


def read_records(bootstrap: str, topic: str, key: str | None = None) -> TopicRecords:
    """The newest committed records of a topic, at most LIMIT of them.

    Args:
        bootstrap: the brokers.
        topic: its name.
        key: only those with exactly this key, which are looked for in its partition, as Kafka's Java clients and
            Penstock place keys.

    Raises:
        BrokerError: the broker does not answer.
    """
    client = admin(bootstrap)
    count = partition_counts(client, bootstrap).get(topic, 0)
    if not count:
        return TopicRecords(topic, 0, [])
    chosen = range(min(count, PARTITIONS)) if key is None else [partition_of(key, count)]
    places = [(topic, p) for p in chosen]
    starts, ends = first_offsets(client, places, bootstrap), all_end_offsets(client, places, bootstrap)
    with open_consumer(bootstrap) as reader:
        if key is not None:
            [place] = places
            return _of_key(reader, place, key.encode(), starts.get(place, 0), ends[place], count)
        records = [
            record
            for place in places
            for record in map(
                to_record, read_range(reader, *place, max(starts.get(place, 0), ends[place] - BACK), ends[place])
            )
            if record.key != HEARTBEAT_KEY
        ]
    newest = sorted(records, key=lambda record: (record.timestamp, record.location), reverse=True)[:LIMIT]
    return TopicRecords(topic, count, [_row(record) for record in newest])


def _of_key(reader: Consumer, place: tuple[str, int], key: bytes, first: int, end: int, count: int) -> TopicRecords:
    records: list[TopicRecord] = []
    until, begin = time.monotonic() + TIMEOUT, end
    while begin > max(first, end - KEY_BACK) and len(records) < LIMIT and time.monotonic() < until:
        before, begin = begin, max(first, end - KEY_BACK, begin - CHUNK)
        part = map(to_record, read_range(reader, *place, begin, before))
        records += reversed([record for record in part if record.key == key])
    return TopicRecords(place[0], count, [_row(record) for record in records[:LIMIT]], place[1], begin, end, first)


def _row(record: TopicRecord) -> dict[str, Any]:
    return {
        "partition": record.location.partition,
        "offset": record.location.offset,
        "at": record.timestamp,
        "key": shown_text(record.key),
        "value": shown_text(record.value),
        "size": len(record.value or b""),
    }
