"""Sinks, as declared in `sql/sinks/<name>.sql`: some clauses, then an ordinary SELECT of Spark SQL.

::

    UPSERT INTO elasticsearch.tests       -- or INSERT INTO: each record makes documents of its own
    READ tests AS JSON (id BIGINT NOT NULL, name STRING, updated_at STRING)
        EVENT TIME to_timestamp(updated_at) -- or READ tests SHARE 1 OF 2 AS JSON ...: another sink has the rest
    KEY (id)                              -- of a document; the record's key if left out
    VERSION (revision)                    -- the greater wins; event time, then offset if left out
    SUFFIX DAY (at)                       -- of the index or collection, from a time; HOUR, DAY, MONTH or YEAR
    EXPIRE AFTER 30 DAYS                  -- how long a document is kept
    TOMBSTONES DELETE (record.key)        -- or DELETE, IGNORE, MARK; what a record without a value does
    DELETED WHEN (deleted)                -- which rows do what a tombstone does; of IGNORE they delete
    BATCH 50000 EVERY 1 SECOND            -- records of a batch at most, and seconds between two
    PARALLEL 2                            -- requests at once
    MASK name HASHED WITH pii, note DROPPED   -- before it is written; pii: a key
    DEAD LETTERS INTO tests-not-indexed   -- what the store refuses; `<name>-dead-letter` if left out
    APP sinks                             -- whose driver runs it
    AS
    SELECT id, name FROM tests

For Elasticsearch also FIELDS (name KEYWORD, ...), for MongoDB INDEX (name) and UNIQUE INDEX (name), as often as there
are indexes, for InfluxDB MEASUREMENT (column), TAGS (columns), FIELDS (columns), TIME (column) and VERSION NONE. Every
clause but READ, INDEX and UNIQUE INDEX stands once, in any order behind the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from penstock.model.mask import Mask
from penstock.model.sql_declaration import SqlDeclaration

# The app whose driver runs sinks that name no other.
SINKS_APP = "sinks"
# Columns of a temporary view beside those of its topic's values: the record, and which SELECTs a row came through.
RECORD_COLUMN, PATH_COLUMN = "record", "_way"
# Index of a row among those of its record with the same path.
INDEX_COLUMN = "_number"

Store = Literal["elasticsearch", "mongodb", "influxdb"]
# Stores of points, which have no key: measurement, tags and time identify a point.
POINT_STORES: tuple[Store, ...] = ("influxdb",)
Verb = Literal["upsert", "insert"]
Format = Literal["json", "text", "binary"]
Unit = Literal["hour", "day", "month", "year"]
Tombstones = Literal["delete", "ignore", "mark"]


@dataclass(frozen=True)
class SinkRead:
    """A topic that a sink reads. schema: Spark DDL of a value that is decoded, OF_TOPIC for that of the topic;
    event_time: SQL over its fields and `record`, the record's own time if empty; share: (n, of), which of its
    partitions, as `penstock.model.input.Input` says."""

    topic: str
    format: Format = "json"
    schema: str = ""
    event_time: str = ""
    share: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class RewrittenSelect:
    """The SELECT with the columns that Spark needs besides.

    Attributes:
        sql: as Spark gets it.
        added: (offset in the written text, number of characters inserted there).
    """

    sql: str
    added: tuple[tuple[int, int], ...]

    def written_offset(self, at: int) -> int:
        """The offset in the written text of an offset in `sql`."""
        shift = 0
        for behind, length in self.added:
            if at < behind + shift:
                break
            if at < behind + shift + length:
                return behind
            shift += length
        return at - shift


@dataclass(frozen=True)
class Sink(SqlDeclaration):
    """One declared sink; the module's text says what each clause means.

    Attributes:
        target: what follows the store's name: index; database and collection; database and measurement, or the database
            alone where `measurement` names a column.
        sql: the SELECT as written.
        rewritten: the SELECT as Spark gets it.
        locations: line and column of each clause and of the SELECT.
        key: columns of the SELECT.
        version: column of the SELECT.
        suffix: unit, and column of the SELECT.
        tombstone_key: SQL over `record` that stands for the key of a tombstone.
        fields: types of fields in the store, by name.
    """

    name: str
    path: Path
    verb: Verb
    store: Store
    target: tuple[str, ...]
    reads: tuple[SinkRead, ...]
    sql: str
    rewritten: RewrittenSelect
    locations: Mapping[str, str]
    app: str = SINKS_APP
    key: tuple[str, ...] = ()
    version: str = ""
    suffix: tuple[Unit, str] | None = None
    expire: timedelta | None = None
    tombstones: Tombstones = "delete"
    tombstone_key: tuple[str, ...] = ()
    deleted_sql: str = ""
    max_records: int = 50_000
    every: timedelta = timedelta(seconds=1)
    parallel: int = 2
    dead_letters: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    indexes: tuple[tuple[str, ...], ...] = ()
    unique_indexes: tuple[tuple[str, ...], ...] = ()
    measurement: str = ""
    tags: tuple[str, ...] = ()
    time: str = ""
    mask: tuple[Mask, ...] = ()

    @property
    def makes_points(self) -> bool:
        return self.store in POINT_STORES

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that make a document's id; none if the record's key does."""
        return self.key or tuple(filter(None, (self.measurement, *self.tags, self.time)))

    def clause_of(self, column: str) -> str:
        """The clause that makes it part of the id."""
        named = {"KEY": self.key, "MEASUREMENT": (self.measurement,), "TAGS": self.tags, "TIME": (self.time,)}
        return next(clause for clause, names in named.items() if column in names)

    def written_offset(self, at: int) -> int:
        return self.rewritten.written_offset(at)
