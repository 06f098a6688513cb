"""Recovery time of a killed driver's streams, supervised by a real Airflow.

SIGKILL of every process of the driver while records flow; measured are the start of the next driver's process and the
first batch that it commits. Before each kill the driver has lived long enough not to be held back as a crash loop. A
driver that shares its JVM with other apps leaves it, warm, to the next one; so the JVM is killed as well.

    python -m tests.bench.recovery [kills]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.progress import track

from penstock.control import DriverRow
from penstock.engine import shared_session
from penstock.host import process
from penstock.settings import settings
from penstock.supervision.decision.decide import EARLY_DEATH
from tests.bench.common import spread, table, write
from tests.chaos.platform import APP, Platform, start_platform
from tests.support.wait import wait_until

# Drivers whose last beat came earlier count as crashes, which are launched with growing pauses.
LIVES = EARLY_DEATH + 10


def kill_driver(driver: DriverRow) -> None:
    assert driver.session.kill()


def kill_shared_jvm(_driver: DriverRow) -> None:
    record = process.read(settings().home / "run", shared_session.name())
    assert record
    assert record.session.kill()


def recovery(platform: Platform, kill: Callable[[DriverRow], None]) -> tuple[float, float]:
    """Seconds from the kill to the next process, and to its first committed batch."""
    before = platform.wait_working(180)
    wait_until(lambda: platform.control.now() - before.launched_at > 1000 * LIVES, LIVES + 10)
    killed = time.time()
    kill(before)
    after = wait_until(lambda: platform.successor(before))
    assert after
    launched = time.time() - killed

    def committed() -> float:
        rows = [p for p in platform.control.progress(APP).values() if p.incarnation == after.incarnation]
        new = [p.batch_at for p in rows if p.batch_at and p.batch_at > killed * 1000]
        return min(new, default=0)

    return launched, wait_until(committed) / 1000 - killed


Recoveries = dict[str, list[tuple[float, float]]]


def measure(together: str, kills: int, variants: dict[str, Callable[[DriverRow], None]]) -> Recoveries:
    with tempfile.TemporaryDirectory() as folder, start_platform(Path(folder), together=together) as platform:
        return {name: [recovery(platform, kill) for _ in track(range(kills), name)] for name, kill in variants.items()}


def main(kills: int) -> None:
    recoveries = measure("", kills, {"a driver with its JVM": kill_driver})
    recoveries |= measure("all", kills, {"a driver that shares a JVM": kill_driver, "the shared JVM": kill_shared_jvm})
    figures = {
        what: {name: [times[i] for times in all_times] for name, all_times in recoveries.items()}
        for i, what in enumerate(("until the next driver's process, s", "until its first batch is committed, s"))
    }
    rows = [[what, name, *spread(values, 1)] for what, series in figures.items() for name, values in series.items()]
    write("recovery", table(["", "killed", "times", "median", "p99", "max"], rows), figures)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
