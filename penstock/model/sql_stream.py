"""Streams in SQL, as declared in `sql/streams/<name>.sql`: some clauses, then an ordinary SELECT of Spark SQL.

::

    STREAM INTO order-minutes              -- the topic of its rows
    READ orders AS JSON (shop STRING NOT NULL, amount DOUBLE NOT NULL, at BIGINT NOT NULL)
                                           -- without AS JSON, the schema that the topic declares in Python
        EVENT TIME timestamp_millis(at)    -- SQL over the fields; `timestamp`, a field, if left out
        AHEAD 5 MINUTES                    -- how far it may lie in the future; this if left out
        WITH RECORD                        -- the column `record`: offset, timestamp, headers and more of the record
        KEEP LATE                          -- late records, in the topic `<stream>-late`; otherwise they are counted
    READ TABLE shops AS JSON (name STRING) -- a compacted topic: the newest value of each `key`, to join with
    KEY (shop, minute)                     -- of a record; none if left out
    VALUE (total)                          -- all columns that are not of the key if left out
    EMIT FINAL WINDOW 1 MINUTE GRACE 10 SECONDS
    EXPECT positive total > 0 ON VIOLATION KEEP   -- a rule of each row; or DEAD LETTER, or FAIL
    MASK email HASHED WITH pii, card ENCRYPTED WITH cards, note DROPPED   -- before it is written; pii, cards: keys
    PARTITIONS 4                           -- of the topic, if it is created
    RETENTION 7 DAYS                       -- or COMPACTED
    WITH ('min.compaction.lag.ms' = '60000')   -- further settings of the topic, by Kafka's names
    PARTITION BY HOUR                      -- an asset event in Airflow for each closed HOUR, DAY or WINDOW
    EVERY 10 SECONDS                       -- between batches
    STATE PARTITIONS 1                     -- fixed by the checkpoint
    APP orders                             -- whose driver runs it
    AS
    SELECT shop, unix_millis(window.start) AS minute, sum(amount) AS total
    FROM orders
    GROUP BY shop, window(event_time, '1 minute')

`EMIT FINAL` writes each window once, when it is closed; `EMIT CHANGES WINDOW ... GRACE ...` writes each change of it;
without EMIT each record becomes rows by itself. Both may say PHASE, and `EMIT FINAL` also LATE BY with STEPS: see
`penstock.model.output_mode`, whose EmitFinal and EmitChanges they are. `JOIN WITHIN 10 MINUTES GRACE 1 MINUTE` joins
two topics. Every clause but READ, EXPECT, FOLD and SETTING stands once, in any order behind the first. The SELECT reads
topics and tables by name, and has of each topic the column `event_time` beside its fields. Several outputs, combiners,
patterns and state of other kinds need Python.

A FOLD is keyed state: a `penstock.model.fold.Fold`, whose rows the SELECT reads by the fold's name::

    FOLD totals
        FROM orders                        -- a topic, an earlier fold, or (SELECT ... FROM orders) of Spark SQL
        BY (shop)                          -- the key of a state
        STATE (total DOUBLE, since BIGINT) -- the state of a key
        UPDATE AS (                        -- DuckDB: the new state of each key; `records` are the rows of FROM
            SELECT shop, sum(amount) + coalesce(any_value(state.total), 0) AS total,
              coalesce(any_value(state.since), min(records.at)) AS since
            FROM records LEFT JOIN state USING (shop) GROUP BY shop)
        ROWS (shop STRING, total DOUBLE)   -- the rows that the SELECT reads
        EMIT AS (SELECT shop, total FROM folded)   -- DuckDB; `folded` is the result of UPDATE
        RESTORE AS (SELECT shop, total, since FROM output)   -- DuckDB: the state from the stream's compacted output
        TIMER due                          -- a field of the state: when a key is folded without a record
        EXPIRES WHEN (since < getvariable('watermark') - 86400000)
        INPUT RETENTION 5 HOURS            -- the records from which a lost state can be rebuilt; or a SETTING
    GRACE 10 MINUTES                       -- how late a record may be; without it, none is late
    TICK 1 SECOND                          -- how exact timers are
    SETTING wait 30 MINUTES                -- PENSTOCK_<APP>_WAIT, or this: getvariable('wait') in DuckDB, ms
    AS SELECT shop, total FROM totals

FROM, BY, STATE, UPDATE, ROWS and EMIT must be there; the parts stand in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from penstock.model.declaration import moved_location
from penstock.model.expectation import Expectation
from penstock.model.fold import Fold
from penstock.model.mask import Mask
from penstock.model.output_mode import OutputMode, Stateless
from penstock.model.partition import PartitionBy
from penstock.model.sql_declaration import SqlDeclaration
from penstock.model.topic import Topic

# The clauses that declare an argument of `Stream`; the first that is there counts.
CLAUSES_OF = {
    "app": ("APP",),
    "inputs": ("READ",),
    "output_mode": ("EMIT", "JOIN", "FOLD"),
    "partition": ("PARTITION BY",),
    "steps": ("STEPS", "EMIT", "JOIN", "FOLD"),
}
# The app whose driver runs streams in SQL that name no other.
STREAMS_APP = "streams"


@dataclass(frozen=True)
class StreamRead:
    """A topic that a stream reads.

    Attributes:
        topic: Its name.
        schema: Spark DDL of the JSON value, or that of the topic.
        event_time: SQL over its fields; empty for the field `timestamp`.
        ahead: How far an event time may lie in the future; None for the default.
        keeps_late: Whether late records are kept in a topic.
        is_table: Whether it is read as a table.
        has_record: Whether there is a column `record` with the whole record.
    """

    topic: str
    schema: str
    event_time: str = ""
    ahead: timedelta | None = None
    keeps_late: bool = False
    is_table: bool = False
    has_record: bool = False


@dataclass(frozen=True)
class SqlFold:
    """A fold and the rows that it gets.

    Attributes:
        fold: Its declaration.
        source: The name of a topic or of an earlier fold, or a SELECT of Spark SQL over them.
        is_select: Whether it is a SELECT.
    """

    fold: Fold
    source: str
    is_select: bool = False

    def source_location(self, at: int) -> str:
        """File, line and column of a character of its source."""
        return moved_location(self.fold.location, self.source, at)


@dataclass(frozen=True)
class SqlStream(SqlDeclaration):
    """One declared stream; the module's text says what each clause means.

    Attributes:
        target: The topic of its rows.
        sql: The SELECT as written.
        locations: Line and column of each clause and of the SELECT.
        key: Columns of the SELECT; none for records without a key.
        value: Columns of the SELECT; one alone, without parentheses, is written as it is.
        folds: In order; each may read the rows of those before it.
    """

    name: str
    path: Path
    target: Topic
    reads: tuple[StreamRead, ...]
    sql: str
    locations: Mapping[str, str]
    value: str | tuple[str, ...]
    key: str | tuple[str, ...] = ""
    output_mode: OutputMode = field(default_factory=Stateless)
    app: str = STREAMS_APP
    every: timedelta = timedelta(0)
    shuffle_partitions: int = 1
    steps: int | None = None
    partition: PartitionBy | None = None
    expectations: tuple[Expectation, ...] = ()
    mask: tuple[Mask, ...] = ()
    folds: tuple[SqlFold, ...] = ()

    def at_argument(self, argument: str, clause: str) -> str:
        """File, line and column of the clause that declares an argument of `Stream`; of `clause` if none does."""
        clauses = CLAUSES_OF.get(argument, ())
        return self.at(next((one for one in clauses if one in self.locations), clause))
