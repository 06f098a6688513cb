"""Requests to MongoDB, and what the server's errors mean for each write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from bson.errors import BSONError
from more_itertools import batched
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
from penstock.sinks.core.bulk import (
    OK,
    BulkOutcome,
    BulkWriter,
    ItemResult,
    ItemStatus,
    RequestRejected,
    RequestTimedOut,
    Retryable,
    SinkBatchResult,
    retrying,
)
from penstock.sinks.mongodb.config import DUPLICATE_KEY, LIMITS

T = TypeVar("T")

TRIES = 4
PAUSE_S = 0.25
# After which a store that does not recover is asked again.
WAIT_S = 5.0
# Errors of neither the sink nor the document: stepped down, shut down, interrupted, out of time, of tickets or of disk.
BUSY = {
    6, 7, 24, 46, 50, 64, 89, 91, 112, 117, 133, 134, 189, 202, 262, 290, 317, 365, 9001, 10058, 10107, 11600, 11602,
    13388, 13435, 13436, 14031, 16500, 50915,
}  # fmt: skip
# Errors of a whole request for which one document is to blame.
REJECTED = {2, 9, 14, 15, 16, 22, 52, 56, 57, 66, 10334, 17280, 17419, 17420}
DENIED = {13, 18, 33, 8000}
INDEX_NAME = re.compile(r"index: (?:\S+\.\$)?(\S+) +dup key")
# Where a client's message goes on with its own settings and state, which differ each time.
CLIENT_STATE = re.compile(r" \(configured timeouts|, Timeout: |, Topology Description")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentWrite:
    """A write of one row.

    Attributes:
        row: the row's number.
        version: the greatest version of the present document that is overwritten.
        write: used if the document exists.
        size: in bytes.
        insert: used if the document does not exist.
    """

    row: int
    id: str
    version: int
    write: InsertOne[Any] | ReplaceOne[Any] | DeleteOne
    size: int
    insert: InsertOne[Any] | None = None

    def as_insert(self) -> DocumentWrite:
        return replace(self, write=self.insert) if self.insert else self


class MongoRequests:
    """Sends writes and reads to one database.

    Args:
        location: of the store, for messages, without its password.
        parallel: requests at a time.
        pause_s: before the first retry.
    """

    def __init__(self, location: str, parallel: int, *, pause_s: float = PAUSE_S) -> None:
        self._location, self._pause_s = location, pause_s
        self._bulk = BulkWriter[DocumentWrite](
            parallel, LIMITS.rows, LIMITS.request_bytes, TRIES, pause_s, self._give_up
        )

    def close(self) -> None:
        self._bulk.close()

    def write(
        self, collection: Collection[Any], writes: Sequence[DocumentWrite], result: SinkBatchResult
    ) -> BulkOutcome[DocumentWrite]:
        """Send writes; see `BulkWriter.write`. A conflict is an id that exists, with another version or without one."""
        return self._bulk.write(writes, result, partial(self._request, collection))

    def find(self, collection: Collection[Any], ids: Sequence[str], fields: Mapping[str, int]) -> Iterator[Document]:
        """The documents that exist, with some fields."""
        for some in batched(ids, LIMITS.rows):
            yield from self.read(partial(_find, collection, some, fields))

    def read(self, request: Callable[[], T]) -> T:
        """The answer of a read. Wait if there is none for now, SinkError if there never is."""

        def read_once() -> T:
            try:
                return request()
            except PyMongoError as e:
                self._raise_unless_retryable(e)
                raise Retryable(str(e)) from e

        try:
            return retrying(TRIES, self._pause_s)(read_once)
        except Retryable as e:
            raise self._wait(str(e)) from e

    def _request(self, collection: Collection[Any], writes: Sequence[DocumentWrite]) -> list[ItemResult]:
        results = [OK] * len(writes)
        try:
            collection.bulk_write([one.write for one in writes], ordered=False)
        except BulkWriteError as e:
            details = dict(e.details or {})
            # Written, but not by as many members as it takes to outlive one.
            if unsure := details.get("writeConcernErrors", []):
                reason = f"{unsure[0].get('code')} {unsure[0].get('errmsg', unsure[0])}"
                results = [ItemResult(ItemStatus.RETRY, reason)] * len(writes)
            for error in details.get("writeErrors", []):
                results[error["index"]] = self._result(error)
        # The client raises KeyError for an error without a code.
        except (DocumentTooLarge, BSONError, OverflowError, KeyError) as e:
            raise RequestRejected(f"MongoDB: {str(e)[:500]}") from e
        except PyMongoError as e:
            if isinstance(e, OperationFailure) and e.code in REJECTED:
                raise RequestRejected(f"MongoDB: {str(e)[:500]}") from e
            self._raise_unless_retryable(e)
            results = [ItemResult(ItemStatus.RETRY, str(e))] * len(writes)
        return results

    def _result(self, error: Document) -> ItemResult:
        code, message = error.get("code"), str(error.get("errmsg", ""))
        if code == DUPLICATE_KEY:
            is_id = _violated_index(error) == "_id_"
            return ItemResult(ItemStatus.CONFLICT) if is_id else ItemResult(ItemStatus.DUPLICATE, message)
        if code in DENIED:
            raise self._denied(message)
        if code in BUSY:
            return ItemResult(ItemStatus.RETRY, f"{code} {message}")
        return ItemResult(ItemStatus.REFUSED, f"MongoDB: {code} {message[:500]}")

    def _give_up(self, left: Sequence[tuple[DocumentWrite, ItemResult]]) -> None:
        raise self._wait(left[0][1].reason)

    def _raise_unless_retryable(self, error: PyMongoError) -> None:
        if isinstance(error, OperationFailure):
            if error.code in DENIED:
                raise self._denied(str(error)) from error
            if error.code not in BUSY and not error.timeout:
                raise SinkError(
                    f"MongoDB at {self._location} refuses a request",
                    got=str(error)[:500],
                    hint="see its message; the batch is written again until MongoDB takes it",
                ) from error
        elif not isinstance(error, ConnectionFailure):
            hint = "see PENSTOCK_MONGODB_URL" if isinstance(error, ConfigurationError) else ""
            raise SinkError(f"MongoDB cannot be used at {self._location}", got=str(error)[:500], hint=hint) from error
        # These have taken their time already.
        if isinstance(error, NetworkTimeout):
            raise self._wait(str(error), RequestTimedOut) from error
        if isinstance(error, ServerSelectionTimeoutError):
            raise self._wait(str(error)) from error

    def _wait(self, reason: str, kind: type[Wait] = Wait) -> Wait:
        reason = CLIENT_STATE.split(reason, maxsplit=1)[0][:500]
        return kind(f"MongoDB at {self._location} does not take writes", got=reason, seconds=WAIT_S)

    def _denied(self, message: str) -> SinkError:
        return SinkError(
            f"MongoDB at {self._location} denies access",
            got=message[:500],
            hint="give PENSTOCK_MONGODB_URL a user that may read and write there, and restart the driver",
        )


def _find(collection: Collection[Any], ids: Sequence[str], fields: Mapping[str, int]) -> list[Document]:
    return list(collection.find({"_id": {"$in": list(ids)}}, fields))


def _violated_index(error: Document) -> str:
    """The name of the index that a write would have violated."""
    if keys := error.get("keyPattern"):
        return "_id_" if list(keys) == ["_id"] else "other"
    match = INDEX_NAME.search(str(error.get("errmsg", "")))
    return match[1] if match else "_id_"
