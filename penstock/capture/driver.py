"""The driver of the captures: one process that holds all of them, a thread for each.

`python -m penstock.capture.driver --app captures --incarnation ID`. See `penstock.supervision.lifecycle` for its life.
"""

from __future__ import annotations

import logging
import sys

from penstock.capture.runner import CaptureRun
from penstock.control import Control, ProgressRow
from penstock.control.repositories.captures import Captures
from penstock.errors import ControlError
from penstock.settings import settings
from penstock.supervision.driver_run import DriverRun
from penstock.supervision.lifecycle import Driver

log = logging.getLogger(__name__)


class CaptureDriver(Driver):
    """Runs all declared captures."""

    def __init__(self, app: str, incarnation: str, control: Control) -> None:
        super().__init__(app, incarnation, control)
        # One for all: what is asked of any of them is read at once.
        self._captures = Captures(control)

    def create_run(self, name: str, figures: ProgressRow) -> CaptureRun:
        return CaptureRun(self.catalog.captures[name], self._captures, settings().bootstrap, figures)

    def rest(self, name: str, run: DriverRun) -> None:
        """Let `penstock capture run` have a capture that is stopped."""
        if isinstance(run, CaptureRun) and run.has_ended:
            try:
                self._leases.give_up(name)
            except ControlError as e:
                log.warning("the lease of capture %s could not be given up and runs out: %s", name, e)


if __name__ == "__main__":
    sys.exit(CaptureDriver.main())
