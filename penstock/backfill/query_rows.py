"""The rows of a backfill's query: what is refused, and how they are encoded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as of_arrow

from penstock.backfill.job import BackfillJob
from penstock.backfill.os_errors import NO_ROOM
from penstock.codec.arrow_types import arrow_type
from penstock.codec.registry_values import ValueEncoder
from penstock.errors import DeclarationError
from penstock.model.output import Columns, TopicOutput
from penstock.model.registry_schema import RegistrySchema
from penstock.registry import client

# DuckDB types that have exactly one JSON text, which matters most for keys.
JSON_SAFE_TYPE = re.compile(
    r"(VARCHAR|BOOLEAN|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL\([0-9, ]+\)|STRUCT"
    r"|\"[^\"]*\"|\w+ |[(),\[\] ])+"
)
# Rows that are encoded together.
ROWS = 20_000


def check_query(connection: duckdb.DuckDBPyConnection, label: str, query: str, output: TopicOutput) -> None:
    """Raises DeclarationError if the query is invalid, or lacks columns of its output."""
    try:
        described = connection.execute(f"DESCRIBE ({query.strip().rstrip(';')}\n)").fetchall()
    except duckdb.Error as e:
        raise DeclarationError(
            f"{label}: its query is invalid", got=str(e).splitlines()[0], hint="write a SELECT of DuckDB over records"
        ) from e
    kinds = {str(name).lower(): str(kind) for name, kind, *_ in described}
    keys, values = _column_names(output.key), _column_names(output.value)
    required = [*keys, *values]
    if missing := [name for name in required if name.lower() not in kinds]:
        raise DeclarationError(
            f"{label}: its query lacks columns of its output",
            got=f"{', '.join(kinds)}; lacking {', '.join(missing)}",
            hint="select these columns, or remove them from the output's key and value",
        )
    as_json = required if output.topic.registry_schema is None else keys
    if unsafe := {name: kinds[name.lower()] for name in as_json if not JSON_SAFE_TYPE.fullmatch(kinds[name.lower()])}:
        raise DeclarationError(
            f"{label}: its query returns columns without a unique JSON text",
            got=", ".join(f"{name} {kind}" for name, kind in unsafe.items()),
            hint="cast them: times as epoch_ms(...), bytes as hex(...), all else as text",
        )


@contextmanager
def query_errors(label: str) -> Iterator[None]:
    """Raise what DuckDB raises of a query that is valid as DeclarationError: it fails on a value.

    Errors of memory, of the disk and of signals are those of the run.
    """
    try:
        yield
    except (*NO_ROOM, duckdb.InterruptException):
        raise
    except duckdb.Error as e:
        raise DeclarationError(
            f"{label}: its query fails on these records",
            got=str(e).splitlines()[0],
            hint="let it take every value, such as with try_cast, or exclude these records by WHERE",
        ) from e


def _column_names(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def json_sql(columns: Columns) -> str:
    """SQL of an output's key or value: one column as text, several as a JSON object."""
    if isinstance(columns, str):
        return f'encode(CAST("{columns}" AS VARCHAR))'
    fields = ", ".join(f'"{name}" := "{name}"' for name in columns)
    return f"encode(CAST(to_json(struct_pack({fields})) AS VARCHAR))"


def schema_id(job: BackfillJob, schema: RegistrySchema, topic: str) -> int:
    """The id of the schema of a backfill's rows; the run registers it, unless it is a dry one."""
    if job.dry_run:
        return 0
    return client.register(schema.subject_of(topic), schema.text, schema.kind)


def encoded_rows(label: str, rows: duckdb.DuckDBPyRelation, encoder: ValueEncoder[Any]) -> Iterator[pa.Table]:
    """Encode the rows of a query.

    Args:
        label: Names the backfill in messages.
        rows: The first column is the key, BINARY; behind it is one for each field of the schema.
        encoder: Of the schema.

    Yields:
        Tables of `key` and `value`.

    Raises:
        DeclarationError: A column has a type, or a row a value, that its field cannot have.
    """
    kind = type(encoder.schema).__name__
    for batch in rows.to_arrow_reader(ROWS):
        # A field may have the name `_key` too.
        keys, named = batch.column(0), dict(zip(map(str.lower, batch.schema.names[1:]), batch.columns[1:], strict=True))
        columns = {
            field.name: _cast(label, field.name, kind, named[field.name.lower()], arrow_type(field.type))
            for field in encoder.schema.fields
        }
        values, reasons = encoder.encode(columns)
        if reasons:
            row, reason = min(reasons.items())
            key = bytes(keys[row].as_py() or b"").decode(errors="replace")
            raise DeclarationError(
                f"{label}: a row does not fit the {kind} schema of its topic",
                got=f"key {key}: {reason}",
                hint="exclude it by WHERE, give it another value, or change the schema",
            )
        yield pa.table({"key": keys, "value": pa.array(values, pa.binary())})


def _cast(label: str, name: str, kind: str, column: pa.Array[Any], to: pa.DataType) -> pa.Array[Any]:
    try:
        if of_arrow.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not _is_same_kind(column.type, to):
            raise pa.ArrowInvalid(f"{column.type} for {to}")
        return column.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
        raise DeclarationError(
            f"{label}: column {name} cannot be written as its {kind} field",
            got=str(e).splitlines()[0][:200],
            hint="convert it in the query, such as with cast, round, epoch_ms or make_timestamp",
        ) from e


def _is_same_kind(have: Any, to: Any) -> bool:
    """Whether a cast keeps the meaning of values, at any depth."""
    if of_arrow.is_struct(have) and of_arrow.is_struct(to):
        names = [[field.name for field in kind] for kind in (have, to)]
        if sorted(names[0]) != sorted(names[1]) or len(set(names[0])) < len(names[0]):
            return False
        return all(_is_same_kind(have.field(name).type, to.field(name).type) for name in names[1])
    if of_arrow.is_list(have) and of_arrow.is_list(to):
        return _is_same_kind(have.value_type, to.value_type)
    if of_arrow.is_map(have) and of_arrow.is_map(to):
        return _is_same_kind(have.key_type, to.key_type) and _is_same_kind(have.item_type, to.item_type)
    # Arrow rounds these without an error, and makes infinity of a DOUBLE that no FLOAT has.
    rounds = of_arrow.is_floating(have) and of_arrow.is_decimal(to)
    rounds |= of_arrow.is_timestamp(have) and of_arrow.is_date(to)
    rounds |= of_arrow.is_float64(have) and of_arrow.is_float32(to)
    return of_arrow.is_null(have) or (not rounds and _family(have) == _family(to))


def _family(kind: pa.DataType) -> str:
    """Types that become each other without another meaning."""
    if of_arrow.is_integer(kind) or of_arrow.is_floating(kind) or of_arrow.is_decimal(kind):
        return "number"
    if of_arrow.is_string(kind) or of_arrow.is_large_string(kind):
        return "text"
    return "time" if of_arrow.is_date(kind) or of_arrow.is_timestamp(kind) else str(kind.id)
