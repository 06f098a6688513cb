"""Drivers of the project `kept`, and what its streams must have written of the numbers that were sent."""

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
from tests.support.s3_store import where
from tests.support.wait import wait_until

KEPT = PROJECT / "tests" / "chaos" / "kept"
APP, STREAMS, MINUTE = "kept", ("evens", "digits", "sums"), 60_000


class Keeping:
    """Sends numbers, each once, and counts them as the streams must."""

    def __init__(self, given: Drivers, seed: int = 1) -> None:
        self.drivers, self.chance = given, random.Random(seed)
        self.sent = 0
        self._base = int(time.time() * 1000) // MINUTE * MINUTE
        self._digits: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._sums: Counter[str] = Counter()

    def send(self, count: int) -> None:
        records = []
        for n in range(self.sent, self.sent + count):
            at = self._base + self.chance.randrange(3) * MINUTE
            records.append(Record("numbers", None, json.dumps({"n": n, "at": at}), n % 2))
            digit = self._digits[json.dumps({"start": at, "digit": n % 10}, separators=(",", ":"))]
            digit[0] += 1
            digit[1] += n
            self._sums[str(n % 3000)] += n
        self.sent += count
        send(self.drivers.bootstrap, records)

    def written(self) -> int:
        """How many numbers have come through every stream."""
        return min(
            2 * len(read(self.drivers.bootstrap, "evens")),
            sum(one["count"] for one in self._latest("digits").values()),
            self.sent if self._latest("sums").keys() >= self._sums.keys() else 0,
        )

    def check(self, log: str) -> None:
        """Wait until all is written, then compare."""
        wait_until(lambda: self.written() >= self.sent - 1, every=1, what=f"all numbers are written: {log}")
        wanted = {key: {"total": total} for key, total in self._sums.items()}
        wait_until(lambda: self._latest("sums") == wanted, every=1, what=f"all is summed up once: {log}")
        evens = sorted(int(json.loads(one.value or "{}")["n"]) for one in read(self.drivers.bootstrap, "evens"))
        assert evens == list(range(0, self.sent, 2))
        assert self._latest("digits") == {k: {"count": c, "sum": s} for k, (c, s) in self._digits.items()}

    def _latest(self, topic: str) -> dict[str | None, dict[str, int]]:
        return {key: json.loads(value or "{}") for key, value in latest(read(self.drivers.bootstrap, topic)).items()}

    def recovered(self, before: DriverRow) -> tuple[DriverRow, float]:
        """The driver behind one that is killed now, and the seconds until each of its streams had ended a batch."""
        assert before.session.kill()
        killed, since = time.monotonic(), self.drivers.control.now()
        after = self.drivers.launch(APP)

        def ended() -> bool:
            rows = self.drivers.control.progress(APP).values()
            return len(rows) == len(STREAMS) and all(
                p.incarnation == after.incarnation and (p.batch_at or 0) > since for p in rows
            )

        self.send(1000)
        wait_until(ended, every=0.1, what=f"each stream ends a batch: {after.log}")
        return after, time.monotonic() - killed


def variables(part: S3Server) -> dict[str, object]:
    """Settings by which a driver reaches a store."""
    at = where(part)
    return {
        "PENSTOCK_S3_URL": at.url, "PENSTOCK_S3_ACCESS_KEY": at.access_key, "PENSTOCK_S3_SECRET_KEY": at.secret_key,
        "PENSTOCK_S3_MAKE_BUCKETS": "1",
    }  # fmt: skip


@contextmanager
def keeping(broker: Broker, mariadb: MariaDB, home: Path, checkpoints: str, **more: object) -> Iterator[Keeping]:
    """Drivers whose checkpoints lie somewhere; their home is not where the checkpoints are."""
    with drivers(broker, mariadb, home, KEPT, PENSTOCK_CHECKPOINTS=checkpoints, **more) as given:
        yield Keeping(given)


@contextmanager
def elsewhere(home: Path) -> Iterator[None]:
    """Another home, as on another host."""
    home.mkdir()
    with pytest.MonkeyPatch.context() as m:
        m.setenv("PENSTOCK_HOME", str(home))
        settings.cache_clear()
        yield
    settings.cache_clear()
