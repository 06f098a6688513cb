"""What a capture is, as declared in `sql/captures/<name>.sql`: some clauses, then an ordinary SELECT.

::

    CAPTURE INTO accounts PARTITIONS 4    -- the compacted topic; one partition if none is said
    FROM mysql demo                       -- mysql (MariaDB too), postgres or sqlite; then a connection's name
    KEY (id)                              -- the columns that name a row, all of them NOT NULL
    CURSOR updated_at                     -- the column that grows with each change of a row
    DELETED WHEN (deleted = 1)            -- which rows are tombstones; none if left out
    EVERY 1 SECOND                        -- between two polls; one second if left out
    OVERLAP 10 SECONDS                    -- how far each poll goes back behind the last one; see below
    DELAY 5 SECONDS                       -- how long a transaction may be open where the engine cannot tell
    HOLD 10 MINUTES                       -- how long one open transaction may hold the capture back; see below
    RECONCILE EVERY 1 DAY RATE 10000      -- how often table and topic are compared, at how many rows a second at most;
                                          -- or RECONCILE NEVER
    LARGEST 16 MB                         -- of a record; a row that makes a larger one is put aside
    AS
    SELECT id, name, deleted, updated_at FROM accounts

CAPTURE, FROM, KEY, CURSOR and AS must be there; every clause stands once, in any order behind CAPTURE. Durations are a
whole number and MILLISECONDS, SECONDS, MINUTES, HOURS or DAYS. The overlap covers clocks that step back: a row whose
cursor lies that far behind one already read is still seen. While a transaction is open, all rows behind its beginning
are read at every poll; one open longer than the hold is no longer waited for, and once it has ended everything behind
its beginning is read again.

The SELECT gives one row per key and says the same whenever it is asked: no GROUP BY, DISTINCT, UNION, LIMIT, ORDER BY,
aggregates, or functions of the moment. It is paged by conditions added to its WHERE.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import TokenError

from penstock.declare import capture_refusals
from penstock.declare.capture_clauses import MB, Clauses
from penstock.declare.capture_tokens import excerpt
from penstock.declare.declared import Kind, Place
from penstock.declare.topic import Topic
from penstock.errors import DeclarationError

# The app whose driver holds all captures.
APP = "captures"


@dataclass(frozen=True)
class Capture:
    """One declared capture; see the module.

    deleted: a condition over the SELECT's columns; reconcile: None is never; rate: of the reconcile, rows a second;
    largest: bytes of a record.
    """

    name: str
    path: Path
    topic: Topic
    dialect: str
    connection: str
    key: tuple[str, ...]
    cursor: str
    select: exp.Select
    deleted: exp.Expr | None = None
    every: timedelta = timedelta(seconds=1)
    overlap: timedelta = timedelta(seconds=10)
    delay: timedelta = timedelta(seconds=5)
    hold: timedelta = timedelta(minutes=10)
    reconcile: timedelta | None = timedelta(days=1)
    rate: int = 10_000
    largest: int = 16 * MB

    kind: ClassVar[Kind] = "capture"

    @property
    def app(self) -> str:
        return APP

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def reads(self) -> Sequence[Place]:
        """The tables of its SELECT, each as `connection:table`."""
        tables = self.select.find_all(exp.Table)
        names = dict.fromkeys(".".join(part.name for part in table.parts) for table in tables)
        return tuple(Place("table", f"{self.connection}:{name}") for name in names)

    @property
    def writes(self) -> Sequence[Place]:
        return (Place("topic", self.topic.name),)

    @property
    def fingerprint(self) -> str:
        """Changes with whatever decides which rows there are and what they look like in the topic."""
        parts = (
            self.dialect,
            self.connection,
            self.topic.name,
            *self.key,
            self.cursor,
            self.select.sql(self.dialect),
            self.deleted.sql(self.dialect) if self.deleted else "",
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def columns(self) -> list[str] | None:
        """The names of the SELECT's columns, in order; None if it says `*`."""
        return None if self.select.is_star else self.select.named_selects


def load(folder: Path) -> dict[str, Capture]:
    """The captures of a folder, by name; none if there is no folder."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.sql"))}


def read(path: Path) -> Capture:
    """The capture that a file declares; DeclarationError with file, line and column if it is none."""
    return parse(path.read_text(), path)


def parse(text: str, path: Path) -> Capture:
    """As `read`, from the file's text."""
    try:
        tokens = sqlglot.tokenize(text)
    except TokenError as e:
        # Only what is opened and never closed cannot be taken apart: the last line that opens it is as near as it gets.
        raise DeclarationError(
            f"{path}: a quotation or comment is not closed", got=excerpt(str(e)), fix="close it"
        ) from e
    clauses = Clauses(text, path, tokens)
    given = clauses.read()
    largest = given.get("largest", Capture.largest)
    topic = Topic(
        given.pop("topic"),
        partitions=given.pop("partitions"),
        compacted=True,
        beat_every=0,
        widens=False,
        config={"max.message.bytes": str(largest)},
    )
    made = Capture(name=path.stem, path=path, topic=topic, select=clauses.select(given["dialect"]), **given)
    capture_refusals.check(made, clauses)
    return made
