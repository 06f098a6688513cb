"""The records of an input from Kafka: as a stream, or once more for the offsets of a batch."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from penstock.engine import records
from penstock.records import columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.declare.inputs import Input
    from penstock.declare.stream import Stream
    from penstock.engine.checkpoint import Batch, Ends

EARLIEST = -2


class Place(NamedTuple):
    """Of one record. broken: its checksum does not fit, and the log is read without checksums to get past it."""

    topic: str
    partition: int
    offset: int
    broken: bool = False


def stream(
    spark: SparkSession,
    of: Stream,
    name: str,
    bootstrap: str,
    without: Collection[Place] = (),
    upto: Ends | None = None,
) -> DataFrame:
    """What the transform gets for the input of this name: good rows, with the watermark on their event time.

    The observed metric `bad_<name>` holds the bad ones. without: places of records that it is not to get; upto: next
    offsets, if it is to get only those before.
    """
    given = of.sources[name]
    reader = spark.readStream.format("kafka").options(**_options(given, bootstrap, without))
    if of.max_records:
        reader = reader.option("maxOffsetsPerTrigger", of.max_records)
    reader = reader.option("startingOffsets", "earliest").option("groupIdPrefix", f"{of.group}-reader")
    raw = left_out(reader.load(), without)
    raw = raw if upto is None else raw.where(_before(upto))
    rows = records.decoded(raw, given, F.current_timestamp())
    rows = records.good(rows, f"bad_{name}") if given.schema else rows.drop(columns.BAD, columns.KEPT)
    delay = f"{of.promise.delay.total_seconds()} seconds"
    return records.without_beats(rows.withWatermark(columns.EVENT_TIME, delay))


def batch(spark: SparkSession, given: Input, bootstrap: str, of: Batch, without: Collection[Place] = ()) -> DataFrame:
    """The raw records that a batch took from an input."""
    topics = [given.topic.name] if given.topic else [t for t in of.ends if re.fullmatch(given.pattern, t)]
    ends = {topic: of.ends.get(topic, {}) for topic in topics}
    starts = {t: {p: of.starts.get(t, {}).get(p, EARLIEST) for p in parts} for t, parts in ends.items()}
    reader = spark.read.format("kafka").options(**_options(given, bootstrap, without))
    reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
    return left_out(reader.load(), without)


def left_out(rows: DataFrame, places: Collection[Place]) -> DataFrame:
    """Records without those at some places."""
    return rows.where(~at(places)) if places else rows


def _before(ends: Ends) -> Column:
    """Whether a record lies before the ends."""
    parts = (
        (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") < end)
        for topic, parts in ends.items()
        for partition, end in parts.items()
    )
    return reduce(or_, parts)


def at(places: Collection[Place]) -> Column:
    """Whether a record lies at one of the places, one at least."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for place in places:
        offsets.setdefault((place.topic, place.partition), []).append(place.offset)
    parts = (
        (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").isin(found)
        for (topic, partition), found in offsets.items()
    )
    return reduce(or_, parts)


def _options(given: Input, bootstrap: str, without: Collection[Place]) -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        # Spark asks the broker twice for the ends of a partition behind each poll, and what was fetched meanwhile is
        # thrown away: so let a poll be large. A short wait lets an idle topic's beat through at once.
        "kafka.max.poll.records": "25000",
        "kafka.max.partition.fetch.bytes": str(2 * 1024 * 1024),
        "kafka.fetch.max.wait.ms": "10",
        "kafka.check.crcs": str(not any(place.broken for place in without)).lower(),
        "failOnDataLoss": str(given.stops_at_gap).lower(),
    }
    if given.topic:
        return {**options, "subscribe": given.topic.name}
    # Spark looks for the pattern anywhere in a name unless it is anchored.
    return {**options, "subscribePattern": f"^(?:{given.pattern})$"}
