"""How long a release, and the cut of a replacement, stop the output of a stream with state.

A stream of windows of one second, which writes a row each second, is released and replaced by real drivers while orders
come. A pause is the longest time between two rows that a consumer gets meanwhile; without a release it is a second.

    python -m tests.bench.release_pause [releases] [replacements]
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.kafka.client import client_config
from penstock.supervision.release import release, start_replacement
from tests.bench.common import spread, table, write
from tests.support.replaced_app import APP, ME, NAME, STREAM, ReplacedApp, replaced_app, sending
from tests.support.wait import tended, wait_until


@contextmanager
def arrivals(bootstrap: str) -> Iterator[list[float]]:
    """When rows of the stream come, in seconds of a monotonic clock."""
    times, stop = [], threading.Event()

    def consume() -> None:
        settings = {"group.id": "pause", "isolation.level": "read_committed", "auto.offset.reset": "latest"}
        consumer = Consumer({**client_config(bootstrap), **settings})
        consumer.subscribe([NAME])
        while not stop.is_set():
            if (message := consumer.poll(0.2)) is not None and not message.error():
                times.append(time.monotonic())
        consumer.close()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


def longest(times: list[float], since: float) -> float:
    """Seconds of the longest pause that ended after a time."""
    return max((later - at for at, later in pairwise(times) if later > since), default=0.0)


def driver_of(app: ReplacedApp) -> str:
    row = app.control.app(APP)
    return (row and row.incarnation) or ""


def settle(app: ReplacedApp, times: list[float], seconds: float) -> None:
    """Let rows come for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until or time.monotonic() - times[-1] > 3:
        app.tick()
        time.sleep(0.5)


def pause_of_release(app: ReplacedApp, times: list[float]) -> float:
    before, began = driver_of(app), time.monotonic()
    release(app.control, APP, ME)

    def is_released() -> bool:
        app.tick()
        row = app.control.driver(driver_of(app))
        return row is not None and row.incarnation != before and row.state == "running"

    wait_until(is_released, 240, every=0.5)
    seen = len(times)
    wait_until(lambda: len(times) > seen + 3, 120, every=0.5)
    print(f"release: {longest(times, began):.2f} s", flush=True)
    return longest(times, began)


def pause_of_replacement(app: ReplacedApp, times: list[float], column: str) -> tuple[float, float]:
    app.file.write_text(STREAM.format(more=f", sum(amount) AS {column}"))
    began = time.monotonic()
    start_replacement(app.control, APP, NAME, ME, {"cut": "auto"})
    app.wait("cut")
    wait_until(lambda: app.replacement().figures.get("pause_ms"), 120, every=0.5)
    settle(app, times, 5)
    row = app.replacement()
    print(f"replacement: {row.figures}", flush=True)
    app.control.move_replacement(row.id, "confirmed", actor=ME)
    return longest(times, began), row.figures["pause_ms"] / 1000


def main(releases: int, replacements: int) -> None:
    aot_cache.ensure()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        broker = stack.enter_context(Broker(home=home / "broker", port=free_port(2)))
        mariadb = stack.enter_context(MariaDB(home=home / "mariadb", port=free_port()))
        app = stack.enter_context(replaced_app(broker, mariadb, home))
        stack.enter_context(sending(broker.bootstrap))
        times = stack.enter_context(arrivals(broker.bootstrap))
        wait_until(lambda: tended(app.tick, lambda: len(times) > 5), 180, every=0.5)
        released, replaced, measured = [], [], []
        for _ in range(releases):
            settle(app, times, 10)
            released.append(pause_of_release(app, times))
        for n in range(replacements):
            settle(app, times, 10)
            seconds, own = pause_of_replacement(app, times, f"amount_{n}")
            replaced.append(seconds)
            measured.append(own)
    pauses = {"a release": released, "a replacement": replaced, "the same, as `pause_ms` says": measured}
    rows = [[name, *spread(values, 1)] for name, values in pauses.items() if values]
    text = table(["pause of the output at", "times", "median, s", "p99, s", "max, s"], rows)
    write("release-pause", text, {"pause, s": pauses})


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [5, 3][len(given) :]))
