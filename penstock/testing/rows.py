"""A transform on rows, without a broker: the records go the way they go in a stream, decoded and combined."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
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
# So many records are combined alone, one by one: each costs two queries.
ALONE = 50


def frames(spark: SparkSession, stream: Stream, /, **given: Sequence[Given]) -> dict[str, DataFrame]:
    """What the transform gets for the records of each input, by the input's name.

    A record is a JSON object's fields as a dict, or a value as it is on the topic. For an input without a schema a
    dict names the record's own columns instead: `topic`, `key`, `value`, `timestamp` (epoch ms), and so on; for any
    input a `Record` says them all. Of a table it is the rows, with `key` beside the fields. DeclarationError if a
    record is none of its input.
    """
    _inputs_of(stream, given)
    return {name: _frame(spark, stream.inputs[name], rows) for name, rows in given.items()}


def rows(spark: SparkSession, stream: Stream, /, **given: Sequence[Given]) -> list[dict[str, Any]]:
    """The rows that the transform makes of such records, as if all of them came in one batch.

    State with timers works too, but no timer is ever due; dropDuplicatesWithinWatermark works on a stream alone: a
    golden case tries both.
    """
    # Where states are kept is known once Spark manages streams: state with timers asks for it.
    _ = spark.streams
    return [row.asDict(recursive=True) for row in stream.transform(**frames(spark, stream, **given)).collect()]


def splits(
    spark: SparkSession,
    stream: Stream,
    name: str,
    given: Sequence[Given],
    *,
    others: Mapping[str, Sequence[Given]] | None = None,
    tries: int = 6,
    seed: int = 0,
) -> list[list[dict[str, Any]]]:
    """What the transform makes of an input whose records reach its combiner in parts, for some ways to part them.

    All must be equal (but for the order of additions); the first is that of one part, the second that of many records
    by themselves, the rest are shuffled and split anywhere. others: what its other inputs hold each time, by name.
    """
    others = others or {}
    _inputs_of(stream, [name, *others])
    if not stream.sources[name].combine:
        raise DeclarationError(f"input {name} of stream {stream.name} has no combiner", hint="Input(..., combine=...)")
    beside = {other: _frame(spark, stream.inputs[other], rows) for other, rows in others.items()}
    chance = random.Random(seed)
    reading = RecordDecoder.of_input(stream.sources[name], combine=True, keep_records=False)
    found = []
    for number in range(tries):
        order, cuts = list(given), []
        if number:
            chance.shuffle(order)
            cuts = sorted(chance.choices(range(len(order) + 1), k=chance.choice([1, 3, 20, 100])))
        if number == 1:
            cuts = list(range(min(len(order), ALONE)))
        parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True) if a < b]
        combined = [batch for part in parts for batch in reading(iter([_arrow(stream.sources[name], part)]))]
        frame = spark.createDataFrame(pa.Table.from_batches(combined, reading.output_schema))
        frame = _good(frame, stream.sources[name])
        found.append([row.asDict(recursive=True) for row in stream.transform(**{name: frame}, **beside).collect()])
    return found


def _inputs_of(stream: Stream, names: Collection[str]) -> None:
    """DeclarationError if these are not the inputs of the stream."""
    if set(names) != stream.inputs.keys():
        raise DeclarationError(
            f"stream {stream.name} has other inputs", got=", ".join(names) or "none", hint=", ".join(stream.inputs)
        )


def _frame(spark: SparkSession, given: Input | Table, rows: Iterable[Given]) -> DataFrame:
    if isinstance(given, Table):
        fields = given.fields
        names = ["key", *(f.name for f in fields)]
        made = [tuple(_dict(row).get(n) for n in names) for row in rows]
        return spark.createDataFrame(made, topic_reader.table_ddl(fields))
    raw = [_record(given, offset, row) for offset, row in enumerate(rows)]
    # One slice: what comes in one batch is combined in one piece.
    source = spark.createDataFrame(raw, RECORDS).coalesce(1)
    return _good(decode.decode_records(source, given, F.current_timestamp()), given)


def _good(found: DataFrame, given: Input) -> DataFrame:
    """Decoded rows as the transform gets them; DeclarationError if one is bad."""
    if given.schema and (
        bad := found.where(f"{columnar.BAD_COLUMN}").select(f"{columnar.SOURCE_RECORD_COLUMN}.*").collect()
    ):
        raise DeclarationError(
            f"a record is none of input {given.source}",
            got=bytes(bad[0].value or b"").decode(errors="replace"),
            hint=bad[0].reason,
        )
    return decode.drop_heartbeats(found.drop(columnar.BAD_COLUMN, columnar.SOURCE_RECORD_COLUMN))


def _arrow(given: Input, rows: Sequence[Given]) -> pa.RecordBatch:
    """Records as a worker gets them."""
    made = [_record(given, offset, row) for offset, row in enumerate(rows)]
    found = {name: [row[i] for row in made] for i, name in enumerate(NAMES)}
    kinds = {field.name: field.type for field in columnar.RECORD_TYPE}
    arrays = {name: pa.array(found[name], kinds[name]) for name in columnar.RAW if name != "topic" or not given.topic}
    micros = timedelta(microseconds=1)
    horizon = LAST if given.max_ahead is None else int(time.time() * 1e6) + given.max_ahead // micros
    own = [(at - EPOCH) // micros for at in found["timestamp"]]
    clock = [horizon if given.schema else at for at in own]
    arrays |= {"clock": pa.array(clock, pa.int64()), "beat": pa.nulls(len(made), pa.int32())}
    return pa.RecordBatch.from_pydict(arrays)


def _record(given: Input, offset: int, row: Given) -> tuple[Any, ...]:
    source = given.topic.name if given.topic else "topic"
    if isinstance(row, Record):
        place = row.topic, row.partition, offset if row.offset < 0 else row.offset
        headers = [(name, text.encode()) for name, text in row.headers]
        return _bytes(row.key), _bytes(row.value), *place, _at(row.timestamp), headers
    known: dict[str, Any] = {"topic": source, "partition": 0, "offset": offset, "timestamp": 0}
    if given.schema or not isinstance(row, Mapping):
        known["value"] = json.dumps(row) if isinstance(row, Mapping) else row
    else:
        known |= row
    key, value = (_bytes(known.get(name)) for name in ("key", "value"))
    return key, value, known["topic"], known["partition"], known["offset"], _at(known["timestamp"]), None


def _at(millis: int) -> datetime:
    return EPOCH + timedelta(milliseconds=millis)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _dict(row: Given) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise DeclarationError("a row of a table is a dict", got=repr(row))
    return row
