"""A run of a driver that works in a thread of its own: the common part of captures and views."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

from penstock.control import ProgressRow
from penstock.kafka.admin import PartitionOffsets


class ThreadRun(ABC):
    """Implements `penstock.supervision.driver_run.DriverRun` by a thread.

    Args:
        name: Name of the thread.
        figures: Its progress as a stream.
        stop_timeout: Seconds that `stop` waits for the thread.
    """

    def __init__(self, name: str, figures: ProgressRow, stop_timeout: float) -> None:
        self.figures = figures
        self.offsets: dict[str, dict[int, int]] = {}
        self._thread_name, self._stop_timeout = name, stop_timeout
        self._thread: threading.Thread | None = None
        self._stopped_threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._rate = (time.monotonic(), figures.rows_in)

    @property
    def running(self) -> bool:
        return self._thread is not None

    @property
    def active(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is at work: a thread that was stopped may still be in a call."""
        self._stopped_threads = [thread for thread in self._stopped_threads if thread.is_alive()]
        return self._thread is None and not self._stopped_threads

    def start(self) -> None:
        """Start the thread."""
        # A new event: a stopped thread that is still in a call must find its own event set.
        self._stopping = threading.Event()
        self.figures.state = "starting"
        self._thread = threading.Thread(target=self._work, args=(self._stopping,), name=self._thread_name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._stop_timeout)
            self._stopped_threads.append(self._thread)
            self._thread = None
        self.figures.state, self.figures.rows_per_s = "stopped", 0.0

    def write_seconds(self) -> float:
        """Always 0: a write that hangs shows by the age of the last report."""
        return 0.0

    def lag(  # noqa: B027
        self, offsets: dict[str, dict[int, int]], stable: PartitionOffsets, ends: PartitionOffsets, at: float
    ) -> None:
        """Nothing: it measures its own lag."""

    def update_rate(self, now: float) -> None:
        """Compute the rows per second since the last call, at most once a second."""
        then, rows = self._rate
        if now - then > 1:
            self.figures.rows_per_s = (self.figures.rows_in - rows) / (now - then)
            self._rate = (now, self.figures.rows_in)

    @abstractmethod
    def _work(self, stopping: threading.Event) -> None:
        """Work until the event is set."""
