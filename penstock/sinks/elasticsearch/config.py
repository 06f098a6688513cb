"""Declares an Elasticsearch index as a sink's output, and its limits.

A document has the columns of the SELECT as JSON, under its id, with its version as external version. The ids and
versions of deleted documents are kept in `<index>-tombstones`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.model.output import JSON
from penstock.model.sink import Sink
from penstock.sinks.core.document import DocumentOutput, name_error

if TYPE_CHECKING:
    from pyspark.sql import Column

DELETED_FIELD, TOMBSTONE_SUFFIX = "deleted", "-tombstones"
FORBIDDEN = re.compile(r'[\\/*?"<>|\s,#:A-Z]')
TYPE = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class ElasticsearchLimits:
    """Limits of Elasticsearch, and of one request.

    Attributes:
        document_bytes: Elasticsearch takes requests of 100 MB, and a node with a small heap far less.
        tombstone_days: how long the version of a delete is kept.
    """

    document_bytes: int = 16 * 1024 * 1024
    id_bytes: int = 512
    index_bytes: int = 255
    rows: int = 1000
    request_bytes: int = 5 * 1024 * 1024
    tombstone_days: int = 7


LIMITS = ElasticsearchLimits()


@dataclass(frozen=True, kw_only=True)
class Elasticsearch(DocumentOutput):
    """An index.

    Attributes:
        index: its name, without a suffix.
        fields: mappings of fields, by name (`a.b` within a struct): a type, or a mapping as JSON.
    """

    connection: str = "elasticsearch"
    index: str
    fields: tuple[tuple[str, str], ...] = ()

    writer: ClassVar[str] = "penstock.sinks.elasticsearch.writer:IndexWriter.open"
    store_schema: ClassVar[str] = "penstock.sinks.elasticsearch.indexes:index_template"
    versions: ClassVar[str] = "penstock.sinks.elasticsearch.target_versions:open_index_versions"

    def __post_init__(self) -> None:
        wrong = name_error(self.index, FORBIDDEN, LIMITS.index_bytes - len("-2026.11.22.21"))
        if self.index.startswith(tuple("-_+.")) or self.index.endswith(TOMBSTONE_SUFFIX):
            wrong = f"begins with -, _, + or ., or ends with {TOMBSTONE_SUFFIX}"
        if wrong:
            raise DeclarationError(f"the name of an index {wrong}", got=repr(self.index), hint="choose another name")
        if self.expire_seconds and not self.suffix:
            raise DeclarationError(
                f"{self.name} cannot expire single documents: Elasticsearch drops whole indexes only",
                got="EXPIRE AFTER without SUFFIX",
                hint="add SUFFIX DAY (a time): indexes whose time is over are dropped",
            )
        self.check_mark()
        for name, kind in self.fields:
            self.field_mapping(name, kind)

    def field_mapping(self, name: str, kind: str) -> dict[str, object]:
        """The mapping that FIELDS gives a field. DeclarationError if it is malformed."""
        try:
            mapping = orjson.loads(kind) if kind.startswith("{") else {"type": kind}
        except ValueError:
            mapping = {}
        if not TYPE.fullmatch(str(mapping.get("type", ""))):
            raise DeclarationError(
                f"field {name} of {self.name} has no valid type of Elasticsearch",
                got=kind,
                hint='give one, e.g. keyword, or a mapping: {"type": "keyword", "ignore_above": 256}',
            )
        return dict(mapping)

    @classmethod
    def declared_by(cls, sink: Sink) -> dict[str, Any]:
        return {"index": sink.target[0], "fields": tuple(sink.fields.items())}

    @property
    def name(self) -> str:
        return f"elasticsearch:{self.index}"

    @property
    def tombstone_index(self) -> str:
        return self.index + TOMBSTONE_SUFFIX

    def body(self) -> list[Column]:
        """`body BINARY`, the document as JSON, and `shape`, an array of documents, always NULL, for their type."""
        doc = F.col("doc")
        if self.tombstones == "mark":
            doc = doc.withField(DELETED_FIELD, F.coalesce(F.col("deleted"), F.lit(False)))
        # An array, as Arrow refuses a NULL struct whose fields are not nullable.
        return [F.to_json(doc, JSON).cast("binary").alias("body"), F.when(F.lit(False), F.array(doc)).alias("shape")]
