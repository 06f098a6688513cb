"""Replays dead letters: writes their records to the topics of origin again, each at most once.

The record and its replay key are written in one transaction. Every stream that reads a topic reads a replayed record,
so a record is replayed only if all readers have it as a dead letter, or if the others may read it twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer
from confluent_kafka import Message as KafkaMessage

from penstock.kafka.admin import (
    admin,
    end_offsets,
    ensure_topics,
    first_offsets,
    partition_counts,
    topic_configs,
    topic_ids,
)
from penstock.kafka.commit_marker import stable_end_offsets
from penstock.kafka.dead_letters import DeadLetter, RecordLocation, headers_of, open_consumer, read_range
from penstock.kafka.limits import ProducerRecord, as_bytes, producer_timestamp
from penstock.kafka.record_lookup import find_at_origin
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.topic import Topic

# Which letters were sent again: key `topic[partition]@offset sha256 topic-id`, the last where the letter says it.
REPLAYS = Topic("penstock.replays", partitions=1, compacted=True, heartbeat_every=0)
REPLAY_KEY = re.compile(rb"(?P<topic>\S+)\[(?P<partition>\d+)\]@(?P<offset>\d+) \S+(?: (?P<id>\S+))?")
REPLAYED_HEADER = "penstock.replayed"
# Records of one transaction.
RECORDS_PER_TRANSACTION = 500


@dataclass(frozen=True)
class Replay:
    """The result for one dead letter.

    Attributes:
        letter: the dead letter.
        record: the record to write, if any.
        refusal: why it is not replayed.
        already_replayed: whether an earlier replay wrote it.
    """

    letter: DeadLetter
    record: ProducerRecord | None = None
    refusal: str = ""
    already_replayed: bool = False

    @property
    def key(self) -> bytes:
        return replay_key(self.letter)


def replay_key(letter: DeadLetter) -> bytes:
    """Identifies the record of a dead letter; includes the topic id, since a recreated topic reuses offsets."""
    return f"{letter.origin} {letter.digest} {letter.topic_id}".rstrip().encode()


def replay(
    chosen: Collection[DeadLetter],
    every: Iterable[DeadLetter],
    readers: Callable[[str], Collection[str]],
    bootstrap: str,
    *,
    again_for: Collection[str] = (),
    dry: bool = False,
) -> list[Replay]:
    """Replays dead letters.

    Args:
        chosen: the dead letters to replay.
        every: all dead letters, to know which streams have which record as one.
        readers: returns the streams that read a topic.
        bootstrap: the brokers.
        again_for: streams that may read the records twice.
        dry: write nothing.

    Returns:
        One result for each record.
    """
    aside: dict[bytes, set[str]] = {}
    for letter in every:
        aside.setdefault(Replay(letter).key, set()).add(letter.stream)
    # A letter that is whole before one that is cut, and one of each record.
    first = {Replay(letter).key: letter for letter in sorted(chosen, key=lambda one: bool(one.truncated), reverse=True)}
    if not first:
        return []
    ensure_topics([REPLAYS], bootstrap)
    targets = sorted({letter.origin.topic for letter in chosen if letter.origin})
    # From here on an earlier replay that is still at work can write no more.
    writer = TransactionalWriter("dead-letters", "penstock.replay", bootstrap, REPLAYS, "replay", targets)
    try:
        with open_consumer(bootstrap) as reader:
            done, ids = replay_keys(reader, bootstrap), topic_ids(admin(bootstrap), targets, bootstrap)
            found = []
            for which, letter in sorted(first.items(), key=lambda one: (one[1].origin or ("", 0, 0), one[0])):
                others = set(readers(letter.origin.topic)) if letter.origin else set()
                taken = sorted(others - aside[which] - set(again_for))
                if which in done:
                    found.append(Replay(letter, already_replayed=True))
                elif letter.origin and not others:
                    # Anybody may write headers: this is no topic that Penstock took a record from, or not any more.
                    found.append(Replay(letter, refusal=f"no stream reads {letter.origin.topic}"))
                else:
                    found.append(_plan(letter, taken, reader, ids))
            found = list(_refuse_older(found, reader, bootstrap))
        ready = [one for one in found if one.record and not dry]
        for start in range(0, len(ready), RECORDS_PER_TRANSACTION):
            some = ready[start : start + RECORDS_PER_TRANSACTION]
            sent = [one.record for one in some if one.record]
            writer.commit([*sent, *(ProducerRecord(REPLAYS.name, one.key, b"{}") for one in some)], b"{}")
    finally:
        writer.close()
    return found


def replayed_records(bootstrap: str) -> set[tuple[RecordLocation, str]]:
    """Returns location and topic id (empty if unknown) of each replayed record."""
    with open_consumer(bootstrap) as reader:
        found = (REPLAY_KEY.fullmatch(as_bytes(one.key()) or b"") for one in _read_replays(reader, bootstrap))
        return {
            (RecordLocation(m["topic"].decode(), int(m["partition"]), int(m["offset"])), (m["id"] or b"").decode())
            for m in found
            if m
        }


def replay_keys(reader: Consumer, bootstrap: str) -> set[bytes]:
    """Returns the keys of all replays."""
    return {as_bytes(one.key()) or b"" for one in _read_replays(reader, bootstrap)}


def _plan(letter: DeadLetter, taken: list[str], reader: Consumer, ids: Mapping[str, str]) -> Replay:
    origin = letter.origin
    if origin and "output" in letter.penstock_headers:
        name = letter.stream
        return Replay(letter, refusal=f"a store refused what sink {name} made of it: penstock sinks replay {name}")
    if "late-ms" in letter.penstock_headers:
        return Replay(letter, refusal="it came too late, and would again: compute its windows once more")
    if origin is None:
        return Replay(letter, refusal="it is a row and no record: let the topic take more, and compute it again")
    if taken:
        who, they = ", ".join(taken), f"--again-for {taken[0]}"
        return Replay(letter, refusal=f"it would be read twice by {who}, which did not keep it aside ({they})")
    if letter.truncated and "sha256" not in letter.penstock_headers:
        return Replay(letter, refusal="its batch was broken in the broker's log, and nothing of it could be read")
    again = ((REPLAYED_HEADER, str(origin).encode()),)
    if (found := find_at_origin(letter, origin, reader, ids)) is not None:
        headers, at = (*headers_of(found), *again), producer_timestamp(found.timestamp()[1])
        key, value = as_bytes(found.key()), as_bytes(found.value())
        return Replay(letter, ProducerRecord(origin.topic, key, value, headers, origin.partition, at))
    if letter.truncated:
        return Replay(letter, refusal="its copy is cut, and the record itself is no longer in the topic")
    return Replay(letter, ProducerRecord(origin.topic, letter.key, letter.value, again, origin.partition))


def _refuse_older(given: Iterable[Replay], reader: Consumer, bootstrap: str) -> Iterator[Replay]:
    """Refuses records that a newer record of their key has replaced: in a compacted topic they would win."""
    planned = list(given)
    keys: dict[tuple[str, int], dict[bytes, int]] = {}
    for one in planned:
        if one.record and one.record.key is not None and one.letter.origin:
            known = keys.setdefault((one.record.topic, one.record.partition), {})
            known[one.record.key] = min(one.letter.origin.offset, known.get(one.record.key, one.letter.origin.offset))
    policies = topic_configs({topic for topic, _ in keys}, bootstrap)
    places = [place for place in keys if "compact" in policies.get(place[0], {}).get("cleanup.policy", "")]
    starts, ends = (of(admin(bootstrap), places, bootstrap) for of in (first_offsets, end_offsets))
    newest: dict[tuple[str, int, bytes], int] = {}
    for place in places:
        start = max(starts.get(place, 0), min(keys[place].values()) + 1)
        for found in read_range(reader, *place, start, ends.get(place, 0)):
            if (key := as_bytes(found.key())) in keys[place]:
                newest[(*place, key or b"")] = found.offset() or 0
    for one in planned:
        at = newest.get((one.record.topic, one.record.partition, one.record.key or b"")) if one.record else None
        if at is not None and one.letter.origin and at > one.letter.origin.offset:
            why = f"its topic is compacted, and a newer record of its key lies at offset {at}, which it would replace"
            yield Replay(one.letter, refusal=why)
        else:
            yield one


def _read_replays(reader: Consumer, bootstrap: str) -> Iterator[KafkaMessage]:
    place = (REPLAYS.name, 0)
    if REPLAYS.name not in partition_counts(admin(bootstrap), bootstrap):
        return iter(())  # of one that nobody has made yet, offsets would be waited for
    # Another replay's open transaction may hide notes behind it.
    ends = stable_end_offsets([place], bootstrap, "what was sent again")
    return read_range(reader, *place, first_offsets(admin(bootstrap), [place], bootstrap).get(place, 0), ends[place])
