"""The streams of presence while their driver is killed: every simulated visit is found once, and no other."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.presence.simulator import crowd
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.settings import PROJECT
from penstock.streams import Topic
from penstock.testing import Record, create, latest, read, send
from tests.chaos.drivers import Drivers, drivers
from tests.support import presence_model as model
from tests.support.wait import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("KILLS", "1"))
HOUR = 3_600_000
BUSINESSES = [crowd.Business(str(n), -60 - n) for n in range(1, 6)]
BASES = [{"business": "1", "contact": f"c-{n}", "count": n, "as_of": 10**12} for n in range(5)]


@pytest.fixture
def presence(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    # One partition, because hours are sent within a second, and one partition could be read hours behind another.
    create(fresh_broker.bootstrap, Topic("probes", partitions=1, config={"retention.ms": "-1"}))
    with drivers(fresh_broker, mariadb, tmp_path, PROJECT) as app_drivers:
        yield app_drivers


def rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value or "{}") for record in read(bootstrap, topic)]


@pytest.mark.long
def test_presence_despite_kills(presence: Drivers) -> None:
    """A simulated day, sent in chunks; the driver is killed after every fourth."""
    seed, bootstrap = int(os.environ.get("SEED", "1")), presence.bootstrap
    rng = random.Random(seed)
    start = int(time.time() * 1000) - 25 * HOUR
    plan = crowd.plan(crowd.Crowd(400, BUSINESSES, rate=0.5, start=start, length=24 * HOUR, seed=seed, step=60_000))
    businesses = [
        Record("businesses", b.id, json.dumps({"id": int(b.id), "threshold": b.threshold})) for b in BUSINESSES
    ]
    send(bootstrap, businesses)
    steps = list(plan.steps())
    events: list[dict[str, Any]] = []
    driver = presence.launch("presence")
    size = -(-len(steps) // (4 * (KILLS + 1)))
    for number, first in enumerate(range(0, len(steps), size)):
        chunk = steps[first : first + size]
        probes = [Record("probes", key, value, 0) for step in chunk for key, value in step.probes]
        crm_events = [event for step in chunk for event in step.crm_events]
        values = [event.value.decode() for event in crm_events]
        events += map(json.loads, values)
        topics = ("crm-events-backfill" if event.backfill else "crm-events" for event in crm_events)
        crm_records = [
            Record(t, event.device, value) for t, event, value in zip(topics, crm_events, values, strict=True)
        ]
        send(bootstrap, [*probes, *crm_records])
        if number % 4 == 3 and number // 4 < KILLS:
            time.sleep(rng.uniform(2, 20))
            assert driver.session.kill()
            driver = presence.launch("presence")
    send(bootstrap, [Record("base-counts", None, json.dumps(base)) for base in BASES * 2])
    expected = Counter((v.device, v.business, v.since, v.timestamp) for v in plan.visits)

    def walk_ins() -> Counter[tuple[Any, ...]]:
        visits = ((w["device"], w["business"], w["since"], w["timestamp"]) for w in rows(bootstrap, "walk-ins"))
        return Counter(visits)

    wait_until(lambda: walk_ins().total() >= expected.total(), every=1, what=f"all walk-ins are written: {driver.log}")
    presence.wait_committed("presence", driver, 180)
    assert walk_ins() == expected
    assert expected.total() > 300
    contacts = {key: json.loads(value or "") for key, value in latest(read(bootstrap, "device-contacts")).items()}
    assert contacts == model.device_contacts(events)
    # With which contact a walk-in is enriched depends on the order of reading; that it is written once does not.
    enriched = rows(bootstrap, "enriched-walk-ins")
    assert len(enriched) == len({(w["device"], w["business"], w["timestamp"]) for w in enriched}) > 50
    assert {(w["device"], w["business"], w["since"], w["timestamp"]) for w in enriched} <= expected.keys()

    def counts() -> dict[tuple[str, str], int]:
        count_rows = (json.loads(value or "") for value in latest(read(bootstrap, "walk-in-counts")).values())
        return {(row["business"], row["contact"]): row["count"] for row in count_rows}

    wait_until(lambda: counts() == model.counts(enriched, BASES), every=1, what=f"all are counted: {driver.log}")
