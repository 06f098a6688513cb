"""The records of an input from Kafka: as a stream, or once more for the offsets of a batch."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from penstock.engine import records
from penstock.kafka.admin import admin, partitions, topic_ids
from penstock.records import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.declare.inputs import Input
    from penstock.declare.stream import Stream
    from penstock.engine.checkpoint import Batch, Ends
    from penstock.engine.reset import Reset

EARLIEST = -2


def stream(
    spark: SparkSession, of: Stream, name: str, bootstrap: str, reset: Reset | None = None, *, begun: bool = True
) -> DataFrame:
    """What the transform gets for the input of this name: good rows, with the watermark on their event time.

    The observed metric `bad_<name>` holds the bad ones. begun: whether it has read before; what a reset lets it read
    again is one batch, for parts of a window would take the place of all of it.
    """
    given = of.sources[name]
    reader = spark.readStream.format("kafka").options(**_options(given, bootstrap))
    if of.max_records and (begun or reset is None):
        reader = reader.option("maxOffsetsPerTrigger", of.max_records)
    starts = "earliest" if begun or reset is None else json.dumps(_starts(given, bootstrap, reset))
    reader = reader.option("startingOffsets", starts).option("groupIdPrefix", f"{of.group}-reader")
    rows = records.decoded(reader.load(), given, F.current_timestamp())
    rows = records.good(rows, f"bad_{name}") if given.schema else rows.drop(columns.BAD, columns.KEPT)
    if reset is not None and reset.floor is not None:
        rows = rows.where(F.unix_millis(columns.EVENT_TIME) >= reset.floor)
    delay = f"{of.promise.delay.total_seconds()} seconds"
    return records.without_beats(rows.withWatermark(columns.EVENT_TIME, delay))


def _starts(given: Input, bootstrap: str, reset: Reset) -> Ends:
    """For each partition that there is now where a reset lets it begin."""
    client = admin(bootstrap)
    counts = {t: n for t, n in partitions(client, bootstrap).items() if given.reads(t)}
    ids = topic_ids(client, counts, bootstrap)
    same = {t for t in counts if reset.ids.get(t) == ids.get(t)}
    return {
        t: {p: reset.starts.get(t, {}).get(p, EARLIEST) if t in same else EARLIEST for p in range(n)}
        for t, n in counts.items()
    }


def batch(spark: SparkSession, given: Input, bootstrap: str, of: Batch) -> DataFrame:
    """The raw records that a batch took from an input."""
    topics = [given.topic.name] if given.topic else [t for t in of.ends if re.fullmatch(given.pattern, t)]
    ends = {topic: of.ends.get(topic, {}) for topic in topics}
    starts = {t: {p: of.starts.get(t, {}).get(p, EARLIEST) for p in parts} for t, parts in ends.items()}
    reader = spark.read.format("kafka").options(**_options(given, bootstrap))
    return reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends)).load()


def _options(given: Input, bootstrap: str) -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        # Spark asks the broker twice for the ends of a partition behind each poll, and what was fetched meanwhile is
        # thrown away: so let a poll be large. A short wait lets an idle topic's beat through at once.
        "kafka.max.poll.records": "25000",
        "kafka.max.partition.fetch.bytes": str(2 * 1024 * 1024),
        "kafka.fetch.max.wait.ms": "10",
        # Gaps are found and told by penstock.engine.gaps.
        "failOnDataLoss": "false",
    }
    if given.topic:
        return {**options, "subscribe": given.topic.name}
    # Spark looks for the pattern anywhere in a name unless it is anchored.
    return {**options, "subscribePattern": f"^(?:{given.pattern})$"}
