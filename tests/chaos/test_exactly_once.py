"""Each record once, whatever dies: drivers killed at random moments, and one that wakes up as a zombie."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.control import DriverRow
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.settings import PROJECT
from penstock.testing import Record, latest, read, send
from tests.chaos.drivers import Drivers, drivers, signal_session
from tests.chaos.quality_records import QualityRecords
from tests.support.statistics_model import plain
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

KILLS = int(os.environ.get("KILLS", "1"))
CHAOS = PROJECT / "tests" / "chaos" / "project"


@pytest.fixture
def quality(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    with drivers(fresh_broker, mariadb, tmp_path, PROJECT) as given:
        yield given


@pytest.fixture
def chaos(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    with drivers(fresh_broker, mariadb, tmp_path, CHAOS, PENSTOCK_LEASE_TTL=5) as given:
        yield given


def test_quality_counts_each_record_once_through_kills_and_a_second_launch(quality: Drivers) -> None:
    """Records of three topics, the last created on the way; SIGKILL of the whole driver at random moments; then a
    second driver beside a healthy one."""
    records = QualityRecords(quality.bootstrap, 20260101, "first", "second")
    d = quality.launch("quality")
    for kill in range(KILLS):
        if kill == KILLS // 2:
            records.add("third")
        records.produce(2000)
        # From the start of the session to behind a few batches.
        d = killed(quality, d, records.produce, after=records.chance.uniform(2, 12))
    records.produce(2000)
    records.check(d.log)
    second_launch_leaves_a_healthy_driver_alone(quality, d)
    records.produce(2000)
    records.check(d.log)


def second_launch_leaves_a_healthy_driver_alone(drivers: Drivers, first: DriverRow) -> None:
    """The second driver finds the leases held, gives the app back and ends."""
    second = drivers.launch(first.app)
    wait_until(lambda: drivers.row(second.incarnation).state == "ended", what="the second launch ends")
    assert "lease" in (drivers.row(second.incarnation).reason or "")
    app = drivers.control.app(first.app)
    assert app
    assert app.incarnation == first.incarnation
    assert drivers.row(first.incarnation).state == "running"


def test_summaries_count_each_receipt_once_through_kills_of_both_stages(quality: Drivers) -> None:
    """Receipts while both stages work; SIGKILL of the driver that runs them at random moments."""
    chance = random.Random(20260102)
    sent: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    base = int(time.time() * 1000) - 25 * 60_000

    def produce(count: int) -> None:
        records = []
        for _ in range(count):
            metric, value, at = (
                chance.choice("abc"),
                round(chance.gauss(0, 50), 3),
                base + chance.randrange(20 * 60_000),
            )
            receipt = {"environment": "prod", "metric": metric, "value": value, "timestamp": at}
            records.append(Record("receipts", None, json.dumps(receipt), chance.randrange(4), timestamp=at))
            sent[metric, at // 600_000 * 600_000].append(value)
        send(quality.bootstrap, records)

    d = quality.launch("metrics")
    for _ in range(KILLS):
        produce(1000)
        d = killed(quality, d, produce, after=chance.uniform(3, 14))
    produce(1000)

    def summaries() -> dict[tuple[str, int], dict[str, Any]]:
        found = [json.loads(v or "{}") for v in latest(read(quality.bootstrap, "metric-summaries")).values()]
        return {(s["metric"], s["window"]): s for s in found}

    total = sum(map(len, sent.values()))
    wait_until(
        lambda: sum(s["count"] for s in summaries().values()) >= total, every=1, what=f"all is summarised: {d.log}"
    )
    found = summaries()
    assert found.keys() == sent.keys()
    for group, values in sent.items():
        for name, wanted in plain(values, [0.9]).items():
            assert found[group][name] == pytest.approx(wanted, rel=1e-9), (group, name)


@pytest.mark.long
def test_a_driver_that_wakes_up_behind_its_lease_does_no_harm(chaos: Drivers) -> None:
    """Paused in full work, replaced as if it ran on another host, where nobody can kill it, then woken."""
    sleeper = chaos.launch("chaos")
    chaos.wait_running(sleeper)
    sent = produce(chaos, 1, 3000)
    wait_until(lambda: rows_out(chaos), what="the first totals are written")
    sent = produce(chaos, sent, 3000)
    signal_session(chaos.row(sleeper.incarnation), signal.SIGSTOP)
    chaos.control.update_driver(sleeper.incarnation, host="elsewhere")
    wait_until(
        lambda: all(lease.expires_at < chaos.control.now() for lease in chaos.control.leases().values()),
        what="the leases run out",
    )
    heir = chaos.launch("chaos")
    chaos.wait_running(heir)
    sent = produce(chaos, sent, 3000)
    chaos.wait_committed("chaos", heir)
    before = read(chaos.bootstrap, "totals")
    signal_session(sleeper, signal.SIGCONT)
    wait_until(lambda: sleeper.session.alive() is False, what="the sleeper sees that it lost its leases and ends")
    sent = produce(chaos, sent, 3000)

    def total() -> int:
        return sum(json.loads(v or "{}")["count"] for v in latest(read(chaos.bootstrap, "totals")).values())

    wait_until(lambda: total() >= sent - 1, what="all records are counted")
    assert total() == sent - 1
    grown = read(chaos.bootstrap, "totals")
    assert grown[: len(before)] == before
    # A stale writer would put an older total behind a newer one.
    seen: dict[str | None, int] = {}
    for record in grown:
        count = json.loads(record.value or "{}")["count"]
        assert count >= seen.get(record.key, 0), f"{record} goes back behind {seen[record.key]}"
        seen[record.key] = count
    assert chaos.row(heir.incarnation).state == "running"


def killed(given: Drivers, d: DriverRow, produce: Callable[[int], None], after: float) -> DriverRow:
    """Produce for so many seconds, SIGKILL all of a driver, and launch the next."""
    deadline = time.monotonic() + after
    while time.monotonic() < deadline:
        produce(50)
        time.sleep(0.05)
    assert d.session.kill()
    return given.launch(d.app)


def rows_out(given: Drivers) -> int:
    found = given.control.progress("chaos").get("totals")
    return found.rows_out if found else 0


def produce(to: Drivers, first: int, count: int) -> int:
    """Records numbered from `first` on; returns the next number."""
    now = int(time.time() * 1000)
    send(
        to.bootstrap,
        [
            Record("numbers", None, json.dumps({"n": n, "at": now}), n % 2, timestamp=now)
            for n in range(first, first + count)
        ],
    )
    return first + count
