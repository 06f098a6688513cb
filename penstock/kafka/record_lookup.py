"""Looks up records: the newest of a topic, and the originals of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, Message

from penstock.errors import BrokerError
from penstock.kafka.admin import admin, end_offsets, first_offsets, partition_counts
from penstock.kafka.dead_letters import HEADER_PREFIX, DeadLetter, RecordLocation, headers_of, open_consumer, read_range
from penstock.kafka.limits import as_bytes, record_digest
from penstock.model.topic import CREATE_FOR_SINK


@dataclass(frozen=True)
class TopicRecord:
    """A record of a topic; timestamp in epoch ms."""

    location: RecordLocation
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def newest_records(
    topics: Iterable[str], count: int, bootstrap: str, wanted: Callable[[TopicRecord], bool] = lambda _: True
) -> list[TopicRecord]:
    """Returns the newest committed records of each topic by timestamp, oldest first.

    Args:
        topics: their names.
        count: how many of each topic.
        bootstrap: the brokers.
        wanted: filter.

    Raises:
        BrokerError: a topic does not exist.
    """
    found = []
    with open_consumer(bootstrap) as reader:
        for topic in dict.fromkeys(topics):
            there = partition_counts(admin(bootstrap), bootstrap).get(topic, 0)
            if not there:
                raise BrokerError(f"topic {topic} is not there", hint=CREATE_FOR_SINK)
            places = [(topic, p) for p in range(there)]
            starts, ends = (of(admin(bootstrap), places, bootstrap) for of in (first_offsets, end_offsets))
            of_topic = [
                one
                for at in places
                for one in _last_records(reader, at, starts.get(at, 0), ends.get(at, 0), count, wanted)
            ]
            of_topic.sort(key=lambda one: (one.timestamp, one.location))
            found += of_topic[-count:]
    return found


def _last_records(
    reader: Consumer, place: tuple[str, int], start: int, end: int, count: int, wanted: Callable[[TopicRecord], bool]
) -> list[TopicRecord]:
    """Returns the last records of a partition; widens the range, since offsets have gaps (markers, compaction)."""
    back = 2 * count
    while True:
        found = [one for one in map(to_record, read_range(reader, *place, max(start, end - back), end)) if wanted(one)]
        if len(found) >= count or end - back <= start:
            return found[-count:]
        back *= 8


def record_of_dead_letter(letter: DeadLetter, reader: Consumer, ids: Mapping[str, str]) -> TopicRecord | None:
    """Returns the record of a dead letter: the original if it still exists, else the copy; None if neither is complete.

    A copy without the record's timestamp is incomplete, since the timestamp may be the version.

    Args:
        letter: the dead letter.
        reader: a consumer.
        ids: the broker's present topic ids; a recreated topic holds other records.
    """
    if (origin := letter.origin) is None:
        return None
    if (found := find_at_origin(letter, origin, reader, ids)) is not None:
        return to_record(found)
    at = letter.penstock_headers.get("timestamp", "")
    if letter.truncated or not at.removeprefix("-").isdecimal():
        return None
    return TopicRecord(origin, letter.key, letter.value, int(at), letter.headers)


def find_at_origin(
    letter: DeadLetter, origin: RecordLocation, reader: Consumer, ids: Mapping[str, str]
) -> Message | None:
    """Returns the original record of a dead letter if it still exists. ids: present topic ids."""
    if letter.topic_id not in ("", ids.get(origin.topic, "")):
        return None
    for message in read_range(reader, *origin, origin.offset + 1):
        if record_digest(as_bytes(message.key()), as_bytes(message.value())) == letter.digest:
            return message
    return None


def to_record(message: Message) -> TopicRecord:
    """Converts a consumed message; drops Penstock's own headers."""
    place = RecordLocation(message.topic() or "", message.partition() or 0, message.offset() or 0)
    headers = tuple(one for one in headers_of(message) if not one[0].startswith(HEADER_PREFIX))
    return TopicRecord(place, as_bytes(message.key()), as_bytes(message.value()), message.timestamp()[1], headers)
