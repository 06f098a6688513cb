"""Records decoded and combined in columns: Arrow batches in, Arrow batches out, by DuckDB; no row is touched by Python.

Runs in Spark's Python workers, and knows nothing of Spark. In: `key BINARY, value BINARY, partition INT, offset BIGINT,
timestamp TIMESTAMP, horizon BIGINT` (the latest event time that is allowed, epoch microseconds) and, for a pattern,
`topic STRING`. Out: the columns of `Reading.layout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import duckdb
import pyarrow as pa

from penstock.declare.inputs import Combiner, Input
from penstock.declare.schema import Field, Type, schema
from penstock.records import json, reasons, times
from penstock.records.heartbeat import BEAT_KEY

# What one query of DuckDB takes: with a tenth of it half the gain is lost, and more only takes memory.
ROWS = 200_000
BYTES = 64 * 1024 * 1024
RAW = ("topic", "partition", "offset", "key", "value", "timestamp")
RECORD = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP, reason STRING"
EVENT_TIME, BEAT, BAD, KEPT = "event_time", "_beat", "_bad", "_record"

ARROW: dict[str, pa.DataType] = {
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
        ("topic", ARROW["string"]),
        ("partition", ARROW["int"]),
        ("offset", ARROW["bigint"]),
        ("key", ARROW["binary"]),
        ("value", ARROW["binary"]),
        ("timestamp", ARROW["timestamp"]),
        ("reason", ARROW["string"]),
    ]
)

OWN = pa.schema([(EVENT_TIME, ARROW["timestamp"]), (BEAT, pa.bool_()), (BAD, pa.bool_()), (KEPT, RECORD_TYPE)])


def arrow(of: Type) -> pa.DataType:
    """A type as Spark exchanges it."""
    match of.kind:
        case "array":
            assert of.element
            return pa.list_(pa.field("element", arrow(of.element)))
        case "map":
            assert of.element
            return pa.map_(pa.string(), arrow(of.element))
        case "struct":
            return pa.struct([(f.name, arrow(f.type)) for f in of.fields])
    return ARROW[of.kind]


@dataclass(frozen=True)
class Reading:
    """How an input with a schema, or a combiner of raw records, is read: what a worker needs of its declaration.

    ddl: its schema, empty for raw records. combine: groups what was decoded, if it is wanted. keep: with each row the
    record it was, else only with those that are none.
    """

    topic: str
    what: str
    ddl: str
    event_time: str
    combine: Combiner | None
    keep: bool

    @classmethod
    def of(cls, given: Input, *, combine: bool, keep: bool) -> Reading:
        topic = given.topic.name if given.topic else ""
        return cls(
            topic, f"input {given.source}", given.schema, given.event_time, given.combine if combine else None, keep
        )

    @property
    def fields(self) -> tuple[Field, ...]:
        return schema(self.ddl, self.what) if self.ddl else ()

    @property
    def timed(self) -> bool:
        """Whether the event time is told here; else Spark evaluates it, and may find more bad records."""
        return times.micros(self.event_time, self.fields) is not None

    @property
    def columns(self) -> tuple[Field, ...]:
        """What the transform gets beside the event time."""
        if self.combine:
            return schema(self.combine.schema, f"the combiner of {self.what}", of_json=False)
        return self.fields

    @cached_property
    def layout(self) -> pa.Schema:
        rows = [pa.field(f.name, arrow(f.type)) for f in self.columns]
        return pa.schema([*rows, *OWN])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode and combine; the order of records is not kept."""
        sql = _queries(self)
        for table in gathered(batches):
            yield from sql.run(table)


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together until they are worth a query."""
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
def _queries(reading: Reading) -> Queries:
    return Queries(reading)


class Queries:
    """The SQL of one reading, made once."""

    def __init__(self, reading: Reading) -> None:
        self._layout = reading.layout
        self._con = connection()
        beat = f"coalesce(_key = '{BEAT_KEY.decode()}'::BLOB, false)"
        raw = ", ".join(f"_{name}" for name in RAW)
        moment = "epoch_us(_timestamp)"
        if reading.ddl:
            self._decoded = self._of_schema(reading, raw, beat, moment)
            good = [json.name(f.name) for f in reading.fields]
        else:
            at = f"CASE WHEN {moment} > _horizon AND NOT {beat} THEN _horizon ELSE {moment} END"
            self._decoded = f"SELECT {raw}, _text, {beat} AS _beat, {at} AS _at, false AS _bad FROM records_in"
            good = [*(f'_{name} AS "{name}"' for name in RAW), "_text AS text"]
        at = "make_timestamptz(_at) AS event_time"
        beside = f"{at}, _beat, _bad, {self._record(reading)} AS _record FROM decoded"
        if reading.combine:
            names = ", ".join(json.name(f.name) for f in reading.columns)
            self._wanted = (
                f"WITH records AS MATERIALIZED (SELECT {', '.join(good)}, {at} FROM decoded "
                "WHERE NOT _beat AND NOT _bad) "
                f"SELECT {names}, event_time, false AS _beat, false AS _bad FROM ({reading.combine.sql})"
            )
            self._others = f"SELECT {beside} WHERE _beat OR _bad"
        else:
            self._wanted = f"SELECT {', '.join(good)}, {beside}"
            self._others = ""
        self._topic = reading.topic

    @staticmethod
    def _of_schema(reading: Reading, raw: str, beat: str, moment: str) -> str:
        """Values of the fields, event time and verdict of each record."""
        fields = reading.fields
        values = [json.value(f"_k[{i}]", f.type) for i, f in enumerate(fields, 1)]
        names = [json.name(f.name) for f in fields]
        bad = [
            f"{n} IS NULL" if f.required else json.wrong(f"_k[{i}]", n)
            for i, (f, n) in enumerate(zip(fields, names, strict=True), 1)
        ]
        at = times.micros(reading.event_time, fields)
        if at is None:
            at = "NULL::BIGINT"
        else:
            bad += ["_at IS NULL", "_at > _horizon"]
        named = ", ".join(f"{v} AS {n}" for v, n in zip(values, names, strict=True))
        cut = json.record("_text", fields)
        return (
            f"SELECT *, NOT _beat AND (_k IS NULL OR {' OR '.join(bad)}) AS _bad FROM ("
            f"SELECT *, CASE WHEN _beat THEN {moment} ELSE {at} END AS _at FROM ("
            f"SELECT *, {named} FROM ("
            f"SELECT {raw}, _text, _horizon, {beat} AS _beat, {cut} AS _k FROM records_in)))"
        )

    @staticmethod
    def _record(reading: Reading) -> str:
        why = reasons.reason(reading.fields, reading.event_time) if reading.ddl else "NULL"
        packed = ", ".join(f'"{n}" := _{n}' for n in RAW)
        made = f"struct_pack({packed}, reason := CASE WHEN _bad THEN {why} END)"
        # Spark may find bad what looks good here, where it is Spark that knows the event time.
        always = reading.keep or (bool(reading.ddl) and not reading.timed)
        return made if always else f"CASE WHEN _bad THEN {made} END"

    def run(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of raw records; those of some large ones by halves: the parser takes 16 times their size."""
        try:
            # All of them before the first is given: a half must not give them again.
            yield from list(self._made(table))
        except duckdb.OutOfMemoryException:
            if table.num_rows == 1:
                raise
            half = table.num_rows // 2
            yield from self.run(table.slice(0, half))
            yield from self.run(table.slice(half))

    def _made(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        con = self._con
        con.register("records_in", self._named(table))
        try:
            if not self._others:
                yield from self._given(f"WITH decoded AS ({self._decoded}) {self._wanted}")
                return
            con.register("decoded", con.sql(self._decoded).to_arrow_table())
            try:
                yield from self._given(self._wanted)
                yield from self._given(self._others)
            finally:
                con.unregister("decoded")
        finally:
            con.unregister("records_in")

    def _named(self, table: pa.Table) -> pa.Table:
        """The source's columns under names that no field may have, and the value as text."""
        named = table.rename_columns([f"_{name}" for name in table.column_names])
        if self._topic:
            # One topic is not sent with every record.
            named = named.append_column("_topic", pa.repeat(self._topic, len(table)))
        return named.append_column("_text", texts(table["value"]))

    def _given(self, sql: str) -> Iterator[pa.RecordBatch]:
        found = self._con.sql(sql).to_arrow_table()
        if not found.num_rows:
            return
        have = set(found.column_names)
        columns = [
            found[field.name].cast(field.type) if field.name in have else pa.nulls(found.num_rows, field.type)
            for field in self._layout
        ]
        yield from pa.Table.from_arrays(columns, schema=self._layout).to_batches()


def texts(values: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Values as text; NULL for one that is no UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_text(v) for v in values.to_pylist()], pa.string())])


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
