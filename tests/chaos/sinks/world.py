"""What a run of the sinks needs: a broker, the stores, one driver of all sinks and who looks after it; ways to break
them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from penstock.control import Control, DriverRow
from penstock.devstack.servers.base import ManagedServer
from penstock.devstack.servers.elasticsearch import ElasticsearchServer
from penstock.devstack.servers.influxdb import InfluxDBServer
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.devstack.servers.mongodb import MongoDBServer
from penstock.host.ports import free_port
from penstock.java import aot_cache
from penstock.model.sink import SINKS_APP
from penstock.settings import PROJECT
from penstock.streams import Topic
from penstock.testing import create
from tests.chaos.long import breakers, world
from tests.chaos.long.world import LEASE, STUCK, Supervision
from tests.chaos.projects import deployed

FOLDER = PROJECT / "tests" / "chaos" / "sinks" / "project"
STORES = ("elasticsearch", "mongodb", "influxdb")
KILLS = {kind: breakers.KILLS[kind] for kind in ("driver", "python", "jvm", "starting", "twice")}
# Longer than a client's timeout.
LONGEST = 40.0
Store = ElasticsearchServer | MongoDBServer | InfluxDBServer
KEEP_ALL = {"retention.ms": "-1"}


class World(world.World):
    """stores: by name."""

    apps: ClassVar[tuple[str, ...]] = (SINKS_APP,)

    def __init__(
        self,
        broker: Broker,
        database: MariaDB,
        control: Control,
        supervision: Supervision,
        stores: dict[str, Store],
    ) -> None:
        super().__init__(broker, database, control, supervision)
        self.stores = stores

    def has_driver_to_kill(self) -> bool:
        """Whether there is a driver whose Python can be killed."""
        d = self.driver()
        return d is not None and self.is_alive(d)

    def is_alive(self, d: DriverRow) -> bool:
        return any(breakers.is_python(breakers.command_line(member.pid)) for member in d.session.members())

    def wait_caught_up(self, seconds: float) -> bool:
        """Wait until all records sent so far are written; False after a timeout."""
        # Lags that were measured before the last record was sent do not count.
        since, end = int(time.time() * 1000) + 5000, time.monotonic() + seconds
        while time.monotonic() < end:
            rows = self.control.progress(SINKS_APP).values()
            if rows and all(p.lag == 0 and p.reported_at > since for p in rows):
                return True
            time.sleep(0.5)
        return False

    def written(self) -> dict[str, int]:
        """Rows written so far, by store."""
        rows = dict.fromkeys(self.stores, 0)
        prefixes = {"search": "elasticsearch", "documents": "mongodb", "points": "influxdb"}
        for name, row in self.control.progress(SINKS_APP).items():
            rows[prefixes[name.partition("-")[0]]] += row.rows_out
        return rows


def outages(max_seconds: float, stores: Sequence[str]) -> dict[str, breakers.Breaker]:
    """Outages of one store while the others run."""
    return {
        f"{name} {how}": breakers.outage(partial(_store, name), pause=how == "paused", max_seconds=max_seconds)
        for name in stores
        for how in ("killed", "paused")
    }


def _store(name: str, platform: world.World) -> ManagedServer:
    assert isinstance(platform, World)
    return platform.stores[name]


@contextmanager
def start_platform(home: Path, names: Sequence[str]) -> Iterator[World]:
    """Start everything; stop it at the end and keep the data."""
    aot_cache.ensure()
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(home=home, port=free_port(2)))
        database = stack.enter_context(MariaDB(home=home, port=free_port()))
        server_classes: dict[str, Any] = {
            "elasticsearch": ElasticsearchServer,
            "mongodb": MongoDBServer,
            "influxdb": InfluxDBServer,
        }
        stores = {name: stack.enter_context(server_classes[name](home, port=free_port(2))) for name in names}
        create(broker.bootstrap, *(Topic(name, partitions=3, config=KEEP_ALL) for name in ("items", "events")))
        variables = {f"PENSTOCK_{name.upper()}_URL": stores[name].url if name in stores else "" for name in STORES}
        variables |= {"PENSTOCK_STUCK_AFTER": STUCK, "PENSTOCK_LEASE_TTL": LEASE, "PENSTOCK_DRIVER_MEMORY": "768m"}
        control = stack.enter_context(deployed(FOLDER, broker, database, home, **variables))
        supervision = stack.enter_context(Supervision(home))
        yield World(broker, database, control, supervision, stores)
