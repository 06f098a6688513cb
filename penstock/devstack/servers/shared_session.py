"""The Spark session for previews, and for apps that share a JVM, as a server of this machine's platform."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from penstock.devstack.servers.base import ManagedServer
from penstock.engine import shared_session
from penstock.host import process
from penstock.host.process import ProcessRecord
from penstock.settings import settings


class SharedSessionServer(ManagedServer):
    """A process with a JVM, which the first driver of apps that share it starts too. Nothing waits for it."""

    label: str = "the shared Spark session"
    start_timeout: ClassVar[float] = shared_session.START_TIMEOUT

    def __init__(self, home: Path | None = None) -> None:
        super().__init__(home or settings().home)
        self.name = next((record.name for record in _running(self.home)), shared_session.name())

    @staticmethod
    def runs_in(home: Path) -> bool:
        """Whether one runs in a home."""
        return bool(_running(home))

    @property
    def log(self) -> Path:
        return shared_session.last_log()

    def command(self) -> list[str]:
        return shared_session.command(self.log)

    def start(self) -> bool:
        if self.running():
            return False
        shared_session.start()
        return True

    def ready(self) -> bool:
        return shared_session.is_ready()


def _running(home: Path) -> list[ProcessRecord]:
    records = process.read_all(home / "run")
    return [record for record in records if record.name.startswith(shared_session.PREFIX) and record.process()]
