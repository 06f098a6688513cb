"""Recovery time of a killed driver's streams, supervised by a real Airflow.

SIGKILL of every process of the driver while records flow; measured are the start of the next driver's process and the
first batch that it commits. Before each kill the driver has lived long enough not to be held back as a crash loop.

    python -m tests.bench.recovery [kills]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.progress import track

from penstock.supervision.decision.decide import EARLY_DEATH
from tests.bench.common import spread, table, write
from tests.chaos.platform import APP, Platform, start_platform
from tests.support.wait import wait_until

# Drivers whose last beat came earlier count as crashes, which are launched with growing pauses.
LIVES = EARLY_DEATH + 10


def recovery(platform: Platform) -> tuple[float, float]:
    """Seconds from the kill to the next process, and to its first committed batch."""
    before = platform.wait_working(180)
    wait_until(lambda: platform.control.now() - before.launched_at > 1000 * LIVES, LIVES + 10)
    killed = time.time()
    assert before.session.kill()
    after = wait_until(lambda: platform.successor(before))
    assert after
    launched = time.time() - killed

    def committed() -> float:
        rows = [p for p in platform.control.progress(APP).values() if p.incarnation == after.incarnation]
        new = [p.batch_at for p in rows if p.batch_at and p.batch_at > killed * 1000]
        return min(new, default=0)

    return launched, wait_until(committed) / 1000 - killed


def main(kills: int) -> None:
    with tempfile.TemporaryDirectory() as folder, start_platform(Path(folder)) as platform:
        recoveries = [recovery(platform) for _ in track(range(kills), "kills")]
    rows = [
        ["next driver's process", *spread([f[0] for f in recoveries], 1)],
        ["first batch committed", *spread([f[1] for f in recoveries], 1)],
    ]
    write("recovery", table(["from the kill to", "kills", "median, s", "p99, s", "max, s"], rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
