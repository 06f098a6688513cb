"""What a sink makes of its records: rows as `penstock.sinks.core.document` says."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import reduce
from typing import TYPE_CHECKING

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F, T
from penstock.model.schema import quoted, schema
from penstock.model.sink import WAY, WHOLE
from penstock.sinks.core import document_id
from penstock.sinks.core.document import LAST_MS, OFFSET_BITS
from penstock.sinks.core.document_id import Part
from penstock.sinks.core.row_index import numbered
from penstock.sinks.core.select import expression, selected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

    from penstock.model.sink import Sink

OFFSET = f"(record.offset & {2**OFFSET_BITS - 1})"


def transformed(sink: Sink, frames: Sequence[DataFrame], compacted: Set[str] = frozenset()) -> DataFrame:
    """The rows of a sink. frames: of its inputs, in order, with `record`, and NULL in all else of a tombstone.

    compacted: those of its topics that are.
    """
    views = {}
    for read, frame in zip(sink.reads, frames, strict=True):
        if read.event_time:
            expression(sink, f"EVENT TIME {read.topic}", frame, read.event_time)
        fields = {
            "json": [F.col(quoted(f.name)) for f in (schema(read.schema, read.topic) if read.schema else ())],
            "text": [F.col("record.value").cast("string").alias("text")],
            "binary": [],
        }[read.format]
        alive = frame.where("record.value IS NOT NULL")
        views[read.topic] = alive.select(*fields, WHOLE, F.lit("").alias(WAY))
    rows, several = selected(sink, views)
    made = _documents(sink, numbered(rows) if several and sink.verb == "insert" else rows, len(rows.columns) - 2)
    if sink.verb == "insert" or sink.tombstones == "ignore":
        return made
    gone = reduce(
        lambda one, other: one.union(other), (frame.where("record.value IS NULL").select(WHOLE) for frame in frames)
    )
    return made.union(_graves(sink, gone, rows.schema.fields[:-2], compacted))


def _documents(sink: Sink, rows: DataFrame, count: int) -> DataFrame:
    fields = rows.schema.fields[:count]
    names = [F.col(quoted(field.name)) for field in fields]
    deleted = F.lit(False)
    if sink.deleted_sql:
        said, kind = expression(sink, "DELETED", rows.select(*names), sink.deleted_sql)
        if kind.simpleString() != "boolean":
            hint = "write a condition, as DELETED WHEN (deleted)"
            raise DeclarationError(
                f"{sink.at('DELETED')}: this is true or false of no row", got=sink.deleted_sql, hint=hint
            )
        deleted = F.coalesce(said, deleted)
    if sink.verb == "insert":
        key = document_id.of_record(rows)
    else:
        key = _key(sink, [_keyed(sink, fields, name) for name in sink.identity], "")
    version, at = _event_version(sink), Part(F.col("record.event_time"), F.lit(None).cast("string"))
    if sink.version and sink.version != "none":
        version = _version(_column(sink, fields, "VERSION", sink.version), sink)
    if sink.suffix:
        field = _column(sink, fields, "SUFFIX", sink.suffix[1])
        if not _is_time(field.dataType):
            raise _unfit(sink, "SUFFIX", field, "a TIMESTAMP")
        time = F.col(quoted(field.name)).cast("timestamp")
        at = Part(time, F.when(time.isNull(), F.lit(f"the time of SUFFIX, {field.name}, is NULL")))
    wrong = [_text(sink), key.wrong, version.wrong, at.wrong]
    return rows.select(
        F.struct(*names).alias("doc"), key.value.alias("id"), version.value.alias("version"), deleted.alias("deleted"),
        at.value.alias("at"), F.coalesce(*wrong).alias("refused"), WHOLE,
    )  # fmt: skip


def _graves(sink: Sink, gone: DataFrame, fields: Sequence[StructField], compacted: Set[str]) -> DataFrame:
    """Rows of tombstones: NULL in each field but those that make the id, if it is said what stands for them."""
    keys = {name: _keyed(sink, fields, name) for name in sink.identity}
    said: dict[str, Column] = {}
    for field, text in zip(keys.values(), sink.grave, strict=False):
        said[field.name], _ = expression(sink, "TOMBSTONES", gone, text, field.dataType)
    names = [said.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in fields]
    version, why = _event_version(sink), ""
    if keys and not sink.grave:
        why = f"a tombstone has no {', '.join(keys)}: say TOMBSTONES DELETE (...) over record.key, or TOMBSTONES IGNORE"
    elif sink.store == "influxdb" and not sink.time:
        why = "a tombstone does not say of which time its point is: say TIME (column), or TOMBSTONES IGNORE"
    elif sink.version not in ("", "none") and not _is_time(_column(sink, fields, "VERSION", sink.version).dataType):
        why = f"a tombstone has no {sink.version}, so it is not known whether it is newer: say TOMBSTONES IGNORE"
        if compacted:
            raise DeclarationError(
                f"{sink.at('VERSION')}: a tombstone of topic {', '.join(sorted(compacted))} has no {sink.version}",
                got=f"TOMBSTONES {sink.tombstones.upper()}",
                hint="say TOMBSTONES IGNORE and DELETED WHEN (...), or leave VERSION out: the event time is taken",
            )
    key = _key(sink, list(keys.values()), "doc.")
    at = F.col("record.event_time")
    wrong = [F.lit(why or None).cast("string"), key.wrong, version.wrong]
    return gone.select(F.struct(*names).alias("doc"), WHOLE).select(
        "doc", key.value.alias("id"), version.value.alias("version"), F.lit(True).alias("deleted"),
        at.alias("at"), F.coalesce(*wrong).alias("refused"), WHOLE,
    )  # fmt: skip


def _key(sink: Sink, columns: Sequence[StructField], place: str) -> Part:
    """The id, of columns that stand at a place."""
    found = [(f.name, F.col(f"{place}{quoted(f.name)}"), f.dataType) for f in columns]
    if sink.store == "influxdb":
        time = [] if sink.time else [("event time", F.col("record.event_time"), T.TimestampType())]
        return document_id.of_values([*found, *time], absent=True)
    return document_id.of_values(found, absent=False) if found else document_id.of_key()


def _keyed(sink: Sink, fields: Sequence[StructField], name: str) -> StructField:
    clause = sink.clause_of(name)
    field = _column(sink, fields, clause, name)
    if isinstance(field.dataType, (T.ArrayType, T.MapType, T.StructType, T.VariantType)):
        raise _unfit(sink, clause, field, "a column with one value")
    return field


def _event_version(sink: Sink) -> Part:
    """Of the event time's milliseconds and the offset's lower bits; without versions it orders the rows of a batch."""
    found = _timed(F.col("record.event_time"), "the event time")
    if sink.version != "none":
        return found
    ms = F.greatest(F.lit(0), F.least(F.unix_millis("record.event_time"), F.lit(LAST_MS)))
    return Part(_packed(ms), F.lit(None).cast("string"))


def _packed(ms: Column) -> Column:
    return F.shiftleft(ms, OFFSET_BITS).bitwiseOR(F.expr(OFFSET))


def _timed(time: Column, what: str) -> Part:
    ms = F.unix_millis(time.cast("timestamp"))
    outside = F.concat(F.lit(f"{what} is none that a version can have, 1970 to 2109: "), time.cast("string"))
    wrong = F.when(time.isNull(), F.lit(f"{what} is NULL")).when(~ms.between(0, LAST_MS), outside)
    return Part(F.when(ms.between(0, LAST_MS), _packed(ms)), wrong)


def _version(field: StructField, sink: Sink) -> Part:
    column = F.col(quoted(field.name))
    if _is_time(field.dataType):
        return _timed(column, f"the version, {field.name},")
    if not isinstance(field.dataType, T.IntegralType):
        raise _unfit(sink, "VERSION", field, "a whole number or a TIMESTAMP")
    below = F.concat(F.lit(f"the version, {field.name}, is below 0: "), column.cast("string"))
    wrong = F.when(column.isNull(), F.lit(f"the version, {field.name}, is NULL")).when(column < 0, below)
    return Part(column.cast("bigint"), wrong)


def _text(sink: Sink) -> Column:
    """Why the value of a record is no text, where it is read as one."""
    topics = [read.topic for read in sink.reads if read.format == "text"]
    if not topics:
        return F.lit(None).cast("string")
    broken = F.col("record.topic").isin(topics) & ~F.is_valid_utf8(F.col("record.value").cast("string"))
    return F.when(broken, F.lit("the value is not UTF-8"))


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, (T.TimestampType, T.TimestampNTZType))


def _column(sink: Sink, fields: Sequence[StructField], clause: str, name: str) -> StructField:
    for field in fields:
        if field.name.lower() == name.lower():
            return field
    known = ", ".join(field.name for field in fields)
    raise DeclarationError(
        f"{sink.at(clause)}: {clause} names a column that is not selected", got=name, hint=f"take one of: {known}"
    )


def _unfit(sink: Sink, clause: str, field: StructField, wanted: str) -> DeclarationError:
    got = f"{field.name} {field.dataType.simpleString().upper()}"
    return DeclarationError(f"{sink.at(clause)}: {clause} needs {wanted}", got=got, hint="cast it in the SELECT")
