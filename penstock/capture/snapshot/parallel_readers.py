"""A snapshot's pages, read and encoded ahead of the one who writes them.

Several ranges of keys are read at once, each page by page in order. Encoding takes longer than the database and the
broker together and holds Python's lock, so of a large table the readers are processes: measured with two cores, two
processes make a snapshot 1.4 times as fast as one thread. They are given work by a pipe and end with the driver.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait as wait_for_end
from typing import Any

from penstock.capture.checks.paging_checks import check_values, orderings
from penstock.capture.output.page_records import PageRecords, column_index, columns_of, last, records
from penstock.capture.output.position import KeyRange
from penstock.capture.polling.keyset_queries import PageQueries
from penstock.capture.polling.page_size import PageSize
from penstock.capture.source.base import SourceDatabase, SourceError
from penstock.codec.registry_values import ValueEncoder
from penstock.model.capture import Capture


def split_key_ranges(database: SourceDatabase, pages: PageQueries, total: int, count: int) -> tuple[KeyRange, ...]:
    """The keys of a table of `total` rows in `count` ranges of alike many, or fewer if rows have gone meanwhile."""
    rows = [database.page(pages.key_at(total * n // count)).rows for n in range(1, count)]
    bounds = [tuple(row[0]) for row in rows if row]
    return tuple(KeyRange(behind, upto) for behind, upto in zip([None, *bounds], [*bounds, None], strict=True))


@dataclass(frozen=True)
class RangePage:
    """A page of a range. behind: the key of its last row, None if the range ends with it; again: which of its rows the
    polls will read too, by number."""

    columns: tuple[tuple[str, str], ...]
    records: PageRecords
    behind: tuple[Any, ...] | None
    again: list[int]


class RangeReader:
    """Reads pages of a capture by key. low: the cursor from which polls will read."""

    def __init__(
        self, capture: Capture, database: SourceDatabase, low: Any, limit: int, encoder: ValueEncoder[Any] | None = None
    ) -> None:
        self._encoder = encoder
        self._capture, self._database, self._low, self._size = capture, database, low, PageSize(limit)
        self._pages = PageQueries(capture)

    def read(self, key_range: KeyRange) -> RangePage:
        query = self._pages.by_key(key_range.behind, self._size.rows, upto=key_range.upto)
        page = self._size.read(self._database, query)
        check_values(self._capture, page, orderings(self._capture, self._database.order, page))
        index, low = column_index(self._capture, page, self._capture.cursor), self._low
        cursors = enumerate(row[index] for row in page.rows)
        rows_of_polls = [number for number, cursor in cursors if low is None or cursor is None or cursor >= low]
        behind = last(self._capture, page, self._capture.key) if page.more else None
        return RangePage(columns_of(page), records(self._capture, page, self._encoder), behind, rows_of_polls)


class RangeReaders:
    """Reads the ranges of a snapshot, `count` at once: in a thread of this process if it is one.

    `left` are the ranges after the pages that were returned.
    """

    def __init__(
        self,
        capture: Capture,
        database: SourceDatabase,
        low: Any,
        limit: int,
        ranges: Sequence[KeyRange],
        count: int,
        encoder: ValueEncoder[Any] | None = None,
    ) -> None:
        self._capture = capture
        self._left = dict(enumerate(ranges))
        self._coming: dict[Future[RangePage], int] = {}
        self._pool: Executor
        self._read: Callable[[KeyRange], RangePage]
        if min(len(ranges), count) == 1:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"reader-{capture.name}")
            self._read = RangeReader(capture, database, low, limit, encoder).read
        else:
            # Spawned, since the driver has threads and a Kafka client, which do not survive a fork.
            self._pool = ProcessPoolExecutor(
                min(len(ranges), count),
                multiprocessing.get_context("spawn"),
                _open,
                (capture, database.connector(), low, limit, encoder),
            )
            self._read = _read
        for number in self._left:
            self._begin(number)

    @property
    def left(self) -> tuple[KeyRange, ...]:
        return tuple(self._left.values())

    def next(self) -> RangePage:
        """The first page that is ready, of any range; starts to read the next page of that range."""
        finished, _ = wait(self._coming, return_when=FIRST_COMPLETED)
        first = min(finished, key=self._coming.__getitem__)
        number = self._coming.pop(first)
        with self._alive():
            page = first.result()
        if page.behind is None:
            del self._left[number]
        else:
            self._left[number] = replace(self._left[number], behind=page.behind)
            self._begin(number)
        return page

    def _begin(self, number: int) -> None:
        with self._alive():
            self._coming[self._pool.submit(self._read, self._left[number])] = number

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool as e:
            raise SourceError(
                f"a process that reads the snapshot of capture {self._capture.name} ended",
                got=e,
                hint="check the free memory of this machine, or lower PENSTOCK_SNAPSHOT_READERS; the snapshot is "
                "resumed",
            ) from e

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


# Set only in reader processes.
_reader: RangeReader | None = None


def _open(
    capture: Capture, database: Callable[[], SourceDatabase], low: Any, limit: int, encoder: ValueEncoder[Any] | None
) -> None:
    global _reader
    # Ctrl-C is for the driver. A pool ends its processes with SIGTERM when one of them died.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _reader = RangeReader(capture, database(), low, limit, encoder)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed driver cannot close its pool, whose processes would wait forever.
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)


def _read(key_range: KeyRange) -> RangePage:
    assert _reader is not None
    return _reader.read(key_range)
