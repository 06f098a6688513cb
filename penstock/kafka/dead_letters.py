"""Reads dead letters: the record, its origin and the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from penstock.errors import BrokerError
from penstock.kafka.admin import LARGE_FETCH, admin, all_end_offsets, first_offsets, partition_counts
from penstock.kafka.client import assign, reader_config
from penstock.kafka.limits import record_digest
from penstock.model.topic import TOPIC_NAME

# Seconds to wait for an answer of the broker.
READ_TIMEOUT = 20.0
# Records of one poll.
MAX_POLL_RECORDS = 2_000
FETCH_BYTES = 8 << 20
HEADER_PREFIX = "penstock."
# A header of dead letters that name their record and do not hold it, because its sink masks columns.
HIDDEN = "hidden"
PARTITION, OFFSET = re.compile("[0-9]{1,9}"), re.compile("[0-9]{1,18}")


class RecordLocation(NamedTuple):
    """Topic, partition and offset of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter as its topic holds it.

    Attributes:
        topic: the dead letter's topic.
        offset: its offset there.
        timestamp: epoch ms.
        key: the record's key, perhaps truncated.
        value: the record's value, perhaps truncated.
        penstock_headers: headers with the prefix `penstock.`, by name without it.
        headers: the record's own headers, perhaps left out.
    """

    topic: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    penstock_headers: Mapping[str, str]
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def stream(self) -> str:
        """The stream that wrote it."""
        return self.penstock_headers.get("stream", "")

    @property
    def reason(self) -> str:
        return self.penstock_headers.get("reason", "")

    @property
    def origin(self) -> RecordLocation | None:
        """Location of the record; None for an oversized output row, or without valid headers."""
        partition, offset = (self.penstock_headers.get(name, "") for name in ("partition", "offset"))
        # Anybody may write headers.
        topic = self.penstock_headers.get("topic", "")
        if not (TOPIC_NAME.fullmatch(topic) and PARTITION.fullmatch(partition) and OFFSET.fullmatch(offset)):
            return None
        return RecordLocation(topic, int(partition), int(offset))

    @property
    def topic_id(self) -> str:
        """The broker's id of the origin's topic, empty if unknown; a recreated topic has another."""
        return self.penstock_headers.get("topic-id", "")

    @property
    def location(self) -> str:
        """The origin as text; for a row its output."""
        return str(self.origin or f"row for {self.penstock_headers.get('output', '?')}")

    @property
    def places(self) -> set[str]:
        """The names of its origin by which it is chosen, with and without the topic; empty without an origin."""
        return {self.location, f"{self.origin.partition}:{self.origin.offset}"} if self.origin else set()

    @property
    def truncated(self) -> str:
        """Which of key, value and headers are truncated, or not there at all."""
        return self.penstock_headers.get("cut", "") or self.penstock_headers.get(HIDDEN, "")

    @property
    def is_hidden(self) -> bool:
        """Whether it names its record and does not hold it."""
        return HIDDEN in self.penstock_headers

    @property
    def digest(self) -> str:
        """The `record_digest` of the complete key and value."""
        return self.penstock_headers.get("sha256") or record_digest(self.key, self.value)


def printable(data: bytes | str | None, width: int) -> str:
    """Escapes characters that a terminal would interpret; truncates to a width."""
    if data is None:
        return "(none)"
    text = data.decode(errors="backslashreplace") if isinstance(data, bytes) else data
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: width + 1])
    return text if len(text) <= width else text[: width - 1] + "…"


def read_dead_letters(topics: Iterable[str], bootstrap: str, last: int | None = None) -> Iterator[DeadLetter]:
    """Yields dead letters, oldest first; a missing topic has none.

    Args:
        topics: the dead letter topics.
        bootstrap: the brokers.
        last: read only this number of offsets at the end of each partition.
    """
    client = admin(bootstrap)
    counts = partition_counts(client, bootstrap)
    partitions = [(topic, p) for topic in dict.fromkeys(topics) for p in range(counts.get(topic, 0))]
    starts, ends = first_offsets(client, partitions, bootstrap), all_end_offsets(client, partitions, bootstrap)
    with open_consumer(bootstrap) as reader:
        for partition in partitions:
            start, end = starts.get(partition, 0), ends[partition]
            yield from map(dead_letter_of, read_range(reader, *partition, max(start, end - (last or end)), end))


@contextmanager
def open_consumer(bootstrap: str) -> Iterator[Consumer]:
    """Opens a consumer of committed records that commits no offsets."""
    consumer = Consumer(
        {
            **LARGE_FETCH,
            # With the default of 1 MB the consumer would wait for the next fetch.
            "max.partition.fetch.bytes": FETCH_BYTES,
            **reader_config(bootstrap, "penstock.dead-letters"),
            "auto.offset.reset": "error",
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def partition_exists(reader: Consumer, topic: str, partition: int) -> bool:
    """Returns whether the brokers have a partition; a consumer of one that is missing only reports an error."""
    try:
        return partition in reader.list_topics(topic, timeout=READ_TIMEOUT).topics[topic].partitions
    except KafkaException as e:
        raise BrokerError(f"topic {topic} cannot be read", got=e.args[0]) from e


def read_range(reader: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[KafkaMessage]:
    """Yields the records of a partition from `start` up to `end`, or to the end of the partition."""
    for batch in read_range_batches(reader, topic, partition, start, end):
        yield from batch


def read_range_batches(
    reader: Consumer, topic: str, partition: int, start: int, end: int
) -> Iterator[list[KafkaMessage]]:
    """Yields the same in the batches in which they arrive.

    Records that the broker removes meanwhile are left out, and reading continues behind them.
    """
    if start >= end:
        return
    place = TopicPartition(topic, partition, start)
    try:
        assign(reader, [place])
        while True:
            first = reader.poll(READ_TIMEOUT)
            if first is None:
                raise BrokerError(f"topic {topic} cannot be read", got=f"no answer for {READ_TIMEOUT:g} s")
            # Records that the client has already fetched.
            messages = [first, *reader.consume(MAX_POLL_RECORDS, 0)]
            if not any(map(KafkaMessage.error, messages)) and (messages[-1].offset() or 0) < end - 1:
                yield messages
                continue
            stop = next(
                (n for n, message in enumerate(messages) if message.error() or (message.offset() or 0) >= end), None
            )
            if batch := messages[:stop]:
                yield batch
                # What lies behind the range may be unreadable.
                if batch[-1].offset() == end - 1:
                    return
            if stop is None:
                continue
            error = messages[stop].error()
            if error and error.code() == KafkaError._AUTO_OFFSET_RESET:
                log_start, _ = reader.get_watermark_offsets(place, READ_TIMEOUT)
                if place.offset < log_start < end:
                    place = TopicPartition(topic, partition, log_start)
                    assign(reader, [place])
                    continue
            elif error and error.code() != KafkaError._PARTITION_EOF:
                raise BrokerError(f"topic {topic} cannot be read", got=error)
            return
    except KafkaException as e:
        raise BrokerError(f"topic {topic} cannot be read", got=e.args[0]) from e


def headers_of(message: KafkaMessage) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def dead_letter_of(message: KafkaMessage) -> DeadLetter:
    """The dead letter of a record of a topic of dead letters."""
    headers = headers_of(message)
    penstock_headers = {
        name.removeprefix(HEADER_PREFIX): value.decode(errors="replace")
        for name, value in headers
        if name.startswith(HEADER_PREFIX) and value is not None
    }
    key, value = message.key(), message.value()
    return DeadLetter(
        message.topic() or "",
        message.offset() or 0,
        message.timestamp()[1],
        key.encode() if isinstance(key, str) else key,
        value.encode() if isinstance(value, str) else value,
        penstock_headers,
        tuple(header for header in headers if not header[0].startswith(HEADER_PREFIX)),
    )
