"""The Spark session that is kept ready for previews, as a server of this machine's platform."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.devstack.servers.base import ManagedServer
from penstock.engine import warm_session
from penstock.settings import settings
from penstock.supervision import launch


class WarmSession(ManagedServer):
    """A process with a JVM. It is ready some time after it was started, and nothing waits for it."""

    name: str = "warm-session"
    label: str = "the session for previews"

    def __init__(self, home: Path | None = None) -> None:
        super().__init__(home or settings().home)

    def command(self) -> list[str]:
        return [sys.executable, "-m", warm_session.__name__]

    def environment(self) -> dict[str, str]:
        return {
            **launch.environment(),
            **launch.connection_variables(),
            "PENSTOCK_HOME": str(self.home),
            "PENSTOCK_DRIVER_MEMORY": "512m",
        }

    def start(self) -> bool:
        if self.running() and warm_session.is_outdated(self.home):
            self.stop()
        return super().start()

    def ready(self) -> bool:
        return warm_session.is_kept(self.home)
