"""A snapshot of a table's topic, and whether a reader can continue from its offsets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import BrokerError, DeclarationError
from penstock.kafka.admin import admin, end_offsets, first_offsets, log_end_offsets, topic_config
from penstock.tables.topic_reader import TIMEOUT, describe_topic

# The broker keeps tombstones at least this long; a reader that is away for longer may miss them.
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


def take_snapshot(name: str, bootstrap: str, subject: str = "table") -> TopicSnapshot:
    """Reads the offsets. BrokerError if the topic does not exist, or a partition does not answer."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        at = int(time.time() * 1000)
        topic, count = describe_topic(name, bootstrap)
        partitions = [(name, p) for p in range(count)]
        starts = first_offsets(admin(bootstrap), partitions, bootstrap)
        # In this order, so that a commit in between does not look like an open transaction.
        log_ends = log_end_offsets(admin(bootstrap), partitions, bootstrap)
        stable_ends = end_offsets(admin(bootstrap), partitions, bootstrap)
        if count and len(stable_ends) == len(log_ends) == len(starts) == count:
            first, stable, last = (
                {p: o for (_, p), o in offsets.items()} for offsets in (starts, stable_ends, log_ends)
            )
            return TopicSnapshot(topic, first, stable, last, at)
        if time.monotonic() > deadline:
            raise BrokerError(
                f"the topic of {subject} {name} does not exist, or a partition has no leader",
                got=f"{len(stable_ends)} of {count} partitions answer",
                hint="create it with `penstock topics --apply`",
            )
        time.sleep(0.1)


def was_recreated(topic_id: str, next_offsets: Mapping[int, int], snapshot: TopicSnapshot) -> bool:
    """Returns whether the topic differs from the one read before, by id or by offsets."""
    return topic_id != snapshot.id or any(next_offsets.get(p, 0) > end for p, end in snapshot.ends.items())


def check_partition_count(
    name: str, next_offsets: Mapping[int, int], snapshot: TopicSnapshot, subject: str = "table"
) -> None:
    """Raises DeclarationError if the topic has more partitions than before."""
    if next_offsets.keys() != snapshot.ends.keys():
        raise DeclarationError(
            f"the topic of {subject} {name} has more partitions than before, so a key may be in two of them",
            got=f"{len(snapshot.ends)} partitions, {len(next_offsets)} before",
            hint=f"write it into a new topic that has this number from the start, and use that for the {subject}",
        )


def missed_records(
    name: str, next_offsets: Mapping[int, int], at: int, snapshot: TopicSnapshot, bootstrap: str, *, unchanged: bool
) -> str:
    """Returns why a reader may have missed records, e.g. tombstones that are deleted by now; empty if it has not.

    Args:
        name: The topic.
        next_offsets: The offsets of the reader.
        at: Epoch ms when the end offsets up to which it has read were requested, or reading began.
        snapshot: The present offsets of the topic.
        bootstrap: The brokers.
        unchanged: Whether nothing was read since `at`, so that `next_offsets` are those end offsets.
    """
    if any(next_offsets[p] < start for p, start in snapshot.starts.items() if p in next_offsets):
        return "records were deleted before they were read"
    if unchanged and all(next_offsets[p] == end for p, end in snapshot.ends.items() if p in next_offsets):
        return ""
    retention_ms = _tombstone_retention(name, bootstrap)
    if _elapsed(at, snapshot.at) <= retention_ms:
        return ""
    return f"it was last read to the end longer ago than its tombstones are kept, {TOMBSTONE_RETENTION}={retention_ms}"


def check_tombstones_kept(
    name: str, at: int, bootstrap: str, subject: str = "table", retry_hint: str = "nothing: it is read again"
) -> None:
    """Raises BrokerError if tombstones may have been deleted while a topic was read to its end.

    Args:
        name: The topic.
        at: As in `missed_records`.
        bootstrap: The brokers.
        subject: The reader, for the message.
        retry_hint: What to do if the delay was an exception.
    """
    retention_ms, elapsed_ms = _tombstone_retention(name, bootstrap), _elapsed(at, int(time.time() * 1000))
    if elapsed_ms > retention_ms:
        raise BrokerError(
            f"reading the topic of {subject} {name} took longer than its tombstones are kept, so a deleted key "
            "may remain",
            got=f"{elapsed_ms / 1000:.1f} s, {TOMBSTONE_RETENTION}={retention_ms}",
            hint=f"if it was delayed once, {retry_hint}; else raise {TOMBSTONE_RETENTION} of the topic several times",
        )


def _tombstone_retention(name: str, bootstrap: str) -> int:
    return int(topic_config(name, TOMBSTONE_RETENTION, bootstrap))


def _elapsed(since: int, until: int) -> int:
    """Milliseconds between two times; absolute, since clocks may be set back."""
    return abs(until - since)
