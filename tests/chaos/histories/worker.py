"""A process that runs captures as the captures' driver does, without leases: `python -m tests.chaos.histories.worker`.

Arguments: the folder of the declarations, and rows of a page: few, so that small tables have many pages.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from penstock.capture.reconcile.digest_index import DigestIndex
from penstock.capture.runner import CaptureRun
from penstock.capture.session import CaptureSession
from penstock.control import ProgressRow, connect
from penstock.control.repositories.captures import Captures
from penstock.model.capture import APP, load
from penstock.settings import settings


def main(folder: Path, rows: int) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    CaptureSession.PAGE = rows
    DigestIndex.CHUNK, DigestIndex.FEW = rows, max(2, rows // 2)
    captures = Captures(connect())
    runs = [CaptureRun(c, captures, settings().bootstrap, ProgressRow(c.name, APP, "")) for c in load(folder).values()]
    while True:
        for run in runs:
            run.reconcile()
            run.report()
        time.sleep(0.3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
