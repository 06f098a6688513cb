"""Avro schemas of a record in versions, and a schema registry that settings name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.registry import client
from tests.chaos.projects import other_project


def record(*fields: tuple[str, object] | tuple[str, object, object]) -> str:
    """The schema of an Avro record `Order`: name, type and default of its fields."""
    names = ("name", "type", "default")
    declared = [dict(zip(names, field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": declared}, indent=2)


@contextmanager
def in_home_of(registry: SchemaRegistryServer, folder: Path) -> Iterator[None]:
    """Let this process find a registry as drivers and commands of its home do, without a variable."""
    with other_project(folder, {"PENSTOCK_HOME": registry.home}):
        yield
    close_clients()


def close_clients() -> None:
    """Close the clients of this process, which forget what they have read."""
    while client._clients:
        client._clients.popitem()[1].close()
