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
        files, rows = (f" of {count:,}" if count else "" for count in (self.files, self.rows))
        text = f"{self.files_done:,}{files} files, {self.rows_done:,}{rows} rows"
        text += f", {self.rate:,.0f} rows/s" if self.rate else ""
        text += f", {self.seconds_left:,.0f} s left" if self.seconds_left is not None else ""
        return f"{text}: {self.why}" if self.why else text


class BackfillProgress:
    """Tracks a run; calls `report` periodically and at each change of state."""

    def __init__(
        self, label: str, report: Callable[[BackfillStatus], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.status = BackfillStatus()
        self._label, self._report, self._clock = label, report, clock
        self._samples: deque[tuple[float, int]] = deque()
        self._logged_at = self._reported_at = float("-inf")
        self._lock = threading.RLock()

    @contextmanager
    def keepalive(self, why: str) -> Iterator[None]:
        """Reports periodically during a step without figures."""
        started, done = self._clock(), threading.Event()

        def report_periodically() -> None:
            while not done.wait(LOG_INTERVAL):
                self.update(why=f"{why}, for {self._clock() - started:,.0f} s by now")

        self.update(why=why)
        thread = threading.Thread(target=report_periodically, name=why, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def update(
        self, *, state: Phase | None = None, why: str = "", files: int | None = None, files_done: int | None = None,
        rows: int | None = None, rows_done: int | None = None, verified: str = "",
    ) -> None:  # fmt: skip
        """Changes the status."""
        figures = {"files": files, "files_done": files_done, "rows": rows, "rows_done": rows_done}
        numbers: dict[str, Any] = {name: number for name, number in figures.items() if number is not None}
        with self._lock:
            previous = self.status
            self.status = replace(
                previous, state=state or previous.state, why=why, verified=verified or previous.verified, **numbers
            )
            if rows_done is not None:
                self._measure_rate(rows_done)
            if self.status.state == "waiting":
                # It comes no nearer to its end.
                self.status = replace(self.status, rate=0.0, seconds_left=None)
            now, changed = self._clock(), self.status.state != previous.state
            if changed or now >= self._logged_at + LOG_INTERVAL:
                self._logged_at = now
                log.info("%s: %s: %s", self._label, self.status.state, self.status.summary())
            if changed or now >= self._reported_at + REPORT_INTERVAL:
                self._reported_at = now
                self._report(self.status)

    def _measure_rate(self, rows_done: int) -> None:
        now = self._clock()
        if self._samples and rows_done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, rows_done))
        while len(self._samples) > 2 and self._samples[0][0] < now - RATE_WINDOW:
            self._samples.popleft()
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        rate = (last - first) / (last_at - first_at) if last_at > first_at else 0.0
        seconds_left = (self.status.rows - rows_done) / rate if rate and self.status.rows else None
        self.status = replace(self.status, rate=rate, seconds_left=seconds_left)
