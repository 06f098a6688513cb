"""Looks up records: the newest of a topic, and the originals of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, Message
from more_itertools import split_when

from penstock.errors import BrokerError
from penstock.kafka.admin import admin, all_end_offsets, first_offsets, partition_counts
from penstock.kafka.dead_letters import (
    HEADER_PREFIX,
    DeadLetter,
    RecordLocation,
    headers_of,
    open_consumer,
    partition_exists,
    read_range,
)
from penstock.kafka.limits import as_bytes, record_digest
from penstock.model.topic import CREATE_FOR_SINK

# Records between two that are wanted: over more, seeking is quicker than reading.
MAX_SKIPPED = 3_000


@dataclass(frozen=True)
class TopicRecord:
    """A record of a topic; timestamp in epoch ms."""

    location: RecordLocation
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def newest_records(
    topics: Iterable[str], count: int, bootstrap: str, matches: Callable[[TopicRecord], bool] = lambda _: True
) -> list[TopicRecord]:
    """Returns the newest committed records of each topic by timestamp, oldest first.

    Args:
        topics: their names.
        count: how many of each topic.
        bootstrap: the brokers.
        matches: filter.

    Raises:
        BrokerError: a topic does not exist.
    """
    records = []
    with open_consumer(bootstrap) as reader:
        for topic in dict.fromkeys(topics):
            count_of_partitions = partition_counts(admin(bootstrap), bootstrap).get(topic, 0)
            if not count_of_partitions:
                raise BrokerError(f"topic {topic} does not exist", hint=CREATE_FOR_SINK)
            partitions = [(topic, p) for p in range(count_of_partitions)]
            starts, ends = (of(admin(bootstrap), partitions, bootstrap) for of in (first_offsets, all_end_offsets))
            of_topic = [
                record
                for partition in partitions
                for record in _last_records(
                    reader, partition, starts.get(partition, 0), ends[partition], count, matches
                )
            ]
            of_topic.sort(key=lambda record: (record.timestamp, record.location))
            records += of_topic[-count:]
    return records


def _last_records(
    reader: Consumer,
    partition: tuple[str, int],
    start: int,
    end: int,
    count: int,
    matches: Callable[[TopicRecord], bool],
) -> list[TopicRecord]:
    """Returns the last records of a partition; widens the range, since offsets have gaps (markers, compaction)."""
    span = 2 * count
    while True:
        records = [
            record
            for record in map(to_record, read_range(reader, *partition, max(start, end - span), end))
            if matches(record)
        ]
        if len(records) >= count or end - span <= start:
            return records[-count:]
        span *= 8


def records_at(positions: Iterable[tuple[str, int, int]], bootstrap: str) -> Iterator[TopicRecord]:
    """Yields the records at some positions (topic, partition, offset), as far as they are still there."""
    parts: dict[tuple[str, int], set[int]] = {}
    for topic, partition, offset in positions:
        parts.setdefault((topic, partition), set()).add(offset)
    if not parts:
        return
    first = first_offsets(admin(bootstrap), parts, bootstrap)
    with open_consumer(bootstrap) as reader:
        for part, offsets in parts.items():
            groups = split_when(sorted(offsets), lambda offset, following: following - offset > MAX_SKIPPED)
            spans = [(max(group[0], first.get(part, 0)), group[-1] + 1) for group in groups]
            for message in _read_ranges(reader, part, spans):
                if message.offset() in offsets:
                    offsets.discard(message.offset() or 0)
                    yield to_record(message)
            # A record that is removed meanwhile ends the reading of its range early.
            yield from map(to_record, _read_ranges(reader, part, [(offset, offset + 1) for offset in offsets]))


def _read_ranges(reader: Consumer, part: tuple[str, int], ranges: Iterable[tuple[int, int]]) -> Iterator[Message]:
    for start, end in ranges:
        yield from read_range(reader, *part, start, end)


def metadata_at(positions: Iterable[tuple[str, int, int]], bootstrap: str) -> dict[tuple[str, int, int], TopicRecord]:
    """Returns the same by position without keys and values, which may be large."""
    return {record.location: replace(record, key=None, value=None) for record in records_at(positions, bootstrap)}


def record_of_dead_letter(letter: DeadLetter, reader: Consumer, ids: Mapping[str, str]) -> TopicRecord | None:
    """Returns the record of a dead letter: the original if it still exists, else the copy; None if neither is complete.

    Args:
        letter: the dead letter.
        reader: a consumer.
        ids: the broker's present topic ids; a recreated topic holds other records.
    """
    if (origin := letter.origin) is None:
        return None
    if (message := find_at_origin(letter, origin, reader, ids)) is not None:
        return to_record(message)
    return copied_record(letter, origin)


def copied_record(letter: DeadLetter, origin: RecordLocation) -> TopicRecord | None:
    """Returns the record as its dead letter holds it; None if that is incomplete.

    It is without the record's timestamp, which may be the event time, or the version in a store.
    """
    timestamp = letter.penstock_headers.get("timestamp", "")
    if letter.truncated or not timestamp.removeprefix("-").isdecimal():
        return None
    return TopicRecord(origin, letter.key, letter.value, int(timestamp), letter.headers)


def find_at_origin(
    letter: DeadLetter, origin: RecordLocation, reader: Consumer, ids: Mapping[str, str]
) -> Message | None:
    """Returns the original record of a dead letter if it still exists. ids: present topic ids."""
    if letter.topic_id not in ("", ids.get(origin.topic, "")):
        return None
    # A recreated topic may have fewer partitions.
    if not partition_exists(reader, origin.topic, origin.partition):
        return None
    for message in read_range(reader, *origin, origin.offset + 1):
        # A digest of a hidden record would let its values be guessed.
        if letter.is_hidden:
            is_same = str(message.timestamp()[1]) == letter.penstock_headers.get("timestamp", "")
        else:
            is_same = record_digest(as_bytes(message.key()), as_bytes(message.value())) == letter.digest
        if is_same:
            return message
    return None


def to_record(message: Message) -> TopicRecord:
    """Converts a consumed message; drops Penstock's own headers."""
    location = RecordLocation(message.topic() or "", message.partition() or 0, message.offset() or 0)
    headers = tuple(header for header in headers_of(message) if not header[0].startswith(HEADER_PREFIX))
    return TopicRecord(location, as_bytes(message.key()), as_bytes(message.value()), message.timestamp()[1], headers)
