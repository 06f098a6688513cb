"""What a stream reads: a topic, every topic of a pattern, or a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.checks.event_time_checks import check_event_time
from penstock.model.output_mode import check_duration
from penstock.model.registry_schema import RegistrySchema
from penstock.model.schema import schema
from penstock.model.topic import OF_TOPIC, Topic, check_topic, reader_fields, reader_schema, side_topic
from penstock.model.types import Field

COMBINER_READS = {"key", "partition", "offset", "registry"}
LateRecords = Literal["count", "keep"]
DeadLetters = Literal["keep", "count"]
OnDataLoss = Literal["fail", "continue"]
Tombstones = Literal["dead letter", "keep"]
# The record's own timestamp, where there is no schema.
RECORD_TIMESTAMP = "timestamp"
RAW_FIELDS = schema(
    "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP",
    "raw records",
    of_json=False,
)
# The column that holds the record itself, as it is in its topic.
RECORD_COLUMN = "record"
RECORD_FIELDS = schema(
    f"{RECORD_COLUMN} STRUCT<topic: STRING, partition: INT, offset: BIGINT, key: BINARY, value: BINARY, "
    "timestamp: TIMESTAMP, headers: ARRAY<STRUCT<key: STRING, value: BINARY>>>",
    "whole records",
    of_json=False,
)


@dataclass(frozen=True)
class Combiner:
    """Aggregates the records of a batch before they reach Spark: thousands of partial rows instead of millions.

    However a batch is split, the transform must make the same of the partial rows: `penstock.testing.splits` tests it.
    All records of a group must belong to the same windows of the transform, so that they are late together.

    Attributes:
        schema: Spark DDL of the partial rows, which the transform gets instead of the records, with `event_time
            TIMESTAMP` beside them. An array among them holds no NULL.
        sql: a DuckDB query over the table `records`: the input's columns and `event_time TIMESTAMPTZ`. It gives the
            columns of the schema and `event_time`, the greatest of the group. Of an input without a schema `records`
            has `topic, value`, the value as `text VARCHAR` (NULL if it is no UTF-8), and what `reads` names. `penstock
            catalog` runs it without records, and so does a stream before it starts.
        reads: of an input without a schema, which of `key, partition, offset` and `registry` the query needs: each has
            its cost. `registry` gives `registered BOOLEAN`, whether the schema registry has the topic's subject,
            `<topic>-value`; and `registry_error VARCHAR`, why a value of such a topic cannot be decoded by the schema
            of its writer, NULL if it can.
    """

    schema: str
    sql: str
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kind("a combiner", "schema", self.schema, str)
        check_kind("a combiner", "sql", self.sql, str)
        reads: object = self.reads
        if not isinstance(reads, tuple) or not set(reads) <= COMBINER_READS:
            raise DeclarationError(
                "a combiner reads what a record does not have",
                got=repr(self.reads),
                hint=f"a tuple of: {', '.join(sorted(COMBINER_READS))}; topic, value and text are always there",
            )


@dataclass(frozen=True)
class Input:
    """One input of a stream: a topic, or all topics that match a pattern.

    Attributes:
        topic: a declared topic.
        pattern: or a regular expression: every topic whose name matches, also those created later.
        schema: Spark DDL of the JSON value; NOT NULL marks required fields. docs/records.md says which texts are
            records of a schema. If left out, the topic's own. Empty, and if the topic declares none, the transform gets
            the raw record: `topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP`.
        event_time: SQL over the schema's columns (over `timestamp`, the record's own, for a raw input) that gives
            TIMESTAMP. The engine adds it as the column `event_time`, with the watermark. Where it gives NULL, fails, or
            gives none of the years 1 to 9999, a record is a dead letter, and a raw one keeps its own timestamp.
        max_ahead: how far an event time may lie in the future; a record beyond it is a dead letter. Of a raw input,
            which rejects nothing, event times are capped there. None accepts every time. In any case no record moves
            the watermark beyond the clock.
        combine: aggregates records before Spark sees them.
        late_records: `count` records whose windows have closed, or `keep` them as well, unchanged, in the topic
            `<stream>-late`. None: what another stream wrote is kept in `penstock.dead-letters`, all else is counted.
        dead_letters: `keep` records that cannot be decoded in the topic `<topic>-dead-letter`, with their position and
            the reason, or `count` them only.
        on_data_loss: `fail`, and let an operator decide, or `continue` with what is there, when records were removed
            before they were read, a log was truncated, or a topic was created anew. None: a topic fails and a pattern
            continues, as a deleted topic must not stop the count of all others. Either way it is logged and counted.
        record: whether the transform gets the record itself beside the columns: `record STRUCT<topic STRING, partition
            INT, offset BIGINT, key BINARY, value BINARY, timestamp TIMESTAMP, headers ARRAY<STRUCT<key STRING, value
            BINARY>>, event_time TIMESTAMP>`. `event_time` may name its fields, as `record.timestamp`.
        tombstones: of an input with a schema: a tombstone is a `dead letter`, or `keep` it, with NULL in every column
            and its own timestamp as event time. That takes record=True, which tells the key.
        share: (n, of): only records of each partition whose number leaves n - 1 when divided by `of`. So several
            streams, in processes of their own, share a topic; all are needed, and all read it whole.
    """

    topic: Topic | None = None
    pattern: str = ""
    schema: str = OF_TOPIC
    event_time: str = RECORD_TIMESTAMP
    max_ahead: timedelta | None = timedelta(minutes=5)
    combine: Combiner | None = None
    late_records: LateRecords | None = None
    dead_letters: DeadLetters = "keep"
    on_data_loss: OnDataLoss | None = None
    record: bool = False
    tombstones: Tombstones = "dead letter"
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
        object.__setattr__(self, "schema", reader_schema(f"input {self.source}", self.topic, self.schema))
        choices = {
            "late_records": LateRecords, "dead_letters": DeadLetters, "on_data_loss": OnDataLoss,
            "tombstones": Tombstones,
        }  # fmt: skip
        for name, choice in choices.items():
            chosen = getattr(self, name)
            if chosen not in get_args(choice) and (chosen is not None or name not in ("on_data_loss", "late_records")):
                allowed = " or ".join(f'"{one}"' for one in get_args(choice))
                raise DeclarationError(
                    f"input {self.source}: {name} has no such value", got=repr(chosen), hint=f"give {name}={allowed}"
                )
        if self.max_ahead is not None:
            check_duration(f"input {self.source}: max_ahead", self.max_ahead)
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
        fields = self.fields or RAW_FIELDS
        if (
            self.schema
            and self.event_time == RECORD_TIMESTAMP
            and RECORD_TIMESTAMP not in {f.name.lower() for f in fields}
        ):
            raise DeclarationError(
                f"input {self.source} does not say which of its fields is the event time",
                got=self.schema,
                hint='event_time="timestamp_millis(field)", or another expression over the fields',
            )
        check_event_time(f"input {self.source}", self.event_time, (*fields, *(RECORD_FIELDS if self.record else ())))
        if self.combine:
            schema(self.combine.schema, f"the combiner of input {self.source}", of_json=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of its values; none without a schema."""
        return reader_fields(f"input {self.source}", self.registry_schema or self.schema)

    @property
    def registry_schema(self) -> RegistrySchema | None:
        """The schema of its values, if a schema registry keeps it and they are decoded."""
        return self.topic.registry_schema if self.topic and self.schema else None

    @property
    def uses_record_timestamp(self) -> bool:
        """Whether its event time is the record's own timestamp."""
        own = RECORD_TIMESTAMP if not self.schema else f"{RECORD_COLUMN}.{RECORD_TIMESTAMP}" if self.record else None
        return self.event_time.strip().lower() == own

    def _record_fits(self) -> None:
        what = f"input {self.source}"
        if self.record and self.combine:
            raise DeclarationError(
                f"{what} has a combiner, whose rows are no records", hint="leave out record, or combine"
            )
        if self.tombstones == "keep" and not self.record:
            raise DeclarationError(
                f"{what} keeps tombstones, and nothing would tell their keys",
                got="record=False",
                hint="say record=True as well",
            )
        names = {f.name.lower() for f in self.fields}
        if self.record and RECORD_COLUMN in names:
            raise DeclarationError(
                f"{what} has a field of the name that the record itself has",
                got=self.schema,
                hint="leave the field out, and take it from the value where it is needed: "
                f"get_json_object(CAST(record.value AS STRING), '$.{RECORD_COLUMN}')",
            )

    def _share_fits(self) -> None:
        share: object = self.share
        if isinstance(share, tuple) and [type(n) for n in share] == [int, int] and 1 <= share[0] <= share[1]:
            return
        raise DeclarationError(
            f"input {self.source}: share is not valid", got=repr(share), hint="give share=(1, 2) for the first of two"
        )

    @property
    def source(self) -> str:
        """Topic name, or the pattern."""
        return self.topic.name if self.topic else self.pattern

    @property
    def splits_tombstones(self) -> bool:
        """Whether its tombstones take a path of their own, so that a reader of them has nothing else decoded."""
        return bool(self.schema) and self.tombstones == "keep" and self.max_ahead is None

    def reads_topic(self, topic: str) -> bool:
        """Whether a topic is one of its topics."""
        return self.topic.name == topic if self.topic else bool(re.fullmatch(self.pattern, topic))

    @property
    def fails_on_data_loss(self) -> bool:
        return (self.on_data_loss or ("fail" if self.topic else "continue")) == "fail"

    @property
    def dead_letter_topic(self) -> Topic | None:
        """The topic of its dead letters; None if it has none or they are only counted."""
        keeps = self.topic and self.schema and self.dead_letters == "keep"
        return side_topic(self.topic.dead_letters) if self.topic and keeps else None


@dataclass(frozen=True)
class Table:
    """A compacted topic as the latest value of each key, for a transform to join with; a tombstone removes its key.

    It is kept beside the checkpoint and read incrementally: before each batch up to the topic's end, so a batch sees
    what was committed before it began. The stream starts once the table is loaded, that is, read to the end that the
    topic had. A change of the table alone starts no batch: a stream that must act on changes reads the topic as an
    Input. A value that cannot be decoded leaves its key as it was, and is a dead letter.

    Attributes:
        topic: a compacted topic.
        schema: Spark DDL of the JSON value; the topic's own if left out. The transform gets these columns and `key
            STRING`, the record's key.
    """

    topic: Topic
    schema: str = OF_TOPIC

    def __post_init__(self) -> None:
        check_topic("a table", self.topic)
        check_kind(f"table {self.topic.name}", "schema", self.schema, str)
        object.__setattr__(self, "schema", reader_schema(f"table {self.source}", self.topic, self.schema))
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
        return reader_fields(f"table {self.source}", self.registry_schema or self.schema)

    @property
    def registry_schema(self) -> RegistrySchema | None:
        """The schema of its values, if a schema registry keeps it."""
        return self.topic.registry_schema

    @property
    def source(self) -> str:
        return self.topic.name

    @property
    def dead_letter_topic(self) -> Topic:
        return side_topic(self.topic.dead_letters)
