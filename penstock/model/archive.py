"""Archives: the records of a topic in an Iceberg table, kept for longer than the topic keeps them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Literal

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.checks.event_time_checks import check_event_time
from penstock.model.declaration import CatalogNode, Kind, caller_location, check_name
from penstock.model.input import RAW_FIELDS, RECORD_FIELDS
from penstock.model.mask import Mask, Method, check_masks_fit
from penstock.model.output_mode import check_duration
from penstock.model.stream import Stream
from penstock.model.topic import Topic, reader_fields, topic_name

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# What may be masked. A record without a value would be a tombstone, and headers are no single value.
MASKS: dict[str, tuple[Method, ...]] = {
    "key": ("hashed", "encrypted", "dropped"), "value": ("hashed", "encrypted"), "headers": ("dropped",),
}  # fmt: skip
PARTITION_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "date")
TABLE = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)+)?")
PREFIX = re.compile(r"([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?")


@dataclass(frozen=True)
class Archive:
    """A topic, or the output of a stream, kept in an Iceberg table: each record exactly once.

    Attributes:
        name: unique.
        source: a topic, the name of one that is declared elsewhere, or a stream that writes one topic.
        bucket: of the object store.
        prefix: the folder of the table in it; by default the name of the archive.
        table: the name of the table in the catalog, `namespace.table`; empty for `penstock.<name>`, with `_` for `-`.
        event_time: SQL over `topic, partition, offset, key, value, timestamp` that gives TIMESTAMP; the record's own
            timestamp if empty, and where it gives none or fails.
        close_delay: how long after its end an hour is closed.
        every: how often records are written: each time is a snapshot of the table.
        keep_snapshots: how long a snapshot of the table is kept, which is how far back its past states can be read.
        max_records: how many records a batch has at most.
        app: whose driver runs it.
        partition: `hour` if Airflow gets an asset event for each hour that is closed, and one for each that is closed
            again with records that came later. None: no events.
        decode: whether the table has a column `decoded` too: a STRUCT of the fields by the topic's schema, NULL for a
            record that is none of it. It is left out if the topic declares no schema, or `value` is masked.
        partition_by: fields of `decoded` by which the table is partitioned within an hour: text, whole numbers, BOOLEAN
            or DATE with few values, as each batch writes a file for each.
        mask: `key`, `value` and `headers`, if they are not kept as they are. Keys and values are hashed or encrypted,
            and of a record whose key or headers are dropped they are NULL.
        location: where it is declared.
    """

    name: str
    source: Topic | Stream | str
    bucket: str
    prefix: str = ""
    table: str = ""
    event_time: str = ""
    close_delay: timedelta = timedelta(minutes=15)
    every: timedelta = timedelta(minutes=1)
    keep_snapshots: timedelta = timedelta(days=1)
    max_records: int = 500_000
    app: str = "archives"
    partition: Literal["hour"] | None = None
    decode: bool = True
    partition_by: tuple[str, ...] = ()
    mask: tuple[Mask, ...] = ()
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "archive"

    def __post_init__(self) -> None:
        check_name("archive", self.name)
        object.__setattr__(self, "prefix", self.prefix or self.name)
        check_duration(f"archive {self.name}: close_delay", self.close_delay)
        check_duration(f"archive {self.name}: keep_snapshots", self.keep_snapshots)
        if self.event_time:
            check_event_time(f"archive {self.name}", self.event_time, (*RAW_FIELDS, *RECORD_FIELDS))
        if not BUCKET.fullmatch(self.bucket):
            raise DeclarationError(
                f"archive {self.name}: the bucket's name is not usable",
                got=repr(self.bucket),
                hint="use 3 to 63 small letters, digits, '.' and '-'",
            )
        if not PREFIX.fullmatch(self.prefix):
            raise DeclarationError(
                f"archive {self.name}: the prefix is not usable",
                got=repr(self.prefix),
                hint="write it as folder/folder, without '/' at either end",
            )
        if not TABLE.fullmatch(self.table):
            raise DeclarationError(
                f"archive {self.name}: the name of the table is not usable",
                got=repr(self.table),
                hint="write it as namespace.table, of letters, digits and '_'",
            )
        if self.partition not in (None, "hour"):
            got, hint = f"partition={self.partition!r}", 'an archive is kept by hours: use partition="hour"'
            raise DeclarationError(f"archive {self.name}: it cannot have these partitions", got=got, hint=hint)
        check_kind(f"archive {self.name}", "decode", self.decode, bool)
        self._check_masks()
        if isinstance(self.source, Topic):
            self.decoded_topic()
        if isinstance(self.source, Stream) and len(self.source.output_topics) != 1:
            raise DeclarationError(
                f"archive {self.name}: stream {self.source.name} does not write one topic",
                got=", ".join(self.source.output_names),
                hint="name the topic itself: source=Topic(...)",
            )

    def decoded_topic(self, declared: Topic | None = None) -> Topic | None:
        """The topic whose schema decodes its values; None if they are not decoded.

        Args:
            declared: The topic, if the archive has only its name.

        Raises:
            DeclarationError: It is partitioned by a field that it does not decode, or that has another type.
        """
        topic = declared if isinstance(self.topic, str) else self.topic
        decoded = topic and topic.ddl and self.decode and not any(mask.root == "value" for mask in self.mask)
        fields = reader_fields(f"topic {topic.name}", topic.registry_schema or topic.ddl) if topic and decoded else ()
        kinds = {field.name: field.type.kind for field in fields}
        by: object = self.partition_by
        is_valid = isinstance(by, tuple) and len(set(by)) == len(by)
        if not is_valid or any(kinds.get(name) not in PARTITION_TYPES for name in self.partition_by):
            raise DeclarationError(
                f"archive {self.name}: partition_by cannot be used",
                got=f"{by!r}; decoded are: {', '.join(' '.join(field) for field in kinds.items()) or 'no fields'}",
                hint=f"give a tuple of names of decoded fields of the types {', '.join(PARTITION_TYPES)}",
            )
        return topic if decoded else None

    def _check_masks(self) -> None:
        check_masks_fit(f"archive {self.name}", self.mask, tuple(MASKS))
        for mask in self.mask:
            if len(mask.path) > 1:
                raise DeclarationError(
                    f"archive {self.name}: a field of a {mask.path[0]} cannot be masked alone",
                    got=mask.text,
                    hint="let a stream mask the field, and archive its topic; or mask the whole column",
                )
            if mask.method not in MASKS[mask.root]:
                raise DeclarationError(
                    f"archive {self.name}: {mask.column} cannot be {mask.method}",
                    got=mask.text,
                    hint=f"it can be {' or '.join(MASKS[mask.root])}",
                )

    @property
    def topic(self) -> Topic | str:
        """The topic, or its name alone."""
        return self.source.output_topics[0] if isinstance(self.source, Stream) else self.source

    @property
    def table_name(self) -> str:
        """The name of its table in the catalog."""
        return self.table or f"penstock.{self.name.replace('-', '_')}"

    @property
    def reads(self) -> Sequence[CatalogNode]:
        return (CatalogNode("topic", topic_name(self.topic)),)

    @property
    def writes(self) -> Sequence[CatalogNode]:
        return (CatalogNode("store", f"bucket:{self.bucket}/{self.prefix}".rstrip("/")),)
