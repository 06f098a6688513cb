"""An Elasticsearch for tests, and batches as the engine gives them to its writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa

from penstock.devstack.servers.elasticsearch import ElasticsearchServer as Part
from penstock.model.output import CommitMarker
from penstock.sinks.elasticsearch.config import Elasticsearch
from penstock.sinks.elasticsearch.writer import IndexWriter
from tests.support.http_client import HTTP

# Opens a writer of an index, "things" if it is not named; `now` is the time by its clock.
Opened = Callable[..., IndexWriter]
MARK = CommitMarker("query", 1, {})
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
# So that a few requests at once are more than it takes, and that a document can be too large for it.
SMALL = {"thread_pool.write.size": "1", "thread_pool.write.queue_size": "2", "http.max_content_length": "8mb"}


def shaped(fields: Mapping[str, pa.DataType]) -> pa.StructType:
    """The type of documents with those columns."""
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


SHAPE = shaped({"name": pa.string(), "n": pa.int64()})
COLUMNS: Mapping[str, pa.DataType] = {
    "id": pa.binary(),
    "version": pa.int64(),
    "deleted": pa.bool_(),
    "at": pa.timestamp("us", "UTC"),
    "refused": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "body": pa.binary(),
}


@dataclass(frozen=True)
class Server:
    """url: of the server; part: what runs it, None if it is somebody else's."""

    url: str
    part: Part | None = None

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Its answer, whatever it is."""
        return HTTP.request(method, f"{self.url}/{path}", json=body, timeout=60).json()

    def documents(self, index: str) -> dict[str, Any]:
        """All documents of an index by id, as they are now."""
        self.call("POST", f"{index}/_refresh")
        found = self.call("GET", f"{index}/_search?size=10000&version=true")
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}

    def clear(self) -> None:
        """Without indexes and templates of sinks."""
        if found := self.call("GET", "_cat/indices?format=json&h=index&expand_wildcards=all"):
            self.call("DELETE", ",".join(index["index"] for index in found))
        if names := [
            made["name"] for made in self.call("GET", "_index_template/penstock-*").get("index_templates", ())
        ]:
            self.call("DELETE", f"_index_template/{','.join(names)}")


def row(key: str | bytes | None, version: int | None, doc: object = None, **more: Any) -> dict[str, Any]:
    """A row as the writer gets it. doc: of its columns, or the JSON text itself; more: other columns."""
    body = doc if isinstance(doc, bytes) or doc is None else orjson.dumps(doc)
    made = {"id": key.encode() if isinstance(key, str) else key, "version": version, "body": body}
    return (
        made | {"deleted": doc is None, "at": NOON, "refused": None, "topic": "t", "partition": 0, "offset": 0} | more
    )


def batch(rows: Sequence[Mapping[str, Any]], shape: pa.StructType = SHAPE) -> pa.Table:
    """Rows as one table."""
    schema = pa.schema([pa.field(name, kind) for name, kind in {**COLUMNS, "shape": pa.list_(shape)}.items()])
    placed = [{**one, "offset": one["offset"] or at} for at, one in enumerate(rows)]
    return pa.Table.from_pylist(placed, schema=schema)


def output(index: str, **more: Any) -> Elasticsearch:
    return Elasticsearch(sink=index, index=index, **more)


def give(writer: IndexWriter, *rows: Mapping[str, Any], shape: pa.StructType = SHAPE) -> int:
    """Write rows as one batch; how many were written."""
    return writer.write({writer.output.name: batch(rows, shape)}, MARK)
