"""Elasticsearch as a sink's store: what is declared of it, and what it takes.

A document is the columns of the SELECT as JSON, under its id and with its version as the document's own (external).
What was deleted is kept as id and version in `<index>-graves`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import orjson

from penstock.errors import DeclarationError
from penstock.model.lazy_spark import F
from penstock.model.output import JSON
from penstock.sinks.core.document import Documents

if TYPE_CHECKING:
    from pyspark.sql import Column

MARKED, GRAVES = "deleted", "-graves"
PATTERNS = {"hour": "%Y.%m.%d.%H", "day": "%Y.%m.%d", "month": "%Y.%m", "year": "%Y"}
UNFIT = re.compile(r'[\\/*?"<>|\s,#:A-Z]')
TYPE = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Limits:
    """What Elasticsearch holds, and how much of it one request gets.

    document_bytes: it takes requests of 100 MB, and a node with a small heap far less. suffix_years: an index for each
    strange time would be the end of its cluster.
    """

    document_bytes: int = 16 * 1024 * 1024
    id_bytes: int = 512
    index_bytes: int = 255
    suffix_years: tuple[int, int] = (1970, 2199)
    rows: int = 1000
    request_bytes: int = 5 * 1024 * 1024
    grave_days: int = 7


LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class Elasticsearch(Documents):
    """An index. fields: what it is told of fields, by name (`a.b` within a struct): a type, or a mapping as JSON."""

    connection: str = "elasticsearch"
    index: str
    fields: tuple[tuple[str, str], ...] = ()

    writer: ClassVar[str] = "penstock.sinks.elasticsearch.writer:open_index"

    def __post_init__(self) -> None:
        if wrong := _unfit(self.index):
            raise DeclarationError(f"a name of an index {wrong}", got=repr(self.index), hint="choose another name")
        if self.expire_seconds and not self.suffix:
            raise DeclarationError(
                f"{self.name} shall forget documents, and Elasticsearch forgets whole indexes only",
                got="EXPIRE AFTER without SUFFIX",
                hint="add SUFFIX DAY (a time): indexes whose time is over are dropped",
            )
        if self.suffix and self.tombstones == "mark":
            raise DeclarationError(
                f"{self.name} cannot mark documents: a tombstone does not say in which of its indexes one lies",
                got="TOMBSTONES MARK with SUFFIX",
                hint="TOMBSTONES DELETE, which looks for it, or leave SUFFIX out",
            )
        for name, kind in self.fields:
            self.told(name, kind)

    def told(self, name: str, kind: str) -> dict[str, object]:
        """The mapping that FIELDS gives a field. DeclarationError if it is none."""
        try:
            found = orjson.loads(kind) if kind.startswith("{") else {"type": kind}
        except ValueError:
            found = {}
        if not TYPE.fullmatch(str(found.get("type", ""))):
            raise DeclarationError(
                f"field {name} of {self.name} has no type of Elasticsearch",
                got=kind,
                hint='give one, e.g. keyword, or a mapping: {"type": "keyword", "ignore_above": 256}',
            )
        return dict(found)

    @property
    def name(self) -> str:
        return f"elasticsearch:{self.index}"

    @property
    def graves(self) -> str:
        return self.index + GRAVES

    def body(self) -> list[Column]:
        """`body BINARY`, the document as JSON, and `shape`, always NULL: a list of them, for their type."""
        doc = F.col("doc")
        if self.tombstones == "mark":
            doc = doc.withField(MARKED, F.coalesce(F.col("deleted"), F.lit(False)))
        # Not a document that is NULL: Arrow refuses one whose fields are never NULL.
        return [F.to_json(doc, JSON).cast("binary").alias("body"), F.when(F.lit(False), F.array(doc)).alias("shape")]


def _unfit(name: str) -> str:
    if not name:
        return "is empty"
    if found := UNFIT.search(name):
        return f"has {found[0]!r} in it"
    if name[0] in "-_+." or name.endswith(GRAVES):
        return f"begins with -, _, + or ., or ends with {GRAVES}"
    room = LIMITS.index_bytes - len("-2026.11.22.21")
    return f"is longer than {room} bytes" if len(name.encode()) > room else ""
