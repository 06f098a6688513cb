"""Every read and write of the control database goes through `Control`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import event

from penstock.control.repositories.actions import ActionRepository
from penstock.control.repositories.apps import AppRepository
from penstock.control.repositories.backfills import BackfillRepository
from penstock.control.repositories.data_loss import DataLossRepository
from penstock.control.repositories.drivers import DriverRepository
from penstock.control.repositories.heartbeats import HeartbeatRepository
from penstock.control.repositories.leases import LeaseRepository
from penstock.control.repositories.partitions import PartitionRepository
from penstock.control.repositories.progress import ProgressRepository
from penstock.control.repositories.releases import ReleaseRepository
from penstock.errors import ControlError
from penstock.settings import settings


class Control(
    AppRepository,
    ReleaseRepository,
    DriverRepository,
    LeaseRepository,
    ProgressRepository,
    ActionRepository,
    HeartbeatRepository,
    DataLossRepository,
    BackfillRepository,
    PartitionRepository,
):
    """The control database: all repositories in one class."""


@cache
def connect(url: str | None = None) -> Control:
    """The control database of this process, or the one behind a URL."""
    s = settings()
    control = Control(url or s.control, s.control_ca)
    if not s.control_url.get_secret_value() and control.engine.dialect.name == "mysql":
        event.listen(control.engine, "connect", _refuse_another_home)
    return control


def _refuse_another_home(connection: Any, _record: object) -> None:
    """ControlError if the embedded server is that of another home: all homes use the same port by default, and other
    projects may have apps and streams of the same names."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@datadir")
        folder = Path(cursor.fetchone()[0]).parent
    s = settings()
    if folder.resolve() != (s.home / "mariadb").resolve():
        raise ControlError(
            f"the MariaDB server at port {s.mariadb_port} is that of another home",
            got=f"{folder}, and the home of {s.project} is {s.home}",
            hint="work in the folder of its project; or stop it there by `penstock down`, or set PENSTOCK_MARIADB_PORT "
            "and the other ports for one of both",
        )
