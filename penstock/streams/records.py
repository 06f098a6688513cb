"""From Kafka records to the frame a transform reads, and back; the same code on a stream and on a range of offsets.

Works on the source's columns `key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,
timestamp TIMESTAMP`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import ParseException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from penstock.errors import DeclarationError
from penstock.kafka.beat import BEAT_KEY
from penstock.streams.shapes import CORRUPT, parsed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.streams.declare import Input

EVENT_TIME = "event_time"
BAD = "_bad"
BEAT = "_beat"
RECORD = "_record"
TEXT = "_text"
RAW = ("topic", "partition", "offset", "key", "value", "timestamp")
SHOWN = 60
# Bad records of a batch that are held in memory, each of so many bytes at most; beyond, the batch is read again.
BAD_HELD = 10_000
BAD_BYTES = 2_000


def schema_of(ddl: str, what: str) -> StructType:
    """A schema given as Spark DDL; DeclarationError, naming whose it is, if it is none."""
    try:
        declared = DataType.fromDDL(ddl)
    except ParseException as e:
        raise DeclarationError(f"the schema of {what} is no Spark DDL", got=ddl, fix=str(e).splitlines()[0]) from e
    assert isinstance(declared, StructType)
    return declared


def parse(source: DataFrame, given: Input, now: Column, *, keep: Literal["none", "odd", "all"] = "none") -> DataFrame:
    """Rows of an input: its columns, `event_time TIMESTAMP`, `_beat BOOLEAN`, `_bad BOOLEAN`.

    now: TIMESTAMP of the batch. A bad row does not parse, lacks a required field or an event time, or lies too far in
    the future. A beat carries its time as the record's own timestamp. keep: add the record as it came, as the struct
    `_record`, which is NULL for `odd` where the text is in a layout that needs no parser.
    """
    beat = F.coalesce(F.col("key") == F.lit(BEAT_KEY), F.lit(False)).alias(BEAT)
    # Adding an interval to a timestamp goes through the calendar, for each row.
    horizon = F.timestamp_micros(F.unix_micros(now) + int(given.ahead.total_seconds() * 1_000_000))
    if not given.schema:
        time = F.when(F.col(BEAT), F.col("timestamp")).otherwise(F.expr(given.event_time))
        return source.select(*RAW, beat).select(
            *RAW, F.when(time > horizon, now).otherwise(time).alias(EVENT_TIME), BEAT, F.lit(False).alias(BAD)
        )
    declared = schema_of(given.schema, f"input {given.source}")
    names = [] if keep == "none" else [RECORD]
    kept = [F.struct(*RAW).alias(name) for name in names]
    text = source.select(*kept, beat, F.col("timestamp").alias("_timestamp"), F.col("value").cast("string").alias(TEXT))
    rows = parsed(text, TEXT, declared, names if keep == "odd" else ()).withColumn(
        EVENT_TIME, F.when(F.col(BEAT), F.col("_timestamp")).otherwise(F.expr(given.event_time))
    )
    missing = [F.col(f.name).isNull() for f in declared.fields if not f.nullable]
    wrong = [F.col(CORRUPT).isNotNull(), F.col(EVENT_TIME).isNull(), F.col(EVENT_TIME) > horizon, *missing]
    bad = ~F.col(BEAT) & F.coalesce(reduce(or_, wrong), F.lit(True))
    return rows.select(*names, *declared.fieldNames(), EVENT_TIME, BEAT, bad.alias(BAD))


def good(rows: DataFrame, metric: str) -> DataFrame:
    """The good rows of `parse(..., keep="odd")`; an observed metric counts the bad ones and holds some: see `bad`."""
    record, fields = F.col(RECORD), [name for name in RAW if name != "timestamp"]
    size = sum((F.coalesce(F.octet_length(record[name]), F.lit(0)) for name in ("key", "value")), F.lit(0))
    shown = F.struct(*(record[name].alias(name) for name in fields), F.unix_micros(record.timestamp).alias("timestamp"))
    # Ordered by offset because the function wants an order.
    at = F.when(F.col(BAD) & (size <= BAD_BYTES), record.offset)
    some = F.call_function("min_by", shown, at, F.lit(BAD_HELD))
    watched = rows.observe(metric, F.count_if(BAD).alias("n"), some.alias("some"))
    return watched.where(~F.col(BAD)).drop(RECORD, BAD)


def bad(spark: SparkSession, metric: Any) -> tuple[int, DataFrame | None]:
    """From the metric of `good`, a row of the JVM: how many rows were bad, and the raw records of all of them.

    None instead of the records if they are more than BAD_HELD, or large, or looked good until their time was known.
    """
    if not (count := metric.getLong(0)):
        return 0, None
    # All in one call: each costs a fraction of a millisecond.
    some = json.loads(metric.json())["some"] or []
    if len(some) < count:
        return count, None
    rows = [
        [b64decode(r[n]) if n in ("key", "value") and r.get(n) is not None else r.get(n) for n in RAW] for r in some
    ]
    schema = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp BIGINT"
    return count, spark.createDataFrame(rows, schema).withColumn("timestamp", F.timestamp_micros("timestamp"))


def walled(rows: DataFrame) -> DataFrame:
    """Parsed rows behind a wall: a filter pushed below would parse each text anew for every column it names."""
    return rows.observe("wall", F.count_if(BAD).alias("n"))


def without_beats(rows: DataFrame) -> DataFrame:
    """Drop heartbeats behind the watermark.

    A filter that does not name the event time is pushed below the watermark, and the beat would never count.
    """
    return rows.where(F.when(F.col(BEAT), F.lit(None)).otherwise(F.col(EVENT_TIME)).isNotNull()).drop(BEAT)


def rejected(source: DataFrame, given: Input, now: Column) -> DataFrame:
    """The bad records of a range: `topic, partition, offset, key, value, timestamp, reason STRING`.

    Slow and exact: it runs only over records that are known to be bad, or over a batch that holds too many of them.
    """
    text = F.col(f"{RECORD}.value").cast("string")
    shown = F.when(F.length(text) > SHOWN, F.concat(F.substring(text, 1, SHOWN), F.lit("…"))).otherwise(text)
    reason = F.when(text.isNull(), F.lit("the record has no value")).when(
        F.get_json_object(text, "$").isNull(), F.concat(F.lit("not valid JSON: "), shown)
    )
    reason = reason.when(F.substring(F.ltrim(text), 1, 1) != "{", F.concat(F.lit("not a JSON object: "), shown))
    for field in schema_of(given.schema, f"input {given.source}").fields:
        found = F.get_json_object(text, f"$['{field.name}']")
        parsed = F.from_json(text, StructType([StructField(field.name, field.dataType)]), {"mode": "PERMISSIVE"})
        kind = field.dataType.simpleString()
        if not field.nullable:
            reason = reason.when(found.isNull(), F.lit(f"field {field.name} is missing or null"))
        reason = reason.when(
            found.isNotNull() & parsed[field.name].isNull(),
            F.concat(F.lit(f"field {field.name} is no {kind}: "), F.substring(found, 1, SHOWN)),
        )
    reason = reason.when(F.col(EVENT_TIME).isNull(), F.lit(f"no event time: {given.event_time} gives none")).otherwise(
        F.concat(F.lit("the event time lies in the future: "), F.col(EVENT_TIME).cast("string"))
    )
    return walled(parse(source, given, now, keep="all")).where(BAD).select(f"{RECORD}.*", reason.alias("reason"))


def encode(rows: DataFrame, key: str | tuple[str, ...], value: str | tuple[str, ...]) -> DataFrame:
    """Rows as `key STRING, value STRING`: one column as text, several as a JSON object in the order declared."""
    return rows.select(_encoded(key).alias("key"), _encoded(value).alias("value"))


def _encoded(columns: str | tuple[str, ...]) -> Column:
    if isinstance(columns, str):
        return F.col(columns).cast("string")
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
