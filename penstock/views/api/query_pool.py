"""A few threads for queries, with a short queue, and detection of stuck threads.

Whatever reads the disk is a query, also a look for one key: one slow page of the disk would hold up all callers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.errors import Wait
from penstock.views.store.sqlite import QueryTimeout

T = TypeVar("T")

# Each reads a file that the machine's cores read: more threads would not be quicker.
THREADS = 2
MAX_WAITING = 16
# A query ends at its deadline; one that runs so much longer will not end.
STUCK_AFTER = 15.0


class QueryPool:
    """Runs queries in threads. stuck_after: seconds after its deadline when a query counts as stuck."""

    def __init__(self, threads: int = THREADS, waiting: int = MAX_WAITING, stuck_after: float = STUCK_AFTER) -> None:
        self._threads = ThreadPoolExecutor(threads, "query")
        self._most, self._stuck_after = threads + waiting, stuck_after
        self._query_count = 0
        # Queries end in threads of their own.
        self._lock = threading.Lock()
        # Deadlines of those at work.
        self._working: dict[int, float] = {}
        self._number = 0

    @property
    def stuck(self) -> bool:
        """Whether a thread is lost."""
        now = time.monotonic()
        with self._lock:
            return any(now - deadline > self._stuck_after for deadline in self._working.values())

    @property
    def query_count(self) -> int:
        """Queries at work and waiting."""
        return self._query_count

    async def run(self, query: Callable[[], T], deadline: float) -> T:
        """The query's answer. deadline: monotonic. Wait if too many are waiting already; QueryTimeout."""
        with self._lock:
            if self._query_count >= self._most:
                raise Wait("this instance has as many queries as it can answer in time", seconds=1.0)
            self._query_count += 1
            self._number += 1
            number = self._number
        future = self._threads.submit(self._timed, number, query, deadline)
        future.add_done_callback(lambda _: self._done())
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise QueryTimeout("the query did not end in time", hint="ask for less, or give it more time") from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self) -> None:
        with self._lock:
            self._query_count -= 1

    def _timed(self, number: int, query: Callable[[], T], deadline: float) -> T:
        if time.monotonic() > deadline:
            raise QueryTimeout("the query did not begin in time")
        with self._lock:
            self._working[number] = deadline
        try:
            return query()
        finally:
            with self._lock:
                del self._working[number]
