"""Runs the statement of a sink on records, without a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.catalog import load
from penstock.errors import DeclarationError
from penstock.model.stream import Stream
from penstock.testing.rows import Given, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def documents(spark: SparkSession, sink: str, records: Mapping[str, Sequence[Given]]) -> list[dict[str, Any] | None]:
    """The documents that a sink of the project writes for records; None for one that is deleted.

    Args:
        spark: A session.
        sink: Its name.
        records: Records of each topic that it reads, by topic; as for `frames`.

    Raises:
        DeclarationError: The project has no such sink, or the sink does not read exactly these topics.
    """
    catalog = load()
    if sink not in catalog.sinks:
        raise DeclarationError("no such sink", got=sink, hint=", ".join(sorted(catalog.sinks)) or "none is declared")
    stream = catalog.declared[sink]
    assert isinstance(stream, Stream)
    topics = {source.topic.name: name for name, source in stream.inputs.items() if source.topic}
    if records.keys() != topics.keys():
        raise DeclarationError(f"sink {sink} reads other topics", got=", ".join(records), hint=", ".join(topics))
    by_input = {topics[topic]: values for topic, values in records.items()}
    return [None if row["deleted"] else row["doc"] for row in rows(spark, stream, **by_input)]
