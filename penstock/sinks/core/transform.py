"""The transform of a sink: records to rows of the shape that `penstock.sinks.core.document` describes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import reduce
from typing import TYPE_CHECKING

from penstock.codec.columnar import EVENT_TIME
from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F, T
from penstock.model.mask import dropped_columns
from penstock.model.mask_expressions import masked_rows
from penstock.model.sink import PATH_COLUMN, RECORD_COLUMN
from penstock.model.types import quoted
from penstock.sinks.core import document_id
from penstock.sinks.core.document import LAST_MS, OFFSET_BITS
from penstock.sinks.core.document_id import CheckedColumn
from penstock.sinks.core.row_index import with_row_index
from penstock.sinks.core.select import resolve_expression, run_select

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

    from penstock.model.sink import Sink

# A further column of rows on their way: whether DELETED WHEN is true.
DELETED_COLUMN = "_deleted_row"
OFFSET = f"(record.offset & {2**OFFSET_BITS - 1})"


def sink_rows(sink: Sink, frames: Sequence[DataFrame], compacted: Set[str] = frozenset()) -> DataFrame:
    """The rows of a sink.

    Args:
        sink: its declaration.
        frames: of its inputs, in order, with `record`; a tombstone has NULL in all other columns.
        compacted: those of its topics that are compacted.
    """
    views = {}
    for read, frame in zip(sink.reads, frames, strict=True):
        if read.event_time:
            resolve_expression(sink, f"EVENT TIME {read.topic}", frame, read.event_time)
        fields = {
            "json": [F.col(quoted(name)) for name in frame.columns if name not in (RECORD_COLUMN, EVENT_TIME)],
            "text": [F.col("record.value").cast("string").alias("text")],
            "binary": [],
        }[read.format]
        alive = frame.where("record.value IS NOT NULL")
        views[read.topic] = alive.select(*fields, RECORD_COLUMN, F.lit("").alias(PATH_COLUMN))
    rows, several = run_select(sink, views)
    selected = rows.schema.fields[:-2]
    # Whether a row is deleted is decided by what it was before it is masked.
    deleted = rows.withColumn(DELETED_COLUMN, _is_deleted(sink, rows, selected))
    indexed = with_row_index(deleted) if several and sink.verb == "insert" else deleted
    masked = masked_rows(indexed, sink.mask)
    count = len(selected) - len(dropped_columns(sink.mask))
    documents = _document_rows(sink, masked, count)
    if sink.verb == "insert" or sink.tombstones == "ignore":
        return documents
    tombstones = reduce(
        lambda one, other: one.union(other),
        (frame.where("record.value IS NULL").select(RECORD_COLUMN) for frame in frames),
    )
    return documents.union(_tombstone_rows(sink, tombstones, selected, masked.schema.fields[:count], compacted))


def _is_deleted(sink: Sink, rows: DataFrame, fields: Sequence[StructField]) -> Column:
    if not sink.deleted_sql:
        return F.lit(False)
    names = [F.col(quoted(field.name)) for field in fields]
    value, kind = resolve_expression(sink, "DELETED", rows.select(*names), sink.deleted_sql)
    if kind.simpleString() != "boolean":
        hint = "write a condition, as DELETED WHEN (deleted)"
        raise DeclarationError(f"{sink.at('DELETED')}: the condition is not BOOLEAN", got=sink.deleted_sql, hint=hint)
    return F.coalesce(value, F.lit(False))


def _document_rows(sink: Sink, rows: DataFrame, count: int) -> DataFrame:
    fields = rows.schema.fields[:count]
    names = [F.col(quoted(field.name)) for field in fields]
    if sink.verb == "insert":
        key = document_id.of_record(rows)
    else:
        key = _document_id(sink, [_key_field(sink, fields, name) for name in sink.identity], "")
    version, at = _event_version(sink), CheckedColumn(F.col("record.event_time"), F.lit(None).cast("string"))
    if sink.version and sink.version != "none":
        version = _declared_version(_field(sink, fields, "VERSION", sink.version), sink)
    if sink.suffix:
        field = _field(sink, fields, "SUFFIX", sink.suffix[1])
        if not _is_time(field.dataType):
            raise _type_error(sink, "SUFFIX", field, "a TIMESTAMP")
        time = F.col(quoted(field.name)).cast("timestamp")
        at = CheckedColumn(time, F.when(time.isNull(), F.lit(f"the time of SUFFIX, {field.name}, is NULL")))
    errors = [_text_error(sink), key.error, version.error, at.error]
    return rows.select(
        F.struct(*names).alias("doc"), key.value.alias("id"), version.value.alias("version"),
        F.col(DELETED_COLUMN).alias("deleted"),
        at.value.alias("at"), F.coalesce(*errors).alias("refused"), RECORD_COLUMN,
    )  # fmt: skip


def _tombstone_rows(
    sink: Sink,
    tombstones: DataFrame,
    selected: Sequence[StructField],
    fields: Sequence[StructField],
    compacted: Set[str],
) -> DataFrame:
    """Rows of tombstones: NULL in each field but those of the id, for which TOMBSTONES gives expressions.

    Args:
        sink: its declaration.
        tombstones: their records.
        selected: the columns of the SELECT.
        fields: those of a document, some of which may be masked.
        compacted: as for `sink_rows`.
    """
    keys = {name: _key_field(sink, fields, name) for name in sink.identity}
    types = {field.name: field.dataType for field in selected}
    key_values: dict[str, Column] = {}
    for field, text in zip(keys.values(), sink.tombstone_key, strict=False):
        key_values[field.name], _ = resolve_expression(sink, "TOMBSTONES", tombstones, text, types[field.name])
    names = [key_values.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in selected]
    masked = masked_rows(tombstones.select(*names, RECORD_COLUMN), sink.mask)
    version, reason = _event_version(sink), ""
    if keys and not sink.tombstone_key:
        reason = (
            f"a tombstone has no {', '.join(keys)}: say TOMBSTONES DELETE (...) over record.key, or TOMBSTONES IGNORE"
        )
    elif sink.makes_points and not sink.time:
        reason = "a tombstone does not say of which time its point is: say TIME (column), or TOMBSTONES IGNORE"
    elif sink.version not in ("", "none") and not _is_time(_field(sink, fields, "VERSION", sink.version).dataType):
        reason = f"a tombstone has no {sink.version}, so it is not known whether it is newer: say TOMBSTONES IGNORE"
        if compacted:
            raise DeclarationError(
                f"{sink.at('VERSION')}: a tombstone of topic {', '.join(sorted(compacted))} has no {sink.version}",
                got=f"TOMBSTONES {sink.tombstones.upper()}",
                hint="say TOMBSTONES IGNORE and DELETED WHEN (...), or leave VERSION out: the event time is taken",
            )
    key = _document_id(sink, list(keys.values()), "doc.")
    at = F.col("record.event_time")
    errors = [F.lit(reason or None).cast("string"), key.error, version.error]
    document = F.struct(*(F.col(quoted(f.name)) for f in fields)).alias("doc")
    return masked.select(document, RECORD_COLUMN).select(
        "doc", key.value.alias("id"), version.value.alias("version"), F.lit(True).alias("deleted"),
        at.alias("at"), F.coalesce(*errors).alias("refused"), RECORD_COLUMN,
    )  # fmt: skip


def _document_id(sink: Sink, columns: Sequence[StructField], prefix: str) -> CheckedColumn:
    """The id, made of columns. prefix: of their names."""
    values = [(f.name, F.col(f"{prefix}{quoted(f.name)}"), f.dataType) for f in columns]
    if sink.makes_points:
        time = [] if sink.time else [("event time", F.col("record.event_time"), T.TimestampType())]
        return document_id.of_values([*values, *time], nullable=True)
    return document_id.of_values(values, nullable=False) if values else document_id.of_key()


def _key_field(sink: Sink, fields: Sequence[StructField], name: str) -> StructField:
    clause = sink.clause_of(name)
    field = _field(sink, fields, clause, name)
    if isinstance(field.dataType, (T.ArrayType, T.MapType, T.StructType, T.VariantType)):
        raise _type_error(sink, clause, field, "a column with one value")
    return field


def _event_version(sink: Sink) -> CheckedColumn:
    """The event time's milliseconds and the offset's lower bits; without versions it orders the rows of a batch."""
    version = _version_of_time(F.col("record.event_time"), "the event time")
    if sink.version != "none":
        return version
    ms = F.greatest(F.lit(0), F.least(F.unix_millis("record.event_time"), F.lit(LAST_MS)))
    return CheckedColumn(_version_number(ms), F.lit(None).cast("string"))


def _version_number(ms: Column) -> Column:
    return F.shiftleft(ms, OFFSET_BITS).bitwiseOR(F.expr(OFFSET))


def _version_of_time(time: Column, what: str) -> CheckedColumn:
    ms = F.unix_millis(time.cast("timestamp"))
    outside = F.concat(F.lit(f"{what} is outside of 1970 to 2109, so it cannot be a version: "), time.cast("string"))
    error = F.when(time.isNull(), F.lit(f"{what} is NULL")).when(~ms.between(0, LAST_MS), outside)
    return CheckedColumn(F.when(ms.between(0, LAST_MS), _version_number(ms)), error)


def _declared_version(field: StructField, sink: Sink) -> CheckedColumn:
    column = F.col(quoted(field.name))
    if _is_time(field.dataType):
        return _version_of_time(column, f"the version, {field.name},")
    if not isinstance(field.dataType, T.IntegralType):
        raise _type_error(sink, "VERSION", field, "a whole number or a TIMESTAMP")
    below = F.concat(F.lit(f"the version, {field.name}, is below 0: "), column.cast("string"))
    error = F.when(column.isNull(), F.lit(f"the version, {field.name}, is NULL")).when(column < 0, below)
    return CheckedColumn(column.cast("bigint"), error)


def _text_error(sink: Sink) -> Column:
    """Why the value of a record read as text is not text."""
    topics = [read.topic for read in sink.reads if read.format == "text"]
    if not topics:
        return F.lit(None).cast("string")
    broken = F.col("record.topic").isin(topics) & ~F.is_valid_utf8(F.col("record.value").cast("string"))
    return F.when(broken, F.lit("the value is not UTF-8"))


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, (T.TimestampType, T.TimestampNTZType))


def _field(sink: Sink, fields: Sequence[StructField], clause: str, name: str) -> StructField:
    for field in fields:
        if field.name.lower() == name.lower():
            return field
    names = ", ".join(field.name for field in fields)
    raise DeclarationError(
        f"{sink.at(clause)}: {clause} names a column that is not selected", got=name, hint=f"take one of: {names}"
    )


def _type_error(sink: Sink, clause: str, field: StructField, wanted: str) -> DeclarationError:
    got = f"{field.name} {field.dataType.simpleString().upper()}"
    return DeclarationError(f"{sink.at(clause)}: {clause} needs {wanted}", got=got, hint="cast it in the SELECT")
