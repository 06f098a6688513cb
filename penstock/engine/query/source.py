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
from penstock.engine.query import decode
from penstock.errors import BrokerError
from penstock.kafka.admin import admin, first_offsets, partition_counts, topic_ids
from penstock.kafka.client import spark_client_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.engine.checkpoint.layout import PlannedBatch
    from penstock.engine.checkpoint.offset_log import TopicOffsets
    from penstock.engine.operations.reset import Reset
    from penstock.model.input import Input
    from penstock.model.stream import Stream

EARLIEST = -2


class RecordPosition(NamedTuple):
    """Where a record lies."""

    topic: str
    partition: int
    offset: int


def input_stream(
    spark: SparkSession,
    of: Stream,
    name: str,
    bootstrap: str,
    without: Collection[RecordPosition] = (),
    upto: TopicOffsets | None = None,
    reset: Reset | None = None,
    *,
    begun: bool = True,
    most: int = 0,
) -> DataFrame:
    """The rows that the transform gets for an input: good ones, with the watermark on their event time.

    Observed metrics: `bad_<name>` counts the bad records and holds some; its `beats`, or that of `beats_<name>` for an
    input without a schema, counts the heartbeats. Where the input has the record itself, `rows` counts all records, or
    `values` all but tombstones, which `gone_<name>` counts. `old_<name>` and `old_<name>_gone` count the good rows
    below the floor of a reset.

    Args:
        spark: the stream's session.
        of: the stream.
        name: name of the input.
        bootstrap: the brokers.
        without: positions of records to leave out.
        upto: next offsets to stop before; None for no end.
        reset: the reset that the query begins with.
        begun: whether the query has read before. What a reset lets it read again is one batch: a part of a window
            would replace the whole window.
        most: records of a batch, 0 for no limit.
    """
    given = of.sources[name]
    reader = spark.readStream.format("kafka").options(**_options(given, bootstrap))
    if most and (begun or reset is None):
        reader = reader.option("maxOffsetsPerTrigger", most)
    starts = "earliest" if begun or reset is None else json.dumps(_starts(given, bootstrap, reset))
    reader = reader.option("startingOffsets", starts).option("groupIdPrefix", f"{of.group}-reader")
    raw = without_positions(_share(reader.load(), given), without)
    raw = raw if upto is None else raw.where(is_before(upto))
    alive = raw.where("value IS NOT NULL") if given.splits_tombstones else raw
    rows = decode.decode_records(alive, given, F.current_timestamp())
    rows = (
        decode.drop_bad_records(rows, given, f"bad_{name}")
        if given.schema
        else decode.count_heartbeats(rows, given, f"beats_{name}")
    )
    delay = f"{of.output_mode.watermark_delay.total_seconds()} seconds"
    found = decode.drop_heartbeats(_new(rows, name, reset).withWatermark(columnar.EVENT_TIME, delay))
    if alive is raw:
        return found
    gone = decode.tombstone_rows(raw, rows.drop(columnar.HEARTBEAT_COLUMN), f"gone_{name}")
    return decode.union_values_and_tombstones(found, _new(gone, f"{name}_gone", reset))


def _new(rows: DataFrame, name: str, reset: Reset | None) -> DataFrame:
    """Drop the rows below the floor of a reset, and count them."""
    if reset is None or reset.floor is None:
        return rows
    beat = F.col(columnar.HEARTBEAT_COLUMN) if columnar.HEARTBEAT_COLUMN in rows.columns else F.lit(False)
    return above_floor(rows.observe(f"old_{name}", F.count_if(~_above(reset.floor) & ~beat).alias("n")), reset)


def _starts(given: Input, bootstrap: str, reset: Reset) -> TopicOffsets:
    """Where a reset lets each present partition begin."""
    client = admin(bootstrap)
    counts = {t: n for t, n in partition_counts(client, bootstrap).items() if given.reads_topic(t)}
    ids = topic_ids(client, counts, bootstrap)
    same = {t for t in counts if reset.ids.get(t) == ids.get(t)}
    return {
        t: {p: reset.starts.get(t, {}).get(p, EARLIEST) if t in same else EARLIEST for p in range(n)}
        for t, n in counts.items()
    }


def batch_records(
    spark: SparkSession, given: Input, bootstrap: str, of: PlannedBatch, without: Collection[RecordPosition] = ()
) -> DataFrame:
    """The raw records that a batch reads from an input."""
    ends = batch_ends_of_input(given, of)
    starts = {t: {p: of.starts.get(t, {}).get(p, EARLIEST) for p in parts} for t, parts in ends.items()}
    return without_positions(records_between(spark, given, bootstrap, starts, ends), without)


def records_between(
    spark: SparkSession, given: Input, bootstrap: str, starts: TopicOffsets, ends: TopicOffsets, *, whole: bool = False
) -> DataFrame:
    """The raw records of an input between offsets. whole: whether missing records are an error."""
    reader = spark.read.format("kafka").options(**_options(given, bootstrap))
    reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
    reader = reader.option("failOnDataLoss", "true") if whole else reader
    return _share(reader.load(), given)


def _share(rows: DataFrame, given: Input) -> DataFrame:
    """The partitions that an input reads, where it shares its topic with others."""
    n, of = given.share
    return rows if of == 1 else rows.where(F.col("partition") % of == n - 1)


def without_positions(rows: DataFrame, places: Collection[RecordPosition]) -> DataFrame:
    """Leave out the records at some positions."""
    return rows.where(~is_at(places)) if places else rows


def above_floor(rows: DataFrame, reset: Reset | None) -> DataFrame:
    """Drop the rows below the floor of a reset."""
    return rows if reset is None or reset.floor is None else rows.where(_above(reset.floor))


def _above(floor: int) -> Column:
    return F.unix_millis(columnar.EVENT_TIME) >= floor


def is_before(ends: TopicOffsets, record: str = "") -> Column:
    """Whether a record lies before the ends. record: the struct that has its position, with a dot; empty for none."""
    topics, places, offsets = (F.col(f"{record}{name}") for name in ("topic", "partition", "offset"))
    parts = (
        (topics == topic) & (places == partition) & (offsets < end)
        for topic, parts in ends.items()
        for partition, end in parts.items()
    )
    return reduce(or_, parts, F.lit(False))


def is_at(places: Collection[RecordPosition]) -> Column:
    """Whether a record lies at one of the positions, of which there is at least one."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for place in places:
        offsets.setdefault((place.topic, place.partition), []).append(place.offset)
    parts = (
        (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").isin(found)
        for (topic, partition), found in offsets.items()
    )
    return reduce(or_, parts)


def batch_ends_of_input(given: Input, of: PlannedBatch) -> TopicOffsets:
    """The ends of a batch in an input's topics."""
    topics = [given.topic.name] if given.topic else [t for t in of.ends if re.fullmatch(given.pattern, t)]
    return {topic: of.ends.get(topic, {}) for topic in topics}


def next_offsets_before_first_batch(
    of: Stream, written: Mapping[str, Mapping[int, int]], bootstrap: str
) -> dict[str, dict[int, int]]:
    """Next offsets of all inputs before the first batch: those that are written, else those of the first records.

    Topics that the broker does not tell are left out.
    """
    try:
        there = partition_counts(admin(bootstrap), bootstrap)
        given = of.sources.values()
        mine = {t for t in there if any(t == i.topic.name if i.topic else re.fullmatch(i.pattern, t) for i in given)}
        wanted = {(t, p) for t in mine for p in range(there[t]) if p not in written.get(t, {})}
        first = first_offsets(admin(bootstrap), wanted, bootstrap)
    except BrokerError:
        return {}
    found: dict[str, dict[int, int]] = {t: dict(written.get(t, {})) for t in mine}
    for (topic, partition), offset in first.items():
        found[topic][partition] = offset
    return found


def topic_records(
    spark: SparkSession, topic: str, bootstrap: str, starts: TopicOffsets, ends: TopicOffsets
) -> DataFrame:
    """The raw records of a topic between offsets."""
    options = {**_settings(bootstrap), "subscribe": topic, "failOnDataLoss": "true"}
    reader = spark.read.format("kafka").options(**options)
    reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
    return reader.load()


def _settings(bootstrap: str) -> dict[str, str]:
    return {
        **spark_client_config(bootstrap),
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


def _options(given: Input, bootstrap: str) -> dict[str, str]:
    options = _settings(bootstrap)
    if given.record:
        options["includeHeaders"] = "true"
    if given.topic:
        return {**options, "subscribe": given.topic.name}
    # Spark looks for the pattern anywhere in a name unless it is anchored.
    return {**options, "subscribePattern": f"^(?:{given.pattern})$"}
