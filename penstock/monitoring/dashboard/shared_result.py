"""What takes long to compute, computed once for the threads that ask at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedResult(Generic[T]):
    """The result of a function. Who asks while it is computed waits for it; then it is kept.

    Args:
        compute: The function.
        keep: Seconds for which a result is kept.
        keep_failures: Whether an exception is kept as long, so that not each thread waits for what is down. If not, it
            is that of those who waited for it.
        clock: In seconds.
    """

    def __init__(
        self,
        compute: Callable[[], T],
        *,
        keep: float = 1.0,
        keep_failures: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute, self._keep, self._keep_failures, self._clock = compute, keep, keep_failures, clock
        self._lock = Lock()
        self._current: Future[T] | None = None
        self._ended_at = 0.0

    def read(self) -> T:
        """The result; or raises what the function raised."""
        with self._lock:
            current, mine = self._current, False
            if current is None or self._is_old(current):
                current = self._current = Future()
                mine = True
        if mine:
            self._fill(current)
        return current.result()

    def invalidate(self) -> None:
        """Forget the result, and let those who ask from now on not wait for one that is being computed."""
        with self._lock:
            self._current = None

    def _is_old(self, current: Future[T]) -> bool:
        if not current.done():
            return False
        is_kept = self._keep_failures or current.exception() is None
        return not is_kept or self._clock() - self._ended_at >= self._keep

    def _fill(self, current: Future[T]) -> None:
        try:
            result = self._compute()
        except BaseException as e:
            self._end(current)
            current.set_exception(e)
        else:
            self._end(current)
            current.set_result(result)

    def _end(self, current: Future[T]) -> None:
        with self._lock:
            if self._current is current:
                self._ended_at = self._clock()
