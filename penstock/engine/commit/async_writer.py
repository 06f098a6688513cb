"""A store outside Kafka, opened and written to beside the streams: however long it takes to answer, the others of the
driver go on, and the stream can be stopped."""

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

# Seconds after which a store that has not answered is told of, and asked for again.
ANSWER_TIMEOUT_S = 10.0
# Seconds after which it is opened anew: its client's own timeouts are shorter.
REOPEN_AFTER_S = 600.0
# Seconds for which a batch that is being written may end while its stream stops.
STOP_GRACE_S = 5.0
POLL_S = 0.2
# Seconds between two tries to open a store that only a person can mend.
MAX_REOPEN_WAIT_S = 30.0


def writer_counts(writer: Writer | None) -> Counter[str]:
    """The counts of a writer; empty if it has none."""
    counters: Any = getattr(writer, "counters", None)
    if isinstance(counters, Counter):
        return counters
    return Counter(asdict(counters)) if is_dataclass(counters) and not isinstance(counters, type) else Counter()


class BackgroundTask:
    """Something done once in a thread of its own, which may be left behind."""

    def __init__(self, name: str, what: Callable[[], int]) -> None:
        self._what = what
        self._error: Exception | None = None
        self._result = 0
        self._done = threading.Event()
        self.since = time.monotonic()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._what()
        except Exception as e:
            self._error = e
        finally:
            self._done.set()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.since

    def wait(self, seconds: float, leave: threading.Event, fails: Callable[[], object] = lambda: None) -> bool:
        """Whether it ends within so many seconds; fewer if it is to be left, or fails meanwhile."""
        end = time.monotonic() + seconds
        while not self._done.wait(min(POLL_S, max(0.0, end - time.monotonic()))):
            if leave.is_set():
                return self._done.wait(min(STOP_GRACE_S, max(0.0, end - time.monotonic())))
            if fails() or time.monotonic() >= end:
                return False
        return True

    def result(self) -> int:
        if self._error is not None:
            raise self._error
        return self._result


class AsyncStoreWriter:
    """The writer of a store without marks: what is written to it twice changes nothing.

    told: of what keeps it from being opened, before there is a batch that would meet it, and None once it is open.
    leave: set when the stream is to stop.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        owner: WriterOwner,
        leave: threading.Event,
        told: Callable[[Exception | None], None],
    ) -> None:
        self._outputs, self._owner, self._leave, self._told = outputs, owner, leave, told
        self._what = ", ".join(output.name for output in outputs)
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._past: Counter[str] = Counter()
        self._why: Exception | None = None
        self._over = threading.Event()
        self._mark = NO_COMMIT
        self._work = self._opening()

    @property
    def figures(self) -> Counter[str]:
        """What its writers have counted."""
        with self._lock:
            return self._past + writer_counts(self._writer)

    def committed(self) -> CommitMarker:
        """NO_COMMIT: such a store keeps none."""
        return NO_COMMIT

    def write(self, rows: Mapping[str, pa.Table], mark: CommitMarker) -> int:
        """As the store's own writer, but Wait after some seconds without an answer; given the same mark it then goes on
        to wait for that answer."""
        if self._mark != mark:
            if not self._work.wait(ANSWER_TIMEOUT_S, self._leave, lambda: self._why):
                raise self._why or self._silent("is not open yet")
            self._mark, self._work = mark, self._begun(lambda: self._opened().write(rows, mark))
        if not self._work.wait(ANSWER_TIMEOUT_S, self._leave):
            raise self._silent(f"has not answered for a batch of {sum(map(len, rows.values())):,} rows")
        self._mark = NO_COMMIT
        return self._work.result()

    def close(self) -> None:
        """What is still at work is left to itself: what it writes is written again, or older than what is there."""
        self._over.set()
        with self._lock:
            writer, self._writer = self._writer, None
            self._past += writer_counts(writer)
        if writer is not None:
            writer.close()

    def _begun(self, what: Callable[[], int]) -> BackgroundTask:
        return BackgroundTask(f"{self._owner.name} to {self._what}", what)

    def _opening(self) -> BackgroundTask:
        self._over = over = threading.Event()
        return self._begun(lambda: self._open(over))

    def _open(self, over: threading.Event) -> int:
        while not over.is_set():
            try:
                self._opened()
            except Exception as e:
                self._why = e
                self._told(e)
                over.wait(min(e.seconds, MAX_REOPEN_WAIT_S) if isinstance(e, Wait) else MAX_REOPEN_WAIT_S)
            else:
                if self._why is not None:
                    self._why = None
                    self._told(None)
                break
        return 0

    def _opened(self) -> Writer:
        over = self._over
        with self._lock:
            if self._writer is not None:
                return self._writer
        made = open_store(self._outputs, self._owner)
        with self._lock:
            if not over.is_set() and self._writer is None:
                self._writer = made
                return made
        made.close()
        raise LeaseLost(f"{self._what} was opened too late, and is closed")

    def _silent(self, what: str) -> Wait:
        seconds = self._work.elapsed
        if seconds > REOPEN_AFTER_S:
            self.close()
            self._mark, self._work = NO_COMMIT, self._opening()
            what += ", and is opened anew"
        return Wait(f"{self._what} {what}", got=f"{seconds:.0f} s", seconds=0.0)
