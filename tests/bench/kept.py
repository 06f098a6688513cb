"""How long a killed driver's streams stand still, with their checkpoints on a local disk and in an object store.

SIGKILL of every process of the driver of three streams (one plain, one of windows, one that folds) while numbers flow;
measured is until each stream of the next one, which is launched at once, has ended a batch. The store is the embedded
one, on the same machine. Elsewhere is another home: then the state is fetched.

    python -m tests.bench.kept [kills]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.object_store.bucket import Bucket
from tests.bench.common import spread, table, write
from tests.chaos.keeping import APP, elsewhere, keeping, variables
from tests.support.s3_store import server, where


def recoveries(home: Path, checkpoints: str, kills: int, given: Mapping[str, object]) -> tuple[list[float], float]:
    """Seconds of each recovery on the same host, and of one elsewhere."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home / "broker", port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home / "mariadb", port=free_port()))
        kept = stack.enter_context(keeping(broker, mariadb, home / "home", checkpoints, **given))
        driver, times = kept.drivers.launch(APP), []
        for _ in range(kills):
            kept.send(20_000)
            kept.check(driver.log)
            driver, seconds = kept.recovered(driver)
            times.append(seconds)
        kept.check(driver.log)
        with elsewhere(home / "other"):
            driver, moved = kept.recovered(driver)
            kept.check(driver.log)
            driver.session.kill()
    return times, moved


def main(kills: int) -> None:
    aot_cache.ensure()
    rows = []
    with tempfile.TemporaryDirectory() as folder, server(Path(folder, "store")) as part:
        for name, place in (("a local disk", f"{folder}/checkpoints"), ("an object store", "s3a://state/checkpoints")):
            home = Path(folder, name.replace(" ", "-"))
            times, moved = recoveries(home, place, kills, variables(part) if "s3a" in place else {})
            rows.append([name, *spread(times, 1), f"{moved:.1f}"])
            shutil.rmtree(home)
        kept = Bucket(where(part), "state").list_objects("checkpoints")
    size = sum(one.size for one in kept)
    found = table(["checkpoints on", "kills", "median, s", "p99, s", "max, s", "elsewhere, s"], rows)
    write("kept", f"{found}\n\nIn the store: {len(kept)} objects, {size:,} bytes.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
