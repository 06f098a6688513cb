"""Turns a sink into a stream: an input for each topic that it reads, the SELECT as transform, the store's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError
from penstock.model.input import Input
from penstock.model.mask import Mask
from penstock.model.output_mode import Stateless
from penstock.model.sink import Sink, SinkRead
from penstock.model.stream import Stream
from penstock.model.topic import OF_TOPIC, Topic
from penstock.sinks.core.document import DocumentOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUT_CLASSES = {
    "elasticsearch": "penstock.sinks.elasticsearch.config:Elasticsearch",
    "mongodb": "penstock.sinks.mongodb.config:MongoDB",
    "influxdb": "penstock.sinks.influxdb.config:InfluxDB",
}


@dataclass(frozen=True)
class SinkTransform:
    """The transform of a sink: from the frames of its inputs, in order, to rows of a document output.

    Attributes:
        sink: its declaration.
        compacted: those of its topics that are compacted, which will have tombstones.
    """

    sink: Sink
    compacted: frozenset[str] = frozenset()

    @property
    def mask(self) -> tuple[Mask, ...]:
        """What is masked in the rows."""
        return self.sink.mask

    @property
    def __signature__(self) -> Signature:
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in input_names(self.sink)])

    def __call__(self, *positional: DataFrame, **named: DataFrame) -> DataFrame:
        # Imports Spark, which is only needed where there are frames.
        from penstock.sinks.core import transform

        frames = [*positional, *(named[name] for name in input_names(self.sink)[len(positional) :])]
        return transform.sink_rows(self.sink, frames, self.compacted)


def input_names(sink: Sink) -> list[str]:
    """The names of a sink's inputs, in order."""
    return [f"topic_{number}" for number in range(1, len(sink.reads) + 1)]


def sink_stream(sink: Sink, topics: Mapping[str, Topic] | None = None) -> Stream:
    """The stream that runs a sink. topics: declared by the project. DeclarationError has the location in the file."""
    inputs, declared = {}, topics or {}
    compacted = frozenset(read.topic for read in sink.reads if read.topic in declared and declared[read.topic].compacts)
    _check_tombstones(sink, compacted)
    for name, read in zip(input_names(sink), sink.reads, strict=True):
        with sink.located(f"READ {read.topic}"):
            inputs[name] = _input(read, declared.get(read.topic) or Topic(read.topic))
    with sink.located("INTO"):
        stream = Stream(
            name=sink.name, app=sink.app, inputs=inputs, transform=SinkTransform(sink, compacted),
            output=sink_output(sink), output_mode=Stateless(), every=sink.every.total_seconds(),
            max_records=sink.max_records,
        )  # fmt: skip
    # The location of the statement, not of this file.
    object.__setattr__(stream, "location", sink.at("INTO"))
    return stream


def with_declared_schemas(sink: Sink, topics: Mapping[str, Topic]) -> Sink:
    """A sink whose topics have the schemas that the project declares for them, where it says none.

    Args:
        sink: The sink.
        topics: Those that the project declares, by name.

    Raises:
        DeclarationError: A topic declares none; with the location in the file.
    """
    reads = []
    for read in sink.reads:
        ddl = topics[read.topic].ddl if read.topic in topics else ""
        if read.schema == OF_TOPIC and not ddl:
            with sink.located(f"READ {read.topic}"):
                raise DeclarationError(
                    f"topic {read.topic} declares no schema",
                    got="READ without AS",
                    hint="write AS JSON (id BIGINT NOT NULL, name STRING), AS TEXT or AS BINARY, or declare "
                    "Topic(..., schema=...) in jobs/",
                )
        reads.append(replace(read, schema=ddl) if read.schema == OF_TOPIC else read)
    return replace(sink, reads=tuple(reads))


def is_configured(sink: Sink) -> bool:
    """Whether its store has a URL; also if that is malformed, as then the driver reports it."""
    from penstock.sinks.core import connections

    return connections.is_configured(sink.store)


def sink_output(sink: Sink) -> DocumentOutput:
    """The output of a sink."""
    declared: dict[str, Any] = {
        "sink": sink.name,
        "connection": sink.store,
        "suffix": sink.suffix[0] if sink.suffix else None,
        # If tombstones are ignored, rows of DELETED WHEN delete their documents.
        "tombstones": "delete" if sink.deleted_sql and sink.tombstones == "ignore" else sink.tombstones,
        "orders_tombstones": sink.tombstones != "ignore",
        "parallel": sink.parallel,
        "mask": sink.mask,
        "expire_seconds": int(sink.expire.total_seconds()) if sink.expire else 0,
        "dead_letters": sink.dead_letters or f"{sink.name}-dead-letter",
    }
    try:
        kind = resolve_name(OUTPUT_CLASSES[sink.store])
    except (ImportError, AttributeError) as e:
        raise DeclarationError(f"nothing here writes to {sink.store}", got=str(e), hint="install it") from e
    output = kind(**declared, **kind.declared_by(sink))
    assert isinstance(output, DocumentOutput)
    return output


def _check_tombstones(sink: Sink, compacted: frozenset[str]) -> None:
    """Check that tombstones of compacted topics identify a document: every record deleted there becomes a tombstone."""
    missing = [name for name in sink.identity if not sink.tombstone_key]
    if sink.makes_points and not sink.time:
        missing.append("time")
    if sink.tombstones == "ignore" or not compacted or not missing:
        return
    clause = "TOMBSTONES" if "TOMBSTONES" in sink.locations else sink.clause_of(missing[0]) if sink.identity else "INTO"
    raise DeclarationError(
        f"{sink.at(clause)}: a tombstone of topic {', '.join(sorted(compacted))} has no {', '.join(missing)}",
        got=f"TOMBSTONES {sink.tombstones.upper()}",
        hint=f"use TOMBSTONES {sink.tombstones.upper()} (an expression over record.key for each), or TOMBSTONES IGNORE",
    )


def _input(read: SinkRead, topic: Topic) -> Input:
    own: dict[str, Any] = {"schema": read.schema}
    if read.event_time:
        own["event_time"] = read.event_time
    if read.format == "json":
        own["tombstones"] = "keep"
        own.setdefault("event_time", "record.timestamp")
    # A record is read whatever its time; the row is refused if no version can have that time.
    return Input(topic, max_ahead=None, record=True, share=read.share, **own)
