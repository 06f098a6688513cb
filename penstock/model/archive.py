"""What an archive is: the records of a topic, kept in an object store for longer than the topic keeps them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Literal, get_args

from penstock.errors import DeclarationError
from penstock.model.checks.event_time_checks import check_event_time
from penstock.model.declaration import CatalogNode, Kind, caller_location, check_name
from penstock.model.input import RAW_FIELDS, RECORD_FIELDS
from penstock.model.output_mode import check_duration
from penstock.model.stream import Stream
from penstock.model.topic import Topic, topic_name

Format = Literal["parquet"]
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?")


@dataclass(frozen=True)
class Archive:
    """A topic, or the target of a stream, kept in an object store: each record exactly once.

    of: a topic, the name of one that is declared elsewhere, or a stream that writes one topic.
    bucket, prefix: where its files lie, partitioned by event date and hour (UTC):
        `<prefix>/date=2026-01-31/hour=23/`.
    format: of its files, `parquet`.
    event_time: SQL over `topic, partition, offset, key, value, timestamp` that gives TIMESTAMP; the record's own time
        if empty, and where it gives none or fails.
    wait: how long after its end an hour is closed. every, batch: how often records are written, and how many at most.
    app: whose driver runs it.
    """

    name: str
    of: Topic | Stream | str
    bucket: str
    prefix: str = ""
    format: Format = "parquet"
    event_time: str = ""
    wait: timedelta = timedelta(minutes=15)
    every: timedelta = timedelta(seconds=10)
    batch: int = 500_000
    app: str = "archives"
    location: str = field(default_factory=caller_location, init=False, compare=False, repr=False)

    kind: ClassVar[Kind] = "archive"

    def __post_init__(self) -> None:
        check_name("archive", self.name)
        check_duration(f"archive {self.name}: wait", self.wait)
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
        if self.format not in get_args(Format):
            known = ", ".join(get_args(Format))
            raise DeclarationError(
                f"archive {self.name}: the format is not known", got=repr(self.format), hint=f"take one of: {known}"
            )
        if isinstance(self.of, Stream) and len(self.of.output_topics) != 1:
            raise DeclarationError(
                f"archive {self.name}: stream {self.of.name} does not write one topic",
                got=", ".join(self.of.output_names),
                hint="name the topic itself: of=Topic(...)",
            )

    @property
    def topic(self) -> Topic | str:
        """The topic, or its name alone."""
        return self.of.output_topics[0] if isinstance(self.of, Stream) else self.of

    @property
    def reads(self) -> Sequence[CatalogNode]:
        return (CatalogNode("topic", topic_name(self.topic)),)

    @property
    def writes(self) -> Sequence[CatalogNode]:
        return (CatalogNode("store", f"bucket:{self.bucket}/{self.prefix}".rstrip("/")),)
