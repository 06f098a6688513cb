"""A driver without Spark: each of its streams writes a line to the file `output` every 100 ms.

`python -m tests.support.small_driver --app APP --incarnation ID`. The file `opens` beside it says how the next driver
opens its session: after so many seconds, or `fails` or `hangs`. A driver that begins to creates `opens-ID`. While there
is a file `writes`, no stream stops; a driver whose id is in the file `hung` hangs.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from penstock.control import ProgressRow
from penstock.settings import settings
from penstock.supervision.lifecycle import Driver
from penstock.supervision.thread_run import ThreadRun


class SmallRun(ThreadRun):
    """Writes who runs, and when."""

    def __init__(self, figures: ProgressRow, output: Path) -> None:
        super().__init__(figures.name, figures, 60.0)
        self._output = output

    def reconcile(self) -> None:
        if not self.active:
            self.start()

    def report(self) -> ProgressRow:
        self.figures.state = "running" if self.active else "stopped"
        return self.figures

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.wait(0.05) or (settings().home / "writes").exists():
            time.sleep(0.05)
            with self._output.open("a") as file:
                file.write(f"{self.figures.incarnation} {self.figures.name} {time.monotonic()}\n")


class SmallDriver(Driver):
    """Runs streams that only write lines."""

    def open(self) -> None:
        behaviour = (settings().home / "opens").read_text()
        (settings().home / f"opens-{self.incarnation}").touch()
        if behaviour == "fails":
            raise RuntimeError("no session")
        time.sleep(600 if behaviour == "hangs" else float(behaviour))

    def health_check(self) -> None:
        hung = settings().home / "hung"
        while hung.exists() and hung.read_text() == self.incarnation:
            time.sleep(1)

    def standby_obstacle(self) -> str:
        return ""

    def create_run(self, name: str, figures: ProgressRow) -> SmallRun:  # noqa: ARG002
        return SmallRun(figures, settings().home / "output")

    def _measure_lag(self) -> None:
        """There is no broker."""
        self._measured.update(self._runs)

    def close(self) -> None:
        # A session of Spark takes its time.
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(SmallDriver.main())
