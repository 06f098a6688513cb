"""A schema registry that this process finds as drivers and commands do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.devstack.servers.registry import SchemaRegistryServer
from penstock.registry import client
from tests.chaos.projects import other_project


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
