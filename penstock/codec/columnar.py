"""Records decoded and combined in columns: Arrow batches in, Arrow batches out, by DuckDB; no row is touched by Python.

Runs in Spark's Python workers, and knows nothing of Spark. In: the columns of `Reading.sends`, of `key BINARY, value
BINARY, topic STRING, partition INT, offset BIGINT, beat INT`, the partition of what has the key of heartbeats, and
`clock BIGINT`: in epoch microseconds, the time of a raw record, else the latest event time that is allowed. Out: the
columns of `Reading.layout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec import event_time as times
from penstock.codec import json_sql, rejection_reasons
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner
from penstock.codec.text import as_text
from penstock.errors import DeclarationError
from penstock.model.input import Combiner, Input
from penstock.model.schema import Field, Type, schema

# What one query of DuckDB takes: with a tenth of it half the gain is lost, and more only takes memory.
ROWS = 200_000
BYTES = 32 * 1024 * 1024
RAW = ("topic", "partition", "offset", "key", "value")
RECORD = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, reason STRING"
# What is kept of a record beside that where the transform gets it whole; headers as JSON: Spark weighs a batch for each
# row that it adds to it on its way to Python, a column of lists all over again, which cost more than all else together.
RECORD_METADATA = "timestamp TIMESTAMP, headers STRING"
IS_HEARTBEAT = "_beat_at IS NOT NULL"
# A raw record has no fields that could be wrong.
RAW_VALIDATED = f"SELECT *, {IS_HEARTBEAT} AS _beat, false AS _bad, coalesce(_beat_at, _clock) AS _at FROM records_in"
VALIDATION_COLUMNS = ("_at", "_beat", "_bad", "_row")
EVENT_TIME, HEARTBEAT_COLUMN, BAD_COLUMN, SOURCE_RECORD_COLUMN = "event_time", "_beat", "_bad", "_record"

ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
RECORD_TYPE = pa.struct(
    [
        ("topic", ARROW_TYPES["string"]),
        ("partition", ARROW_TYPES["int"]),
        ("offset", ARROW_TYPES["bigint"]),
        ("key", ARROW_TYPES["binary"]),
        ("value", ARROW_TYPES["binary"]),
        ("reason", ARROW_TYPES["string"]),
    ]
)
RECORD_METADATA_TYPE = pa.struct([("timestamp", ARROW_TYPES["timestamp"]), ("headers", ARROW_TYPES["string"])])
ADDED_COLUMNS = pa.schema(
    [(EVENT_TIME, ARROW_TYPES["timestamp"]), (HEARTBEAT_COLUMN, pa.bool_()), (BAD_COLUMN, pa.bool_())]
)


def arrow_type(of: Type) -> pa.DataType:
    """Returns the Arrow type with which Spark exchanges a type."""
    match of.kind:
        case "array":
            assert of.element
            return pa.list_(pa.field("element", arrow_type(of.element)))
        case "map":
            assert of.element
            return pa.map_(pa.string(), arrow_type(of.element))
        case "struct":
            return pa.struct([(f.name, arrow_type(f.type)) for f in of.fields])
    return ARROW_TYPES[of.kind]


@dataclass(frozen=True)
class RecordDecoder:
    """Decodes the records of an input by its schema, and applies its combiner. It is sent to Spark's workers.

    Attributes:
        topic: the topic, or empty if `topic` is an input column.
        label: names the input in messages.
        ddl: the schema; empty for raw records.
        event_time: the expression of the event time.
        combine: the combiner to apply, if any.
        keep_records: whether every row carries its source record; else only invalid ones do.
        signer: verifies heartbeats; None if there are none.
        whole_record: whether the source record includes timestamp and headers.
        tombstones: whether a record without a value is a row of NULLs.
    """

    topic: str
    label: str
    ddl: str
    event_time: str
    combine: Combiner | None
    keep_records: bool
    signer: HeartbeatSigner | None = None
    whole_record: bool = False
    tombstones: bool = False

    @classmethod
    def of_input(
        cls, given: Input, *, combine: bool, keep: bool, signer: HeartbeatSigner | None = None
    ) -> RecordDecoder:
        topic, combiner = given.topic.name if given.topic else "", given.combine if combine else None
        what, tombstones = f"input {given.source}", given.tombstones == "keep"
        keep |= given.record
        return cls(topic, what, given.schema, given.event_time, combiner, keep, signer, given.record, tombstones)

    @property
    def fields(self) -> tuple[Field, ...]:
        return schema(self.ddl, self.label) if self.ddl else ()

    @property
    def computes_event_time(self) -> bool:
        """Whether DuckDB computes the event time; else Spark does, and may find more invalid records."""
        return self.event_time_sql is not None

    @property
    def event_time_sql(self) -> str | None:
        """DuckDB SQL of the event time in epoch microseconds; None if only Spark can evaluate it."""
        own = "epoch_us(_timestamp)"
        if self.whole_record and self.event_time.strip().lower() == "record.timestamp":
            return times.null_outside_calendar(own)
        found = times.event_time_sql(self.event_time, self.fields)
        own = times.clamp_to_calendar(own)
        return f"CASE WHEN _value IS NULL THEN {own} ELSE {found} END" if found and self.tombstones else found

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns to send; for raw records only those that the combiner reads, since each has its cost."""
        topic = () if self.topic else ("topic",)
        if self.ddl or not self.combine:
            more = ("timestamp", "headers") if self.whole_record else ()
            return ("key", "value", "partition", "offset", "clock", *topic, *more)
        return (
            "value",
            "clock",
            "beat",
            *topic,
            *(n for n in ("key", "partition", "offset") if n in self.combine.reads),
        )

    @property
    def output_fields(self) -> tuple[Field, ...]:
        """The fields for the transform beside the event time."""
        if self.combine:
            return schema(self.combine.schema, f"the combiner of {self.label}", of_json=False)
        return self.fields

    @cached_property
    def output_schema(self) -> pa.Schema:
        rows = [pa.field(f.name, arrow_type(f.type)) for f in self.output_fields]
        more = RECORD_METADATA_TYPE if self.whole_record else ()
        return pa.schema([*rows, *ADDED_COLUMNS, pa.field(SOURCE_RECORD_COLUMN, pa.struct([*RECORD_TYPE, *more]))])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode and combine; the order of records is not kept."""
        sql = _queries(self)
        for table in coalesce_batches(batches):
            yield from sql.run(table)


def coalesce_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Concatenates batches until they are large enough for one query."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS or size >= BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


@cache
def connection() -> duckdb.DuckDBPyConnection:
    """The process's DuckDB, in memory and alone: Spark runs a worker for each core already."""
    made = duckdb.connect(
        config={"threads": 1, "enable_external_access": False, "preserve_insertion_order": False, "memory_limit": "1GB"}
    )
    made.execute("SET timezone = 'UTC'")
    return made


@cache
def _queries(reading: RecordDecoder) -> DecoderQueries:
    return DecoderQueries(reading)


class DecoderQueries:
    """The SQL of one reading, made once.

    A batch is decoded to what the next query needs and no more; records that are kept as they came, the bad ones
    above all, are few, and are decoded once more with all that belongs to them.
    """

    def __init__(self, reading: RecordDecoder) -> None:
        self._layout, self._topic, self._what = reading.output_schema, reading.topic, reading.label
        self._signer = reading.signer
        self._lists = {f.name for f in reading.output_fields if reading.combine and f.type.kind == "array"}
        self._con = connection()
        names = [json_sql.quote_name(f.name) for f in reading.fields]
        at = "make_timestamptz(_at) AS event_time"
        # What is decoded is put down before it is looked at twice; raw records are all there already.
        self._decode_sql, source = "", f"({RAW_VALIDATED})"
        if reading.ddl:
            self._decode_sql, source = (
                f"SELECT {', '.join([*names, *VALIDATION_COLUMNS])} FROM ({_validated_sql(reading)})",
                "decoded",
            )
        else:
            assert reading.combine, "raw records that are not combined need no reading"
            sent = [name for name in RAW if name in reading.input_columns or name == "topic"]
            names = [*(f'_{name} AS "{name}"' for name in sent), "_text AS text"]
        if reading.combine:
            given = ", ".join(
                f"{json_sql.quote_name(f.name)}::{json_sql.duckdb_type(f.type)} AS {json_sql.quote_name(f.name)}"
                for f in reading.output_fields
            )
            records = f"WITH records AS (SELECT {', '.join(names)}, {at} FROM {source} WHERE NOT _beat AND NOT _bad) "
            combined = f"({_as_subquery(reading.combine.sql)})"
            self._combine_sql = f"{records} SELECT * FROM {combined}"
            self._good_sql = f"{records} SELECT {given}, event_time, false AS _beat, false AS _bad FROM {combined}"
        else:
            self._good_sql = f"SELECT {', '.join(names)}, {at}, _beat, _bad FROM {source} WHERE NOT _bad"
        self._combines = reading.combine is not None
        # Spark may find bad what looks good here, where it is Spark that knows the event time.
        self._always_full = reading.keep_records or (bool(reading.ddl) and not reading.computes_event_time)
        if reading.ddl:
            packed = ", ".join(f'"{name}" := _{name}' for name in RAW)
            more = "".join(
                f', "{field.name}" := _{field.name}' for field in (RECORD_METADATA_TYPE if reading.whole_record else ())
            )
            said = rejection_reasons.rejection_reason(reading.fields, reading.event_time, tombstones=reading.tombstones)
            why = f"CASE WHEN _bad THEN {said} END"
            # Of a combiner's columns a record by itself has none.
            own = "" if reading.combine else f"{', '.join(names)}, "
            self._full_sql = (
                f"SELECT {own}{at}, _beat, _bad, struct_pack({packed}, reason := {why}{more}) AS _record "
                f"FROM ({_validated_sql(reading)})"
            )
        else:
            self._full_sql = f"SELECT {at}, _beat, _bad FROM {source}"

    def combiner_types(self, sends: pa.Table) -> dict[str, str]:
        """Returns DuckDB's types of the combiner's columns by lower-case name. sends: the input columns, empty."""
        tables = {"records_in": self._prepared(sends)}
        if self._decode_sql:
            tables = {"decoded": self._execute(self._decode_sql, **tables)}
        self._execute(self._good_sql, **tables)
        kinds = self._execute(f"DESCRIBE {self._combine_sql}", **tables)
        names = (str(name).lower() for name in kinds["column_name"].to_pylist())
        return dict(zip(names, map(str, kinds["column_type"].to_pylist()), strict=True))

    def run(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of raw records; those of some large ones by halves: the parser takes 16 times their size."""
        try:
            # All of them before the first is given: a half must not give them again.
            yield from list(self._decode_table(table))
        except duckdb.OutOfMemoryException:
            if table.num_rows == 1:
                raise
            half = table.num_rows // 2
            yield from self.run(table.slice(0, half))
            yield from self.run(table.slice(half))

    def _decode_table(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        given = self._prepared(table)
        if self._always_full:
            yield from self._rows(self._full_sql, records_in=given)
            return
        if self._decode_sql:
            decoded = self._query(self._decode_sql, records_in=given)
            apart = pc.or_(decoded["_beat"], decoded["_bad"]) if self._combines else decoded["_bad"]
            rows, tables = decoded["_row"].filter(apart), {"decoded": decoded}
        else:
            # A combiner is not given beats, and raw records are never bad.
            rows, tables = given["_row"].filter(pc.is_valid(given["_beat_at"])), {"records_in": given}
        if len(rows) < len(given):
            yield from self._rows(self._good_sql, **tables)
        if len(rows):
            yield from self._rows(self._full_sql, records_in=given.take(rows))

    def _prepared(self, table: pa.Table) -> pa.Table:
        """The source's columns under names that no field may have, and the value as text."""
        sent = [name for name in table.column_names if name != "beat"]
        named = table.select(sent).rename_columns([f"_{name}" for name in sent])
        named = named.append_column("_beat_at", self._heartbeat_times(table))
        if self._topic:
            # One topic is not sent with every record.
            named = named.append_column("_topic", pa.repeat(self._topic, len(table)))
        named = named.append_column("_row", pa.array(np.arange(len(table))))
        return named.append_column("_text", as_text(table["value"]))

    def _heartbeat_times(self, table: pa.Table) -> pa.Array[Any]:
        """Returns the time of verified heartbeats in epoch microseconds; NULL for other records."""
        sent = "beat" in table.column_names
        keyed = pc.is_valid(table["beat"]) if sent else pc.equal(table["key"], pa.scalar(HEARTBEAT_KEY))
        rows = pc.indices_nonzero(keyed).to_numpy()
        if self._signer is None or not len(rows):
            return pa.nulls(len(table), pa.int64())
        at, none = np.zeros(len(table), np.int64), np.ones(len(table), np.bool_)
        record: dict[str, Any]
        for row, record in zip(rows, table.take(rows).to_pylist(), strict=True):
            topic, partition = self._topic or record["topic"], record["beat" if sent else "partition"]
            found = self._signer.verified_time(topic, partition, record["value"])
            if found is not None:
                at[row], none[row] = found * 1000, False
        return pa.array(at, mask=none)

    def _rows(self, sql: str, **tables: pa.Table) -> Iterator[pa.RecordBatch]:
        found = self._query(sql, **tables)
        if not found.num_rows:
            return
        have = set(found.column_names)
        if timeless := found[EVENT_TIME].null_count if self._combines else 0:
            bad = pc.sum(found[BAD_COLUMN]).as_py() or 0
            if timeless > bad:
                raise DeclarationError(
                    f"the combiner of {self._what} gives rows without event_time",
                    got=f"{timeless - bad} rows",
                    hint="give the greatest of each group: max(event_time) AS event_time",
                )
        for name in self._lists & have:
            if holes := pc.list_flatten(found[name]).null_count:
                raise DeclarationError(
                    f"the combiner of {self._what} gives lists that hold NULL",
                    got=f"{holes} in its column {name}",
                    hint="leave them out with FILTER (WHERE ... IS NOT NULL)",
                )
        columns = [
            found[field.name].cast(field.type) if field.name in have else pa.nulls(found.num_rows, field.type)
            for field in self._layout
        ]
        yield from pa.Table.from_arrays(columns, schema=self._layout).to_batches()

    def _execute(self, sql: str, **tables: pa.Table) -> pa.Table:
        for name, table in tables.items():
            self._con.register(name, table)
        try:
            found: pa.Table = self._con.sql(sql).to_arrow_table()
            return found
        finally:
            for name in tables:
                self._con.unregister(name)

    def _query(self, sql: str, **tables: pa.Table) -> pa.Table:
        try:
            return self._execute(sql, **tables)
        except duckdb.ConversionException as e:
            raise DeclarationError(
                f"the combiner of {self._what} gives values that their declared type cannot hold",
                got=str(e).splitlines()[0],
                hint="declare a wider type",
            ) from e
        except (duckdb.OutOfRangeException, duckdb.InvalidInputException) as e:
            raise DeclarationError(
                f"the combiner of {self._what} fails on these records",
                got=str(e).splitlines()[0],
                hint="let its query take every value of the input's types, with try_cast or a wider type",
            ) from e


def _as_subquery(sql: str) -> str:
    """A query that stands in another: a comment at its end must not swallow what follows."""
    return f"{sql.rstrip().removesuffix(';')}\n"


def _validated_sql(reading: RecordDecoder) -> str:
    """Each record with its fields' values, event time and verdict; all else of it beside them."""
    fields = reading.fields
    none = ["_k IS NULL", *(json_sql.is_field_invalid("_k", f, json_sql.quote_name(f.name), "_text") for f in fields)]
    at = reading.event_time_sql
    timeless = ["_at IS NULL", "_at > _clock"] if at is not None else []
    bad = " OR ".join([*none, *timeless])
    if reading.tombstones:
        bad = f"CASE WHEN _value IS NULL THEN {' OR '.join(timeless) or 'false'} ELSE {bad} END"
    values = ", ".join(f"{json_sql.field_value('_k', f, '_text')} AS {json_sql.quote_name(f.name)}" for f in fields)
    return (
        f"SELECT *, NOT _beat AND ({bad}) AS _bad FROM ("
        f"SELECT *, CASE WHEN _beat THEN _beat_at ELSE {at or 'NULL::BIGINT'} END AS _at FROM ("
        f"SELECT *, {values} FROM ("
        f"SELECT *, {IS_HEARTBEAT} AS _beat, {json_sql.parse_record('_text', fields)} AS _k FROM records_in)))"
    )
