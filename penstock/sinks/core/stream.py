"""A sink as a stream: an input for each topic it reads, the SELECT as transform, and the store's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from penstock.errors import DeclarationError, SinkError
from penstock.model.input import Input
from penstock.model.output_mode import Stateless
from penstock.model.sink import Read, Sink
from penstock.model.stream import Stream
from penstock.model.topic import Topic
from penstock.sinks.core.document import Documents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUTS = {
    "elasticsearch": "penstock.sinks.elasticsearch.config:Elasticsearch",
    "mongodb": "penstock.sinks.mongodb.config:MongoDB",
    "influxdb": "penstock.sinks.influxdb.config:InfluxDB",
}


@dataclass(frozen=True)
class Transform:
    """The transform of a sink: from the frames of its inputs, in order, to rows as `penstock.sinks.core.document` says.

    compacted: those of its topics that are, so that tombstones are to be reckoned with.
    """

    sink: Sink
    compacted: frozenset[str] = frozenset()

    @property
    def __signature__(self) -> Signature:
        return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names(self.sink)])

    def __call__(self, *given: DataFrame, **named: DataFrame) -> DataFrame:
        # Spark is imported where there are frames.
        from penstock.sinks.core import transform

        frames = [*given, *(named[name] for name in names(self.sink)[len(given) :])]
        return transform.transformed(self.sink, frames, self.compacted)


def names(sink: Sink) -> list[str]:
    """The names of its inputs, in order."""
    return [f"topic_{number}" for number in range(1, len(sink.reads) + 1)]


def stream(sink: Sink, topics: Mapping[str, Topic] | None = None) -> Stream:
    """The stream that runs it. topics: as the project declares them. DeclarationError with its place in the file."""
    inputs, known = {}, topics or {}
    compacted = frozenset(read.topic for read in sink.reads if read.topic in known and known[read.topic].compacts)
    _tombstones_fit(sink, compacted)
    for name, read in zip(names(sink), sink.reads, strict=True):
        with _placed(sink, f"READ {read.topic}"):
            inputs[name] = _input(read, known.get(read.topic) or Topic(read.topic))
    with _placed(sink, "INTO"):
        made = output(sink)
        found = Stream(
            name=sink.name, app=sink.app, inputs=inputs, transform=Transform(sink, compacted), output=made,
            output_mode=Stateless(), every=sink.every.total_seconds(), max_records=sink.batch,
        )  # fmt: skip
    # Not this file, but the statement's.
    object.__setattr__(found, "location", sink.at("INTO"))
    return found


def is_given(sink: Sink) -> bool:
    """Whether it is known where its store is; where that cannot be read, its driver says why."""
    from penstock.sinks.core import connections

    try:
        return bool(connections.url(sink.store))
    except SinkError:
        return True


def output(sink: Sink) -> Documents:
    """Its place in its store."""
    given: dict[str, Any] = {
        "sink": sink.name,
        "connection": sink.store,
        "suffix": sink.suffix[0] if sink.suffix else None,
        # Who ignores tombstones and says which rows go wants those gone.
        "tombstones": "delete" if sink.deleted_sql and sink.tombstones == "ignore" else sink.tombstones,
        "follows": sink.tombstones != "ignore",
        "parallel": sink.parallel,
        "expire_seconds": int(sink.expire.total_seconds()) if sink.expire else 0,
        "dead_letters": sink.dead_letters or f"{sink.name}-dead-letter",
    }
    match sink.store:
        case "elasticsearch":
            given |= {"index": sink.target[0], "fields": tuple(sink.fields.items())}
        case "mongodb":
            database, collection = sink.target
            given |= {"database": database, "collection": collection, "indexes": sink.indexes, "unique": sink.unique}
        case "influxdb":
            database, *measurement = sink.target
            given |= {
                "database": database,
                "measurement": "".join(measurement),
                "measurement_column": sink.measurement,
                "tags": sink.tags,
                "fields": tuple(sink.fields.items()),
                "time": sink.time,
                "versioned": sink.version != "none",
            }
    try:
        kind = resolve_name(OUTPUTS[sink.store])
    except (ImportError, AttributeError) as e:
        raise DeclarationError(f"nothing here writes to {sink.store}", got=str(e), hint="install it") from e
    made = kind(**given)
    assert isinstance(made, Documents)
    return made


def _tombstones_fit(sink: Sink, compacted: frozenset[str]) -> None:
    """Of a compacted topic every record that goes is a tombstone once: what that deletes must be known."""
    lacking = [name for name in sink.identity if not sink.grave]
    if sink.store == "influxdb" and not sink.time:
        lacking.append("time")
    if sink.tombstones == "ignore" or not compacted or not lacking:
        return
    clause = "TOMBSTONES" if "TOMBSTONES" in sink.places else sink.clause_of(lacking[0]) if sink.identity else "INTO"
    raise DeclarationError(
        f"{sink.at(clause)}: a tombstone of topic {', '.join(sorted(compacted))} has no {', '.join(lacking)}",
        got=f"TOMBSTONES {sink.tombstones.upper()}",
        hint=f"say what stands for it: TOMBSTONES {sink.tombstones.upper()} (an expression over record.key, for each), "
        "or TOMBSTONES IGNORE",
    )


def _input(read: Read, topic: Topic) -> Input:
    own: dict[str, Any] = {"event_time": read.event_time} if read.event_time else {}
    if read.format == "json":
        own |= {"schema": read.schema, "tombstones": "keep"}
        own.setdefault("event_time", "record.timestamp")
    # An old record must come through whatever its time; a time that no version can have is told of the row.
    return Input(topic, max_ahead=None, record=True, share=read.share, **own)


@contextmanager
def _placed(sink: Sink, clause: str) -> Iterator[None]:
    try:
        yield
    except DeclarationError as e:
        raise DeclarationError(f"{sink.at(clause)}: {e.what}", got=e.got, hint=e.hint) from e
