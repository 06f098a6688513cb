"""Decodes and combines records in columns, by DuckDB, without a loop over rows in Python.

It runs in Spark's Python workers and does not use Spark. The input is `RecordDecoder.input_columns` of `key BINARY,
value BINARY, topic STRING, partition INT, offset BIGINT`; `beat INT`, the partition of a record that has the key of
heartbeats; and `clock BIGINT`, in epoch microseconds the time of a raw record, else the latest event time allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec import event_time as times
from penstock.codec import json_sql, validation
from penstock.codec.arrow_types import ARROW_TYPES, arrow_type
from penstock.codec.formats import value_decoder
from penstock.codec.heartbeat import HEARTBEAT_KEY, HeartbeatSigner
from penstock.codec.registry_values import TEXT, RegistryValues
from penstock.codec.registry_verdicts import RegistryVerdicts
from penstock.codec.text import as_text
from penstock.errors import DeclarationError
from penstock.model.input import Combiner, Input
from penstock.model.schema import schema
from penstock.model.topic import reader_fields
from penstock.model.types import Field, Type
from penstock.registry.endpoint import RegistryEndpoint

T = TypeVar("T")

# Rows and bytes of one query of DuckDB. A tenth of it loses half of the speed; more only needs memory.
ROWS = 200_000
BYTES = 32 * 1024 * 1024
RAW = ("topic", "partition", "offset", "key", "value")
RECORD = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, reason STRING"
# Further columns of records that the transform gets unchanged. Headers are JSON: Spark computes the size of a batch for
# each row that it sends to Python, which costs more than all else if it has a column of lists.
RECORD_METADATA = "timestamp TIMESTAMP, headers STRING"
# A raw record has no fields that could be invalid.
RAW_VALIDATED = (
    f"SELECT *, {validation.IS_HEARTBEAT} AS _beat, false AS _bad, coalesce(_beat_at, _clock) AS _at FROM records_in"
)
VALIDATION_COLUMNS = ("_at", "_beat", "_bad", "_row")
EVENT_TIME, HEARTBEAT_COLUMN, BAD_COLUMN, SOURCE_RECORD_COLUMN = "event_time", "_beat", "_bad", "_record"
TRACE_FIELD = Field("_trace_context", Type("string"))


def _struct_type(ddl: str) -> pa.StructType:
    return pa.struct([(name, ARROW_TYPES[kind.lower()]) for name, kind in map(str.split, ddl.split(", "))])


RECORD_TYPE, RECORD_METADATA_TYPE = _struct_type(RECORD), _struct_type(RECORD_METADATA)
ADDED_COLUMNS = pa.schema(
    [(EVENT_TIME, ARROW_TYPES["timestamp"]), (HEARTBEAT_COLUMN, pa.bool_()), (BAD_COLUMN, pa.bool_())]
)


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
        trace: whether a column `trace_context STRING` is handed on, as `_trace_context`.
        registry: how values are decoded that are in the wire format of a schema registry; None for JSON without it.
        endpoint: the schema registry by which raw values are judged, if the combiner reads that; None for that of this
            process's settings.
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
    trace: bool = False
    registry: RegistryValues | None = None
    endpoint: RegistryEndpoint | None = None

    @classmethod
    def of_input(
        cls, input_: Input, *, combine: bool, keep_records: bool, signer: HeartbeatSigner | None = None
    ) -> RecordDecoder:
        topic, combiner = input_.topic.name if input_.topic else "", input_.combine if combine else None
        label, tombstones = f"input {input_.source}", input_.tombstones == "keep"
        keep_records |= input_.record
        return cls(
            topic, label, input_.schema, input_.event_time, combiner, keep_records, signer, input_.record, tombstones,
            registry=RegistryValues(input_.registry_schema) if input_.registry_schema else None,
        )  # fmt: skip

    @property
    def fields(self) -> tuple[Field, ...]:
        return reader_fields(self.label, self.registry.schema if self.registry else self.ddl)

    @property
    def computes_event_time(self) -> bool:
        """Whether DuckDB computes the event time; else Spark does, and may find more invalid records."""
        return self.event_time_sql is not None

    @property
    def event_time_sql(self) -> str | None:
        """DuckDB SQL of the event time in epoch microseconds; None if only Spark can evaluate it."""
        timestamp = "epoch_us(_timestamp)"
        if self.whole_record and self.event_time.strip().lower() == "record.timestamp":
            return times.null_outside_calendar(timestamp)
        sql = times.event_time_sql(self.event_time, self.fields)
        timestamp = times.clamp_to_calendar(timestamp)
        return f"CASE WHEN _value IS NULL THEN {timestamp} ELSE {sql} END" if sql and self.tombstones else sql

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns to send; for raw records only those that the combiner reads, for speed."""
        topic = () if self.topic else ("topic",)
        if self.ddl or not self.combine:
            metadata, trace = ("timestamp", "headers") if self.whole_record else (), ("trace_context",) * self.trace
            decoded = ("decoded",) if self.registry and self.registry.has_decoded else ()
            return ("key", "value", "partition", "offset", "clock", *topic, *metadata, *trace, *decoded)
        records = (name for name in ("key", "partition", "offset") if name in self.combine.reads)
        return ("value", "clock", "beat", *topic, *records)

    @property
    def output_fields(self) -> tuple[Field, ...]:
        """The fields that the transform gets beside the event time."""
        if self.combine:
            return schema(self.combine.schema, f"the combiner of {self.label}", of_json=False)
        return (*self.fields, TRACE_FIELD) if self.trace else self.fields

    @cached_property
    def output_schema(self) -> pa.Schema:
        rows = [pa.field(f.name, arrow_type(f.type)) for f in self.output_fields]
        metadata = RECORD_METADATA_TYPE if self.whole_record else ()
        return pa.schema([*rows, *ADDED_COLUMNS, pa.field(SOURCE_RECORD_COLUMN, pa.struct([*RECORD_TYPE, *metadata]))])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode and combine batches; the order of records may change."""
        queries = _queries(self)
        for table in coalesce_batches(batches):
            yield from queries.run(table)


def coalesce_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Concatenates batches until they are large enough for one query."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS or size >= BYTES:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(pending)


@cache
def connection() -> duckdb.DuckDBPyConnection:
    """The process's DuckDB, in memory, with one thread: Spark runs a worker for each core."""
    duck = duckdb.connect(
        config={"threads": 1, "enable_external_access": False, "preserve_insertion_order": False, "memory_limit": "1GB"}
    )
    duck.execute("SET timezone = 'UTC'")
    return duck


@cache
def _queries(decoder: RecordDecoder) -> DecoderQueries:
    return DecoderQueries(decoder)


class DecoderQueries:
    """The queries of a decoder.

    A batch is decoded only to the columns that the next query needs. Records that are kept unchanged, mostly invalid
    ones, are few; they are decoded again with all columns.
    """

    def __init__(self, decoder: RecordDecoder, duck: duckdb.DuckDBPyConnection | None = None) -> None:
        self._layout, self._topic, self._label = decoder.output_schema, decoder.topic, decoder.label
        self._signer = decoder.signer
        self._values = value_decoder(decoder.registry) if decoder.registry else None
        judges = not decoder.ddl and decoder.combine and "registry" in decoder.combine.reads
        self._verdicts = RegistryVerdicts(decoder.endpoint) if judges else None
        self._lists = {f.name for f in decoder.output_fields if decoder.combine and f.type.kind == "array"}
        self._con = duck or connection()
        names = [json_sql.quote_name(f.name) for f in (decoder.fields if decoder.combine else decoder.output_fields)]
        event_time = "make_timestamptz(_at) AS event_time"
        # Decoded records are materialised since two queries read them; raw records need no decoding.
        self._decode_sql, source = "", f"({RAW_VALIDATED})"
        if decoder.ddl:
            self._decode_sql, source = (
                f"SELECT {', '.join([*names, *VALIDATION_COLUMNS])} FROM ({validation.validated_sql(decoder)})",
                "decoded",
            )
        else:
            assert decoder.combine, "raw records without a combiner need no decoder"
            columns = [name for name in RAW if name in decoder.input_columns or name == "topic"]
            names = [*(f'_{name} AS "{name}"' for name in columns), "_text AS text"]
            names += ["_registered AS registered", "_registry_error AS registry_error"] if judges else []
        if decoder.combine:
            typed = ", ".join(
                f"{json_sql.quote_name(f.name)}::{json_sql.duckdb_type(f.type)} AS {json_sql.quote_name(f.name)}"
                for f in decoder.output_fields
            )
            records = (
                f"WITH records AS (SELECT {', '.join(names)}, {event_time} FROM {source} WHERE NOT _beat AND NOT _bad) "
            )
            combiner = f"({_as_subquery(decoder.combine.sql)})"
            self._combine_sql = f"{records} SELECT * FROM {combiner}"
            self._good_sql = f"{records} SELECT {typed}, event_time, false AS _beat, false AS _bad FROM {combiner}"
        else:
            self._good_sql = f"SELECT {', '.join(names)}, {event_time}, _beat, _bad FROM {source} WHERE NOT _bad"
        self._combines = decoder.combine is not None
        # If Spark computes the event time, it may find more invalid records, whose source is then needed.
        self._always_full = decoder.keep_records or (bool(decoder.ddl) and not decoder.computes_event_time)
        if decoder.ddl:
            packed = ", ".join(f'"{name}" := _{name}' for name in RAW)
            metadata = "".join(
                f', "{field.name}" := _{field.name}' for field in (RECORD_METADATA_TYPE if decoder.whole_record else ())
            )
            validated = validation.validated_sql(decoder)
            reason_sql = f"CASE WHEN _bad THEN {validation.rejection_reason(decoder)} END"
            # A single record has no columns of the combiner.
            field_columns = "" if decoder.combine else f"{', '.join(names)}, "
            self._full_sql = (
                f"SELECT {field_columns}{event_time}, _beat, _bad, "
                f"struct_pack({packed}, reason := {reason_sql}{metadata}) AS _record FROM ({validated})"
            )
        else:
            self._full_sql = f"SELECT {event_time}, _beat, _bad FROM {source}"

    def combiner_types(self, columns: pa.Table) -> dict[str, str]:
        """Returns DuckDB's types of the combiner's columns by lower-case name; `columns` are empty input columns."""
        tables = {"records_in": self._prepared(columns)}
        if self._decode_sql:
            tables = {"decoded": self._execute(self._decode_sql, **tables)}
        self._execute(self._good_sql, **tables)
        described = self._execute(f"DESCRIBE {self._combine_sql}", **tables)
        names = (str(name).lower() for name in described["column_name"].to_pylist())
        return dict(zip(names, map(str, described["column_type"].to_pylist()), strict=True))

    def run(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Decode records; if memory is short, in halves, since the parser needs 16 times their size."""
        return _in_halves(table, self._decode_table)

    def fields(self, table: pa.Table) -> Iterator[pa.StructArray]:
        """Decode the values of records of an input with a schema, in their order. Memory is as for `run`.

        Yields:
            STRUCT of the fields of the schema; NULL for a value that is no record of it, or too large for the parser.
        """
        return _in_halves(table, self._fields)

    def _fields(self, table: pa.Table) -> Iterator[pa.StructArray]:
        fields = [field for field in self._layout if field.name not in (*ADDED_COLUMNS.names, SOURCE_RECORD_COLUMN)]
        try:
            decoded = self._query(self._decode_sql, records_in=self._prepared(table)).sort_by("_row").combine_chunks()
        except duckdb.OutOfMemoryException:
            if table.num_rows > 1:
                raise
            logging.getLogger(__name__).warning("%s: too large: %d bytes", self._label, table["value"].nbytes)
            yield pa.nulls(1, pa.struct(fields))
            return
        columns = [decoded[field.name].combine_chunks().cast(field.type) for field in fields]
        yield pa.StructArray.from_arrays(columns, fields=fields, mask=decoded[BAD_COLUMN].combine_chunks())

    def _decode_table(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        prepared = self._prepared(table)
        if self._always_full:
            yield from self._rows(self._full_sql, records_in=prepared)
            return
        if self._decode_sql:
            decoded = self._query(self._decode_sql, records_in=prepared)
            is_special = pc.or_(decoded["_beat"], decoded["_bad"]) if self._combines else decoded["_bad"]
            rows, tables = decoded["_row"].filter(is_special), {"decoded": decoded}
        else:
            # Heartbeats are not combined, and raw records are never invalid.
            rows, tables = prepared["_row"].filter(pc.is_valid(prepared["_beat_at"])), {"records_in": prepared}
        if len(rows) < len(prepared):
            yield from self._rows(self._good_sql, **tables)
        if len(rows):
            yield from self._rows(self._full_sql, records_in=prepared.take(rows))

    def _prepared(self, table: pa.Table) -> pa.Table:
        """The input columns under names that no field may have, and the value as text or as decoded."""
        columns = [name for name in table.column_names if name not in ("beat", "decoded")]
        prepared = table.select(columns).rename_columns([f"_{name}" for name in columns])
        prepared = prepared.append_column("_beat_at", self._heartbeat_times(table))
        if self._topic:
            # The name of a single topic is not sent with every record.
            prepared = prepared.append_column("_topic", pa.repeat(self._topic, len(table)))
        prepared = prepared.append_column("_row", pa.array(np.arange(len(table))))
        values = self._values.columns(table) if self._values else {TEXT: as_text(table["value"])}
        if self._verdicts:
            values |= self._verdicts.columns(prepared["_topic"], table["value"])
        for name, column in values.items():
            prepared = prepared.append_column(name, column)
        return prepared

    def _heartbeat_times(self, table: pa.Table) -> pa.Array[Any]:
        """Returns the time of verified heartbeats in epoch microseconds; NULL for other records."""
        has_beat = "beat" in table.column_names
        has_key = pc.is_valid(table["beat"]) if has_beat else pc.equal(table["key"], pa.scalar(HEARTBEAT_KEY))
        rows = pc.indices_nonzero(has_key).to_numpy()
        if self._signer is None or not len(rows):
            return pa.nulls(len(table), pa.int64())
        times, is_null = np.zeros(len(table), np.int64), np.ones(len(table), np.bool_)
        record: dict[str, Any]
        for row, record in zip(rows, table.take(rows).to_pylist(), strict=True):
            topic, partition = self._topic or record["topic"], record["beat" if has_beat else "partition"]
            time = self._signer.verified_time(topic, partition, record["value"])
            if time is not None:
                times[row], is_null[row] = time * 1000, False
        return pa.array(times, mask=is_null)

    def _rows(self, sql: str, **tables: pa.Table) -> Iterator[pa.RecordBatch]:
        result = self._query(sql, **tables)
        if not result.num_rows:
            return
        names = set(result.column_names)
        if without_time := result[EVENT_TIME].null_count if self._combines else 0:
            invalid = pc.sum(result[BAD_COLUMN]).as_py() or 0
            if without_time > invalid:
                raise DeclarationError(
                    f"the combiner of {self._label} returns rows without event_time",
                    got=f"{without_time - invalid} rows",
                    hint="return the greatest of each group: max(event_time) AS event_time",
                )
        for name in self._lists & names:
            if nulls := pc.list_flatten(result[name]).null_count:
                raise DeclarationError(
                    f"the combiner of {self._label} returns lists that contain NULL",
                    got=f"{nulls} in column {name}",
                    hint="exclude them with FILTER (WHERE ... IS NOT NULL)",
                )
        columns = [
            result[field.name].cast(field.type) if field.name in names else pa.nulls(result.num_rows, field.type)
            for field in self._layout
        ]
        yield from pa.Table.from_arrays(columns, schema=self._layout).to_batches()

    def _execute(self, sql: str, **tables: pa.Table) -> pa.Table:
        for name, table in tables.items():
            self._con.register(name, table)
        try:
            return cast("pa.Table", self._con.sql(sql).to_arrow_table())
        finally:
            for name in tables:
                self._con.unregister(name)

    def _query(self, sql: str, **tables: pa.Table) -> pa.Table:
        try:
            return self._execute(sql, **tables)
        except duckdb.ConversionException as e:
            raise DeclarationError(
                f"the combiner of {self._label} returns values that do not fit their declared type",
                got=str(e).splitlines()[0],
                hint="declare a wider type",
            ) from e
        except (duckdb.OutOfRangeException, duckdb.InvalidInputException) as e:
            raise DeclarationError(
                f"the combiner of {self._label} fails on these records",
                got=str(e).splitlines()[0],
                hint="change its query to accept every value of the input's types, with try_cast or a wider type",
            ) from e


def _in_halves(table: pa.Table, work: Callable[[pa.Table], Iterator[T]]) -> Iterator[T]:
    try:
        # Completed before the first result is yielded, since a failure starts again with halves.
        yield from list(work(table))
    except duckdb.OutOfMemoryException:
        if table.num_rows == 1:
            raise
        half = table.num_rows // 2
        yield from _in_halves(table.slice(0, half), work)
        yield from _in_halves(table.slice(half), work)


def _as_subquery(sql: str) -> str:
    """A query as a subquery; the newline ends a comment in its last line."""
    return f"{sql.rstrip().removesuffix(';')}\n"
