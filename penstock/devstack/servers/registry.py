"""The embedded schema registry: Apicurio Registry from Maven Central, its schemas in a database file of H2.

It checks BACKWARD compatibility, as Confluent's does by default and Apicurio does not, unless a subject has another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import httpx

from penstock.devstack.servers.base import StoreServer, check_passes, get
from penstock.java import jars, runtime
from penstock.registry.endpoint import API, NAME
from penstock.settings import settings


class SchemaRegistryServer(StoreServer):
    """A private schema registry without passwords, on loopback."""

    name: str = NAME
    label: str = "the schema registry"
    variable: ClassVar[str] = "PENSTOCK_SCHEMA_REGISTRY_PORT"

    def __init__(self, home: Path | None = None, *, port: int, heap: str = "192m") -> None:
        super().__init__(home or settings().home)
        self.port = port
        self.heap = heap
        self.folder = self.home / NAME

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{API}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": self.port}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        [program] = jars.jars_of(NAME)
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.banner.enabled": "false",
            # Below the home, where it runs: H2 takes no path with a semicolon. Without the delay a crash would lose
            # ids that records have already.
            "REGISTRY_DATASOURCE_URL": f"jdbc:h2:file:./{NAME}/schemas;WRITE_DELAY=0;DB_CLOSE_ON_EXIT=FALSE",
            "registry.rules.global.compatibility": "BACKWARD",
            "LOG_LEVEL": "WARN",
            "REGISTRY_LOG_LEVEL": "WARN",
        }
        return [
            runtime.find().command, f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8",
            *(f"-D{name}={value}" for name, value in options.items()), "-jar", str(program),
        ]  # fmt: skip

    def ready(self) -> bool:
        return check_passes(lambda: get(f"{self.url}/subjects", timeout=3).is_success, httpx.HTTPError)
