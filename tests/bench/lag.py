"""Latency of a live stream while a backfill runs, and while none runs.

The app `presence` as it is shipped, in a driver of its own, with its archive. Walk-ins come to `walk-in-counts` at a
steady rate, each of a device of its own, so that each is told of: measured is the time from when it is sent until a
read-committed consumer has the count that has it. First alone; then while yesterday's walk-ins become base counts,
which the same stream reads; then while they are replayed into another topic. Both are the command that the DAG runs, at
the rate that is declared, from its start to its end, so reading, making and verifying are in it.

    python -m tests.bench.lag [walk-ins of yesterday] [live ones a second]
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.settings import PROJECT
from tests.bench.common import quantile, table, write
from tests.chaos.drivers import Drivers, drivers
from tests.support import s3_store
from tests.support.wait import wait_until

WALKED, COUNTED, ARCHIVE = "enriched-walk-ins", "walk-in-counts", "walk-ins-archive"
PAIRS, TICK, MINUTE = 250_000, 0.05, 60.0
LIVE = b'"live-'
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
YESTERDAY = TODAY - timedelta(days=1)


def walk_in(device: str, pair: int, at: int) -> tuple[bytes, bytes]:
    """Key and value. at: epoch ms."""
    of = {"business": str(pair % 50), "contact": f"contact-{pair}"}
    return json.dumps(of).encode(), json.dumps({"device": device, **of, "since": at, "timestamp": at}).encode()


def put(producer: Producer, device: str, pair: int, at: int) -> None:
    key, value = walk_in(device, pair, at)
    while True:
        try:
            producer.produce(WALKED, value, key, timestamp=at)
            break
        except BufferError:
            producer.poll(0.1)
    producer.poll(0)


class Load(threading.Thread):
    """Walk-ins of now, at a rate, of any of the pairs."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        super().__init__(daemon=True)
        self._brokers, self._rate, self.ended = bootstrap, rate, threading.Event()

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self._brokers})
        chance, sent, began = random.Random(1), 0, time.monotonic()
        while not self.ended.wait(TICK):
            while sent < (time.monotonic() - began) * self._rate:
                put(producer, f"live-{sent}", chance.randrange(PAIRS), int(time.time() * 1000))
                sent += 1
        producer.flush()


class Watch(threading.Thread):
    """When each live walk-in was counted: (moment it was sent, seconds later)."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "lag",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.assign([TopicPartition(COUNTED, p, 0) for p in range(partitions)])
        self.seen: list[tuple[float, float]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        # A row tells the older walk-ins of its pair once more.
        known: set[str] = set()
        while not self.ended.is_set():
            for message in self._consumer.consume(1000, 0.02):
                now, value = time.time(), message.value()
                if message.error() or value is None or LIVE not in value:
                    continue
                for walk in json.loads(value)["walks"]:
                    if walk["device"].startswith("live-") and walk["device"] not in known:
                        known.add(walk["device"])
                        self.seen.append((walk["moment"] / 1000, now - walk["moment"] / 1000))
        self._consumer.close()

    def between(self, began: float, ended: float) -> list[float]:
        """Seconds that the walk-ins took that were sent between two times; returns when all are there."""
        wait_until(lambda: self.seen and self.seen[-1][0] > ended, what="the live walk-ins are counted")
        return [took for at, took in list(self.seen) if began <= at < ended]


def filled(app_drivers: Drivers, bootstrap: str, walks: int) -> None:
    """Walk-ins of yesterday, counted and archived, their hours closed."""
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 500_000})
    step, begin = timedelta(days=1) / walks, YESTERDAY.timestamp() * 1000
    for n in range(walks):
        put(producer, f"device-{n % 1000}", n % PAIRS, int(begin + n * step / timedelta(milliseconds=1)))
    producer.flush()
    command = [sys.executable, "-m", "penstock", "archives", "show", ARCHIVE, "--json"]
    command += ["--from", f"{YESTERDAY:%Y-%m-%dT%H}", "--to", f"{TODAY:%Y-%m-%dT%H}"]

    def closed() -> bool:
        shown = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
        hours = json.loads(shown.stdout)["hours"] if shown.returncode == 0 else []
        return bool(sum(h["rows"] for h in hours if h["state"] == "closed") == walks)

    def counted() -> bool:
        rows = app_drivers.control.progress("presence")
        return {COUNTED, ARCHIVE} <= rows.keys() and all(rows[one].lag == 0 for one in (COUNTED, ARCHIVE))

    wait_until(counted, 600, every=1, what="yesterday's walk-ins are counted")
    wait_until(closed, 600, every=5, what="yesterday's hours are closed")


def backfill(*words: str) -> tuple[float, float]:
    """Run it as its DAG does; when it began and ended."""
    began = time.time()
    command = [sys.executable, "-m", "penstock", "backfill", "run", *words, "--to", f"{TODAY:%Y-%m-%dT%H}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr[-2000:]}")
    print(f"{time.time() - began:.0f} s: {done.stdout.splitlines()[-1]}", flush=True)
    return began, time.time()


@contextmanager
def platform(home: Path) -> Iterator[Drivers]:
    with (
        s3_store.server(home / "s3") as store,
        Broker(home=home, port=free_port(2)) as broker,
        MariaDB(home=home, port=free_port()) as mariadb,
    ):
        endpoint = s3_store.endpoint_of(store)
        variables = {
            "PENSTOCK_S3_URL": endpoint.url,
            "PENSTOCK_S3_ACCESS_KEY": endpoint.access_key,
            "PENSTOCK_S3_SECRET_KEY": endpoint.secret_key,
            "PENSTOCK_S3_MAKE_BUCKETS": "1",
            "PENSTOCK_DRIVER_MEMORY": "768m",
        }
        with drivers(broker, mariadb, home, PROJECT, **variables) as app_drivers:
            yield app_drivers


def main(walks: int, rate: int) -> None:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name, platform(Path(name)) as app_drivers:
        driver = app_drivers.launch("presence")
        app_drivers.wait_running(driver)
        filled(app_drivers, app_drivers.bootstrap, walks)
        load, watch = Load(app_drivers.bootstrap, rate), Watch(app_drivers.bootstrap, 4)
        watch.start()
        load.start()
        time.sleep(MINUTE / 2)
        began = time.time()
        time.sleep(MINUTE)
        found["nothing"] = watch.between(began, began + MINUTE)
        day = ["--from", f"{YESTERDAY:%Y-%m-%dT%H}"]
        for what, words in (
            ("base counts into the topic that it reads", ["base-counts"]),
            ("a replay into another topic", ["replay", "--source", ARCHIVE, *day]),
        ):
            found[what] = watch.between(*backfill(*words))
            time.sleep(5)
        load.ended.set()
        load.join()
        watch.ended.set()
        watch.join()
    normal, rows = found["nothing"], []
    for what, took in found.items():
        figures = [
            (statistics.median(one), quantile(one, 0.95), quantile(one, 0.99), max(one)) for one in (took, normal)
        ]
        ratios = " / ".join(f"{a / b:.1f}" for a, b in zip(*figures, strict=True))
        rows.append([what, f"{len(took):,}", *(f"{s:.2f}" for s in figures[0]), ratios if took is not normal else ""])
    heads = ["beside", "walk-ins", "p50, s", "p95, s", "p99, s", "max, s", "of the normal ones"]
    text = f"{walks:,} walk-ins of yesterday, {rate} live ones a second.\n\n{table(heads, rows)}"
    write("lag", text, {"delay, s": found})


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(*[*arguments, *(300_000, 200)[len(arguments) :]])
