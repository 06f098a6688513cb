"""Checks a combiner with an empty table, before there are records."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from penstock.codec.columnar import EVENT_TIME, RECORD_TYPE, DecoderQueries, RecordDecoder
from penstock.codec.json_sql import INTEGERS
from penstock.errors import DeclarationError
from penstock.model.input import Input

# What is cut off where a value is put into a type without fractions, or a day.
LOSSY_CASTS = {("DOUBLE", "int"), ("FLOAT", "int"), ("DECIMAL", "int"), ("TIMESTAMP", "date")}
EXTRA_TYPES: dict[str, pa.DataType] = {"clock": pa.int64(), "beat": pa.int32()}


def check_combiner(given: Input) -> None:
    """Raises DeclarationError if an input's combiner cannot work: event time, query or result types."""
    if given.combine is None:
        return
    reading, what = RecordDecoder.of_input(given, combine=True, keep=False), f"the combiner of input {given.source}"
    if not reading.computes_event_time:
        raise DeclarationError(
            f"{what} cannot know the event time",
            got=given.event_time,
            hint="declare timestamp_millis(field), timestamp_seconds(field), timestamp_micros(field) or a field of "
            "type TIMESTAMP; of raw records it is `timestamp`",
        )
    kinds = EXTRA_TYPES | {field.name: field.type for field in RECORD_TYPE}
    sends = pa.schema([(name, kinds[name]) for name in reading.input_columns])
    try:
        found = DecoderQueries(reading).combiner_types(sends.empty_table())
    except duckdb.Error as e:
        raise DeclarationError(
            f"{what} is refused by DuckDB",
            got=" ".join(str(e).split()),
            hint="its query reads the table `records` and gives the columns of its schema and event_time: "
            f"{', '.join(field.name for field in reading.output_fields)}, max(event_time) AS event_time",
        ) from e
    if not (kind := found[EVENT_TIME]).startswith("TIMESTAMP"):
        raise DeclarationError(
            f"{what} gives an event_time that is no time", got=kind, hint=f"max(event_time) AS {EVENT_TIME}"
        )
    for field in reading.output_fields:
        kind = found[field.name.lower()]
        into = "int" if field.type.kind in INTEGERS else field.type.kind
        cut = (kind.partition("(")[0].partition(" ")[0], into) in LOSSY_CASTS and not kind.endswith(",0)")
        if cut or (kind.endswith("]") and into not in ("array", "string")):
            raise DeclarationError(
                f"{what} gives values that its schema cannot hold whole",
                got=f"{field.name}: {kind}, declared {field.type.kind.upper()}",
                hint="declare the type that the query gives, or let the query round as is meant",
            )
