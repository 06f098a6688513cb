"""Writes to a store outside Kafka in a thread: a slow store delays neither other streams nor a stop."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import LeaseLost, Wait
from penstock.model.output import NO_COMMIT, CommitMarker, Output, Writer, WriterOwner, open_store

if TYPE_CHECKING:
    import pyarrow as pa

# Seconds after which a store that has not answered is reported, and waited for again.
ANSWER_TIMEOUT_S = 10.0
# Seconds after which a silent store is opened again: the timeouts of its client are shorter.
REOPEN_AFTER_S = 600.0
# Seconds for a write to end while its stream stops.
STOP_GRACE_S = 5.0
POLL_S = 0.2
# Longest wait, in seconds, between two tries to open a store.
MAX_REOPEN_WAIT_S = 30.0


def writer_counts(writer: Writer | None) -> Counter[str]:
    """The counts of a writer; empty if it has none."""
    counters: Any = getattr(writer, "counters", None)
    if isinstance(counters, Counter):
        return counters
    return Counter(asdict(counters)) if is_dataclass(counters) and not isinstance(counters, type) else Counter()


class BackgroundTask:
    """Runs a function once, in a daemon thread that may be abandoned."""

    def __init__(self, name: str, work: Callable[[], int]) -> None:
        self._work = work
        self._error: Exception | None = None
        self._result = 0
        self._done = threading.Event()
        self._started_at = time.monotonic()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Exception as e:
            self._error = e
        finally:
            self._done.set()

    @property
    def elapsed(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started_at

    def wait(self, timeout: float, stopping: threading.Event, fails: Callable[[], object] = lambda: None) -> bool:
        """Wait until it is done, `stopping` is set, or `fails` gives something true; whether it is done.

        Args:
            timeout: seconds to wait at most.
            stopping: shortens the wait to `STOP_GRACE_S`.
            fails: ends the wait.
        """
        end = time.monotonic() + timeout
        while not self._done.wait(min(POLL_S, max(0.0, end - time.monotonic()))):
            if stopping.is_set():
                return self._done.wait(min(STOP_GRACE_S, max(0.0, end - time.monotonic())))
            if fails() or time.monotonic() >= end:
                return False
        return True

    def result(self) -> int:
        """What the function returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


class AsyncStoreWriter:
    """The writer of a store without commit markers, whose writes may be repeated without effect.

    Args:
        outputs: the outputs that share the store.
        owner: the stream that writes.
        stopping: set when the stream is to stop.
        on_stall: called with what keeps the store from being opened, before a batch meets it, and with None once the
            store is open.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        owner: WriterOwner,
        stopping: threading.Event,
        on_stall: Callable[[Exception | None], None],
    ) -> None:
        self._outputs, self._owner, self._stopping, self._on_stall = outputs, owner, stopping, on_stall
        self._names = ", ".join(output.name for output in outputs)
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._closed_counts: Counter[str] = Counter()
        self._open_error: Exception | None = None
        self._closed = threading.Event()
        self._marker = NO_COMMIT
        self._task = self._start_opening()

    @property
    def counters(self) -> Counter[str]:
        """What its writers have counted."""
        with self._lock:
            return self._closed_counts + writer_counts(self._writer)

    def committed(self) -> CommitMarker:
        """NO_COMMIT: the store keeps no markers."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], marker: CommitMarker) -> int:
        """Write as the store's own writer does. A second call with the same marker goes on to wait for its answer.

        Raises:
            Wait: the store has not answered for `ANSWER_TIMEOUT_S`.
        """
        if self._marker != marker:
            if not self._task.wait(ANSWER_TIMEOUT_S, self._stopping, lambda: self._open_error):
                raise self._open_error or self._silent("is not open yet")
            self._marker, self._task = marker, self._start(lambda: self._opened().write(rows, marker))
        if not self._task.wait(ANSWER_TIMEOUT_S, self._stopping):
            raise self._silent(f"has not answered for a batch of {sum(map(len, rows.values())):,} rows")
        self._marker = NO_COMMIT
        return self._task.result()

    def close(self) -> None:
        """Close the writer. A write that still runs is abandoned: its rows are written again, or older than others."""
        with self._lock:
            self._closed.set()
            writer, self._writer = self._writer, None
            self._closed_counts += writer_counts(writer)
        if writer is not None:
            writer.close()

    def _start(self, work: Callable[[], int]) -> BackgroundTask:
        return BackgroundTask(f"{self._owner.name} to {self._names}", work)

    def _start_opening(self) -> BackgroundTask:
        self._closed = closed = threading.Event()
        return self._start(lambda: self._open(closed))

    def _open(self, closed: threading.Event) -> int:
        while not closed.is_set():
            try:
                self._opened()
            except Exception as e:
                self._tell(closed, e)
                closed.wait(min(e.seconds, MAX_REOPEN_WAIT_S) if isinstance(e, Wait) else MAX_REOPEN_WAIT_S)
            else:
                if self._open_error is not None:
                    self._tell(closed, None)
                break
        return 0

    def _tell(self, closed: threading.Event, error: Exception | None) -> None:
        """Tell what keeps the store from being opened, unless it was closed: then another writer may have its place."""
        with self._lock:
            if not closed.is_set():
                self._open_error = error
                self._on_stall(error)

    def _opened(self) -> Writer:
        closed = self._closed
        with self._lock:
            if self._writer is not None:
                return self._writer
        writer = open_store(self._outputs, self._owner)
        with self._lock:
            if not closed.is_set() and self._writer is None:
                self._writer = writer
                return writer
        writer.close()
        raise LeaseLost(f"{self._names} was opened too late, and is closed")

    def _silent(self, what: str) -> Wait:
        seconds = self._task.elapsed
        if seconds > REOPEN_AFTER_S:
            self.close()
            self._marker, self._task = NO_COMMIT, self._start_opening()
            what += ", and is opened again"
        return Wait(f"{self._names} {what}", got=f"{seconds:.0f} s", seconds=0.0)
