"""The driver of one app of streams: a Spark application that runs them until it is told to leave.

Started by spark-submit: `driver.py --app APP --incarnation ID`. See `penstock.streams.host` for its life.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import TYPE_CHECKING

from penstock import catalog
from penstock.control import ProgressRow, connect
from penstock.observe import logs
from penstock.settings import settings
from penstock.streams.host import Driver
from penstock.streams.runner import StreamRun
from penstock.streams.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamDriver(Driver):
    """Runs one app's streams in one Spark session."""

    HEART = "the JVM"
    _spark: SparkSession | None = None

    def open(self) -> None:
        self._spark = open_session(self.app)

    def made(self, name: str, figures: ProgressRow) -> StreamRun:
        assert self._spark is not None
        stream = catalog.load().stream(name)
        return StreamRun(stream, self._spark, settings().bootstrap, settings().checkpoint_root, figures)

    def pulse(self) -> None:
        """A paused JVM leaves this call waiting; the leases then run out and the supervisor sees silence."""
        assert self._spark is not None
        self._spark._jvm.System.nanoTime()  # type: ignore[union-attr]

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--app", required=True)
    parser.add_argument("--incarnation", required=True)
    given = parser.parse_args()
    logs.setup(f"driver-{given.app}")
    # Py4J notes each callback, two a batch.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return StreamDriver(given.app, given.incarnation, connect()).run()


if __name__ == "__main__":
    sys.exit(main())
