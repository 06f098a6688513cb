"""Bulk writes: bounded requests, some at a time, retried with backoff, with the outcome of every item.

A store gives a `BulkWriter` a function that sends one request. The function returns one result per item, or raises
`RequestRejected` if the store rejects the request because of something in it. Such a request is bisected until the item
to blame stands alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from more_itertools import constrained_batches, partition
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from penstock.errors import PenstockError, Wait


class BulkItem(Protocol):
    """One write of a bulk request. row: its row's number in the batch; size: bytes of the request."""

    @property
    def row(self) -> int: ...

    @property
    def size(self) -> int: ...


Item = TypeVar("Item", bound=BulkItem)
# Sends one request; see `BulkWriter.write`.
Send = Callable[[Sequence[Item]], Iterable["ItemResult"]]
# Called with the items that are left after the last try, and their results.
GiveUp = Callable[[Sequence[tuple[Item, "ItemResult"]]], None]


class ItemStatus(Enum):
    """What a store did with an item."""

    WRITTEN = auto()
    CONFLICT = auto()  # what is there is in the way: a newer version, or the same id
    DUPLICATE = auto()  # a unique index is in the way
    REFUSED = auto()
    RETRY = auto()  # the store has too much to do
    FAILED = auto()  # the store failed on this item, which may be the item's fault


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The status of an item, with the store's reason."""

    status: ItemStatus
    reason: str = ""


OK = ItemResult(ItemStatus.WRITTEN)


class RequestRejected(Exception):
    """The store rejects a whole request because of something in it."""


class RequestTimedOut(Wait):
    """The store did not answer in time: requests get smaller, as the same one would take as long again."""


class Retryable(Exception):
    """A request failed in a way that an immediate retry may cure."""


@dataclass
class BulkOutcome(Generic[Item]):
    """The last result of each item; how many items were sent again, and how many bytes were sent."""

    results: list[tuple[Item, ItemResult]] = field(default_factory=list)
    retried: int = 0
    bytes: int = 0

    def of(self, status: ItemStatus) -> list[tuple[Item, str]]:
        """The items of a status, with the store's reasons."""
        return [(item, result.reason) for item, result in self.results if result.status is status]

    @property
    def written(self) -> int:
        return len(self.of(ItemStatus.WRITTEN))

    @property
    def conflicts(self) -> list[Item]:
        return [item for item, _ in self.of(ItemStatus.CONFLICT)]

    @property
    def refused(self) -> dict[int, str]:
        return {item.row: reason for item, reason in self.of(ItemStatus.REFUSED)}


@dataclass
class SinkBatchResult:
    """What became of a batch, as `SinkCounters` count it. refused: the reason, by the row's number."""

    written: int = 0
    conflicts: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    retried: int = 0
    bytes: int = 0


def retrying(tries: int, pause_s: float) -> Retrying:
    """Retries what raises `Retryable`: the pause doubles, with jitter; the last error is raised."""
    return Retrying(
        stop=stop_after_attempt(tries), wait=wait_exponential_jitter(multiplier=pause_s, jitter=pause_s),
        retry=retry_if_exception_type(Retryable), reraise=True,
    )  # fmt: skip


class BulkWriter(Generic[Item]):
    """Sends items to a store.

    Args:
        parallel: requests at a time.
        rows: most items of a request.
        request_bytes: most bytes of a request, but for an item that is larger by itself.
        tries: how often an item is sent before the batch waits.
        pause_s: pause before the first retry; it doubles.
        give_up: raises `Wait` if items that are left after the last try are not to be refused.
    """

    def __init__(
        self, parallel: int, rows: int, request_bytes: int, tries: int = 1, pause_s: float = 0.1,
        give_up: GiveUp[Item] = lambda _: None,
    ) -> None:  # fmt: skip
        self._request_bytes, self._tries, self._pause_s, self._give_up = request_bytes, tries, pause_s, give_up
        self._rows = self._most_rows = rows
        self._pool = ThreadPoolExecutor(max(1, parallel), thread_name_prefix="bulk")

    def write(self, items: Sequence[Item], result: SinkBatchResult, send: Send[Item]) -> BulkOutcome[Item]:
        """Write items. It returns once no request is under way: one that ended later could undo a later batch.

        Args:
            items: to write; order among them is not kept.
            result: gets refused rows, `retried` and `bytes`, also if an error is raised.
            send: sends one request; one result per item, in order. It raises `RequestRejected`, `RequestTimedOut`,
                `Wait`, or `SinkError` if no item is to blame.

        Raises:
            Wait: the store does not take some of the items for now; others may be written.
            SinkError: the store takes none of them.
        """
        stopped = threading.Event()
        batches = constrained_batches(items, self._request_bytes, self._rows, lambda item: item.size, strict=False)
        parts = [(part, BulkOutcome[Item]()) for part in batches]
        futures = [self._pool.submit(self._write_part, part, done, send, stopped) for part, done in parts]
        wait(futures)
        outcomes = [one for _, one in parts]
        results = [one for outcome in outcomes for one in outcome.results]
        whole = BulkOutcome(results, sum(one.retried for one in outcomes), sum(one.bytes for one in outcomes))
        result.refused |= whole.refused
        result.retried += whole.retried
        result.bytes += whole.bytes
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise next((error for error in errors if not isinstance(error, Wait)), errors[0])
        self._rows = min(self._rows * 2, self._most_rows)
        return whole

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write_part(
        self, items: Sequence[Item], outcome: BulkOutcome[Item], send: Send[Item], stopped: threading.Event
    ) -> None:
        if stopped.is_set():
            return
        left: list[tuple[Item, ItemResult]] = [(item, OK) for item in items]
        try:
            try:
                for attempt in retrying(self._tries, self._pause_s):
                    with attempt:
                        if attempt.retry_state.attempt_number > 1:
                            outcome.retried += len(left)
                        if left := _send_once([item for item, _ in left], outcome, send):
                            raise Retryable
            except Retryable:
                self._give_up(left)
                outcome.results += [(item, ItemResult(ItemStatus.REFUSED, one.reason)) for item, one in left]
        except PenstockError as e:
            # Each request to a store that hangs would take its time.
            stopped.set()
            if isinstance(e, RequestTimedOut):
                self._rows = max(self._rows // 4, 1)
            raise


def _send_once(items: Sequence[Item], outcome: BulkOutcome[Item], send: Send[Item]) -> list[tuple[Item, ItemResult]]:
    """Send one request; the items to send again, with their results."""
    outcome.bytes += sum(item.size for item in items)
    try:
        results = list(zip(items, send(items), strict=True))
    except RequestRejected as e:
        if len(items) > 1:
            half = len(items) // 2
            return [*_send_once(items[:half], outcome, send), *_send_once(items[half:], outcome, send)]
        results = [(items[0], ItemResult(ItemStatus.REFUSED, str(e)))]
    done, left = partition(lambda one: one[1].status in (ItemStatus.RETRY, ItemStatus.FAILED), results)
    outcome.results += done
    return list(left)
