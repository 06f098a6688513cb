"""Writes to MongoDB in bounded requests, with the outcome of every item.

Only items that the server was too busy for, or whose answer did not come, are sent again.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bson.errors import BSONError
from pymongo import DeleteOne, InsertOne, ReplaceOne
from pymongo.collection import Collection
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from penstock.errors import SinkError, Wait
from penstock.sinks.core.chunking import parts
from penstock.sinks.mongodb.config import DUPLICATE, LIMITS

T = TypeVar("T")

TRIES = 4
# Seconds: before the second try, and until a store that does not recover is asked again.
PAUSE, LONG = 0.25, 5.0
# Not its fault, nor the document's: stepped down, shut down, interrupted, out of time, of tickets or of disk.
BUSY = {
    6,
    7,
    24,
    46,
    50,
    64,
    89,
    91,
    112,
    117,
    133,
    134,
    189,
    202,
    262,
    290,
    317,
    365,
    9001,
    10058,
    10107,
    11600,
    11602,
}
BUSY |= {13388, 13435, 13436, 14031, 16500, 50915}
# What a whole request fails with though one document is to blame.
BLAMED = {2, 9, 14, 15, 16, 22, 52, 56, 57, 66, 10334, 17280, 17419, 17420}
ACCOUNT = {13, 18, 33, 8000}
INDEX = re.compile(r"index: (?:\S+\.\$)?(\S+) +dup key")
# What the client adds to what it met: its own settings, and a number that is another each time.
NOISE = re.compile(r" \(configured timeouts|, Timeout: |, Topology Description")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """A write of one row. version: what must not be exceeded by what is there; new: where nothing is there."""

    row: int
    id: str
    version: int
    write: InsertOne[Any] | ReplaceOne[Any] | DeleteOne
    size: int
    new: InsertOne[Any] | None = None

    def inserted(self) -> Item:
        return replace(self, write=self.new) if self.new else self


@dataclass(slots=True)
class Outcome:
    """Of many items; what is in none of the lists is written. retried: how often an item was sent again.

    taken: those whose id is there already, with another version or without one; bound: those that break a unique
    index, with what the store says; refused: why, by row.
    """

    taken: list[Item] = field(default_factory=list)
    bound: list[tuple[Item, str]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, more: Outcome) -> None:
        self.taken += more.taken
        self.bound += more.bound
        self.refused |= more.refused


class Requests:
    """place: where the store is, for messages, without its password. retried: items sent again, also of those that
    were never taken."""

    def __init__(self, place: str, parallel: int, *, pause: float = PAUSE) -> None:
        self._place, self._pause = place, pause
        self.retried = 0
        # Fewer after a request that took too long: the same again would take as long.
        self._rows = LIMITS.rows
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="mongodb")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def send(self, collection: Collection[Any], items: Sequence[Item]) -> Outcome:
        """Write all of them. Wait if the store does not take them for now, SinkError if it takes none at all."""
        futures = [
            self._pool.submit(self._persist, collection, part)
            for part in parts(items, self._rows, LIMITS.request_bytes)
        ]
        wait(futures)
        whole = Outcome()
        for done in futures:
            whole.add(done.result())
        self._rows = min(self._rows * 2, LIMITS.rows)
        return whole

    def ask(self, question: Callable[[], T]) -> T:
        """The answer of a read. Wait if there is none for now, SinkError if there never is."""
        for n in range(TRIES):
            try:
                return question()
            except PyMongoError as e:
                self._sort(e, last=n == TRIES - 1)
            time.sleep(self._delay(n))
        raise AssertionError

    def _persist(self, collection: Collection[Any], items: Sequence[Item]) -> Outcome:
        found = Outcome()
        pending = list(items)
        for n in range(TRIES):
            pending = self._once(collection, pending, found, last=n == TRIES - 1)
            if not pending:
                break
            self.retried += len(pending)
            time.sleep(self._delay(n))
        return found

    def _once(self, collection: Collection[Any], items: list[Item], found: Outcome, *, last: bool) -> list[Item]:
        """Send one request; those of its items that are to be sent again."""
        try:
            collection.bulk_write([item.write for item in items], ordered=False)
        except BulkWriteError as e:
            return self._read(dict(e.details or {}), items, found, last=last)
        # A server that names no code makes the client stumble over that.
        except (DocumentTooLarge, BSONError, OverflowError, KeyError) as e:
            return self._blame(collection, items, found, e, last=last)
        except OperationFailure as e:
            if e.code in BLAMED:
                return self._blame(collection, items, found, e, last=last)
            self._sort(e, last=last)
            return items
        except PyMongoError as e:
            self._sort(e, last=last)
            return items
        return []

    def _read(self, details: Document, items: list[Item], found: Outcome, *, last: bool) -> list[Item]:
        again: dict[int, str] = {}
        for error in details.get("writeErrors", []):
            item, code, said = items[error["index"]], error.get("code"), str(error.get("errmsg", ""))
            if code == DUPLICATE and _index(error) == "_id_":
                found.taken.append(item)
            elif code == DUPLICATE:
                found.bound.append((item, said))
            elif code in BUSY:
                again[error["index"]] = f"{code} {said}"
            elif code in ACCOUNT:
                raise self._denied(said)
            else:
                found.refused[item.row] = f"MongoDB: {code} {said[:500]}"
        # Written, but not everywhere where it must be to outlive a server.
        if unsure := details.get("writeConcernErrors", []):
            failed = {error["index"] for error in details.get("writeErrors", [])}
            said = str(unsure[0].get("errmsg", unsure[0]))
            again |= {at: f"{unsure[0].get('code')} {said}" for at in range(len(items)) if at not in failed}
        if again and last:
            raise self._wait(next(iter(again.values())))
        return [items[at] for at in sorted(again)]

    def _blame(
        self, collection: Collection[Any], items: list[Item], found: Outcome, error: Exception, *, last: bool
    ) -> list[Item]:
        """Send the halves of a request that failed as a whole, until the item that makes it fail stands alone."""
        if len(items) == 1:
            found.refused[items[0].row] = f"MongoDB: {str(error)[:500]}"
            return []
        half = len(items) // 2
        return [
            item for part in (items[:half], items[half:]) for item in self._once(collection, part, found, last=last)
        ]

    def _sort(self, error: PyMongoError, *, last: bool) -> None:
        """Return if it may be tried again at once."""
        if isinstance(error, OperationFailure):
            if error.code in ACCOUNT:
                raise self._denied(str(error)) from error
            if error.code not in BUSY and not error.timeout:
                raise SinkError(
                    f"MongoDB refuses what is asked of it at {self._place}",
                    got=str(error)[:500],
                    hint="see its message; the batch is given again until it is taken",
                ) from error
        elif not isinstance(error, ConnectionFailure):
            hint = "see PENSTOCK_MONGODB_URL" if isinstance(error, ConfigurationError) else ""
            raise SinkError(f"MongoDB cannot be used at {self._place}", got=str(error)[:500], hint=hint) from error
        if isinstance(error, NetworkTimeout):
            self._rows = max(self._rows // 4, 1)
        # These have taken their time already.
        if last or isinstance(error, (ServerSelectionTimeoutError, NetworkTimeout)):
            raise self._wait(str(error)) from error

    def _wait(self, said: str) -> Wait:
        said = NOISE.split(said, maxsplit=1)[0][:500]
        return Wait(f"MongoDB at {self._place} does not take writes", got=said, seconds=LONG)

    def _denied(self, said: str) -> SinkError:
        return SinkError(
            f"MongoDB at {self._place} does not let the sink in",
            got=said[:500],
            hint="give PENSTOCK_MONGODB_URL a user that may read and write there, and start the driver anew",
        )

    def _delay(self, n: int) -> float:
        return self._pause * float(2**n) * random.uniform(0.5, 1.5)


def _index(error: Document) -> str:
    """The index that a write would have broken."""
    if keys := error.get("keyPattern"):
        return "_id_" if list(keys) == ["_id"] else "other"
    found = INDEX.search(str(error.get("errmsg", "")))
    return found[1] if found else "_id_"
