"""Replays dead letters: writes their records to the topics of origin again, each at most once.

The record and its replay key are written in one transaction. Every stream that reads a topic reads a replayed record,
so a record is replayed only if all readers have it as a dead letter, or if the others may read it twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Consumer
from confluent_kafka import Message as KafkaMessage

from penstock.kafka.admin import (
    admin,
    all_end_offsets,
    ensure_topics,
    first_offsets,
    partition_counts,
    topic_configs,
    topic_ids,
)
from penstock.kafka.commit_marker import stable_end_offsets
from penstock.kafka.dead_letters import (
    DeadLetter,
    RecordLocation,
    headers_of,
    open_consumer,
    partition_exists,
    read_range,
)
from penstock.kafka.limits import (
    MAX_MESSAGE_BYTES,
    ProducerRecord,
    SizeLimit,
    as_bytes,
    producer_timestamp,
    size_limits,
)
from penstock.kafka.record_lookup import copied_record, find_at_origin
from penstock.kafka.transactions import TransactionalWriter
from penstock.model.topic import Topic

# One record for each replay, with the key `topic[partition]@offset sha256 topic-id`; the id is left out if unknown.
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
        discarded: whether it was discarded; see `penstock.kafka.discard`.
    """

    letter: DeadLetter
    record: ProducerRecord | None = None
    refusal: str = ""
    already_replayed: bool = False
    discarded: bool = False

    @property
    def key(self) -> bytes:
        return replay_key(self.letter)


def replay_key(letter: DeadLetter) -> bytes:
    """Identifies the record of a dead letter; includes the topic id, since a recreated topic reuses offsets."""
    return f"{letter.origin} {letter.digest} {letter.topic_id}".rstrip().encode()


def sink_replay_key(sink: str, letter: DeadLetter) -> bytes:
    """Identifies a dead letter that is replayed to a sink's store, and not to its topic."""
    return f"sink {sink}: ".encode() + replay_key(letter)


def discard_key(letter: DeadLetter) -> bytes:
    """Identifies a dead letter that is discarded: of its stream alone, while other streams may have the same record."""
    return f"discarded {letter.stream}: ".encode() + replay_key(letter)


def end_of(letter: DeadLetter, noted: Collection[bytes]) -> Literal["", "replayed", "discarded"]:
    """How a dead letter has ended; empty if it has not.

    Args:
        letter: the dead letter.
        noted: see `replay_keys`.
    """
    if discard_key(letter) in noted:
        return "discarded"
    replays = (replay_key(letter), sink_replay_key(letter.stream, letter))
    return "replayed" if any(key in noted for key in replays) else ""


def letter_replays(bootstrap: str, targets: Sequence[str] = ()) -> TransactionalWriter:
    """The writer of replays to topics. It fences the one of an earlier replay that is still running."""
    return TransactionalWriter("dead-letters", "penstock.replay", bootstrap, REPLAYS, "replay", targets)


def sink_replays(sink: str, bootstrap: str) -> TransactionalWriter:
    """The writer of the notes of replays to a sink's store, likewise."""
    return TransactionalWriter(f"letters of {sink}", f"penstock.replay.{sink}", bootstrap, REPLAYS, "replay")


def replay(
    chosen: Collection[DeadLetter],
    all_letters: Iterable[DeadLetter],
    readers: Callable[[str], Collection[str]],
    bootstrap: str,
    *,
    again_for: Collection[str] = (),
    dry: bool = False,
) -> list[Replay]:
    """Replays dead letters.

    Args:
        chosen: the dead letters to replay.
        all_letters: all dead letters, to know which streams have which record as one.
        readers: returns the streams that read a topic.
        bootstrap: the brokers.
        again_for: streams that may read the records twice.
        dry: write nothing; another replay goes on.

    Returns:
        One result for each record.
    """
    if not chosen:
        return []
    targets = sorted({letter.origin.topic for letter in chosen if letter.origin})
    with ExitStack() as opened:
        writer = None
        if not dry:
            ensure_topics([REPLAYS], bootstrap)
            # Opened before the keys are read: what it fences cannot replay anything after that.
            writer = opened.enter_context(closing(letter_replays(bootstrap, targets)))
        limits = size_limits(targets, bootstrap)
        with open_consumer(bootstrap) as reader:
            replayed, ids = replay_keys(reader, bootstrap), topic_ids(admin(bootstrap), targets, bootstrap)
            streams_by_record: dict[bytes, set[str]] = {}
            for letter in all_letters:
                if discard_key(letter) not in replayed:
                    streams_by_record.setdefault(replay_key(letter), set()).add(letter.stream)
            discarded = {discard_key(letter): letter for letter in chosen if discard_key(letter) in replayed}
            replays = [Replay(letter, discarded=True) for letter in discarded.values()]
            # One dead letter for each record, a complete one rather than a truncated one.
            whole_last = sorted(chosen, key=lambda letter: bool(letter.truncated), reverse=True)
            first = {replay_key(letter): letter for letter in whole_last if discard_key(letter) not in discarded}
            for key, letter in sorted(first.items(), key=lambda item: (item[1].origin or ("", 0, 0), item[0])):
                readers_of_topic = set(readers(letter.origin.topic)) if letter.origin else set()
                others = sorted(readers_of_topic - streams_by_record[key] - set(again_for))
                if key in replayed:
                    replays.append(Replay(letter, already_replayed=True))
                elif letter.origin and not readers_of_topic:
                    # Anybody may write headers, so the origin may be any topic.
                    replays.append(Replay(letter, refusal=f"no stream reads {letter.origin.topic}"))
                else:
                    replays.append(_plan(letter, others, reader, ids))
            replays = list(_refuse_older(replays, reader, bootstrap))
            replays = [_refuse_oversized(planned, limits) for planned in replays]
        if writer is None:
            return replays
        ready = [planned for planned in replays if planned.record]
        for start in range(0, len(ready), RECORDS_PER_TRANSACTION):
            chunk = ready[start : start + RECORDS_PER_TRANSACTION]
            records = [planned.record for planned in chunk if planned.record]
            writer.commit([*records, *(ProducerRecord(REPLAYS.name, planned.key, b"{}") for planned in chunk)], b"{}")
    return replays


def replayed_records(bootstrap: str) -> set[tuple[RecordLocation, str]]:
    """Returns location and topic id (empty if unknown) of each replayed record."""
    with open_consumer(bootstrap) as reader:
        matches = (REPLAY_KEY.fullmatch(as_bytes(message.key()) or b"") for message in _read_replays(reader, bootstrap))
        return {
            (RecordLocation(m["topic"].decode(), int(m["partition"]), int(m["offset"])), (m["id"] or b"").decode())
            for m in matches
            if m
        }


def read_replay_keys(bootstrap: str) -> set[bytes]:
    """Returns what `replay_keys` returns, by a consumer of its own."""
    with open_consumer(bootstrap) as reader:
        return replay_keys(reader, bootstrap)


def replay_keys(reader: Consumer, bootstrap: str) -> set[bytes]:
    """Returns the keys of all replays, of sinks and of discarded letters too."""
    return {as_bytes(message.key()) or b"" for message in _read_replays(reader, bootstrap)}


def _plan(letter: DeadLetter, others: list[str], reader: Consumer, ids: Mapping[str, str]) -> Replay:
    origin = letter.origin
    if origin and "output" in letter.penstock_headers:
        name = letter.stream
        return Replay(
            letter, refusal=f"a store refused the row that sink {name} made of it: penstock sinks replay {name}"
        )
    if "late-ms" in letter.penstock_headers:
        return Replay(letter, refusal="it is late and would be late again: recompute its windows")
    if origin is None:
        return Replay(letter, refusal="it is an output row, not a record: raise the topic's limit and recompute it")
    if others:
        names, they = ", ".join(others), f"--again-for {others[0]}"
        return Replay(letter, refusal=f"it would be read twice by {names}, which have no dead letter of it ({they})")
    if letter.truncated and "sha256" not in letter.penstock_headers:
        return Replay(letter, refusal="its batch is corrupt in the broker's log, and could not be read")
    if not partition_exists(reader, origin.topic, origin.partition):
        return Replay(letter, refusal=f"there is no partition {origin.partition} of topic {origin.topic} any more")
    marker = ((REPLAYED_HEADER, str(origin).encode()),)
    if (original := find_at_origin(letter, origin, reader, ids)) is not None:
        headers, timestamp = (*headers_of(original), *marker), producer_timestamp(original.timestamp()[1])
        key, value = as_bytes(original.key()), as_bytes(original.value())
        return Replay(letter, ProducerRecord(origin.topic, key, value, headers, origin.partition, timestamp))
    if letter.truncated:
        return Replay(letter, refusal="its copy is truncated, and the topic no longer has the record")
    if (copy := copied_record(letter, origin)) is None:
        return Replay(
            letter, refusal="its copy has neither timestamp nor headers, and the topic no longer has the record"
        )
    headers, timestamp = (*copy.headers, *marker), producer_timestamp(copy.timestamp)
    return Replay(letter, ProducerRecord(origin.topic, copy.key, copy.value, headers, origin.partition, timestamp))


def _refuse_older(replays: Iterable[Replay], reader: Consumer, bootstrap: str) -> Iterator[Replay]:
    """Refuses records of compacted topics that would replace a newer record of their key."""
    planned = list(replays)
    keys: dict[tuple[str, int], dict[bytes, int]] = {}
    for planned_replay in planned:
        if planned_replay.record and planned_replay.record.key is not None and planned_replay.letter.origin:
            oldest = keys.setdefault((planned_replay.record.topic, planned_replay.record.partition), {})
            oldest[planned_replay.record.key] = min(
                planned_replay.letter.origin.offset,
                oldest.get(planned_replay.record.key, planned_replay.letter.origin.offset),
            )
    policies = topic_configs({topic for topic, _ in keys}, bootstrap)
    partitions = [
        partition for partition in keys if "compact" in policies.get(partition[0], {}).get("cleanup.policy", "")
    ]
    starts, ends = (of(admin(bootstrap), partitions, bootstrap) for of in (first_offsets, all_end_offsets))
    newest: dict[tuple[str, int, bytes], int] = {}
    for partition in partitions:
        start = max(starts.get(partition, 0), min(keys[partition].values()) + 1)
        for message in read_range(reader, *partition, start, ends[partition]):
            if (key := as_bytes(message.key())) in keys[partition]:
                newest[(*partition, key or b"")] = message.offset() or 0
    for planned_replay in planned:
        offset = (
            newest.get((planned_replay.record.topic, planned_replay.record.partition, planned_replay.record.key or b""))
            if planned_replay.record
            else None
        )
        if offset is not None and planned_replay.letter.origin and offset > planned_replay.letter.origin.offset:
            refusal = f"its topic is compacted, and it would replace a newer record of its key, at offset {offset}"
            yield Replay(planned_replay.letter, refusal=refusal)
        else:
            yield planned_replay


def _refuse_oversized(planned: Replay, limits: Mapping[str, SizeLimit]) -> Replay:
    """Refuses a record that its topic does not accept with one more header: it would end the replay of all others."""
    record = planned.record
    limit = limits.get(record.topic) if record else None
    if record is None or limit is None or limit.accepts(record):
        return planned
    return Replay(
        planned.letter,
        refusal=f"with its header it is larger than topic {record.topic} takes: raise the topic's {MAX_MESSAGE_BYTES}, "
        f"now {limit.max_bytes}",
    )


def _read_replays(reader: Consumer, bootstrap: str) -> Iterator[KafkaMessage]:
    partition = (REPLAYS.name, 0)
    if REPLAYS.name not in partition_counts(admin(bootstrap), bootstrap):
        return iter(())
    # The open transaction of another replay may hide records after it.
    ends = stable_end_offsets([partition], bootstrap, "the topic of replays")
    return read_range(
        reader, *partition, first_offsets(admin(bootstrap), [partition], bootstrap).get(partition, 0), ends[partition]
    )
