"""The stores of sinks and archives as servers of this machine's platform.

The object store of the archives always is one, unless it is given elsewhere; the others are if they are asked for, or
run already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pkgutil import resolve_name

from penstock.devstack.servers.base import StoreServer
from penstock.errors import HostError
from penstock.host import process
from penstock.object_store import endpoint
from penstock.settings import Settings

# By the name of the store, which is also the server's and that of its settings.
KINDS: Mapping[str, str] = {
    "elasticsearch": "penstock.devstack.servers.elasticsearch:ElasticsearchServer",
    "mongodb": "penstock.devstack.servers.mongodb:MongoDBServer",
    "influxdb": "penstock.devstack.servers.influxdb:InfluxDBServer",
    "s3": "penstock.devstack.servers.s3:S3Server",
}


def chosen(given: Settings) -> list[StoreServer]:
    """The servers, in order of start. HostError if what is asked for is none of them, or lies elsewhere."""
    wanted = given.stores.replace(",", " ").lower().split()
    if strange := [name for name in wanted if name not in KINDS]:
        raise HostError(
            "this is no store that runs here", got=strange[0], hint=f"STORES takes some of: {' '.join(KINDS)}"
        )
    for name in wanted:
        if variable := _elsewhere(given, name):
            raise HostError(
                f"{name} is asked for here, and is given elsewhere",
                got=f"STORES={given.stores} and {variable}",
                hint=f"leave {name} out of STORES, or unset {variable}",
            )
    if not _elsewhere(given, endpoint.LOCAL_SERVICE):
        wanted.append(endpoint.LOCAL_SERVICE)
    there = [name for name in KINDS if name in wanted or process.read(given.home / "run", name)]
    return [resolve_name(KINDS[name])(given.home, port=getattr(given, f"{name}_port")) for name in there]


def _elsewhere(given: Settings, name: str) -> str:
    """The variable that says where a store is; empty if there is none."""
    if getattr(given, f"{name}_url").get_secret_value():
        return f"PENSTOCK_{name.upper()}_URL"
    connection = f"AIRFLOW_CONN_{name.upper()}"
    return connection if os.environ.get(connection, "").strip() else ""
