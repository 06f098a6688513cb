"""The driver of the captures: one process that holds all of them, a thread for each.

`python -m penstock.capture.driver --app captures --incarnation ID`. See `penstock.streams.host` for its life.
"""

from __future__ import annotations

import argparse
import sys

from penstock import catalog
from penstock.capture.run import CaptureRun
from penstock.control import ProgressRow, connect
from penstock.control.captures import Captures
from penstock.observe import logs
from penstock.settings import settings
from penstock.streams.host import Driver


class CaptureDriver(Driver):
    """Runs all declared captures."""

    HEART = "the process"

    def open(self) -> None:
        return

    def made(self, name: str, figures: ProgressRow) -> CaptureRun:
        return CaptureRun(catalog.load().captures[name], Captures(self._control), settings().bootstrap, figures)

    def pulse(self) -> None:
        return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--app", required=True)
    parser.add_argument("--incarnation", required=True)
    given = parser.parse_args()
    logs.setup(f"driver-{given.app}")
    return CaptureDriver(given.app, given.incarnation, connect()).run()


if __name__ == "__main__":
    sys.exit(main())
