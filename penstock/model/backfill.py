"""Backfills: records of an archive, or rows of another store, written to a topic, as they are or computed again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from penstock.errors import DeclarationError
from penstock.model.archive import Archive
from penstock.model.argument_types import check_kind
from penstock.model.checks.schema_checks import check_value_fields
from penstock.model.declaration import CatalogNode, Kind, caller_location, check_name
from penstock.model.mask import mask_text
from penstock.model.output import TopicOutput
from penstock.model.output_mode import check_duration
from penstock.model.registry_schema import RegistrySchema
from penstock.model.stream import Stream
from penstock.model.topic import OF_TOPIC, Topic, reader_fields, reader_schema, topic_name
from penstock.model.types import Field

DAILY = "0 0 * * *"
CRON = re.compile(r"\S+( \S+){4}")
PLAIN_NAME = r"[A-Za-z0-9_-]+"
TABLE_NAME = re.compile(rf"{PLAIN_NAME}(\.{PLAIN_NAME})+")


@dataclass(frozen=True)
class Collection:
    """A collection of MongoDB. Each document is a record, its value the document as JSON: dates as epoch ms, ids and
    decimals as text."""

    database: str
    name: str

    @property
    def path(self) -> str:
        return f"mongodb.{self.database}.{self.name}"


@dataclass(frozen=True)
class IcebergTable:
    """An Iceberg table of any program. Each row is a record, in the columns and types that the table has.

    Attributes:
        name: with its namespace, such as `shop.orders`.
        catalog: a catalog of pyiceberg's own configuration; empty for that of the archives.
    """

    name: str
    catalog: str = ""

    def __post_init__(self) -> None:
        if not TABLE_NAME.fullmatch(str(self.name)) or not re.fullmatch(f"({PLAIN_NAME})?", str(self.catalog)):
            raise DeclarationError(
                "an Iceberg table has no name that can be read",
                got=f"{self.name!r}, catalog={self.catalog!r}",
                hint="give its namespace and name, such as 'shop.orders', and the plain name of a catalog, of letters, "
                "digits, '_' and '-'",
            )

    @property
    def path(self) -> str:
        return f"iceberg.{self.catalog}:{self.name}" if self.catalog else f"iceberg.{self.name}"


@dataclass(frozen=True)
class RowsQuery:
    """How records become rows of the target, where they are not copied.

    Attributes:
        event_time: SQL over the schema that gives the event time, as for an input; of an Iceberg table also any other
            expression of DuckDB over its columns.
        query: a SELECT of DuckDB over `records`, the schema's columns of all records of the interval. It gives the
            columns of the target's key and value: text, numbers, booleans, and lists and structs of them. Each key
            once, and the same rows of the same records: no `now()`, no `random()`. `getvariable('begin')` and
            `getvariable('end')` are the interval, epoch ms.
        schema: Spark DDL of the records' values, decoded as those of a stream's input are. If it is left out, the
            archived topic declares it. Of an Iceberg table, the columns that are read; by default all, as they are.
    """

    event_time: str
    query: str
    schema: str = OF_TOPIC

    def __post_init__(self) -> None:
        for name in ("schema", "event_time", "query"):
            check_kind("the rows of a backfill", name, getattr(self, name), str)


@dataclass(frozen=True)
class Backfill:
    """One DAG, `backfill_<name>`, and `penstock backfill run <name>`: docs/backfills.md.

    Attributes:
        name: unique.
        source: a declared archive, a collection of MongoDB, an Iceberg table, or the name of a source outside the
            project, which is in the graph and not run.
        target: a topic takes an archive's records as they are, in order of event time; a TopicOutput takes the rows of
            `rows`; of a stream the topic takes what the stream's transform makes of the records.
        description: a sentence.
        rows: for a TopicOutput.
        via: of a stream as target, the streams between the archived topic and it, in order.
        full_history: whether it reads all records before the end of its interval, not only those of the interval.
        max_lag: how far the target's readers may lag before it waits for them.
        max_rate: records a second; 0 for as fast as the readers' lag allows.
        cron: the intervals of the DAG.
        scheduled: whether it runs at the end of each interval, or only on request.
        location: where it is declared.
    """

    name: str
    source: Archive | Collection | IcebergTable | str
    target: Topic | TopicOutput | Stream | str
    description: str = ""
    rows: RowsQuery | None = None
    via: Sequence[Stream] = ()
    full_history: bool = False
    max_lag: timedelta = timedelta(minutes=1)
    max_rate: int = 0
    cron: str = DAILY
    scheduled: bool = False
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "backfill"
    app: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_name("backfill", self.name)
        what = f"backfill {self.name}"
        if not isinstance(self.source, Archive | Collection | IcebergTable | str) or not self.source:
            hint = "give an Archive, a Collection, an IcebergTable, or the name of a source"
            raise DeclarationError(f"{what} has no source", got=repr(self.source), hint=hint)
        if not isinstance(self.target, Topic | TopicOutput | Stream | str) or not self.target:
            hint = "give a Topic, a topic's name, a TopicOutput, or a Stream"
            raise DeclarationError(f"{what} has no target", got=repr(self.target), hint=hint)
        check_duration(f"{what}: max_lag", self.max_lag)
        check_kind(what, "max_rate", self.max_rate, int)
        if self.max_rate < 0 or not CRON.fullmatch(self.cron):
            got = f"max_rate={self.max_rate!r}, cron={self.cron!r}"
            hint = f"give max_rate records a second, 0 for no bound, and cron a line such as {DAILY!r}"
            raise DeclarationError(f"{what} has a rate or intervals that are not valid", got=got, hint=hint)
        if self.runnable:
            self._check(what)

    def _check(self, what: str) -> None:
        if (self.rows is not None) != isinstance(self.target, TopicOutput):
            raise DeclarationError(
                f"{what} does not say how records become rows"
                if self.rows is None
                else f"{what} has rows for no output",
                got=repr(self.target)[:200],
                hint="rows=RowsQuery(...) goes with target=TopicOutput(topic, key=..., value=...), and no other target",
            )
        if isinstance(self.source, Collection | IcebergTable) and self.rows is None:
            kind = "documents" if isinstance(self.source, Collection) else "rows of a table"
            raise DeclarationError(
                f"{what} reads {kind}, which are no records of a topic",
                got=self.source.path,
                hint="say what they become: rows=RowsQuery(...), target=TopicOutput(...)",
            )
        if self.rows is not None:
            self._check_schema(what, self.rows)
        if isinstance(self.target, TopicOutput) and not (self.target.key and self.target.value):
            raise DeclarationError(
                f"{what}: rows without a key would be doubled by a second run",
                got=repr(self.target)[:200],
                hint="give the output a key and a value",
            )
        if isinstance(self.target, TopicOutput):
            check_value_fields(what, self.target)
        self._check_masks(what)
        if self.via and not isinstance(self.target, Stream):
            raise DeclarationError(
                f"{what} names streams on its way and none at its end", hint="give the last one as target"
            )
        if isinstance(self.target, Stream) and len(self.target.output_topics) != 1:
            raise DeclarationError(
                f"{what}: stream {self.target.name} does not write one topic", got=", ".join(self.target.output_names)
            )

    def _check_schema(self, what: str, rows: RowsQuery) -> None:
        ddl = reader_schema(what, self._archived_topic, rows.schema)
        if isinstance(self.source, IcebergTable):
            reader_fields(what, ddl, of_json=False)
            return
        if not ddl:
            raise DeclarationError(
                f"{what} does not say the schema of its records",
                got="no schema, and none that the topic of its archive declares",
                hint="RowsQuery(..., schema='id BIGINT, ...'), or Archive(..., source=Topic(..., schema=...))",
            )
        reader_fields(what, self.registry_schema or ddl)

    def _check_masks(self, what: str) -> None:
        if isinstance(self.target, TopicOutput) and self.target.mask:
            raise DeclarationError(
                f"{what} does not mask its rows, and its output does",
                got=mask_text(self.target.mask),
                hint="take the stream that masks them as target",
            )
        masked = self.source.mask if isinstance(self.source, Archive) else ()
        if any(self.copies_records or mask.root == "value" for mask in masked):
            raise DeclarationError(
                f"{what} reads an archive whose records are masked",
                got=mask_text(masked),
                hint="archive what a stream masks, not its input; or keep an archive of the input that is not masked",
            )

    @property
    def _archived_topic(self) -> Topic | None:
        """The topic of its archive, if that is declared with it."""
        topic = self.source.topic if isinstance(self.source, Archive) else None
        return topic if isinstance(topic, Topic) else None

    @property
    def ddl(self) -> str:
        """The schema by which it decodes records, as Spark DDL; empty if it decodes none."""
        return reader_schema(f"backfill {self.name}", self._archived_topic, self.rows.schema) if self.rows else ""

    @property
    def registry_schema(self) -> RegistrySchema | None:
        """The schema by which it decodes records, if a schema registry keeps it."""
        return self._archived_topic.registry_schema if self.rows and self._archived_topic else None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of the schema by which it decodes records."""
        of_json = not isinstance(self.source, IcebergTable)
        return reader_fields(f"backfill {self.name}", self.registry_schema or self.ddl, of_json=of_json)

    @property
    def runnable(self) -> bool:
        """Whether Penstock can run it: not if its source is outside."""
        return not isinstance(self.source, str)

    @property
    def copies_records(self) -> bool:
        """Whether records are written unchanged."""
        return self.rows is None and not isinstance(self.target, Stream)

    @property
    def target_topic(self) -> str:
        """The name of the topic that it writes."""
        if isinstance(self.target, Stream):
            return self.target.output_topics[0].name if self.target.output_topics else self.target.name
        return self.target.name if isinstance(self.target, TopicOutput) else topic_name(self.target)

    @property
    def reads(self) -> Sequence[CatalogNode]:
        if isinstance(self.source, Archive):
            return (CatalogNode(self.source.kind, self.source.name),)
        return (CatalogNode("source", self.source if isinstance(self.source, str) else self.source.path),)

    @property
    def writes(self) -> Sequence[CatalogNode]:
        if isinstance(self.target, Stream):
            return (CatalogNode(self.target.kind, self.target.name),)
        return (CatalogNode("topic", self.target_topic),)
