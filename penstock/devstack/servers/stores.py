"""The stores of sinks and archives, and the schema registry, as servers of this machine's platform.

The object store of the archives always is one, unless it is given elsewhere; the others are if they are asked for, or
run already.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name

from penstock.devstack.servers.base import StoreServer
from penstock.errors import HostError, optional_packages
from penstock.host import process
from penstock.object_store import endpoint
from penstock.registry.endpoint import NAME as REGISTRY
from penstock.settings import Settings, connections

# By the name of the store, which is also the server's and that of its settings.
STORES: Mapping[str, str] = {
    "elasticsearch": "penstock.devstack.servers.elasticsearch:ElasticsearchServer",
    "mongodb": "penstock.devstack.servers.mongodb:MongoDBServer",
    "influxdb": "penstock.devstack.servers.influxdb:InfluxDBServer",
    "s3": "penstock.devstack.servers.s3:S3Server",
}
KINDS: Mapping[str, str] = {**STORES, REGISTRY: "penstock.devstack.servers.registry:SchemaRegistryServer"}


def chosen(configured: Settings) -> list[StoreServer]:
    """The servers, in order of start. HostError if a name is unknown, or an external store is configured for it."""
    names = configured.stores.replace(",", " ").lower().split()
    if unknown := [name for name in names if name not in STORES]:
        raise HostError("there is no such embedded store", got=unknown[0], hint=f"STORES may have: {' '.join(STORES)}")
    choices = dict.fromkeys(names, (f"STORES={configured.stores}", "remove {} from STORES"))
    if configured.registry:
        choices[REGISTRY] = ("REGISTRY=1", "leave REGISTRY=1 out")
    for name, (choice, remedy) in choices.items():
        if variable := _elsewhere(configured, name):
            raise HostError(
                f"{name} cannot be embedded and external at once",
                got=f"{choice} and {variable}",
                hint=f"{remedy.format(name)}, or unset {variable}",
            )
    if not _elsewhere(configured, endpoint.LOCAL_SERVICE):
        choices[endpoint.LOCAL_SERVICE] = ("", "")
    started = [name for name in KINDS if name in choices or process.read(configured.home / "run", name)]
    with optional_packages():
        servers = {name: resolve_name(KINDS[name]) for name in started}
    return [server(configured.home, port=getattr(configured, f"{name}_port")) for name, server in servers.items()]


def _elsewhere(configured: Settings, name: str) -> str:
    """The variable that configures an external store; empty if there is none."""
    if getattr(configured, f"{name}_url").get_secret_value():
        return f"PENSTOCK_{name.upper()}_URL"
    return connections.variable(name) if connections.find_text(name, ask=False) else ""
