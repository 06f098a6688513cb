"""From Kafka records to the frame a transform reads, and back; the same code on a stream and on a range of offsets.

Works on the source's columns `key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,
timestamp TIMESTAMP`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType

from penstock.errors import DeclarationError
from penstock.kafka.beat import BEAT_KEY
from penstock.streams.shapes import CORRUPT, parsed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.streams.declare import Input

EVENT_TIME = "event_time"
BAD = "_bad"
BEAT = "_beat"
RECORD = "_record"
TEXT = "_text"
RAW = ("topic", "partition", "offset", "key", "value", "timestamp")
SHOWN = 60


def schema_of(ddl: str, what: str) -> StructType:
    """A schema given as Spark DDL; DeclarationError, naming whose it is, if it is none."""
    try:
        declared = DataType.fromDDL(ddl)
    except ParseException as e:
        raise DeclarationError(f"the schema of {what} is no Spark DDL", got=ddl, fix=str(e).splitlines()[0]) from e
    assert isinstance(declared, StructType)
    return declared


def parse(source: DataFrame, given: Input, now: Column, *, keep_record: bool = False) -> DataFrame:
    """Rows of an input: its columns, `event_time TIMESTAMP`, `_beat BOOLEAN`, `_bad BOOLEAN`.

    now: TIMESTAMP of the batch. A bad row does not parse, lacks a required field or an event time, or lies too far in
    the future. A beat carries its time as the record's own timestamp. keep_record adds the record as it came, as the
    struct `_record`.
    """
    beat = F.coalesce(F.col("key") == F.lit(BEAT_KEY), F.lit(False)).alias(BEAT)
    horizon = now + F.expr(f"INTERVAL '{given.ahead.total_seconds()}' SECOND")
    if not given.schema:
        time = F.when(F.col(BEAT), F.col("timestamp")).otherwise(F.expr(given.event_time))
        return source.select(*RAW, beat).select(
            *RAW, F.when(time > horizon, now).otherwise(time).alias(EVENT_TIME), BEAT, F.lit(False).alias(BAD)
        )
    declared = schema_of(given.schema, f"input {given.source}")
    kept = [F.struct(*RAW).alias(RECORD)] if keep_record else []
    names = [RECORD] if keep_record else []
    text = source.select(*kept, beat, F.col("timestamp").alias("_timestamp"), F.col("value").cast("string").alias(TEXT))
    rows = parsed(text, TEXT, declared, "").withColumn(
        EVENT_TIME, F.when(F.col(BEAT), F.col("_timestamp")).otherwise(F.expr(given.event_time))
    )
    missing = [F.col(f.name).isNull() for f in declared.fields if not f.nullable]
    wrong = [F.col(CORRUPT).isNotNull(), F.col(EVENT_TIME).isNull(), F.col(EVENT_TIME) > horizon, *missing]
    bad = ~F.col(BEAT) & F.coalesce(reduce(or_, wrong), F.lit(True))
    return rows.select(*names, *declared.fieldNames(), EVENT_TIME, BEAT, bad.alias(BAD))


def without_beats(rows: DataFrame) -> DataFrame:
    """Drop heartbeats behind the watermark.

    A filter that does not name the event time is pushed below the watermark, and the beat would never count.
    """
    return rows.where(F.when(F.col(BEAT), F.lit(None)).otherwise(F.col(EVENT_TIME)).isNotNull()).drop(BEAT)


def rejected(source: DataFrame, given: Input, now: Column) -> DataFrame:
    """The bad records of a range: `topic, partition, offset, key, value, timestamp, reason STRING`.

    Slow and exact: it runs only over a batch that is known to hold bad records, and reads that a second time.
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
    return parse(source, given, now, keep_record=True).where(BAD).select(f"{RECORD}.*", reason.alias("reason"))


def encode(rows: DataFrame, key: str | tuple[str, ...], value: str | tuple[str, ...]) -> DataFrame:
    """Rows as `key STRING, value STRING`: one column as text, several as a JSON object in the order declared."""
    return rows.select(_encoded(key).alias("key"), _encoded(value).alias("value"))


def _encoded(columns: str | tuple[str, ...]) -> Column:
    if isinstance(columns, str):
        return F.col(columns).cast("string")
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
