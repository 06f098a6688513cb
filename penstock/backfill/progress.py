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
    """files, rows: of how many, 0 where that is not known. rate: rows a second, lately. left: seconds."""

    state: Phase = "running"
    why: str = ""
    files: int = 0
    files_done: int = 0
    rows: int = 0
    rows_done: int = 0
    rate: float = 0.0
    left: float | None = None
    verified: str = ""

    def said(self) -> str:
        found = f"{self.files_done:,} of {self.files:,} files, {self.rows_done:,} of {self.rows:,} rows"
        found += f", {self.rate:,.0f} rows/s" if self.rate else ""
        found += f", {self.left:,.0f} s left" if self.left is not None else ""
        return f"{found}: {self.why}" if self.why else found


class BackfillProgress:
    """Figures of one run; `report` gets them now and then, and at each change of state."""

    def __init__(
        self, what: str, report: Callable[[BackfillStatus], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.figures = BackfillStatus()
        self._what, self._report, self._clock = what, report, clock
        self._lately: deque[tuple[float, int]] = deque()
        self._line = self._sent = float("-inf")
        self._lock = threading.RLock()

    @contextmanager
    def goes_on(self, why: str) -> Iterator[None]:
        """Say now and then that it lives, while there are no figures that would."""
        began, ended = self._clock(), threading.Event()

        def tell() -> None:
            while not ended.wait(LOG_INTERVAL):
                self.now(why=f"{why}, for {self._clock() - began:,.0f} s by now")

        self.now(why=why)
        thread = threading.Thread(target=tell, name=why, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def now(
        self, *, state: Phase | None = None, why: str = "", files: int | None = None, files_done: int | None = None,
        rows: int | None = None, rows_done: int | None = None, verified: str = "",
    ) -> None:  # fmt: skip
        """What has changed."""
        given = {"files": files, "files_done": files_done, "rows": rows, "rows_done": rows_done}
        numbers: dict[str, Any] = {name: number for name, number in given.items() if number is not None}
        with self._lock:
            was = self.figures
            self.figures = replace(was, state=state or was.state, why=why, verified=verified or was.verified, **numbers)
            if rows_done is not None:
                self._timed(rows_done)
            at, changed = self._clock(), self.figures.state != was.state
            if changed or at >= self._line + LOG_INTERVAL:
                self._line = at
                log.info("%s: %s: %s", self._what, self.figures.state, self.figures.said())
            if changed or at >= self._sent + REPORT_INTERVAL:
                self._sent = at
                self._report(self.figures)

    def _timed(self, rows_done: int) -> None:
        at = self._clock()
        if self._lately and rows_done < self._lately[-1][1]:
            self._lately.clear()
        self._lately.append((at, rows_done))
        while len(self._lately) > 2 and self._lately[0][0] < at - RATE_WINDOW:
            self._lately.popleft()
        (begun, first), (ended, last) = self._lately[0], self._lately[-1]
        rate = (last - first) / (ended - begun) if ended > begun else 0.0
        left = (self.figures.rows - rows_done) / rate if rate and self.figures.rows else None
        self.figures = replace(self.figures, rate=rate, left=left)
