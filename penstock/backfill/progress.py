"""How far a run is: in its log, and in the control database for the operator page."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

log = logging.getLogger(__name__)

Phase = Literal["running", "waiting", "verifying", "done", "failed", "stopped"]
# Seconds between two lines of the log, two reports, and over which a rate is measured.
LOG_INTERVAL, REPORT_INTERVAL, RATE_WINDOW = 5.0, 1.0, 20.0


@dataclass(frozen=True)
class BackfillStatus:
    """The status of a run.

    Attributes:
        state: the phase.
        why: what it waits for or does, in words.
        files: files to read, 0 if unknown.
        files_done: files read.
        rows: rows to write, 0 if unknown.
        rows_done: rows written.
        rate: rows per second over RATE_WINDOW.
        seconds_left: estimate.
        verified: result of the verification.
    """

    state: Phase = "running"
    why: str = ""
    files: int = 0
    files_done: int = 0
    rows: int = 0
    rows_done: int = 0
    rate: float = 0.0
    seconds_left: float | None = None
    verified: str = ""

    def summary(self) -> str:
        found = f"{self.files_done:,} of {self.files:,} files, {self.rows_done:,} of {self.rows:,} rows"
        found += f", {self.rate:,.0f} rows/s" if self.rate else ""
        found += f", {self.seconds_left:,.0f} s left" if self.seconds_left is not None else ""
        return f"{found}: {self.why}" if self.why else found


class BackfillProgress:
    """Tracks a run; calls `report` periodically and at each change of state."""

    def __init__(
        self, what: str, report: Callable[[BackfillStatus], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.status = BackfillStatus()
        self._what, self._report, self._clock = what, report, clock
        self._samples: deque[tuple[float, int]] = deque()
        self._line = self._sent = float("-inf")
        self._lock = threading.RLock()

    @contextmanager
    def keepalive(self, why: str) -> Iterator[None]:
        """Reports periodically during a step without figures."""
        began, ended = self._clock(), threading.Event()

        def tell() -> None:
            while not ended.wait(LOG_INTERVAL):
                self.update(why=f"{why}, for {self._clock() - began:,.0f} s by now")

        self.update(why=why)
        thread = threading.Thread(target=tell, name=why, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def update(
        self, *, state: Phase | None = None, why: str = "", files: int | None = None, files_done: int | None = None,
        rows: int | None = None, rows_done: int | None = None, verified: str = "",
    ) -> None:  # fmt: skip
        """Changes the status."""
        given = {"files": files, "files_done": files_done, "rows": rows, "rows_done": rows_done}
        numbers: dict[str, Any] = {name: number for name, number in given.items() if number is not None}
        with self._lock:
            was = self.status
            self.status = replace(was, state=state or was.state, why=why, verified=verified or was.verified, **numbers)
            if rows_done is not None:
                self._measure_rate(rows_done)
            at, changed = self._clock(), self.status.state != was.state
            if changed or at >= self._line + LOG_INTERVAL:
                self._line = at
                log.info("%s: %s: %s", self._what, self.status.state, self.status.summary())
            if changed or at >= self._sent + REPORT_INTERVAL:
                self._sent = at
                self._report(self.status)

    def _measure_rate(self, rows_done: int) -> None:
        at = self._clock()
        if self._samples and rows_done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((at, rows_done))
        while len(self._samples) > 2 and self._samples[0][0] < at - RATE_WINDOW:
            self._samples.popleft()
        (begun, first), (ended, last) = self._samples[0], self._samples[-1]
        rate = (last - first) / (ended - begun) if ended > begun else 0.0
        left = (self.status.rows - rows_done) / rate if rate and self.status.rows else None
        self.status = replace(self.status, rate=rate, seconds_left=left)
