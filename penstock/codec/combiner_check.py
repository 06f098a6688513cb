"""Checks a combiner with an empty table, before there are records."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from penstock.codec.columnar import EVENT_TIME, RECORD_TYPE, DecoderQueries, RecordDecoder
from penstock.codec.json_sql import INTEGERS
from penstock.errors import DeclarationError
from penstock.model.input import Input

# Casts that would drop a fraction or a time of day.
LOSSY_CASTS = {("DOUBLE", "int"), ("FLOAT", "int"), ("DECIMAL", "int"), ("TIMESTAMP", "date")}
EXTRA_TYPES: dict[str, pa.DataType] = {"clock": pa.int64(), "beat": pa.int32()}


def check_combiner(input_: Input) -> None:
    """Raises DeclarationError if an input's combiner cannot work: event time, query or result types."""
    if input_.combine is None:
        return
    decoder, label = (
        RecordDecoder.of_input(input_, combine=True, keep_records=False),
        f"the combiner of input {input_.source}",
    )
    if not decoder.computes_event_time:
        raise DeclarationError(
            f"{label} needs an event time that DuckDB can compute",
            got=input_.event_time,
            hint="declare timestamp_millis(field), timestamp_seconds(field), timestamp_micros(field) or a field of "
            "type TIMESTAMP; for raw records `timestamp`",
        )
    kinds = EXTRA_TYPES | {field.name: field.type for field in RECORD_TYPE}
    columns = pa.schema([(name, kinds[name]) for name in decoder.input_columns])
    try:
        types = DecoderQueries(decoder).combiner_types(columns.empty_table())
    except duckdb.Error as e:
        raise DeclarationError(
            f"{label} is refused by DuckDB",
            got=" ".join(str(e).split()),
            hint="its query must read the table `records` and return the columns of its schema and event_time: "
            f"{', '.join(field.name for field in decoder.output_fields)}, max(event_time) AS event_time",
        ) from e
    if not (kind := types[EVENT_TIME]).startswith("TIMESTAMP"):
        raise DeclarationError(
            f"{label} returns an event_time that is no timestamp", got=kind, hint=f"max(event_time) AS {EVENT_TIME}"
        )
    for field in decoder.output_fields:
        kind = types[field.name.lower()]
        target = "int" if field.type.kind in INTEGERS else field.type.kind
        loses = (kind.partition("(")[0].partition(" ")[0], target) in LOSSY_CASTS and not kind.endswith(",0)")
        if loses or (kind.endswith("]") and target not in ("array", "string")):
            raise DeclarationError(
                f"{label} returns values that its schema would truncate",
                got=f"{field.name}: {kind}, declared {field.type.kind.upper()}",
                hint="declare the type that the query returns, or round in the query",
            )
