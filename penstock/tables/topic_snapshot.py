"""A snapshot of a table's topic, and whether a reader can continue from its offsets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import BrokerError, DeclarationError
from penstock.kafka.admin import admin, end_offsets, first_offsets, log_end_offsets, topic_config
from penstock.tables.topic_reader import TIMEOUT, describe_topic

# How long the broker shows a tombstone at least; behind that a reader who was away does not learn of it.
TOMBSTONE_RETENTION = "delete.retention.ms"


class TopicSnapshot(NamedTuple):
    """The offsets of a topic at one moment.

    Attributes:
        id: the broker's topic id.
        starts: log start offsets.
        ends: last stable offsets.
        log_ends: log end offsets; records of open transactions lie between the two.
        at: epoch ms before the request.
    """

    id: str
    starts: dict[int, int]
    ends: dict[int, int]
    log_ends: dict[int, int]
    at: int


def take_snapshot(name: str, bootstrap: str, what: str = "table") -> TopicSnapshot:
    """Reads the offsets. BrokerError if the topic does not exist, or a partition does not answer."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        at = int(time.time() * 1000)
        topic, count = describe_topic(name, bootstrap)
        every = [(name, p) for p in range(count)]
        starts = first_offsets(admin(bootstrap), every, bootstrap)
        # In this order: what is committed in between is hidden by no open transaction.
        logs = log_end_offsets(admin(bootstrap), every, bootstrap)
        found = end_offsets(admin(bootstrap), every, bootstrap)
        if count and len(found) == len(logs) == len(starts) == count:
            first, stable, last = ({p: o for (_, p), o in one.items()} for one in (starts, found, logs))
            return TopicSnapshot(topic, first, stable, last, at)
        if time.monotonic() > deadline:
            raise BrokerError(
                f"the topic of {what} {name} is not there, or a partition of it has no leader",
                got=f"{len(found)} of {count} partitions answer",
                hint="create it with `penstock topics --apply`",
            )
        time.sleep(0.1)


def was_recreated(topic: str, following: Mapping[int, int], now: TopicSnapshot) -> bool:
    """Returns whether the topic differs from the one read before, by id or by offsets."""
    return topic != now.id or any(following.get(p, 0) > end for p, end in now.ends.items())


def check_partition_count(name: str, following: Mapping[int, int], now: TopicSnapshot, what: str = "table") -> None:
    """Raises DeclarationError if the topic has more partitions than before."""
    if following.keys() != now.ends.keys():
        raise DeclarationError(
            f"the topic of {what} {name} has got more partitions, so its keys lie in two",
            got=f"{len(now.ends)} partitions, {len(following)} before",
            hint=f"write it anew into a topic with so many from the start, and let that be the {what}",
        )


def missed_records(
    name: str, following: Mapping[int, int], at: int, now: TopicSnapshot, bootstrap: str, *, whole: bool
) -> str:
    """Why it may have lost what was not read of it: its tombstones are not kept for ever.

    at: epoch ms, when the end was asked for that it was last read to, or its reading began; whole: whether nothing was
    read since, so that `following` is that end.
    """
    if any(following[p] < start for p, start in now.starts.items() if p in following):
        return "records were removed before they were read"
    if whole and all(following[p] == end for p, end in now.ends.items() if p in following):
        return ""
    kept = _tombstone_retention(name, bootstrap)
    if _elapsed(at, now.at) <= kept:
        return ""
    return f"it was last read to the end longer ago than its tombstones are kept, {TOMBSTONE_RETENTION}={kept}"


def check_tombstones_kept(
    name: str, at: int, bootstrap: str, what: str = "table", again: str = "nothing: it is read anew by itself"
) -> None:
    """BrokerError if tombstones may have gone while it was read to an end, just now. at: as of `missed`; again: what to
    do if it was held up once."""
    kept, lasted = _tombstone_retention(name, bootstrap), _elapsed(at, int(time.time() * 1000))
    if lasted > kept:
        raise BrokerError(
            f"reading the topic of {what} {name} took longer than its tombstones are kept, so a key that was removed "
            "meanwhile may be left",
            got=f"{lasted / 1000:.1f} s, {TOMBSTONE_RETENTION}={kept}",
            hint=f"if it was delayed once, {again}; else raise {TOMBSTONE_RETENTION} of the topic several times",
        )


def _tombstone_retention(name: str, bootstrap: str) -> int:
    return int(topic_config(name, TOMBSTONE_RETENTION, bootstrap))


def _elapsed(since: int, until: int) -> int:
    """Milliseconds between two times; absolute, since clocks may be set back."""
    return abs(until - since)
