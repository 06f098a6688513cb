"""Runs the statement of a sink on the records of a case, without a store, and compares the documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from penstock.errors import DeclarationError
from penstock.model.output import JSON
from penstock.model.stream import Stream
from penstock.testing.case_file import DocumentCase, as_text
from penstock.testing.case_run import compare
from penstock.testing.declared import pick, read_project
from penstock.testing.rows import Given, frames, registered_topics
from penstock.testing.topics import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_documents(case: DocumentCase, label: str, project: Path, spark: SparkSession) -> None:
    """Compare the documents that a sink writes for the records of a case.

    Args:
        case: The case.
        label: What a message calls it.
        project: The folder of the project that has the sink.
        spark: A session.

    Raises:
        CaseFailure: They differ.
        DeclarationError: The project has no such sink, or the sink does not read the topic of a record, or its fields
            do not fit the schema of the topic.
    """
    catalog, broken = read_project(project)
    sinks = {name: catalog.declared[name] for name in catalog.sinks}
    [sink] = pick([case.sink], sinks, "sink", broken, label)
    assert isinstance(sink, Stream)
    registered = registered_topics(sink)
    topics = {source.source: name for name, source in sink.sources.items()}
    records: dict[str, list[Given]] = {name: [] for name in topics.values()}
    for offset, one in enumerate(case.send):
        topic = one.topic or (next(iter(topics)) if len(topics) == 1 else "")
        if topic not in topics:
            what = f"{label}: a record names no topic that sink {case.sink} reads"
            raise DeclarationError(what, got=topic or "no topic", hint=", ".join(topics))
        encoded = registered.to_bytes(topic, one.value, label)
        key, value, headers = as_text(one.key), as_text(one.value), tuple(one.headers.items())
        records[topics[topic]].append(
            Record(topic, key, value, one.partition, offset, one.timestamp or 0, headers, encoded)
        )
    rows = sink.transform(**frames(spark, sink, **records)).select("id", "deleted", F.to_json("doc", JSON).alias("doc"))
    actual = [(row.id, None if row.deleted else _sorted(json.loads(row.doc))) for row in rows.collect()]
    compare(label, actual, [(one.id, _sorted(one.document)) for one in case.expect], "id")


def _sorted(document: object) -> str | None:
    """A document as text. Stores know no order of fields."""
    if document is None:
        return None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
