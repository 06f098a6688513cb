"""Whole records: the newest of a topic, and those that letters tell of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, Message

from penstock.declare.topic import CREATE_FOR_SINK
from penstock.errors import BrokerError
from penstock.kafka.admin import admin, end_offsets, first_offsets, partitions
from penstock.kafka.letters import PREFIX, Letter, Origin, between, consumer, digest, headers_of
from penstock.kafka.sizes import as_bytes


@dataclass(frozen=True)
class Whole:
    """A record with all that a topic keeps of it. timestamp: epoch ms."""

    place: Origin
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes], ...] = ()


def newest(
    topics: Iterable[str], count: int, bootstrap: str, wanted: Callable[[Whole], bool] = lambda _: True
) -> list[Whole]:
    """The newest so many records of each topic by their time, as committed, oldest first. BrokerError if a topic is
    not there.

    wanted: whether a record is one of them.
    """
    found = []
    with consumer(bootstrap) as reader:
        for topic in dict.fromkeys(topics):
            there = partitions(admin(bootstrap), bootstrap).get(topic, 0)
            if not there:
                raise BrokerError(f"topic {topic} is not there", fix=CREATE_FOR_SINK)
            places = [(topic, p) for p in range(there)]
            starts, ends = (of(admin(bootstrap), places, bootstrap) for of in (first_offsets, end_offsets))
            of_topic = [
                one for at in places for one in _last(reader, at, starts.get(at, 0), ends.get(at, 0), count, wanted)
            ]
            of_topic.sort(key=lambda one: (one.timestamp, one.place))
            found += of_topic[-count:]
    return found


def _last(
    reader: Consumer, place: tuple[str, int], start: int, end: int, count: int, wanted: Callable[[Whole], bool]
) -> list[Whole]:
    """The last so many records of a partition: ends of transactions and what compaction left lie between them."""
    back = 2 * count
    while True:
        found = [one for one in map(whole, between(reader, *place, max(start, end - back), end)) if wanted(one)]
        if len(found) >= count or end - back <= start:
            return found[-count:]
        back *= 8


def told_of(letter: Letter, reader: Consumer) -> Whole | None:
    """The record that a letter tells of: itself if it is still there, else its copy; None if neither is whole.

    A copy that does not say its record's time is not: the time may be the version.
    """
    if (origin := letter.origin) is None:
        return None
    for message in between(reader, origin.topic, origin.partition, origin.offset, origin.offset + 1):
        found = whole(message)
        if digest(found.key, found.value) == letter.hash:
            return found
    at = letter.said.get("timestamp", "")
    if letter.cut or not at.lstrip("-").isdecimal():
        return None
    return Whole(origin, letter.key, letter.value, int(at), letter.headers)


def whole(message: Message) -> Whole:
    """A record as it was read, without headers of Penstock's own."""
    place = Origin(message.topic() or "", message.partition() or 0, message.offset() or 0)
    headers = tuple(one for one in headers_of(message) if not one[0].startswith(PREFIX))
    return Whole(place, as_bytes(message.key()), as_bytes(message.value()), message.timestamp()[1], headers)
