"""What a stream reads: a topic, every topic of a pattern, or a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.checks.event_time_checks import check_event_time
from penstock.model.output_mode import check_length
from penstock.model.schema import Field, schema
from penstock.model.topic import Topic, beside, check_topic

READS = {"key", "partition", "offset"}
Late = Literal["count", "keep"]
Dead = Literal["keep", "count"]
Gap = Literal["stop", "go on"]
Tombstones = Literal["dead", "keep"]
# The record's own time, where there is no schema.
RECORDS_OWN = "timestamp"
RAW = schema(
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP",
    "raw records",
    of_json=False,
)
# The column of the record itself, as it lies in its topic.
WHOLE = "record"
RECORD = schema(
    f"{WHOLE} STRUCT<topic: STRING, partition: INT, offset: BIGINT, key: BINARY, value: BINARY, timestamp: TIMESTAMP, "
    "headers: ARRAY<STRUCT<key: STRING, value: BINARY>>>",
    "whole records",
    of_json=False,
)


@dataclass(frozen=True)
class Combiner:
    """Groups the records of a batch before they reach Spark: thousands of partial rows instead of millions.

    schema: Spark DDL of the partial rows, which the transform gets instead of the records; `event_time TIMESTAMP`
        comes beside it.
        A list among them holds no NULL.
    sql: a DuckDB query over the table `records`, which has the input's columns and `event_time TIMESTAMPTZ`. It gives
        the columns of schema and `event_time`, the greatest of the group. Of an input without a schema `records` has
        `topic, value`, the value as `text VARCHAR` (NULL if it is no UTF-8), and what reads names. `penstock catalog`
        tries it without records, and so does a stream before it starts.
    reads: of an input without a schema, which of `key, partition, offset` the query needs: each has its price.

    However a batch is split, what the transform makes of the parts must be the same: `penstock.testing.splits` tries
    it. All records of a group must belong to the same windows of the transform, so that they are late together.
    """

    schema: str
    sql: str
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kind("a combiner", "schema", self.schema, str)
        check_kind("a combiner", "sql", self.sql, str)
        reads: object = self.reads
        if not isinstance(reads, tuple) or not set(reads) <= READS:
            raise DeclarationError(
                "a combiner reads what a record does not have",
                got=repr(self.reads),
                hint=f"a tuple of: {', '.join(sorted(READS))}; topic, value and text are always there",
            )


@dataclass(frozen=True)
class Input:
    """One input of a stream.

    topic: a declared topic; or pattern: a regular expression over topic names, for every topic it matches, also those
        created later.
    schema: Spark DDL of the JSON value; NOT NULL marks what a record must have. docs/records.md says which texts are
        records of a schema. Without one the transform gets the raw record:
        `topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP`.
    event_time: SQL over the schema's columns (or over `timestamp`, the record's own time, for a raw input), giving
        TIMESTAMP. The engine adds it as the column `event_time` and puts the watermark on it. Where it gives NULL,
        fails, or gives none of the years 1 to 9999, a record is a dead letter, and a raw one keeps its own time.
    ahead: how far an event time may lie in the future and be believed; a record beyond it is a dead letter. A raw input
        cannot reject; its event time is capped there. None believes every time. Whatever it is, no record moves the
        watermark beyond the clock.
    record: whether the transform gets the record itself beside the columns: `record STRUCT<topic STRING, partition INT,
        offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP, headers ARRAY<STRUCT<key STRING, value BINARY>>,
        event_time TIMESTAMP>`. The expression of the event time may name what is in it, as `record.timestamp`.
    tombstones: what becomes of a record without a value, where there is a schema: it is `dead`, or `keep` it, with NULL
        in every column and its own time as event time. That takes record=True, to tell whose it is.
    combine: groups records before Spark sees them.
    late: what becomes of a record that comes after its windows have closed: `count` it, or `keep` it as well, as it
        came, in the topic `<stream>-late`. If nothing is said, one that another stream wrote is kept in
        `penstock.aside`, and any other is counted.
    dead: what becomes of a record that does not parse: `keep` it in the topic `<topic>-dead-letter` with its place and
        the reason, or `count` it only.
    gap: what to do when records were removed before they were read, a log was cut, or a topic was deleted and made
        again: `stop` and ask, or `go on` with what is there. A topic stops and a pattern goes on unless they say
        otherwise: a deleted topic must not stop the count of all others. Either way it is told and counted.
    share: (n, of): only the records of each partition whose number leaves n - 1 when it is divided by `of`. So several
        streams, in processes of their own, share a topic; all are needed, and all read it whole.
    """

    topic: Topic | None = None
    pattern: str = ""
    schema: str = ""
    event_time: str = RECORDS_OWN
    ahead: timedelta | None = timedelta(minutes=5)
    combine: Combiner | None = None
    late: Late | None = None
    dead: Dead = "keep"
    gap: Gap | None = None
    record: bool = False
    tombstones: Tombstones = "dead"
    share: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        for name in ("pattern", "schema", "event_time"):
            check_kind("an input", name, getattr(self, name), str)
        check_kind("an input", "combine", self.combine, Combiner, type(None))
        check_kind("an input", "record", self.record, bool)
        if (self.topic is None) == (not self.pattern):
            raise DeclarationError("an input reads either a topic or a pattern", got=self, hint="give exactly one")
        if self.topic is not None:
            check_topic("an input", self.topic)
        for name, kinds in {"late": Late, "dead": Dead, "gap": Gap, "tombstones": Tombstones}.items():
            given = getattr(self, name)
            if given not in get_args(kinds) and (given is not None or name not in ("gap", "late")):
                known = " or ".join(f'"{kind}"' for kind in get_args(kinds))
                raise DeclarationError(
                    f"input {self.source}: {name} is not known", got=repr(given), hint=f"say {name}={known}"
                )
        if self.ahead is not None:
            check_length(f"input {self.source}: ahead", self.ahead)
        if self.pattern:
            try:
                re.compile(self.pattern)
            except re.error as e:
                raise DeclarationError("an input's pattern is no regular expression", got=self.pattern) from e
            if self.schema:
                raise DeclarationError(
                    "an input of a pattern has a schema, but its topics may hold anything",
                    got=self.schema,
                    hint="leave the schema out and take the raw records, or name one topic",
                )
        self._record_fits()
        self._share_fits()
        fields = schema(self.schema, f"input {self.source}") if self.schema else RAW
        if self.schema and self.event_time == RECORDS_OWN and RECORDS_OWN not in {f.name.lower() for f in fields}:
            raise DeclarationError(
                f"input {self.source} does not say which of its fields is the event time",
                got=self.schema,
                hint='event_time="timestamp_millis(field)", or another expression over the fields',
            )
        check_event_time(f"input {self.source}", self.event_time, (*fields, *(RECORD if self.record else ())))
        if self.combine:
            schema(self.combine.schema, f"the combiner of input {self.source}", of_json=False)

    @property
    def by_own_time(self) -> bool:
        """Whether its event time is each record's own timestamp."""
        own = RECORDS_OWN if not self.schema else f"{WHOLE}.{RECORDS_OWN}" if self.record else None
        return self.event_time.strip().lower() == own

    def _record_fits(self) -> None:
        what = f"input {self.source}"
        if self.record and self.combine:
            raise DeclarationError(
                f"{what} has a combiner, and what that gives is no record any more", hint="leave out record, or combine"
            )
        if self.tombstones == "keep" and not self.record:
            raise DeclarationError(
                f"{what} keeps tombstones, and nothing would tell whose they are",
                got="record=False",
                hint="say record=True as well",
            )
        names = {f.name.lower() for f in schema(self.schema, what)} if self.schema else set()
        if self.record and WHOLE in names:
            raise DeclarationError(
                f"{what} has a field of the name that the record itself has",
                got=self.schema,
                hint="leave the field out, and take it from the value where it is needed: "
                f"get_json_object(CAST(record.value AS STRING), '$.{WHOLE}')",
            )

    def _share_fits(self) -> None:
        given: object = self.share
        if isinstance(given, tuple) and [type(n) for n in given] == [int, int] and 1 <= given[0] <= given[1]:
            return
        raise DeclarationError(
            f"input {self.source}: this is no share", got=repr(given), hint="say share=(1, 2) for the first of two"
        )

    @property
    def source(self) -> str:
        """Topic name, or the pattern."""
        return self.topic.name if self.topic else self.pattern

    @property
    def parted(self) -> bool:
        """Whether its tombstones go a way of their own, so that who asks for them has nothing else decoded for it."""
        return bool(self.schema) and self.tombstones == "keep" and self.ahead is None

    def reads(self, topic: str) -> bool:
        """Whether a topic is among those that it reads."""
        return self.topic.name == topic if self.topic else bool(re.fullmatch(self.pattern, topic))

    @property
    def stops_at_gap(self) -> bool:
        return (self.gap or ("stop" if self.topic else "go on")) == "stop"

    @property
    def rejected(self) -> Topic | None:
        """The topic of its dead letters; None if it has none or they are only counted."""
        return beside(self.topic.dead_letters) if self.topic and self.schema and self.dead == "keep" else None


@dataclass(frozen=True)
class Table:
    """A compacted topic as the latest value of each key, for a transform to join with; a tombstone removes its key.

    topic: a compacted topic. schema: Spark DDL of the JSON value. The transform gets those columns and `key STRING`,
        the record's key.

    It is kept beside the checkpoint and only what is new is read: before each batch up to the topic's end, so a batch
    sees what was committed before it began. The stream starts once the table is loaded, that is, read to the end that
    the topic had. A change of the table alone makes no batch: a stream that must act on changes reads the topic as an
    Input. A value that does not parse leaves its key as it was, and is a dead letter.
    """

    topic: Topic
    schema: str

    def __post_init__(self) -> None:
        check_topic("a table", self.topic)
        check_kind(f"table {self.topic.name}", "schema", self.schema, str)
        if not self.topic.compacted:
            raise DeclarationError(
                "a table's topic must be compacted",
                got=f"topic {self.topic.name}",
                hint="declare it compacted=True, or read it as an Input",
            )
        if any(field.name.lower() == "key" for field in self.fields):
            raise DeclarationError(
                f"table {self.source} has a field of the name that its key has",
                got=self.schema,
                hint="leave the field `key` out: the transform gets the record's key under that name",
            )

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of its values."""
        return schema(self.schema, f"table {self.source}")

    @property
    def source(self) -> str:
        return self.topic.name

    @property
    def rejected(self) -> Topic:
        return beside(self.topic.dead_letters)
