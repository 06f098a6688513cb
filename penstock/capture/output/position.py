"""The position of a capture: a record in the topic `penstock.captures`, written in the transaction of the rows."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock.capture.reconcile.drift import Drift
from penstock.errors import PenstockError
from penstock.model.topic import POSITIONS

# Earlier reconciles that repaired records, in case that the control database is away when they end.
RECONCILES_KEPT = 10
# Types of cursors and keys, which are parameters of later queries, so they must not change.
TAGS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    # A datetime is a date too, so it stands first.
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "bytes": (bytes, lambda b: b64encode(b).decode(), b64decode),
    "uuid": (UUID, str, UUID),
    "microseconds": (
        timedelta,
        lambda d: str(d // timedelta(microseconds=1)),
        lambda text: timedelta(microseconds=int(text)),
    ),
}


@dataclass(frozen=True)
class KeyRange:
    """A range of keys that a snapshot has yet to read.

    Attributes:
        behind: Key of the last row written; None if no row was.
        upto: Last key of the range; None if it has no bound.
    """

    behind: tuple[Any, ...] | None = None
    upto: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class SnapshotProgress:
    """Progress of a snapshot.

    Attributes:
        ranges: Key ranges left to read; empty before it begins.
        rows: Rows written so far.
        total: Rows of the table when it began; 0 if they could not be counted.
    """

    ranges: tuple[KeyRange, ...] = ()
    rows: int = 0
    total: int = 0


@dataclass(frozen=True)
class CatchUp:
    """A poll of several pages that has begun, and is resumed after a pause or a restart.

    Attributes:
        low: The cursor from which it reads.
        behind: Cursor and key of the last row written.
        high: The highest cursor it has read.
    """

    low: Any
    behind: tuple[Any, ...]
    high: Any


@dataclass(frozen=True)
class SkippedTransactions:
    """Transactions that were open longer than HOLD and are no longer waited for.

    Attributes:
        low: Everything from this cursor on is read again when they have ended.
        until: All of them began before this time, epoch seconds of the database's clock.
    """

    low: Any
    until: float


@dataclass(frozen=True)
class Position:
    """Where a capture resumes.

    Attributes:
        fingerprint: Of the statement.
        topic_id: Id of the topic.
        partitions: Number of partitions of the topic.
        rows: Columns of KEY and CURSOR.
        server: The database server.
        columns: (name, type) of the SELECT's columns.
        low: The cursor from which polls read.
        snapshot: Progress of the snapshot; None when it is done.
        catch_up: A poll that has begun; None if none has.
        skipped: Transactions that are no longer waited for; None if there are none.
        reconcile: Why table and topic are to be compared; empty if they are not.
        table_fingerprint: Fingerprint of the tables' structure.
        clock: The database's clock at the end of the last poll, epoch seconds; 0 if there was none.
        sees_all: All sessions of the server were visible, so its transactions and not DELAY bound the polls.
        drift: What was repaired since a reconcile ended last, also by one that was started anew; None if another
            version wrote the position.
        reconciles: The last reconcile that ended, and before it the RECONCILES_KEPT last ones that repaired records.
        schema_id: Id of the schema by which values are written; 0 for JSON.
        request: Id of the request by which a snapshot or reconcile began last; empty if none did.
    """

    fingerprint: str
    topic_id: str
    partitions: int = 1
    rows: tuple[str, ...] = ()
    server: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    low: Any = None
    snapshot: SnapshotProgress | None = None
    catch_up: CatchUp | None = None
    skipped: SkippedTransactions | None = None
    reconcile: str = ""
    table_fingerprint: str = ""
    clock: float = 0.0
    sees_all: bool = False
    drift: Drift | None = None
    reconciles: tuple[Drift, ...] = ()
    schema_id: int = 0
    request: str = ""

    @property
    def last_reconcile(self) -> Drift:
        """What the last reconcile that ended has found."""
        return self.reconciles[-1] if self.reconciles else Drift()

    def repaired(self, missing: int = 0, differing: int = 0, extra: int = 0) -> Position:
        """The position after a reconcile has repaired records."""
        return replace(self, drift=(self.drift or Drift()).plus(missing, differing, extra))

    def reconciled(self, rows: int) -> Position:
        """The position after a reconcile of so many rows has ended."""
        ended, seconds = datetime.now(UTC).timestamp(), {int(drift.ended) for drift in self.reconciles}
        # The key of its event is the second in which it ended.
        while int(ended) in seconds:
            ended += 1
        last = replace(self.drift or Drift(), rows=rows, ended=ended, why=self.reconcile)
        earlier = [drift for drift in self.reconciles if drift.repaired][-RECONCILES_KEPT:]
        return replace(self, reconcile="", drift=Drift(), reconciles=(*earlier, last))

    def value(self) -> bytes:
        return write(asdict(self)).encode()

    @classmethod
    def read(cls, value: bytes) -> Position:
        """Parse a position; PenstockError if it is invalid."""
        try:
            fields = read(value)
            fields["columns"] = tuple((name, kind) for name, kind in fields["columns"])
            fields["rows"] = tuple(fields["rows"])
            if (snapshot := fields["snapshot"]) is not None:
                ranges = tuple(KeyRange(_row(r["behind"]), _row(r["upto"])) for r in snapshot.pop("ranges"))
                fields["snapshot"] = SnapshotProgress(ranges, **snapshot)
            if (catch_up := fields.get("catch_up")) is not None:
                fields["catch_up"] = CatchUp(catch_up["low"], tuple(catch_up["behind"]), catch_up["high"])
            if (skipped := fields["skipped"]) is not None:
                fields["skipped"] = SkippedTransactions(**skipped)
            if (drift := fields.get("drift")) is not None:
                fields["drift"] = Drift(**drift)
            fields["reconciles"] = tuple(Drift(**drift) for drift in fields.get("reconciles", ()))
            return cls(**fields)
        except (ValueError, KeyError, TypeError) as e:
            raise PenstockError(
                f"a record of {POSITIONS.name} cannot be read",
                got=value[:200],
                hint="it was written by another version: take a new snapshot",
            ) from e


def _row(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def write(value: Any) -> str:
    """Write values of a database driver as JSON, which `read` turns into equal values."""
    return json.dumps(value, default=_tagged)


def read(text: str | bytes) -> Any:
    return json.loads(text, object_hook=_untagged)


def _tagged(value: Any) -> Any:
    for tag, (kind, write, _) in TAGS.items():
        if isinstance(value, kind):
            return {tag: write(value)}
    raise PenstockError(
        "a key or cursor has a type that cannot be stored",
        got=type(value).__name__,
        hint="convert it in the SELECT to text, a number or a time",
    )


def _untagged(tagged: dict[str, Any]) -> Any:
    if len(tagged) == 1:
        [(tag, value)] = tagged.items()
        if tag in TAGS:
            return TAGS[tag][2](value)
    return tagged
