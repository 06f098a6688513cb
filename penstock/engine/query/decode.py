"""Decodes Kafka's records to the frame that a transform reads: of a stream, a range of offsets, or a test.

It reads the source's columns `key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT,
timestamp TIMESTAMP`, and `headers` where an input wants the record itself.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, StructType

from penstock.codec.columnar import (
    BAD_COLUMN,
    EVENT_TIME,
    HEARTBEAT_COLUMN,
    RAW,
    RECORD,
    RECORD_METADATA,
    SOURCE_RECORD_COLUMN,
    RecordDecoder,
)
from penstock.codec.combiner_check import check_combiner
from penstock.codec.event_time import FIRST, LAST
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner, heartbeat_signer
from penstock.errors import DeclarationError
from penstock.model.checks.volatile_expressions import TIME_WITHOUT_DAY, first_volatile, texts_cast_to_timestamp
from penstock.model.input import RECORD_COLUMN
from penstock.model.schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from penstock.model.input import Input

# Bad records that a metric holds, each of so many bytes at most. With more or larger ones the batch is read again.
MAX_BAD_HELD = 10_000
MAX_BAD_BYTES = 2_000
OWN_COLUMNS = ("timestamp", "headers")
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def decode_records(
    source: DataFrame, given: Input, now: Column | None, *, keep: Literal["bad", "all"] = "bad", combine: bool = True
) -> DataFrame:
    """Decode an input's records: its columns, `event_time TIMESTAMP`, `_beat` and `_bad BOOLEAN`, `_record STRUCT`.

    A bad record does not match the schema, has no event time, or lies too far in the future. A heartbeat has its time
    in its value. `_record` is the record as it was read, with the reason why it is bad. An input that asks for it has
    `record STRUCT` beside them.

    Args:
        source: the raw records.
        given: the input.
        now: TIMESTAMP of the batch; None takes each record's own timestamp, if that has passed.
        keep: whether only bad rows have `_record`, or all.
        combine: whether the input's combiner is applied.
    """
    horizon = _horizon(given, now, "timestamp")
    ours = heartbeat_signer()
    reading = RecordDecoder.of_input(given, combine=combine, keep_records=keep == "all", signer=ours)
    if now is None and given.schema and not reading.computes_event_time:
        # Spark judges the time of what was decoded, and needs the record's own for it.
        reading = replace(reading, whole_record=True)
    if not given.schema and not reading.combine:
        return _decode_raw_records(source, given, F.timestamp_micros(horizon), ours)
    if reading.combine:
        check_combiner(given)
    clock = horizon if given.schema else F.least(F.unix_micros(_record_time()), horizon)
    made = {"clock": clock, "beat": F.when(_has_heartbeat_key(), F.col("partition")), "headers": F.to_json("headers")}
    sent = source.select(*(made.get(name, F.col(name)).alias(name) for name in reading.input_columns))
    rows = sent.mapInArrow(reading, reading_schema(reading))
    if given.record:
        back = {"headers": F.from_json(F.col(f"{SOURCE_RECORD_COLUMN}.headers"), HEADERS_TYPE)}
        whole = (back.get(name, F.col(f"{SOURCE_RECORD_COLUMN}.{name}")).alias(name) for name in (*RAW, *OWN_COLUMNS))
        rows = rows.withColumn(RECORD_COLUMN, F.struct(*whole))
    rows = (
        rows
        if reading.computes_event_time
        else _with_declared_time(rows, given, _horizon(given, now, f"{SOURCE_RECORD_COLUMN}.timestamp"))
    )
    return _with_time(rows) if given.record else rows


def _horizon(given: Input, now: Column | None, own: str) -> Column:
    """The latest event time that is accepted, epoch microseconds. own: the column of the record's timestamp."""
    if given.max_ahead is None:
        return F.lit(LAST)
    at = F.least(own, F.current_timestamp()) if now is None else now
    return F.unix_micros(at) + given.max_ahead // timedelta(microseconds=1)


def _declared_time(rows: DataFrame, expression: str) -> Column:
    """TIMESTAMP: the declared event time. NULL where Spark cannot evaluate it, where it is outside the calendar, and
    where a text has no day, which Spark would take for today."""
    time = F.coalesce(F.expr(expression), F.lit(None).cast("timestamp"))
    # NULL where the sum or its operands fail: Spark has no other function that catches the error of any expression.
    tried = F.try_add(time, F.expr("INTERVAL '0' SECOND"))
    found = F.when(F.unix_micros(tried).between(FIRST, LAST), tried)
    for text in texts_cast_to_timestamp(rows.select(F.expr(expression))):
        found = F.when(~F.coalesce(text.rlike(TIME_WITHOUT_DAY), F.lit(False)), found)
    return found


def _record_time(place: str = "timestamp") -> Column:
    """TIMESTAMP: the record's own time, limited to the calendar. place: the column that has it."""
    micros = F.unix_micros(place)
    return F.timestamp_micros(F.when(micros < FIRST, FIRST).when(micros > LAST, LAST).otherwise(micros))


def _with_time(rows: DataFrame) -> DataFrame:
    """Add the event time to the record struct."""
    return rows.withColumn(RECORD_COLUMN, F.col(RECORD_COLUMN).withField(EVENT_TIME, F.col(EVENT_TIME)))


def _decode_raw_records(source: DataFrame, given: Input, horizon: Column, ours: HeartbeatSigner) -> DataFrame:
    """Undecoded records. One without a declared event time has its own; one too far in the future is capped."""
    whole = [F.struct(*RAW, *OWN_COLUMNS).alias(RECORD_COLUMN)] if given.record else []
    rows = source.select(*RAW, "timestamp", *whole, _heartbeat_time(source.sparkSession, ours).alias(HEARTBEAT_COLUMN))
    _check_not_volatile(rows, given)
    own = F.least(F.coalesce(_declared_time(rows, given.event_time), _record_time()), horizon)
    time = F.coalesce(F.timestamp_millis(HEARTBEAT_COLUMN), own).alias(EVENT_TIME)
    beat = F.col(HEARTBEAT_COLUMN).isNotNull().alias(HEARTBEAT_COLUMN)
    made = (time, beat, F.lit(False).alias(BAD_COLUMN), F.struct(*RAW).alias(SOURCE_RECORD_COLUMN))
    found = rows.select(*RAW, "timestamp", *made, *([RECORD_COLUMN] if given.record else []))
    return _with_time(found) if given.record else found


def _heartbeat_time(spark: SparkSession, ours: HeartbeatSigner) -> Column:
    """BIGINT: the epoch ms of a heartbeat whose signature is valid, NULL for all other records.

    Spark has no HMAC, so it is made of two hashes. Plans appear in logs and errors: the secret is in a table, of which
    a plan shows the columns and not the rows.
    """
    pads = spark.createDataFrame(pa.table({name: [pad] for name, pad in zip("io", ours.hmac_pads, strict=True)}))
    inner, outer = (pads.select(name).scalar() for name in pads.columns)
    value = F.col("value").cast("string")
    at = F.regexp_extract(value, '^\\{"heartbeat":([0-9]{1,15}),', 1)
    said = F.concat_ws(" ", "topic", F.col("partition").cast("string"), at).cast("binary")
    proof = F.sha2(F.concat(outer, F.unhex(F.sha2(F.concat(inner, said), 256))), 256)
    proven = value == F.concat(F.lit('{"heartbeat":'), at, F.lit(',"proof":"'), proof, F.lit('"}'))
    return F.when(_has_heartbeat_key() & proven, at.try_cast("bigint"))


def _has_heartbeat_key() -> Column:
    return F.coalesce(F.col("key") == F.lit(HEARTBEAT_KEY), F.lit(False))


def reading_schema(reading: RecordDecoder) -> StructType:
    """The columns that a decoder gives. Lists of a combiner hold no NULL, so that Spark sorts them as plain numbers."""
    rows = [f"{quoted(f.name)} {f.type.ddl}" for f in reading.output_fields]
    parts = [*RECORD.split(", "), *(RECORD_METADATA.split(", ") if reading.whole_record else ())]
    kept = ", ".join(part.replace(" ", ": ", 1) for part in parts)
    own = f"{EVENT_TIME} TIMESTAMP, {HEARTBEAT_COLUMN} BOOLEAN, {BAD_COLUMN} BOOLEAN"
    own += f", {SOURCE_RECORD_COLUMN} STRUCT<{kept}>"
    made = DataType.fromDDL(", ".join([*rows, own]))
    assert isinstance(made, StructType)
    for field in made.fields if reading.combine else ():
        if isinstance(field.dataType, ArrayType):
            field.dataType.containsNull = False
    return made


def _with_declared_time(rows: DataFrame, given: Input, horizon: Column) -> DataFrame:
    """Add an event time that is an expression only Spark evaluates."""
    _check_not_volatile(rows, given)
    time = F.when(F.col(HEARTBEAT_COLUMN), F.col(EVENT_TIME))
    if given.tombstones == "keep":
        time = time.when(F.col(f"{RECORD_COLUMN}.value").isNull(), _record_time(f"{RECORD_COLUMN}.timestamp"))
    time = time.when(~F.col(BAD_COLUMN), _declared_time(rows, given.event_time))
    rows = rows.withColumn(EVENT_TIME, time)
    none, ahead = F.col(EVENT_TIME).isNull(), F.unix_micros(EVENT_TIME) > horizon
    why = F.when(F.col(BAD_COLUMN), F.col(SOURCE_RECORD_COLUMN).reason)
    why = why.when(none, F.lit(f"no event time: {given.event_time} gives none"))
    why = why.when(ahead, F.concat(F.lit("the event time lies in the future: "), F.col(EVENT_TIME).cast("string")))
    bad = ~F.col(HEARTBEAT_COLUMN) & (F.col(BAD_COLUMN) | none | ahead)
    return rows.withColumns(
        {BAD_COLUMN: bad, SOURCE_RECORD_COLUMN: F.col(SOURCE_RECORD_COLUMN).withField("reason", F.when(bad, why))}
    )


def _check_not_volatile(rows: DataFrame, given: Input) -> None:
    """Raise DeclarationError if a record that is read again would have another event time."""
    if not given.uses_record_timestamp and (volatile := first_volatile(rows.select(F.expr(given.event_time)))):
        raise DeclarationError(
            f"input {given.source}: its event time is another each time that it is asked",
            got=volatile,
            hint="take a field, or the record's own timestamp",
        )


def drop_bad_records(rows: DataFrame, given: Input, metric: str | Observation) -> DataFrame:
    """Drop the bad rows of an input. A metric counts them and holds some: see `parse_bad_metric`."""
    record = F.col(SOURCE_RECORD_COLUMN)
    size = sum((F.coalesce(F.octet_length(record[name]), F.lit(0)) for name in ("key", "value")), F.lit(0))
    shown = F.struct(*(record[name].alias(name) for name in (*RAW, "reason")))
    # `min_by` needs an order.
    at = F.when(F.col(BAD_COLUMN) & (size <= MAX_BAD_BYTES), record.offset)
    some = F.call_function("min_by", shown, at, F.lit(MAX_BAD_HELD))
    # As text: a metric's rows are slow to bring to Python.
    watched = rows.observe(metric, F.count_if(BAD_COLUMN).alias("n"), F.to_json(some).alias("some"), *_counts(given))
    return watched.where(~F.col(BAD_COLUMN)).drop(SOURCE_RECORD_COLUMN, BAD_COLUMN)


def count_heartbeats(rows: DataFrame, given: Input, metric: str | Observation) -> DataFrame:
    """The rows of an input without a schema, all of them good. A metric counts the heartbeats."""
    return rows.observe(metric, *_counts(given)).drop(SOURCE_RECORD_COLUMN, BAD_COLUMN)


def union_values_and_tombstones(alive: DataFrame, gone: DataFrame) -> DataFrame:
    """Unite rows of records with values and of tombstones, so that Spark knows which is which: it computes nothing of
    the branch that a filter by `record.value` leaves out."""
    some, none = F.coalesce(f"{RECORD_COLUMN}.value", F.expr("X''")), F.lit(None).cast("binary")
    one, other = (
        rows.withColumn(RECORD_COLUMN, F.col(RECORD_COLUMN).withField("value", value))
        for rows, value in ((alive, some), (gone, none))
    )
    return one.union(other)


def tombstone_rows(source: DataFrame, like: DataFrame, metric: str) -> DataFrame:
    """The records without a value, as rows with the columns of `like`: NULL in all but `event_time` and `record`."""
    time, whole = _record_time(), F.struct(*RAW, *OWN_COLUMNS, _record_time().alias(EVENT_TIME))
    made = {EVENT_TIME: time, RECORD_COLUMN: whole}
    found = source.where("value IS NULL").select(
        *(made.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in like.schema.fields)
    )
    return found.observe(metric, F.count_if(F.lit(False)).alias("beats"), F.count(F.lit(1)).alias("rows"))


def _counts(given: Input) -> list[Column]:
    """The number of heartbeats, the time of the latest, and the number of records where each row is one: Spark's own
    count is of what it read, once for each branch of its plan, and a sink has a branch for tombstones."""
    rows = [F.count(F.lit(1)).alias("values" if given.splits_tombstones else "rows")] if given.record else []
    latest = F.max(F.when(F.col(HEARTBEAT_COLUMN), F.unix_millis(EVENT_TIME))).alias("heartbeat_at")
    return [F.count_if(HEARTBEAT_COLUMN).alias("beats"), latest, *rows]


def parse_bad_metric(metric: Any) -> tuple[int, list[dict[str, Any]] | None]:
    """Read the metric of `drop_bad_records`, a row of the JVM.

    Returns:
        How many records were bad, and all of them with the reason; None instead of the records if they are more than
        MAX_BAD_HELD, or large.
    """
    if not (count := int(metric.getLong(0))):
        return 0, None
    some: list[dict[str, Any]] = json.loads(metric.getString(1) or "[]")
    if len(some) < count:
        return count, None
    for record in some:
        for name in ("key", "value"):
            record[name] = b64decode(record[name]) if record.get(name) is not None else None
    return count, some


def with_nullable_fields(rows: DataFrame) -> DataFrame:
    """Declare all fields nullable: Arrow takes no NULL for a struct with fields that are not."""
    layout = rows.schema.json().replace('"nullable":false', '"nullable":true')
    return rows.to(StructType.fromJson(json.loads(layout)))


def drop_heartbeats(rows: DataFrame) -> DataFrame:
    """Drop heartbeats after they have moved the watermark.

    Spark pushes a filter that does not name the event time below the watermark, where the heartbeat would not count. So
    it does with the transform's own filters and those inferred from a join: a condition that Spark cannot evaluate
    beforehand holds them back.
    """
    wanted = F.when(F.col(HEARTBEAT_COLUMN), F.lit(None)).otherwise(F.col(EVENT_TIME)).isNotNull()
    return rows.where(wanted & (F.spark_partition_id() >= 0)).drop(HEARTBEAT_COLUMN)


def bad_records(source: DataFrame, given: Input, now: Column) -> DataFrame:
    """The bad records of a range of offsets, with the columns of RECORD; for a batch that has many."""
    rows = decode_records(source, given, now, combine=False).where(F.col(BAD_COLUMN))
    return rows.select(f"{SOURCE_RECORD_COLUMN}.*")
