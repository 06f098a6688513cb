"""Reads the records of an input from Kafka: as a stream, or again for the offsets of a batch."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from penstock.codec import columnar
from penstock.engine.jvm.batch_constant import batch_time
from penstock.engine.query import decode, trace_context
from penstock.errors import BrokerError
from penstock.kafka.admin import admin, first_offsets, partition_counts, topic_ids
from penstock.kafka.client import client_id, spark_client_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.operations.reset import Reset
    from penstock.model.input import Input
    from penstock.model.stream import Stream

EARLIEST = -2
RECORD_TYPES = {
    "topic": "string", "partition": "int", "offset": "bigint", "key": "binary", "value": "binary",
    "timestamp": "timestamp", "headers": decode.HEADERS_TYPE,
}  # fmt: skip
"""The columns of raw records, as Kafka's source gives them and archives keep them."""


class RecordPosition(NamedTuple):
    """The position of a record."""

    topic: str
    partition: int
    offset: int


def input_stream(
    spark: SparkSession,
    stream: Stream,
    name: str,
    bootstrap: str,
    excluded: Collection[RecordPosition] = (),
    upto: TopicOffsets | None = None,
    reset: Reset | None = None,
    *,
    has_read: bool = True,
    max_records: int = 0,
    traces: bool = False,
    records: DataFrame | None = None,
) -> DataFrame:
    """The rows that the transform gets for an input: good ones, with the watermark on their event time.

    Observed metrics: `bad_<name>` counts the bad records and holds some; its `beats`, or that of `beats_<name>` for an
    input without a schema, counts the heartbeats. Where the input has the record itself, `rows` counts all records, or
    `values` all but tombstones, which `gone_<name>` counts. `old_<name>` and `old_<name>_gone` count the good rows
    below the floor of a reset.

    Args:
        spark: the stream's session.
        stream: the stream.
        name: name of the input.
        bootstrap: the brokers.
        excluded: positions of records to leave out.
        upto: next offsets to stop before; None for no end.
        reset: the reset that the query begins with.
        has_read: whether the query has read before. After a reset the first batch is not limited, because a part
            of a window would replace the whole window.
        max_records: records of a batch, 0 for no limit.
        traces: whether trace contexts are read: see `penstock.engine.query.trace_context`.
        records: a streaming frame of the raw records, in place of those of the broker.
    """
    input_ = stream.sources[name]
    if records is None:
        reader = spark.readStream.format("kafka").options(**_options(input_, bootstrap, headers=traces))
        if is_limited(max_records, reset, has_read=has_read):
            reader = reader.options(**batch_limits(stream, max_records))
        starts = "earliest" if has_read or reset is None else json.dumps(_starts(input_, bootstrap, reset))
        reader = reader.option("startingOffsets", starts).option("groupIdPrefix", client_id(f"{stream.group}-reader"))
        records = reader.load()
    raw = without_positions(_share(records, input_), excluded)
    raw = raw if upto is None else raw.where(is_before(upto))
    raw = trace_context.read_contexts(raw) if traces else raw
    values = raw.where("value IS NOT NULL") if input_.splits_tombstones else raw
    carried = traces and trace_context.is_carried(stream, input_)
    observed = trace_context.observe_contexts(values, name) if traces else values
    rows = decode.decode_records(observed, input_, batch_time(spark), trace=carried)
    rows = (
        decode.drop_bad_records(rows, input_, f"bad_{name}")
        if input_.schema
        else decode.count_heartbeats(rows, input_, f"beats_{name}")
    )
    delay = f"{stream.output_mode.watermark_delay.total_seconds()} seconds"
    result = decode.drop_heartbeats(_new(rows, name, reset).withWatermark(columnar.EVENT_TIME, delay))
    hidden = (columnar.TRACE_FIELD.name,) if carried else ()
    if not input_.splits_tombstones:
        return result.drop(*hidden) if hidden else result
    tombstones = decode.tombstone_rows(raw, rows.drop(columnar.HEARTBEAT_COLUMN), f"gone_{name}")
    rows = decode.union_values_and_tombstones(result, _new(tombstones, f"{name}_gone", reset))
    return rows.drop(*hidden) if hidden else rows


def is_limited(max_records: int, reset: Reset | None, *, has_read: bool) -> bool:
    """Whether batches are limited. The arguments are those of `input_stream`."""
    return bool(max_records) and (has_read or reset is None)


def has_trigger(stream: Stream, *, limited: bool) -> bool:
    """Whether batches begin by a trigger, else when the source of the only input says so.

    The sources of several inputs would say so independently. One that waits holds back records that are older than what
    the batch reads of another, and they would be late for the readers of the output.
    """
    return bool(stream.every) and not (limited and len(stream.sources) == 1)


def batch_limits(stream: Stream, max_records: int) -> dict[str, str]:
    """The options of limited batches. One that is half full begins at once: a trigger would let it wait, and so bound
    the rate. If it had to be full, each would be cut short by the limit, and none would move the watermark."""
    limits = {"maxOffsetsPerTrigger": str(max_records)}
    if stream.every and not has_trigger(stream, limited=True):
        half = str((max_records + 1) // 2)
        limits |= {"minOffsetsPerTrigger": half, "maxTriggerDelay": f"{int(stream.every * 1000)}ms"}
    return limits


def _new(rows: DataFrame, name: str, reset: Reset | None) -> DataFrame:
    """Drop the rows below the floor of a reset, and count them."""
    if reset is None or reset.floor is None:
        return rows
    is_heartbeat = F.col(columnar.HEARTBEAT_COLUMN) if columnar.HEARTBEAT_COLUMN in rows.columns else F.lit(False)
    return above_floor(rows.observe(f"old_{name}", F.count_if(~_above(reset.floor) & ~is_heartbeat).alias("n")), reset)


def _starts(input_: Input, bootstrap: str, reset: Reset) -> TopicOffsets:
    """The offsets at which a reset lets each present partition begin."""
    client = admin(bootstrap)
    counts = {t: n for t, n in partition_counts(client, bootstrap).items() if input_.reads_topic(t)}
    ids = topic_ids(client, counts, bootstrap)
    same = {t for t in counts if reset.ids.get(t) == ids.get(t)}
    return {
        t: {p: reset.starts.get(t, {}).get(p, EARLIEST) if t in same else EARLIEST for p in range(n)}
        for t, n in counts.items()
    }


def batch_records(
    spark: SparkSession, input_: Input, bootstrap: str, batch: PlannedBatch, excluded: Collection[RecordPosition] = ()
) -> DataFrame:
    """The raw records that a batch reads from an input."""
    ends = batch_ends_of_input(input_, batch)
    starts = {t: {p: batch.starts.get(t, {}).get(p, EARLIEST) for p in parts} for t, parts in ends.items()}
    return without_positions(records_between(spark, input_, bootstrap, starts, ends), excluded)


def records_between(
    spark: SparkSession,
    input_: Input,
    bootstrap: str,
    starts: TopicOffsets,
    ends: TopicOffsets,
    *,
    fail_on_loss: bool = False,
) -> DataFrame:
    """The raw records of an input between offsets. fail_on_loss: whether missing records are an error."""
    options = {**_settings(bootstrap), **({"includeHeaders": "true"} if input_.record else {})}
    options |= {"failOnDataLoss": "true"} if fail_on_loss else {}
    return _share(_between(spark, starts, ends, options), input_)


def _share(rows: DataFrame, input_: Input) -> DataFrame:
    """The partitions that an input reads, where it shares its topic with others."""
    n, of = input_.share
    return rows if of == 1 else rows.where(F.col("partition") % of == n - 1)


def without_positions(rows: DataFrame, positions: Collection[RecordPosition]) -> DataFrame:
    """Leave out the records at some positions."""
    return rows.where(~is_at(positions)) if positions else rows


def above_floor(rows: DataFrame, reset: Reset | None) -> DataFrame:
    """Drop the rows below the floor of a reset."""
    return rows if reset is None or reset.floor is None else rows.where(_above(reset.floor))


def _above(floor: int) -> Column:
    return F.unix_millis(columnar.EVENT_TIME) >= floor


def is_before(ends: TopicOffsets, record: str = "") -> Column:
    """Whether a record is before the ends. record: prefix of the columns with its position, such as `record.`."""
    topics, partitions, offsets = (F.col(f"{record}{name}") for name in ("topic", "partition", "offset"))
    parts = (
        (topics == topic) & (partitions == partition) & (offsets < end)
        for topic, parts in ends.items()
        for partition, end in parts.items()
    )
    return reduce(or_, parts, F.lit(False))


def is_at(positions: Collection[RecordPosition]) -> Column:
    """Whether a record is at one of the positions, of which there is at least one."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for position in positions:
        offsets.setdefault((position.topic, position.partition), []).append(position.offset)
    parts = (
        (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").isin(at)
        for (topic, partition), at in offsets.items()
    )
    return reduce(or_, parts)


def batch_ends_of_input(input_: Input, batch: PlannedBatch) -> TopicOffsets:
    """The ends of a batch in an input's topics."""
    topics = [input_.topic.name] if input_.topic else [t for t in batch.ends if re.fullmatch(input_.pattern, t)]
    return {topic: batch.ends.get(topic, {}) for topic in topics}


def next_offsets_before_first_batch(
    stream: Stream, written: Mapping[str, Mapping[int, int]], bootstrap: str
) -> dict[str, dict[int, int]]:
    """Next offsets of all inputs before the first batch: those that are written, else those of the first records.

    Topics that the broker does not return are left out.
    """
    try:
        counts = partition_counts(admin(bootstrap), bootstrap)
        inputs = stream.sources.values()
        topics = {
            t for t in counts if any(t == i.topic.name if i.topic else re.fullmatch(i.pattern, t) for i in inputs)
        }
        partitions = {(t, p) for t in topics for p in range(counts[t]) if p not in written.get(t, {})}
        first = first_offsets(admin(bootstrap), partitions, bootstrap)
    except BrokerError:
        return {}
    next_offsets: dict[str, dict[int, int]] = {t: dict(written.get(t, {})) for t in topics}
    for (topic, partition), offset in first.items():
        next_offsets[topic][partition] = offset
    return next_offsets


def topic_records(spark: SparkSession, bootstrap: str, starts: TopicOffsets, ends: TopicOffsets) -> DataFrame:
    """The raw records between offsets."""
    return _between(spark, starts, ends, {**_settings(bootstrap), "failOnDataLoss": "true"})


def _between(spark: SparkSession, starts: TopicOffsets, ends: TopicOffsets, options: Mapping[str, str]) -> DataFrame:
    """Exactly these partitions: a topic that is read by its name must not have others, as one that was added since."""
    partitions = json.dumps({topic: [*parts] for topic, parts in ends.items()})
    reader = spark.read.format("kafka").options(**options).option("assign", partitions)
    return reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends)).load()


def _settings(bootstrap: str) -> dict[str, str]:
    return {
        **spark_client_config(bootstrap),
        # Spark's consumers commit nothing; their client ids begin with it, and ACLs can name it.
        "groupIdPrefix": client_id(),
        "kafka.isolation.level": "read_committed",
        # Spark asks the broker twice for a partition's ends after each poll, and drops what was fetched meanwhile: so
        # polls are large. A short wait lets the heartbeat of an idle topic through at once.
        "kafka.max.poll.records": "25000",
        "kafka.max.partition.fetch.bytes": str(2 * 1024 * 1024),
        "kafka.fetch.max.wait.ms": "10",
        # A request to a leader that died is not sent to another before it times out, by default after a minute. A new
        # leader is elected within seven seconds.
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "10000",
        # penstock.engine.faults.data_loss detects and reports data loss.
        "failOnDataLoss": "false",
    }


def _options(input_: Input, bootstrap: str, *, headers: bool = False) -> dict[str, str]:
    options = _settings(bootstrap)
    if input_.record or headers:
        options["includeHeaders"] = "true"
    if input_.topic:
        return {**options, "subscribe": input_.topic.name}
    # Spark looks for the pattern anywhere in a name unless it is anchored.
    return {**options, "subscribePattern": f"^(?:{input_.pattern})$"}
