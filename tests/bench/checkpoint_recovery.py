"""Recovery time of a killed driver's streams, with checkpoints on a local disk and in an object store.

SIGKILL of every process of a driver with three streams (stateless, windowed, folding) while numbers are sent; the time
until each stream of the next driver, which is launched at once, has committed a batch. The object store is the embedded
one, on the same machine. "Another host" is another home, so the state is fetched.

    python -m tests.bench.checkpoint_recovery [kills]
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
from tests.chaos.checkpoint_app import APP, checkpoint_app, other_home, s3_variables
from tests.support.s3_store import endpoint_of, server


def recoveries(home: Path, checkpoints: str, kills: int, variables: Mapping[str, object]) -> tuple[list[float], float]:
    """Seconds of each recovery on the same host, and of one on another host."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home / "broker", port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home / "mariadb", port=free_port()))
        app = stack.enter_context(checkpoint_app(broker, mariadb, home / "home", checkpoints, **variables))
        driver, times = app.drivers.launch(APP), []
        for _ in range(kills):
            app.send(20_000)
            app.check(driver.log)
            driver, seconds = app.kill_and_recover(driver)
            times.append(seconds)
        app.check(driver.log)
        with other_home(home / "other"):
            driver, other_host_seconds = app.kill_and_recover(driver)
            app.check(driver.log)
            driver.session.kill()
    return times, other_host_seconds


def main(kills: int) -> None:
    aot_cache.ensure()
    rows = []
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, server(Path(folder, "store")) as store_server:
        for name, location in (
            ("a local disk", f"{folder}/checkpoints"),
            ("an object store", "s3a://state/checkpoints"),
        ):
            home = Path(folder, name.replace(" ", "-"))
            times, other_host_seconds = recoveries(
                home, location, kills, s3_variables(store_server) if "s3a" in location else {}
            )
            rows.append([name, *spread(times, 1), f"{other_host_seconds:.1f}"])
            figures |= {name: times, f"{name}, another host": [other_host_seconds]}
            shutil.rmtree(home)
        objects = Bucket(endpoint_of(store_server), "state").list_objects("checkpoints")
    size = sum(item.size for item in objects)
    results = table(["checkpoints on", "kills", "median, s", "p99, s", "max, s", "another host, s"], rows)
    text = f"{results}\n\nIn the store: {len(objects)} objects, {size:,} bytes."
    write("checkpoint-recovery", text, {"recovery, s": figures})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
