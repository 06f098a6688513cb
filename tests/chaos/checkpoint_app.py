"""The app `checkpoints` in driver processes, and the output that it must have written for the numbers sent to it."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.control import DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.s3 import S3Server
from penstock.settings import PROJECT, settings
from penstock.testing import Record, latest, read, send
from tests.chaos.drivers import Drivers, drivers
from tests.support.s3_store import endpoint_of
from tests.support.wait import wait_until

PROJECT_FOLDER = PROJECT / "tests" / "chaos" / "checkpoint_project"
APP, STREAMS, MINUTE = "checkpoints", ("evens", "digits", "sums"), 60_000


class CheckpointApp:
    """Drivers of the app; sends each number once and computes what the streams must write."""

    def __init__(self, app_drivers: Drivers, seed: int = 1) -> None:
        self.drivers, self.random = app_drivers, random.Random(seed)
        self.sent = 0
        self._base = int(time.time() * 1000) // MINUTE * MINUTE
        self._digits: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._sums: Counter[str] = Counter()

    def send(self, count: int) -> None:
        records = []
        for n in range(self.sent, self.sent + count):
            at = self._base + self.random.randrange(3) * MINUTE
            records.append(Record("numbers", None, json.dumps({"n": n, "at": at}), n % 2))
            digit = self._digits[json.dumps({"start": at, "digit": n % 10}, separators=(",", ":"))]
            digit[0] += 1
            digit[1] += n
            self._sums[str(n % 3000)] += n
        self.sent += count
        send(self.drivers.bootstrap, records)

    def processed(self) -> int:
        """How many numbers every stream has processed."""
        return min(
            2 * len(read(self.drivers.bootstrap, "evens")),
            sum(record["count"] for record in self._latest("digits").values()),
            self.sent if self._latest("sums").keys() >= self._sums.keys() else 0,
        )

    def check(self, log: str) -> None:
        """Wait until all numbers are processed, then compare the output."""
        wait_until(lambda: self.processed() >= self.sent - 1, every=1, what=f"all numbers are processed: {log}")
        expected = {key: {"total": total} for key, total in self._sums.items()}
        wait_until(lambda: self._latest("sums") == expected, every=1, what=f"each number is summed once: {log}")
        evens = sorted(int(json.loads(record.value or "{}")["n"]) for record in read(self.drivers.bootstrap, "evens"))
        assert evens == list(range(0, self.sent, 2))
        assert self._latest("digits") == {k: {"count": c, "sum": s} for k, (c, s) in self._digits.items()}

    def _latest(self, topic: str) -> dict[str | None, dict[str, int]]:
        return {key: json.loads(value or "{}") for key, value in latest(read(self.drivers.bootstrap, topic)).items()}

    def kill_and_recover(self, killed_driver: DriverRow) -> tuple[DriverRow, float]:
        """Kill a driver and launch the next; return it and the seconds until each of its streams committed a batch."""
        assert killed_driver.session.kill()
        killed_at, since = time.monotonic(), self.drivers.control.now()
        successor = self.drivers.launch(APP)

        def all_committed() -> bool:
            rows = self.drivers.control.progress(APP).values()
            return len(rows) == len(STREAMS) and all(
                p.incarnation == successor.incarnation and (p.batch_at or 0) > since for p in rows
            )

        self.send(1000)
        wait_until(all_committed, every=0.1, what=f"each stream commits a batch: {successor.log}")
        return successor, time.monotonic() - killed_at


def s3_variables(store: S3Server) -> dict[str, object]:
    """Settings of a driver that uses an object store."""
    at = endpoint_of(store)
    return {
        "PENSTOCK_S3_URL": at.url, "PENSTOCK_S3_ACCESS_KEY": at.access_key, "PENSTOCK_S3_SECRET_KEY": at.secret_key,
        "PENSTOCK_S3_MAKE_BUCKETS": "1",
    }  # fmt: skip


@contextmanager
def checkpoint_app(
    broker: Broker, mariadb: MariaDB, home: Path, checkpoints: str, **more: object
) -> Iterator[CheckpointApp]:
    """Drivers with their checkpoints at a location outside their home."""
    with drivers(broker, mariadb, home, PROJECT_FOLDER, PENSTOCK_CHECKPOINTS=checkpoints, **more) as app_drivers:
        yield CheckpointApp(app_drivers)


@contextmanager
def other_home(home: Path) -> Iterator[None]:
    """Use another home, as a driver on another host would."""
    home.mkdir()
    with pytest.MonkeyPatch.context() as m:
        m.setenv("PENSTOCK_HOME", str(home))
        settings.cache_clear()
        yield
    settings.cache_clear()
