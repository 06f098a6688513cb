"""Replay of a sink's dead letters: each record is written to its store once more, and read by no other stream."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.operations.sink_preview import RenderedRecords, render_documents, sink_output
from penstock.errors import Refused, Wait
from penstock.kafka.admin import admin, ensure_topics, topic_ids
from penstock.kafka.dead_letters import DeadLetter, open_consumer
from penstock.kafka.limits import ProducerRecord
from penstock.kafka.record_lookup import record_of_dead_letter
from penstock.kafka.replay import REPLAYS, discard_key, replay_keys, sink_replay_key, sink_replays
from penstock.model.output import NO_COMMIT, Output, Writer, WriterOwner, open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.kafka.record_lookup import TopicRecord
    from penstock.model.stream import Stream

# How often a store that asks to wait is tried, and the longest wait in seconds.
TRIES, LONGEST_WAIT = 5, 30.0
WRITTEN, OLDER_VERSION = "written", "older than what the store has"
WOULD_BE_WRITTEN = "would be written, if the store takes it"
ALREADY_REPLAYED = "replayed before: if the store has lost it since, --again writes it once more"
DISCARDED = "discarded before"
RECORD_GONE = "gone: its topic has it no longer, and its copy is not whole"
NO_DOCUMENT = "makes no document"


@dataclass(frozen=True)
class ReplayedRecord:
    """The result of one record. said: in words; ended: whether it need not be replayed again."""

    letter: DeadLetter
    said: str
    ended: bool = True


def replay(
    spark: SparkSession,
    stream: Stream,
    chosen: Collection[DeadLetter],
    bootstrap: str,
    *,
    include_replayed: bool = False,
    dry: bool = False,
) -> list[ReplayedRecord]:
    """Write the records of dead letters to the store of a sink once more, in order of their locations.

    Args:
        spark: A session for the stream.
        stream: The sink.
        chosen: The dead letters.
        bootstrap: The broker.
        include_replayed: Also replay those that were replayed before.
        dry: Only say what would be done. The store is not asked, and another replay goes on.

    Raises:
        Wait: The store goes on asking for it; what was written by then is recorded.
    """
    first = {
        sink_replay_key(stream.name, letter): letter
        for letter in sorted(chosen, key=lambda letter: bool(letter.truncated), reverse=True)
    }
    if not first:
        return []
    with ExitStack() as opened:
        notes = None
        if not dry:
            ensure_topics([REPLAYS], bootstrap)
            # This fences another replay of this sink that still runs.
            notes = opened.enter_context(closing(sink_replays(stream.name, bootstrap)))
        with open_consumer(bootstrap) as reader:
            noted = replay_keys(reader, bootstrap)
            discarded = {key for key, letter in first.items() if discard_key(letter) in noted}
            done = discarded if include_replayed else noted | discarded
            ids = topic_ids(admin(bootstrap), {letter.origin.topic for letter in chosen if letter.origin}, bootstrap)
            records = {
                key: record_of_dead_letter(letter, reader, ids) for key, letter in first.items() if key not in done
            }
        rendered = _render_all(spark, stream, records)
        output, writer = sink_output(stream), None
        if notes is not None:
            owner = WriterOwner(stream.name, stream.group, bootstrap)
            writer = opened.enter_context(closing(open_store([output], owner)))
        ended = []
        for key, letter in sorted(first.items(), key=lambda letter: letter[1].origin or ("", 0, 0)):
            if key in done:
                ended.append(ReplayedRecord(letter, DISCARDED if key in discarded else ALREADY_REPLAYED))
                continue
            rows = _rows(letter, records[key], rendered.get(key))
            if isinstance(rows, ReplayedRecord):
                ended.append(rows)
            elif notes is None or writer is None:
                ended.append(ReplayedRecord(letter, WOULD_BE_WRITTEN))
            else:
                ended.append(_written(letter, rows, output, writer))
                if ended[-1].ended:
                    notes.commit([ProducerRecord(REPLAYS.name, key, b"{}")], b"{}")
    return ended


def _render_all(
    spark: SparkSession, stream: Stream, records: Mapping[bytes, TopicRecord | None]
) -> dict[bytes, RenderedRecords]:
    """The documents of records, by replay key: of a recreated topic, two records may have the same location."""
    rendered: dict[bytes, RenderedRecords] = {}
    remaining = {key: record for key, record in records.items() if record is not None}
    while remaining:
        by_location = {record.location: key for key, record in remaining.items()}
        batch = render_documents(spark, stream, [remaining.pop(key) for key in by_location.values()])
        rendered |= dict.fromkeys(by_location.values(), batch)
    return rendered


def _rows(
    letter: DeadLetter, record: TopicRecord | None, rendered: RenderedRecords | None
) -> pa.Table | ReplayedRecord:
    """The documents that the statement makes of a record, or why it makes none."""
    if record is None or rendered is None:
        return ReplayedRecord(letter, RECORD_GONE, ended=False)
    if reason := rendered.errors.get(record.location):
        return ReplayedRecord(letter, f"refused again: {reason}", ended=False)
    rows = rendered.of(record.location)
    return rows if rows.num_rows else ReplayedRecord(letter, NO_DOCUMENT, ended=False)


def _written(letter: DeadLetter, rows: pa.Table, output: Output, writer: Writer) -> ReplayedRecord:
    before = _conflicts(writer)
    for last in (*[False] * (TRIES - 1), True):
        try:
            writer.write({output.name: rows}, NO_COMMIT)
        except Refused as e:
            return ReplayedRecord(letter, f"refused again: {next(iter(e.rows[output.name].values()))}", ended=False)
        except Wait as e:
            if last:
                raise
            time.sleep(min(e.seconds, LONGEST_WAIT))
        else:
            break
    return ReplayedRecord(letter, OLDER_VERSION if _conflicts(writer) - before >= rows.num_rows else WRITTEN)


def _conflicts(writer: Writer) -> int:
    """How many rows the store had newer versions of, if the writer counts them."""
    return int(getattr(getattr(writer, "counters", None), "conflicts", 0))
