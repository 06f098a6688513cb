"""A fold's state from the stream's inputs: all that they still hold before its commit marker, folded at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine.commit.dead_letter_index import DeadLetterIndex
from penstock.engine.query import decode, source
from penstock.engine.query.tables import StreamTables
from penstock.engine.state import fold as folding
from penstock.engine.state import fold_query
from penstock.engine.state.restore_rules import RESET_HINT
from penstock.engine.state.state_part import HASH
from penstock.errors import DeclarationError, PenstockError
from penstock.kafka.admin import (
    RetentionPolicy,
    admin,
    first_offsets,
    offsets_for_times,
    partition_counts,
    retention_of,
    topic_config,
    topic_ids,
)
from penstock.model.output_mode import millis

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.engine.checkpoint.offset_log import BatchPlan, TopicOffsets
    from penstock.kafka.commit_marker import TopicAndPartition
    from penstock.kafka.dead_letters import RecordLocation
    from penstock.model.fold import Fold
    from penstock.model.output import CommitMarker
    from penstock.model.stream import Stream


@dataclass(frozen=True)
class InputFold:
    """Folds all rows of some keys at once: called with batches of them, it returns their keys and state.

    Attributes:
        fold: The fold.
        watermark: Epoch ms, of the batch that the state is of.
    """

    fold: Fold
    watermark: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if records := list(batches):
            rows = pa.Table.from_batches(records).combine_chunks()
            no_state = fold_query.state_schema(self.fold, rows.schema).empty_table()
            result = fold_query.run_fold(self.fold, rows, lambda _: no_state, self.watermark, late=False)
            yield from result.state.drop_columns([HASH]).to_batches()


class InputRows(NamedTuple):
    """The rows that a fold gets for all records.

    Attributes:
        rows: The rows. Their metrics `bad_<name>` are of bad records: see `decode.parse_bad_metric`.
        records: How many records are read at most.
        dead: How many of them are left out, as they are dead letters.
    """

    rows: DataFrame
    records: int
    dead: int


@contextmanager
def input_rows(
    stream: Stream,
    spark: SparkSession,
    bootstrap: str,
    input_fold: InputFold,
    mark: CommitMarker,
    plan: BatchPlan,
    folder: str,
) -> Iterator[InputRows]:
    """The rows that a stream's fold gets for all records before its marker, but those that are dead letters.

    Tables are read as they are now. A record is too far in the future if it is by the clock of the marker's batch: what
    was so for an earlier batch is a dead letter.

    Args:
        stream: The stream.
        spark: A session for the stream.
        bootstrap: The broker.
        input_fold: The fold.
        mark: The commit marker.
        plan: The plan of its batch.
        folder: For tables, while the frame is used.

    Raises:
        PenstockError: Records are deleted that the state may be of.
    """
    if parted := [name for name, input_ in stream.sources.items() if input_.splits_tombstones]:
        raise DeclarationError(
            f"the state of stream {stream.name} cannot be made of its inputs: it reads tombstones as rows",
            got=f"tombstones='keep' of {', '.join(parted)}",
            hint=RESET_HINT.format(name=stream.name),
        )
    starts = _starts(stream, bootstrap, input_fold, mark, plan)
    ids = topic_ids(admin(bootstrap), starts, bootstrap)
    dead = {
        at
        for at in DeadLetterIndex(stream, bootstrap, None, ids).locations()
        if at.partition in starts.get(at.topic, {}) and at.offset >= starts[at.topic][at.partition]
    }
    tables = StreamTables(stream, folder, bootstrap, lambda *_: None)
    try:
        tables.load()
        frames = {}
        for name, input_ in stream.sources.items():
            begins = {topic: parts for topic, parts in starts.items() if input_.reads_topic(topic)}
            # Partitions that the marker does not name were not read.
            ends = {t: {p: plan.ends.get(t, {}).get(p, at) for p, at in parts.items()} for t, parts in begins.items()}
            raw = source.records_between(spark, input_, bootstrap, begins, ends, fail_on_loss=True)
            rows = decode.decode_records(_without(raw, dead), input_, F.timestamp_millis(F.lit(plan.at_ms)))
            frames[name] = decode.drop_heartbeats(
                decode.drop_bad_records(rows, input_, f"bad_{name}")
                if input_.schema
                else decode.count_heartbeats(rows, input_, f"beats_{name}")
            )
        with folding.current_context() as context:
            stream.transform(**frames, **tables.frames(spark))
        rows_of_fold = context.frames[input_fold.fold.name]
        count = sum(max(0, end - starts[t][p]) for t, parts in plan.ends.items() for p, end in parts.items())
        yield InputRows(rows_of_fold.withColumn(HASH, F.xxhash64(*input_fold.fold.key)), count, len(dead))
    finally:
        tables.close()


def _without(raw: DataFrame, locations: Collection[RecordLocation]) -> DataFrame:
    """Raw records without those at some locations, of which there may be many."""
    if not locations:
        return raw
    topics, partitions, offsets = zip(*locations, strict=True)
    columns = {"topic": pa.array(topics), "partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets)}
    left_out = raw.sparkSession.createDataFrame(pa.table(columns))
    return raw.join(F.broadcast(left_out), list(columns), "left_anti")


def _starts(stream: Stream, bootstrap: str, input_fold: InputFold, mark: CommitMarker, plan: BatchPlan) -> TopicOffsets:
    """The first offsets of all partitions of the inputs."""
    assert input_fold.fold.input_retention is not None
    client, reset_hint = admin(bootstrap), RESET_HINT.format(name=stream.name)
    counts = {
        t: n
        for t, n in partition_counts(client, bootstrap).items()
        if any(i.reads_topic(t) for i in stream.sources.values())
    }
    ids = topic_ids(client, counts, bootstrap)
    replaced = [t for t in plan.ends if t not in counts or mark.topic_ids.get(t, ids.get(t)) != ids.get(t)]
    if replaced:
        raise PenstockError(
            f"stream {stream.name} has read another topic than there is now",
            got=f"{', '.join(sorted(replaced))}: deleted or recreated",
            hint=reset_hint,
        )
    firsts = first_offsets(client, [(t, p) for t, n in counts.items() for p in range(n)], bootstrap)
    since = input_fold.watermark - millis(input_fold.fold.input_retention)
    if incomplete := sorted(incomplete_partitions(stream, bootstrap, firsts, plan.ends, since)):
        raise PenstockError(
            f"the inputs of stream {stream.name} do not hold all that its state is of",
            got=f"deleted records of {incomplete[0][0]}[{incomplete[0][1]}] may be later than {since}, epoch ms",
            hint=f"{reset_hint}; for the next time, keep them for longer",
        )
    starts: TopicOffsets = {}
    for (topic, partition), at in firsts.items():
        starts.setdefault(topic, {})[partition] = at
    return starts


def incomplete_partitions(
    stream: Stream, bootstrap: str, firsts: Mapping[TopicAndPartition, int], read: TopicOffsets, since: int
) -> Iterator[TopicAndPartition]:
    """Partitions whose first records are deleted, some of which may be later than `since`, epoch ms.

    Args:
        stream: The reader.
        bootstrap: The broker.
        firsts: The first offset of each partition.
        read: The next offsets, behind the records that matter.
        since: Epoch ms.
    """
    cut = {partition: at for partition, at in firsts.items() if at}
    # Compaction keeps the newest record of each key, and the offsets.
    cut = {
        partition: at
        for partition, at in cut.items()
        if "delete" in topic_config(partition[0], "cleanup.policy", bootstrap)
    }
    ahead = {t: [i.max_ahead for i in stream.sources.values() if i.reads_topic(t)] for t, _ in cut}
    # A record's event time is at most `max_ahead` later than its own timestamp.
    needed_since = {(t, p): since - max(millis(a) for a in ahead[t] if a is not None) for t, p in cut}
    removed = {topic: retention_of(topic, bootstrap) for topic, _ in cut}
    for partition, at in offsets_for_times(
        admin(bootstrap), {p: max(0, ms) for p, ms in needed_since.items()}, bootstrap
    ).items():
        # All that is left of the partition may be older.
        older = cut[partition] < read.get(partition[0], {}).get(partition[1], 0) if at is None else at > cut[partition]
        if not older or not removed_before(removed[partition[0]], needed_since[partition]):
            yield partition


def removed_before(removed: RetentionPolicy, at: int) -> bool:
    """Whether all that was deleted from a topic is older than a time, epoch ms, given that the first record left is.

    Where timestamps do not rise with offsets, the first record says nothing of what retention deleted."""
    return removed.timestamps_increase or not (removed.deletes_by_size or (removed.deleted_before or 0) > at)
