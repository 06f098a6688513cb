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
    TRACE_FIELD,
    RecordDecoder,
)
from penstock.codec.combiner_check import check_combiner
from penstock.codec.event_time import FIRST, LAST
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner, heartbeat_signer
from penstock.codec.validation import no_event_time
from penstock.engine.query.native_avro import decoded_avro
from penstock.errors import DeclarationError
from penstock.model.checks.volatile_expressions import TIME_WITHOUT_DAY, first_volatile, texts_cast_to_timestamp
from penstock.model.input import RECORD_COLUMN
from penstock.model.spark_hmac import hmac_pads, hmac_sha256
from penstock.model.types import quoted
from penstock.registry import client
from penstock.registry.endpoint import find_endpoint

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from penstock.model.input import Input

# Bad records that a metric holds, each of so many bytes at most. With more or larger ones the batch is read again.
MAX_BAD_HELD = 10_000
MAX_BAD_BYTES = 2_000
OWN_COLUMNS = ("timestamp", "headers")
# By the format: what decodes values in Spark, before the workers.
NATIVE_DECODERS = {"AVRO": decoded_avro}
# Schemas of writers that are known when a query starts, the newest ones; each is an expression of the plan.
MAX_NATIVE_SCHEMAS = 20
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def decode_records(
    source: DataFrame,
    input_: Input,
    now: Column | None,
    *,
    keep: Literal["bad", "all"] = "bad",
    combine: bool = True,
    trace: bool = False,
) -> DataFrame:
    """Decode an input's records: its columns, `event_time TIMESTAMP`, `_beat` and `_bad BOOLEAN`, `_record STRUCT`.

    A bad record does not match the schema, has no event time, or is too far in the future. A heartbeat has its time
    in its value. `_record` is the record as it was read, with the reason why it is bad. An input with `record=True`
    also has `record STRUCT`.

    Args:
        source: the raw records.
        input_: the input.
        now: TIMESTAMP of the batch; None takes each record's own timestamp, if that has passed.
        keep: whether only bad rows have `_record`, or all.
        combine: whether the input's combiner is applied.
        trace: whether the column `_trace_context STRING` is handed on; not with a combiner.
    """
    horizon = _horizon(input_, now, "timestamp")
    signer = heartbeat_signer()
    decoder = RecordDecoder.of_input(input_, combine=combine, keep_records=keep == "all", signer=signer)
    decoder = replace(decoder, trace=True) if trace else decoder
    if decoder.registry and input_.topic:
        schema = decoder.registry.schema
        known = client.subject_schemas(schema.subject_of(input_.topic.name), schema.kind)
        newest = tuple(known.items())[len(known) - MAX_NATIVE_SCHEMAS :] if MAX_NATIVE_SCHEMAS else ()
        has_decoded = bool(newest) and schema.kind in NATIVE_DECODERS
        values = replace(decoder.registry, known=newest, endpoint=find_endpoint(), has_decoded=has_decoded)
        decoder = replace(decoder, registry=values)
    if not decoder.ddl and decoder.combine and "registry" in decoder.combine.reads:
        decoder = replace(decoder, endpoint=find_endpoint())
    if now is None and input_.schema and not decoder.computes_event_time:
        # Spark computes the event time of decoded rows, and needs the record's timestamp for it.
        decoder = replace(decoder, whole_record=True)
    if not input_.schema and not decoder.combine:
        return _decode_raw_records(source, input_, F.timestamp_micros(horizon), signer, trace=trace)
    if decoder.combine:
        check_combiner(input_)
    clock = horizon if input_.schema else F.least(F.unix_micros(_record_time()), horizon)
    computed = {
        "clock": clock,
        "beat": F.when(_has_heartbeat_key(), F.col("partition")),
        "headers": F.to_json("headers"),
        "trace_context": F.col(TRACE_FIELD.name),
    }
    if decoder.registry and decoder.registry.has_decoded:
        computed["decoded"] = NATIVE_DECODERS[decoder.registry.schema.kind](decoder.registry)
    columns = source.select(*(computed.get(name, F.col(name)).alias(name) for name in decoder.input_columns))
    rows = columns.mapInArrow(decoder, decoder_schema(decoder))
    if input_.record:
        parsed = {"headers": F.from_json(F.col(f"{SOURCE_RECORD_COLUMN}.headers"), HEADERS_TYPE)}
        record_fields = (
            parsed.get(name, F.col(f"{SOURCE_RECORD_COLUMN}.{name}")).alias(name) for name in (*RAW, *OWN_COLUMNS)
        )
        rows = rows.withColumn(RECORD_COLUMN, F.struct(*record_fields))
    rows = (
        rows
        if decoder.computes_event_time
        else _with_declared_time(rows, input_, _horizon(input_, now, f"{SOURCE_RECORD_COLUMN}.timestamp"))
    )
    return _add_time_to_record(rows) if input_.record else rows


def _horizon(input_: Input, now: Column | None, timestamp: str) -> Column:
    """The latest event time that is accepted, epoch microseconds. own: the column of the record's timestamp."""
    if input_.max_ahead is None:
        return F.lit(LAST)
    at = F.least(timestamp, F.current_timestamp()) if now is None else now
    return F.unix_micros(at) + input_.max_ahead // timedelta(microseconds=1)


def _declared_time(rows: DataFrame, expression: str) -> Column:
    """TIMESTAMP: the declared event time.

    It is NULL if Spark cannot evaluate it, if it is outside the calendar, and if it is a text without a day, which
    Spark would read as today.
    """
    declared = F.coalesce(F.expr(expression), F.lit(None).cast("timestamp"))
    # NULL where the sum or its operands fail: Spark has no other function that catches the error of any expression.
    checked = F.try_add(declared, F.expr("INTERVAL '0' SECOND"))
    time = F.when(F.unix_micros(checked).between(FIRST, LAST), checked)
    for text in texts_cast_to_timestamp(rows.select(F.expr(expression))):
        time = F.when(~F.coalesce(text.rlike(TIME_WITHOUT_DAY), F.lit(False)), time)
    return time


def _record_time(column: str = "timestamp") -> Column:
    """TIMESTAMP: the record's timestamp, limited to the calendar. column: the column that has it."""
    micros = F.unix_micros(column)
    return F.timestamp_micros(F.when(micros < FIRST, FIRST).when(micros > LAST, LAST).otherwise(micros))


def _add_time_to_record(rows: DataFrame) -> DataFrame:
    """Add the event time to the record struct."""
    return rows.withColumn(RECORD_COLUMN, F.col(RECORD_COLUMN).withField(EVENT_TIME, F.col(EVENT_TIME)))


def _decode_raw_records(
    source: DataFrame, input_: Input, horizon: Column, signer: HeartbeatSigner, *, trace: bool
) -> DataFrame:
    """Undecoded records. One without a declared event time has its own; one too far in the future is capped."""
    record = [F.struct(*RAW, *OWN_COLUMNS).alias(RECORD_COLUMN)] if input_.record else []
    handed_on = (TRACE_FIELD.name,) if trace else ()
    rows = source.select(
        *RAW, "timestamp", *handed_on, *record, _heartbeat_time(source.sparkSession, signer).alias(HEARTBEAT_COLUMN)
    )
    _check_not_volatile(rows, input_)
    time_or_own = F.least(F.coalesce(_declared_time(rows, input_.event_time), _record_time()), horizon)
    time = F.coalesce(F.timestamp_millis(HEARTBEAT_COLUMN), time_or_own).alias(EVENT_TIME)
    beat = F.col(HEARTBEAT_COLUMN).isNotNull().alias(HEARTBEAT_COLUMN)
    metadata = (time, beat, F.lit(False).alias(BAD_COLUMN), F.struct(*RAW).alias(SOURCE_RECORD_COLUMN))
    result = rows.select(*RAW, "timestamp", *handed_on, *metadata, *([RECORD_COLUMN] if input_.record else []))
    return _add_time_to_record(result) if input_.record else result


def _heartbeat_time(spark: SparkSession, signer: HeartbeatSigner) -> Column:
    """BIGINT: the epoch ms of a heartbeat whose signature is valid, NULL for all other records.

    The secret is in a table, of which a plan shows the columns and not the rows.
    """
    pads = spark.createDataFrame(
        pa.table({name: [pad] for name, pad in zip("io", hmac_pads(signer.secret), strict=True)})
    )
    inner, outer = (pads.select(name).scalar() for name in pads.columns)
    value = F.col("value").cast("string")
    at = F.regexp_extract(value, '^\\{"heartbeat":([0-9]{1,15}),', 1)
    signed = F.concat_ws(" ", "topic", F.col("partition").cast("string"), at).cast("binary")
    proof = hmac_sha256(inner, outer, signed)
    is_valid = value == F.concat(F.lit('{"heartbeat":'), at, F.lit(',"proof":"'), proof, F.lit('"}'))
    return F.when(_has_heartbeat_key() & is_valid, at.try_cast("bigint"))


def _has_heartbeat_key() -> Column:
    return F.coalesce(F.col("key") == F.lit(HEARTBEAT_KEY), F.lit(False))


def decoder_schema(decoder: RecordDecoder) -> StructType:
    """The columns that a decoder returns. Lists of a combiner have no NULLs, so that Spark sorts them faster."""
    rows = [f"{quoted(f.name)} {f.type.ddl}" for f in decoder.output_fields]
    parts = [*RECORD.split(", "), *(RECORD_METADATA.split(", ") if decoder.whole_record else ())]
    source_fields = ", ".join(part.replace(" ", ": ", 1) for part in parts)
    metadata = f"{EVENT_TIME} TIMESTAMP, {HEARTBEAT_COLUMN} BOOLEAN, {BAD_COLUMN} BOOLEAN"
    metadata += f", {SOURCE_RECORD_COLUMN} STRUCT<{source_fields}>"
    schema = DataType.fromDDL(", ".join([*rows, metadata]))
    assert isinstance(schema, StructType)
    for field in schema.fields if decoder.combine else ():
        if isinstance(field.dataType, ArrayType):
            field.dataType.containsNull = False
    return schema


def _with_declared_time(rows: DataFrame, input_: Input, horizon: Column) -> DataFrame:
    """Add an event time that is an expression only Spark evaluates."""
    _check_not_volatile(rows, input_)
    time = F.when(F.col(HEARTBEAT_COLUMN), F.col(EVENT_TIME))
    if input_.tombstones == "keep":
        time = time.when(F.col(f"{RECORD_COLUMN}.value").isNull(), _record_time(f"{RECORD_COLUMN}.timestamp"))
    time = time.when(~F.col(BAD_COLUMN), _declared_time(rows, input_.event_time))
    rows = rows.withColumn(EVENT_TIME, time)
    is_missing, is_ahead = F.col(EVENT_TIME).isNull(), F.unix_micros(EVENT_TIME) > horizon
    reason = F.when(F.col(BAD_COLUMN), F.col(SOURCE_RECORD_COLUMN).reason)
    reason = reason.when(is_missing, F.lit(no_event_time(input_.event_time)))
    reason = reason.when(
        is_ahead, F.concat(F.lit("the event time lies in the future: "), F.col(EVENT_TIME).cast("string"))
    )
    is_bad = ~F.col(HEARTBEAT_COLUMN) & (F.col(BAD_COLUMN) | is_missing | is_ahead)
    return rows.withColumns(
        {
            BAD_COLUMN: is_bad,
            SOURCE_RECORD_COLUMN: F.col(SOURCE_RECORD_COLUMN).withField("reason", F.when(is_bad, reason)),
        }
    )


def _check_not_volatile(rows: DataFrame, input_: Input) -> None:
    """Raise DeclarationError if a record that is read again would have another event time."""
    if not input_.uses_record_timestamp and (volatile := first_volatile(rows.select(F.expr(input_.event_time)))):
        raise DeclarationError(
            f"input {input_.source}: the event time is not deterministic",
            got=volatile,
            hint="take a field, or the record's own timestamp",
        )


def drop_bad_records(rows: DataFrame, input_: Input, metric: str | Observation) -> DataFrame:
    """Drop the bad rows of an input. A metric counts them and holds some: see `parse_bad_metric`."""
    record = F.col(SOURCE_RECORD_COLUMN)
    size = sum((F.coalesce(F.octet_length(record[name]), F.lit(0)) for name in ("key", "value")), F.lit(0))
    bad_record = F.struct(*(record[name].alias(name) for name in (*RAW, "reason")))
    # `min_by` needs an order.
    order = F.when(F.col(BAD_COLUMN) & (size <= MAX_BAD_BYTES), record.offset)
    samples = F.call_function("min_by", bad_record, order, F.lit(MAX_BAD_HELD))
    # As text, because rows of a metric are slow to convert to Python.
    observed = rows.observe(
        metric, F.count_if(BAD_COLUMN).alias("n"), F.to_json(samples).alias("some"), *_counts(input_)
    )
    return observed.where(~F.col(BAD_COLUMN)).drop(SOURCE_RECORD_COLUMN, BAD_COLUMN)


def count_heartbeats(rows: DataFrame, input_: Input, metric: str | Observation) -> DataFrame:
    """The rows of an input without a schema, all of them good. A metric counts the heartbeats."""
    return rows.observe(metric, *_counts(input_)).drop(SOURCE_RECORD_COLUMN, BAD_COLUMN)


def union_values_and_tombstones(values: DataFrame, tombstones: DataFrame) -> DataFrame:
    """Unite the rows of values and of tombstones.

    Spark knows in which branch `record.value` is NULL, and does not compute a branch that a filter by it excludes.
    """
    not_null, null = F.coalesce(f"{RECORD_COLUMN}.value", F.expr("X''")), F.lit(None).cast("binary")
    first, second = (
        rows.withColumn(RECORD_COLUMN, F.col(RECORD_COLUMN).withField("value", value))
        for rows, value in ((values, not_null), (tombstones, null))
    )
    return first.union(second)


def tombstone_rows(source: DataFrame, like: DataFrame, metric: str) -> DataFrame:
    """The records without a value, as rows with the columns of `like`.

    All are NULL but `event_time`, `record` and `_trace_context`.
    """
    time, record = _record_time(), F.struct(*RAW, *OWN_COLUMNS, _record_time().alias(EVENT_TIME))
    columns = {EVENT_TIME: time, RECORD_COLUMN: record, TRACE_FIELD.name: F.col(TRACE_FIELD.name)}
    tombstones = source.where("value IS NULL").select(
        *(columns.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in like.schema.fields)
    )
    return tombstones.observe(metric, F.count_if(F.lit(False)).alias("beats"), F.count(F.lit(1)).alias("rows"))


def _counts(input_: Input) -> list[Column]:
    """The number of heartbeats, the time of the latest, and the number of records if each row is one.

    Spark's own count is of the records it reads, once for each branch of the plan, and a sink has a branch for
    tombstones.
    """
    rows = [F.count(F.lit(1)).alias("values" if input_.splits_tombstones else "rows")] if input_.record else []
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
    bad: list[dict[str, Any]] = json.loads(metric.getString(1) or "[]")
    if len(bad) < count:
        return count, None
    for record in bad:
        for name in ("key", "value"):
            record[name] = b64decode(record[name]) if record.get(name) is not None else None
    return count, bad


def with_nullable_fields(rows: DataFrame) -> DataFrame:
    """Declare all fields nullable: Arrow takes no NULL for a struct with fields that are not."""
    layout = rows.schema.json().replace('"nullable":false', '"nullable":true')
    return rows.to(StructType.fromJson(json.loads(layout)))


def drop_heartbeats(rows: DataFrame) -> DataFrame:
    """Drop heartbeats after they have moved the watermark.

    Spark pushes a filter that does not name the event time below the watermark, where the heartbeat would not count. So
    it does with the transform's own filters and those inferred from a join: a condition that Spark cannot evaluate
    beforehand holds them back. It must be within the same branch, as Spark splits a condition at each AND, also at one
    that it makes when it simplifies.
    """
    is_record = F.when(F.col(HEARTBEAT_COLUMN), F.spark_partition_id() < 0).otherwise(F.col(EVENT_TIME).isNotNull())
    return rows.where(is_record).drop(HEARTBEAT_COLUMN)


def bad_records(source: DataFrame, input_: Input, now: Column) -> DataFrame:
    """The bad records of a range of offsets, with the columns of RECORD; for a batch that has many."""
    rows = decode_records(source, input_, now, combine=False).where(F.col(BAD_COLUMN))
    return rows.select(f"{SOURCE_RECORD_COLUMN}.*")
