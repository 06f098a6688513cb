"""The streams of presence through kills of their driver: every true visit is found once, none is invented."""

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
PLACES = [crowd.Business(str(n), -60 - n) for n in range(1, 6)]
BASES = [{"business": "1", "contact": f"c-{n}", "count": n, "as_of": 10**12} for n in range(5)]


@pytest.fixture
def presence(fresh_broker: Broker, mariadb: MariaDB, tmp_path: Path) -> Iterator[Drivers]:
    # Of one partition: what is read of one is never ahead of another by hours that are sent within a second.
    create(fresh_broker.bootstrap, Topic("probes", partitions=1, config={"retention.ms": "-1"}))
    with drivers(fresh_broker, mariadb, tmp_path, PROJECT) as given:
        yield given


def rows(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value or "{}") for record in read(bootstrap, topic)]


def test_presence_through_kills(presence: Drivers) -> None:
    """A day of a crowd, sent in pieces; the driver is killed somewhere in each."""
    seed, bootstrap = int(os.environ.get("SEED", "1")), presence.bootstrap
    chance = random.Random(seed)
    start = int(time.time() * 1000) - 25 * HOUR
    made = crowd.plan(crowd.Crowd(400, PLACES, rate=0.5, start=start, length=24 * HOUR, seed=seed, step=60_000))
    known = [Record("businesses", b.id, json.dumps({"id": int(b.id), "threshold": b.threshold})) for b in PLACES]
    send(bootstrap, known)
    steps = list(made.steps())
    events: list[dict[str, Any]] = []
    driver = presence.launch("presence")
    size = -(-len(steps) // (4 * (KILLS + 1)))
    for number, first in enumerate(range(0, len(steps), size)):
        piece = steps[first : first + size]
        probes = [Record("probes", key, value, 0) for step in piece for key, value in step.probes]
        told = [one for step in piece for one in step.crm_events]
        values = [one.value.decode() for one in told]
        events += map(json.loads, values)
        topics = ("crm-events-backfill" if one.backfill else "crm-events" for one in told)
        of = [Record(t, one.device, value) for t, one, value in zip(topics, told, values, strict=True)]
        send(bootstrap, [*probes, *of])
        if number % 4 == 3 and number // 4 < KILLS:
            time.sleep(chance.uniform(2, 20))
            assert driver.session.kill()
            driver = presence.launch("presence")
    send(bootstrap, [Record("base-counts", None, json.dumps(base)) for base in BASES * 2])
    wanted = Counter((v.device, v.business, v.since, v.timestamp) for v in made.visits)

    def found() -> Counter[tuple[Any, ...]]:
        visits = ((w["device"], w["business"], w["since"], w["timestamp"]) for w in rows(bootstrap, "walk-ins"))
        return Counter(visits)

    wait_until(lambda: found().total() >= wanted.total(), every=1, what=f"all have walked in: {driver.log}")
    presence.wait_committed("presence", driver, 180)
    assert found() == wanted
    assert wanted.total() > 300
    contacts = {key: json.loads(value or "") for key, value in latest(read(bootstrap, "device-contacts")).items()}
    assert contacts == model.device_contacts(events)
    # Whom a walk-in met depends on what was known when it was read; that each is named once does not.
    named = rows(bootstrap, "enriched-walk-ins")
    assert len(named) == len({(w["device"], w["business"], w["timestamp"]) for w in named}) > 50
    assert {(w["device"], w["business"], w["since"], w["timestamp"]) for w in named} <= wanted.keys()

    def counted() -> dict[tuple[str, str], int]:
        every = (json.loads(value or "") for value in latest(read(bootstrap, "walk-in-counts")).values())
        return {(one["business"], one["contact"]): one["count"] for one in every}

    wait_until(lambda: counted() == model.counts(named, BASES), every=1, what=f"all are counted: {driver.log}")
