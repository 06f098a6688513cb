"""Records of a real broker, in and out."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from penstock.errors import BrokerError
from penstock.host.process import wait_for
from penstock.kafka.admin import admin, ensure_topics
from penstock.kafka.client import client_config, reader_config
from penstock.model.topic import Topic

_READING = threading.Lock()
COMMIT_TIMEOUT_S = 2.0
"""How long `read` waits for an open transaction: a commit returns before its markers are in every partition."""


@dataclass(frozen=True)
class Record:
    """A record to send, or as it was read. timestamp: epoch ms; offset: -1 until it is read; a value of None is a
    tombstone. Bytes that are no UTF-8 are read with U+FFFD in their place; `value_bytes` is the value as it is, and is
    sent instead of `value` if it is given.
    """

    topic: str
    key: str | None
    value: str | None
    partition: int = 0
    offset: int = -1
    timestamp: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    value_bytes: bytes | None = field(default=None, compare=False, repr=False)


@cache
def _producer(bootstrap: str) -> Producer:
    """The process's producer for tests: a new one waits half a second for its connection."""
    # The topic says what is too large, not the client.
    config = {"enable.idempotence": True, "message.max.bytes": 1_000_000_000, "log_level": 2}
    return Producer({**client_config(bootstrap), **config})


@cache
def _consumer(bootstrap: str) -> Consumer:
    """The process's consumer for tests, used by one thread at a time."""
    return Consumer(reader_config(bootstrap, "tests-read"))


def send(bootstrap: str, records: Sequence[Record]) -> None:
    """Write records where and when they say, all of them or AssertionError."""
    failed: list[str] = []
    producer = _producer(bootstrap)
    for topic in {r.topic for r in records}:
        # It may have been created anew since it was last written, with other partitions.
        producer.list_topics(topic, timeout=10)
    for r in records:
        producer.produce(
            r.topic,
            key=r.key,
            value=r.value if r.value_bytes is None else r.value_bytes,
            partition=r.partition,
            timestamp=r.timestamp,
            headers=list(r.headers),
            on_delivery=lambda e, _: failed.append(str(e)) if e else None,
        )
    assert producer.flush(30) == 0
    assert not failed, failed


def read(bootstrap: str, topic: str, since: dict[int, int] | None = None) -> list[Record]:
    """All committed records of a topic, from the given next offsets on, by partition and offset. Those behind a
    transaction that stays open for two seconds are left out."""
    with _READING:
        return sorted(_records(_consumer(bootstrap), topic, since or {}), key=lambda r: (r.partition, r.offset))


def _records(consumer: Consumer, topic: str, since: Mapping[int, int]) -> list[Record]:
    count = len(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    start = {p: since.get(p, 0) for p in range(count)}
    consumer.assign([TopicPartition(topic, p, at) for p, at in start.items()])
    records: list[Record] = []
    ended: set[int] = set()
    log_ends: dict[int, int] = {}
    try:
        while len(ended) < count:
            message = consumer.poll(COMMIT_TIMEOUT_S if len(log_ends) == count else 20)
            if message is None:
                assert len(log_ends) == count, f"no answer while reading {topic}"
                break
            if error := message.error():
                assert error.code() == KafkaError._PARTITION_EOF, error
                place = TopicPartition(topic, message.partition() or 0)
                _, log_end = consumer.get_watermark_offsets(place, cached=True)
                if (message.offset() or 0) >= log_ends.setdefault(place.partition, log_end):
                    ended.add(place.partition)
                continue
            records.append(
                Record(
                    topic,
                    _text(message.key()),
                    _text(message.value()),
                    message.partition() or 0,
                    message.offset() or 0,
                    message.timestamp()[1],
                    tuple((k, v.decode()) for k, v in dict(message.headers() or ()).items() if isinstance(v, bytes)),
                    message.value(),
                )
            )
    finally:
        consumer.unassign()
    return records


def _text(raw: str | bytes | None) -> str | None:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw


def latest(records: Sequence[Record]) -> dict[str | None, str | None]:
    """What compaction keeps: the last value of each key."""
    return {r.key: r.value for r in records}


def table(records: Sequence[Record]) -> dict[str, str]:
    """What a reader of a compacted topic ends with: the last value of each key that has one."""
    return {key: value for key, value in latest(records).items() if key is not None and value is not None}


def delete_all(bootstrap: str) -> None:
    """Delete all topics but the broker's own, and wait until they are gone."""
    client = admin(bootstrap)

    def names() -> list[str]:
        return [name for name in client.list_topics(timeout=10).topics if not name.startswith("__")]

    for future in client.delete_topics(old).values() if (old := names()) else ():
        future.result(30)
    if not wait_for(lambda: not names(), 60, every=0.05):
        raise BrokerError("topics that were deleted are still there after 60 s", got=", ".join(names()))


def create(bootstrap: str, *topics: Topic) -> None:
    """Create topics as they are declared; those that are there stay."""
    ensure_topics(topics, bootstrap)
