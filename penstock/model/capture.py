"""Captures, as declared in `sql/captures/<name>.sql`: some clauses, then an ordinary SELECT.

::

    CAPTURE INTO accounts PARTITIONS 4    -- the compacted topic; one partition if none is said; behind it, if
                                          -- a schema registry keeps the schema of its values, a file beside this one:
                                          -- AS AVRO 'file.avsc', AS JSON SCHEMA 'file.json' or AS PROTOBUF 'file.proto'
                                          -- [MESSAGE name], each of them with [SUBJECT name]
    FROM mysql demo                       -- mysql (MariaDB too), postgres or sqlite; then a connection's name
    KEY (id)                              -- the columns that name a row, all of them NOT NULL
    CURSOR updated_at                     -- the column that grows with each change of a row
    DELETED WHEN (deleted = 1)            -- which rows are tombstones; none if left out
    EVERY 1 SECOND                        -- between two polls; one second if left out
    OVERLAP 10 SECONDS                    -- how far each poll goes back behind the last one; see below
    DELAY 5 SECONDS                       -- how long a transaction may be open where the engine cannot tell
    HOLD 10 MINUTES                       -- how long one open transaction may hold the capture back; see below
    RECONCILE EVERY 1 DAY RATE 10000      -- how often table and topic are compared, at how many rows a second at most;
                                          -- or RECONCILE NEVER; REMOVES 20 PERCENT behind it: if more of the topic's
                                          -- rows are gone from the table, somebody is asked before they are removed
    LARGEST 16 MB                         -- of a record; a row with a larger one becomes a dead letter
    AS
    SELECT id, name, deleted, updated_at FROM accounts

CAPTURE, FROM, KEY, CURSOR and AS must be there; every clause stands once, in any order behind CAPTURE. Durations are a
whole number and MILLISECONDS, SECONDS, MINUTES, HOURS or DAYS. The overlap covers clocks that step back: a row whose
cursor lies that far behind one already read is still seen. While a transaction is open, all rows behind its beginning
are read at every poll; one open longer than the hold is no longer waited for, and once it has ended everything behind
its beginning is read again.

The SELECT gives one row per key and says the same whenever it is asked: no GROUP BY, DISTINCT, UNION, LIMIT, ORDER BY,
aggregates, or functions of the moment. It is sent as it is written, as a derived table; what makes pages of it, and the
condition of DELETED, stand outside and know its columns by the names it gives them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from sqlglot import exp

from penstock.errors import DeclarationError
from penstock.model.avro import Avro
from penstock.model.checks import capture_checks
from penstock.model.declaration import CAPTURES_APP, CatalogNode, Kind, list_files
from penstock.model.json_schema import JsonSchema
from penstock.model.protobuf import Protobuf
from penstock.model.registry_schema import RegistrySchema
from penstock.model.sql.capture_clauses import MB, CaptureClauses
from penstock.model.sql.capture_lexer import tokens
from penstock.model.sql.lexer import line_and_column, normalized_sql, read_sql_file
from penstock.model.topic import Topic

# The app whose driver holds all captures.
APP = CAPTURES_APP
FORMATS: dict[str, type[RegistrySchema]] = {one.kind: one for one in (Avro, JsonSchema, Protobuf)}


@dataclass(frozen=True)
class Capture:
    """One declared capture; the module's text says what each clause means.

    Attributes:
        select: the SELECT, parsed.
        sql: the SELECT as written, which is sent.
        locations: line and column of each clause and of the SELECT.
        deleted: the condition of deleted rows, parsed.
        deleted_sql: the condition as written.
        reconcile: None for never.
        reconcile_rate: rows a second.
        max_removed_percent: share of the topic's rows that a reconcile removes without asking.
        max_record_bytes: upper bound of a record.
    """

    name: str
    path: Path
    topic: Topic
    dialect: str
    connection: str
    key: tuple[str, ...]
    cursor: str
    select: exp.Select
    sql: str
    locations: Mapping[str, str]
    deleted: exp.Expr | None = None
    deleted_sql: str = ""
    every: timedelta = timedelta(seconds=1)
    overlap: timedelta = timedelta(seconds=10)
    delay: timedelta = timedelta(seconds=5)
    hold: timedelta = timedelta(minutes=10)
    reconcile: timedelta | None = timedelta(days=1)
    reconcile_rate: int = 10_000
    max_removed_percent: int = 20
    max_record_bytes: int = 16 * MB

    kind: ClassVar[Kind] = "capture"

    @property
    def app(self) -> str:
        return APP

    @property
    def location(self) -> str:
        return self.at("CAPTURE")

    def at(self, clause: str) -> str:
        """File, line and column of a clause, of the `SELECT`, or of the `topic`'s name."""
        return f"{self.path}:{self.locations[clause]}"

    @property
    def reads(self) -> Sequence[CatalogNode]:
        """The tables of its SELECT, each as `connection:table`."""
        tables = self.select.find_all(exp.Table)
        names = dict.fromkeys(".".join(part.name for part in table.parts) for table in tables)
        return tuple(CatalogNode("table", f"{self.connection}:{name}") for name in names)

    @property
    def writes(self) -> Sequence[CatalogNode]:
        return (CatalogNode("topic", self.topic.name),)

    @property
    def fingerprint(self) -> str:
        """Changes with whatever decides which rows there are and what they look like in the topic."""
        statement = (normalized_sql(self.sql, self.dialect), normalized_sql(self.deleted_sql, self.dialect))
        parts = (self.dialect, self.connection, self.topic.name, *self.key, self.cursor, *statement)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def columns(self) -> list[str] | None:
        """The names of the SELECT's columns, in order; None if it says `*`."""
        return None if self.select.is_star else self.select.named_selects


def load(folder: Path) -> dict[str, Capture]:
    """The captures of a folder, by name; none if there is no folder."""
    return {path.stem: read(path) for path in list_files(folder, ".sql")}


def read(path: Path) -> Capture:
    """The capture that a file declares; DeclarationError with file, line and column if it is none."""
    return parse(read_sql_file(path), path)


def parse(text: str, path: Path) -> Capture:
    """As `read`, from the file's text."""
    clauses = CaptureClauses(text, path, tokens(text, path))
    clause_values = clauses.read()
    name, partitions, schema = (clause_values.pop(key) for key in ("topic", "partitions", "schema"))
    try:
        topic = Topic(
            name,
            schema=FORMATS[schema.kind].read(path.parent / schema.name, **schema.options) if schema else "",
            partitions=partitions,
            compacted=True,
            heartbeat_every=0,
            may_add_partitions=False,
            config={"max.message.bytes": str(clause_values.get("max_record_bytes", Capture.max_record_bytes))},
        )
    except DeclarationError as e:
        raise clauses.error(e.what, str(e.got), e.hint, clauses.clause_tokens["CAPTURE"]) from e
    select, sql = clauses.select(clause_values["dialect"])
    locations = {clause: line_and_column(text, token.start) for clause, token in clauses.clause_tokens.items()}
    locations |= {"topic": line_and_column(text, clauses.topic), "SELECT": line_and_column(text, clauses.begins)}
    capture = Capture(
        name=path.stem, path=path, topic=topic, select=select, sql=sql, locations=locations, **clause_values
    )
    capture_checks.check(capture, clauses)
    return capture
