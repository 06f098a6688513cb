"""Explains a sink before it runs: Spark plans its statement, and its store checks the documents' type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError, SinkError, optional_packages
from penstock.model.checks.spark_plan import elements, optimized_plan
from penstock.model.input import RAW_FIELDS, RECORD_FIELDS
from penstock.model.mask import mask_text
from penstock.model.schema import schema
from penstock.model.sink import Sink, SinkRead
from penstock.model.stream import Stream
from penstock.model.topic import Topic
from penstock.model.types import quoted
from penstock.sinks.core.document import OFFSET_BITS, DocumentOutput
from penstock.sinks.core.select import error_location, spark_error
from penstock.sinks.core.stream import sink_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

TOMBSTONES = {"delete": "deletes its document", "mark": "marks its document as deleted", "ignore": "does nothing"}


@dataclass
class SinkExplanation:
    """What a sink does.

    Attributes:
        fields: of a document, each with its type.
        facts: a sentence each.
        store_schema: what is created in the store if it does not exist.
        plan: Spark's plan of the SELECT and of tombstones.
    """

    fields: list[tuple[str, str]]
    facts: list[str] = field(default_factory=list)
    store_schema: Mapping[str, Any] = field(default_factory=dict)
    plan: str = ""


def explain_sink(sink: Sink, topics: Mapping[str, Topic], spark: SparkSession) -> SinkExplanation:
    """Let Spark plan the statement and the store check the documents' type. DeclarationError has the location."""
    from pyspark.errors import PySparkException

    stream = sink_stream(sink, topics)
    (output,) = stream.outputs.values()
    assert isinstance(output, DocumentOutput)
    frames = [_no_records(read, spark) for read in sink.reads]
    try:
        rows = stream.transform(*frames)
        sent = rows.select(*output.columns())
    except PySparkException as e:
        # A type that a SELECT may have and a document may not.
        raise spark_error(sink.at("SELECT"), e) from e
    fields = [(f.name, f.dataType.simpleString()) for f in rows.schema["doc"].dataType.fields]  # type: ignore[attr-defined]
    try:
        plan = str(optimized_plan(sent).toString())
    except PySparkException as e:
        # Spark evaluates constant expressions now.
        raise spark_error(error_location(sink, e), e) from e
    _check_any_rows(sink, frames)
    return SinkExplanation(fields, _describe(sink, stream, output), _store_schema(sink, output, rows), plan)


def _check_any_rows(sink: Sink, frames: Sequence[DataFrame]) -> None:
    """DeclarationError if no record of a topic makes a row: Spark would not read it, and report no dead letters."""
    stream = sink_stream(replace(sink, tombstones="ignore", tombstone_key=()))
    for read, frame in zip(sink.reads, frames, strict=True):
        alone = stream.transform(*(one if one is frame else one.limit(0) for one in frames))
        leaves = elements(optimized_plan(alone).collectLeaves())
        if all(leaf.nodeName() == "LocalRelation" for leaf in leaves):
            several = len(frames) > 1
            raise DeclarationError(
                f"{sink.at(f'READ {read.topic}' if several else 'SELECT')}: no record{f' of {read.topic}' * several}"
                " can make a document",
                got="WHERE is never true",
                hint="correct the condition; to stop a sink, use penstock streams stop",
            )


def _no_records(read: SinkRead, spark: SparkSession) -> DataFrame:
    """An empty frame of a topic, as the transform gets it."""
    (record,) = RECORD_FIELDS
    whole = record.type.ddl.removesuffix(">") + ",`event_time`:TIMESTAMP>"
    fields = schema(read.schema, read.topic, of_json=False) if read.schema else RAW_FIELDS
    columns = [f"{quoted(f.name)} {f.type.ddl}" for f in fields]
    return spark.createDataFrame([], ", ".join([*columns, f"{quoted(record.name)} {whole}"]))


def _store_schema(sink: Sink, output: DocumentOutput, rows: DataFrame) -> Mapping[str, Any]:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        document = rows.schema["doc"].dataType
        shape = to_arrow_type(document, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
        with optional_packages():
            schema_of = resolve_name(output.store_schema)
        created = schema_of(output, shape)
    except PySparkException as e:
        raise spark_error(sink.at("SELECT"), e) from e
    except ValueError as e:
        # Arrow has no array of type void.
        void = next((f.name for f in document if "void" in f.dataType.simpleString()), "")  # type: ignore[attr-defined]
        hint = "give it one: CAST(array() AS ARRAY<STRING>), CAST(map() AS MAP<STRING, STRING>)"
        raise DeclarationError(f"{sink.at('SELECT')}: {void} is of no type", got=e, hint=hint) from e
    except (DeclarationError, SinkError) as e:
        raise DeclarationError(f"{sink.at('FIELDS')}: {e.what}", got=e.got, hint=e.hint) from e
    if duplicate := next(_duplicate_fields(document), ""):
        raise DeclarationError(
            f"{sink.at('SELECT')}: two fields of a struct have the same name, ignoring case",
            got=duplicate,
            hint="rename one by AS",
        )
    return dict(created)


def _duplicate_fields(kind: DataType) -> Iterator[str]:
    """Names that a struct has twice, ignoring case: no Arrow batch can be made of it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            names = [field.name.lower() for field in kind]
            yield from (field.name for field in kind if names.count(field.name.lower()) > 1)
            inner = [field.dataType for field in kind]
        case ArrayType():
            inner = [kind.elementType]
        case MapType():
            inner = [kind.keyType, kind.valueType]
        case _:
            inner = []
    for one in inner:
        yield from _duplicate_fields(one)


def _describe(sink: Sink, stream: Stream, output: DocumentOutput) -> list[str]:
    keys = ", ".join(sink.identity)
    if sink.verb == "insert":
        key = "topic, partition, offset and time of the record, and the row's number within it"
    elif len(sink.identity) > 1 or sink.makes_points:
        key = f"the values of {keys}, as JSON array"
    else:
        key = f"{keys}, as text" if keys else "the record's key, as text"
    if sink.version == "none":
        version = "none: rows are written as they come"
    elif sink.version:
        version = f"{sink.version}; where it is a time, its milliseconds << {OFFSET_BITS} | the offset's lower bits"
    else:
        version = f"the event time's milliseconds << {OFFSET_BITS} | the offset's lower {OFFSET_BITS} bits"
    facts = [f"id: {key}", f"version: {version}"]
    for read in sink.reads:
        facts.append(f"event time of {read.topic}: {read.event_time or 'the time of the record'}")
        if read.share != (1, 1):
            n, of = read.share
            facts.append(f"of {read.topic} it takes share {n} of {of}: partitions {n - 1}, {of + n - 1} and so on")
    if sink.verb == "upsert":
        keys = f", by {', '.join(sink.tombstone_key)}" if sink.tombstone_key else ""
        facts.append(f"a record without a value {TOMBSTONES[sink.tombstones]}{keys}")
        if output.orders_tombstones and (sink.version or any(read.event_time for read in sink.reads)):
            facts.append("it is newer than each upsert before it in its partition, even one with a later time")
        if sink.deleted_sql:
            where = f"a row where {' '.join(sink.deleted_sql.split())}"
            ignored = sink.tombstones == "ignore"
            facts.append(f"{where} {TOMBSTONES['delete']}" if ignored else f"so does {where}")
    else:
        facts.append("a record without a value does nothing")
    if sink.mask:
        facts.append(f"masked: {mask_text(sink.mask)}")
    if sink.suffix:
        facts.append(f"one for each {sink.suffix[0]} of {sink.suffix[1]}")
    if sink.expire:
        facts.append(f"a document is kept for {sink.expire}")
    every = sink.every.total_seconds()
    facts.append(
        f"batches of {sink.max_records:,} records at most, every {every:g} s, {sink.parallel} requests at once"
    )
    facts.append(f"what the store refuses goes to topic {output.dead_letter_topic.name}, driver {stream.app}")
    return facts
