"""Each record is counted once while drivers are killed at random moments, or resumed after they were replaced."""

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
from penstock.host import process
from penstock.settings import PROJECT
from penstock.testing import Record, latest, read, send
from tests.chaos.drivers import Drivers, drivers, signal_session
from tests.chaos.quality_records import QualityRecords
from tests.support.statistics_model import plain
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

KILLS = int(os.environ.get("KILLS", "1"))
CHAOS = PROJECT / "tests" / "chaos" / "project"


@pytest.fixture(params=[pytest.param("", id="own JVM"), pytest.param("all", id="shared JVM", marks=pytest.mark.long)])
def quality(
    request: pytest.FixtureRequest, fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path
) -> Iterator[Drivers]:
    with drivers(fresh_broker, mariadb, tmp_path, PROJECT, PENSTOCK_TOGETHER=request.param) as app_drivers:
        yield app_drivers
    process.stop_recorded(tmp_path / "run")


@pytest.fixture
def chaos(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    with drivers(fresh_broker, mariadb, tmp_path, CHAOS, PENSTOCK_LEASE_TTL=5) as app_drivers:
        yield app_drivers


def test_quality_counts_each_record_once_despite_kills_a_second_launch_and_a_lost_broker(
    quality: Drivers, fresh_broker: Broker
) -> None:
    """Records of three topics, one of them created later; SIGKILL of the whole driver at random moments; then a
    second driver beside a healthy one, and SIGKILL of the broker."""
    records = QualityRecords(quality.bootstrap, 20260101, "first", "second")
    d = quality.launch("quality")
    for kill in range(KILLS):
        if kill == KILLS // 2:
            records.add("third")
        records.produce(2000)
        # Between the start of the session and a few batches later.
        d = kill_and_relaunch(quality, d, records.produce, seconds=records.chance.uniform(2, 12))
    records.produce(2000)
    records.check(d.log)
    second_launch_leaves_a_healthy_driver_alone(quality, d)
    records.produce(2000)
    fresh_broker.kill()
    fresh_broker.start()
    fresh_broker.wait()
    records.produce(2000)
    records.check(d.log)
    assert quality.row(d.incarnation).state == "running"


def second_launch_leaves_a_healthy_driver_alone(drivers: Drivers, first: DriverRow) -> None:
    """The second driver finds that the leases are held, gives the app back and ends."""
    second = drivers.launch(first.app)
    wait_until(lambda: drivers.row(second.incarnation).state == "ended", what="the second launch ends")
    assert "lease" in (drivers.row(second.incarnation).reason or "")
    app = drivers.control.app(first.app)
    assert app
    assert app.incarnation == first.incarnation
    assert drivers.row(first.incarnation).state == "running"


@pytest.mark.long
def test_summaries_count_each_receipt_once_despite_kills_of_both_stages(quality: Drivers) -> None:
    """Receipts while both stages work; SIGKILL of the driver that runs them at random moments."""
    rng = random.Random(20260102)
    sent: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    base = int(time.time() * 1000) - 25 * 60_000

    def produce(count: int) -> None:
        records = []
        for _ in range(count):
            metric, value, at = (
                rng.choice("abc"),
                round(rng.gauss(0, 50), 3),
                base + rng.randrange(20 * 60_000),
            )
            receipt = {"environment": "prod", "metric": metric, "value": value, "timestamp": at}
            records.append(Record("receipts", None, json.dumps(receipt), rng.randrange(4), timestamp=at))
            sent[metric, at // 600_000 * 600_000].append(value)
        send(quality.bootstrap, records)

    d = quality.launch("metrics")
    for _ in range(KILLS):
        produce(1000)
        d = kill_and_relaunch(quality, d, produce, seconds=rng.uniform(3, 14))
    produce(1000)

    def summaries() -> dict[tuple[str, int], dict[str, Any]]:
        rows = [json.loads(v or "{}") for v in latest(read(quality.bootstrap, "metric-summaries")).values()]
        return {(s["metric"], s["window"]): s for s in rows}

    total = sum(map(len, sent.values()))
    wait_until(
        lambda: sum(s["count"] for s in summaries().values()) >= total, every=1, what=f"all is summarised: {d.log}"
    )
    summaries_by_key = summaries()
    assert summaries_by_key.keys() == sent.keys()
    for group, values in sent.items():
        for name, expected in plain(values, [0.9]).items():
            assert summaries_by_key[group][name] == pytest.approx(expected, rel=1e-9), (group, name)


@pytest.mark.long
def test_a_driver_resumed_after_its_lease_does_no_harm(chaos: Drivers) -> None:
    """A working driver is paused, replaced as if it ran on another host, where nobody can kill it, and resumed."""
    paused_driver = chaos.launch("chaos")
    chaos.wait_running(paused_driver)
    sent = produce(chaos, 1, 3000)
    wait_until(lambda: rows_out(chaos), what="the first totals are written")
    sent = produce(chaos, sent, 3000)
    signal_session(chaos.row(paused_driver.incarnation), signal.SIGSTOP)
    chaos.control.update_driver(paused_driver.incarnation, host="elsewhere")
    wait_until(
        lambda: all(lease.expires_at < chaos.control.now() for lease in chaos.control.leases().values()),
        what="the leases run out",
    )
    successor = chaos.launch("chaos")
    chaos.wait_running(successor)
    sent = produce(chaos, sent, 3000)
    chaos.wait_committed("chaos", successor)
    before = read(chaos.bootstrap, "totals")
    signal_session(paused_driver, signal.SIGCONT)
    wait_until(
        lambda: paused_driver.session.alive() is False,
        what="the paused driver loses its leases and ends",
    )
    sent = produce(chaos, sent, 3000)

    def total() -> int:
        return sum(json.loads(v or "{}")["count"] for v in latest(read(chaos.bootstrap, "totals")).values())

    wait_until(lambda: total() >= sent - 1, what="all records are counted")
    assert total() == sent - 1
    all_totals = read(chaos.bootstrap, "totals")
    assert all_totals[: len(before)] == before
    # A fenced writer would write an older total after a newer one.
    newest: dict[str | None, int] = {}
    for record in all_totals:
        count = json.loads(record.value or "{}")["count"]
        assert count >= newest.get(record.key, 0), f"{record} comes after the newer {newest[record.key]}"
        newest[record.key] = count
    assert chaos.row(successor.incarnation).state == "running"


def kill_and_relaunch(app_drivers: Drivers, d: DriverRow, produce: Callable[[int], None], seconds: float) -> DriverRow:
    """Produce for some seconds, SIGKILL the whole driver, and launch the next."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        produce(50)
        time.sleep(0.05)
    assert d.session.kill()
    return app_drivers.launch(d.app)


def rows_out(app_drivers: Drivers) -> int:
    row = app_drivers.control.progress("chaos").get("totals")
    return row.rows_out if row else 0


def produce(app_drivers: Drivers, first: int, count: int) -> int:
    """Records numbered from `first` on; returns the next number."""
    now = int(time.time() * 1000)
    send(
        app_drivers.bootstrap,
        [
            Record("numbers", None, json.dumps({"n": n, "at": now}), n % 2, timestamp=now)
            for n in range(first, first + count)
        ],
    )
    return first + count
