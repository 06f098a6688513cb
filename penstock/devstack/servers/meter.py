"""The meter, as a server of this machine's platform."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from penstock.devstack.servers.base import ManagedServer
from penstock.host import ports
from penstock.settings import settings
from penstock.supervision import launch


class MetricsCollectorServer(ManagedServer):
    """Measures the platform; a process of its own."""

    name: str = "meter"
    label: str = "the meter"
    variable: ClassVar[str] = "PENSTOCK_METRICS_PORT"

    def __init__(self, home: Path | None = None, port: int | None = None, page_url: str = "") -> None:
        super().__init__(home or settings().home)
        self.port = port or settings().metrics_port
        self.page_url = page_url

    @property
    def ports(self) -> Mapping[str, int]:
        return {"metrics": self.port}

    def command(self) -> list[str]:
        return [sys.executable, "-m", "penstock", "meter"]

    def environment(self) -> dict[str, str]:
        own = {"PENSTOCK_HOME": str(self.home), "PENSTOCK_METRICS_PORT": str(self.port)}
        return {**launch.environment(), **own, "PENSTOCK_PAGE_URL": self.page_url}

    def ready(self) -> bool:
        return ports.listens(self.port)
