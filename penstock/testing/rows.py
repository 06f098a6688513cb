"""Runs a transform on rows, without a broker; records are decoded and combined as in a stream."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.codec import columnar
from penstock.codec.columnar import RecordDecoder
from penstock.codec.event_time import LAST
from penstock.engine.query import decode
from penstock.errors import DeclarationError
from penstock.model.input import Input, Table
from penstock.model.lazy_spark import F
from penstock.tables import topic_reader
from penstock.testing.registry_values import RegistryTopics
from penstock.testing.topics import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.model.stream import Stream

Given = Mapping[str, Any] | str | bytes | Record | None
RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
NAMES = ("key", "value", "topic", "partition", "offset", "timestamp")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Number of records that are combined one by one; each costs two queries.
MAX_SINGLE = 50


def frames(spark: SparkSession, stream: Stream, /, **records: Sequence[Given]) -> dict[str, DataFrame]:
    """The frames that the transform gets for the records of each input, by the input's name.

    A record is a dict of the fields of a JSON object or of Avro, or the value as text or bytes. For an input
    without a schema the dict has the record's columns instead: `topic`, `key`, `value`, `timestamp` (epoch ms) and so
    on. A `Record` has all of them, for any input. The rows of a table are dicts with `key` and the fields.

    Args:
        spark: A session.
        stream: The stream.
        records: Records by name of the input.

    Raises:
        DeclarationError: A record does not fit its input.
    """
    _check_inputs(stream, records)
    registered = registered_topics(stream)
    with registered.in_place():
        return {name: _frame(spark, stream.inputs[name], registered, of_input) for name, of_input in records.items()}


def rows(spark: SparkSession, stream: Stream, /, **records: Sequence[Given]) -> list[dict[str, Any]]:
    """The rows that the transform returns for records, as if all of them came in one batch.

    With timers, no timer is ever due, and dropDuplicatesWithinWatermark does not work: test both by a case in YAML. The
    arguments are those of `frames`.
    """
    # State with timers needs Spark's stream manager, which this creates.
    _ = spark.streams
    return [row.asDict(recursive=True) for row in stream.transform(**frames(spark, stream, **records)).collect()]


def splits(
    spark: SparkSession,
    stream: Stream,
    name: str,
    records: Sequence[Given],
    *,
    others: Mapping[str, Sequence[Given]] | None = None,
    tries: int = 6,
    seed: int = 0,
) -> list[list[dict[str, Any]]]:
    """The rows that the transform returns if the records of an input reach its combiner in several parts.

    Args:
        spark: A session.
        stream: The stream.
        name: The input, which has a combiner.
        records: Its records, as for `frames`.
        others: Records of the other inputs, by name.
        tries: Number of ways to split the records.
        seed: Seed of the random splits.

    Returns:
        The rows for each way. All must be equal, except for the order of additions. The first way is one part, the
        second has single records, the others are shuffled and split at random.
    """
    others = others or {}
    _check_inputs(stream, [name, *others])
    if not stream.sources[name].combine:
        raise DeclarationError(f"input {name} of stream {stream.name} has no combiner", hint="Input(..., combine=...)")
    registered, source = registered_topics(stream), stream.sources[name]
    with registered.in_place():
        other_frames = {other: _frame(spark, stream.inputs[other], registered, rows) for other, rows in others.items()}
    rng = random.Random(seed)
    decoder = RecordDecoder.of_input(source, combine=True, keep_records=False)
    if decoder.registry:
        decoder = replace(decoder, registry=replace(decoder.registry, endpoint=registered.endpoint))
    results = []
    for number in range(tries):
        order, cuts = list(records), []
        if number:
            rng.shuffle(order)
            cuts = sorted(rng.choices(range(len(order) + 1), k=rng.choice([1, 3, 20, 100])))
        if number == 1:
            cuts = list(range(min(len(order), MAX_SINGLE)))
        parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True) if a < b]
        combined = [batch for part in parts for batch in decoder(iter([_arrow(source, registered, part)]))]
        frame = spark.createDataFrame(pa.Table.from_batches(combined, decoder.output_schema))
        frame = _without_bad_records(frame, source)
        results.append(
            [row.asDict(recursive=True) for row in stream.transform(**{name: frame}, **other_frames).collect()]
        )
    return results


def registered_topics(stream: Stream) -> RegistryTopics:
    """The topics that a stream reads whose schemas a registry keeps, as `frames` knows them."""
    return RegistryTopics({source.topic.name: source.topic for source in stream.inputs.values() if source.topic})


def _check_inputs(stream: Stream, names: Collection[str]) -> None:
    """DeclarationError if these are not the inputs of the stream."""
    if set(names) != stream.inputs.keys():
        raise DeclarationError(
            f"stream {stream.name} has other inputs", got=", ".join(names) or "none", hint=", ".join(stream.inputs)
        )


def _frame(spark: SparkSession, source: Input | Table, registered: RegistryTopics, rows: Iterable[Given]) -> DataFrame:
    if isinstance(source, Table):
        fields = source.fields
        names = ["key", *(f.name for f in fields)]
        values = [tuple(_dict(row).get(n) for n in names) for row in rows]
        return spark.createDataFrame(values, topic_reader.table_ddl(fields))
    raw = [_record(source, registered, offset, row) for offset, row in enumerate(rows)]
    # One partition, because a batch is combined in one piece.
    raw_frame = spark.createDataFrame(raw, RECORDS).coalesce(1)
    return _without_bad_records(decode.decode_records(raw_frame, source, F.current_timestamp()), source)


def _without_bad_records(decoded: DataFrame, source: Input) -> DataFrame:
    """Decoded rows without heartbeats; DeclarationError if one is bad."""
    if source.schema and (
        bad := decoded.where(f"{columnar.BAD_COLUMN}").select(f"{columnar.SOURCE_RECORD_COLUMN}.*").collect()
    ):
        raise DeclarationError(
            f"a record does not fit input {source.source}",
            got=bytes(bad[0].value or b"").decode(errors="replace"),
            hint=bad[0].reason,
        )
    return decode.drop_heartbeats(decoded.drop(columnar.BAD_COLUMN, columnar.SOURCE_RECORD_COLUMN))


def _arrow(source: Input, registered: RegistryTopics, rows: Sequence[Given]) -> pa.RecordBatch:
    """Records as a Python worker of Spark gets them."""
    records = [_record(source, registered, offset, row) for offset, row in enumerate(rows)]
    columns = {name: [row[i] for row in records] for i, name in enumerate(NAMES)}
    types = {field.name: field.type for field in columnar.RECORD_TYPE}
    arrays = {
        name: pa.array(columns[name], types[name]) for name in columnar.RAW if name != "topic" or not source.topic
    }
    micros = timedelta(microseconds=1)
    horizon = LAST if source.max_ahead is None else int(time.time() * 1e6) + source.max_ahead // micros
    timestamps = [(at - EPOCH) // micros for at in columns["timestamp"]]
    clock = [horizon if source.schema else at for at in timestamps]
    arrays |= {"clock": pa.array(clock, pa.int64()), "beat": pa.nulls(len(records), pa.int32())}
    return pa.RecordBatch.from_pydict(arrays)


def _record(source: Input, registered: RegistryTopics, offset: int, row: Given) -> tuple[Any, ...]:
    topic = source.topic.name if source.topic else "topic"
    if isinstance(row, Record):
        position = row.topic, row.partition, offset if row.offset < 0 else row.offset
        headers = [(name, text.encode()) for name, text in row.headers]
        value = _bytes(row.value) if row.value_bytes is None else row.value_bytes
        return _bytes(row.key), value, *position, _at(row.timestamp), headers
    fields: dict[str, Any] = {"topic": topic, "partition": 0, "offset": offset, "timestamp": 0}
    if source.schema or not isinstance(row, Mapping):
        encoded = registered.to_bytes(topic, row)
        fields["value"] = encoded or (json.dumps(row) if isinstance(row, Mapping) else row)
    else:
        fields |= row
    key, value = (_bytes(fields.get(name)) for name in ("key", "value"))
    return key, value, fields["topic"], fields["partition"], fields["offset"], _at(fields["timestamp"]), None


def _at(millis: int) -> datetime:
    return EPOCH + timedelta(milliseconds=millis)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _dict(row: Given) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise DeclarationError("a row of a table is a dict", got=repr(row))
    return row
