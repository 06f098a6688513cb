"""Every read and write of the control database goes through `Control`."""

from __future__ import annotations

from functools import cache

from sqlalchemy import event

from penstock.control.repositories.actions import ActionRepository
from penstock.control.repositories.apps import AppRepository
from penstock.control.repositories.backfills import BackfillRepository
from penstock.control.repositories.data_loss import DataLossRepository
from penstock.control.repositories.drivers import DriverRepository
from penstock.control.repositories.faults import FaultRepository
from penstock.control.repositories.heartbeats import HeartbeatRepository
from penstock.control.repositories.history import HistoryRepository
from penstock.control.repositories.leases import LeaseRepository
from penstock.control.repositories.partitions import PartitionRepository
from penstock.control.repositories.progress import ProgressRepository
from penstock.control.repositories.releases import ReleaseRepository
from penstock.control.repositories.replacements import ReplacementRepository
from penstock.control.repositories.standbys import StandbyRepository
from penstock.errors import ControlError
from penstock.host.embedded import refuse_another_home
from penstock.settings import settings


class Control(
    AppRepository,
    ReleaseRepository,
    ReplacementRepository,
    DriverRepository,
    StandbyRepository,
    LeaseRepository,
    ProgressRepository,
    HistoryRepository,
    FaultRepository,
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
        port = control.engine.url.port or s.mariadb_port

        def refuse(_dialect: object, _record: object, _arguments: object, _parameters: object) -> None:
            refuse_another_home("MariaDB server", port, "PENSTOCK_MARIADB_PORT", ControlError)

        event.listen(control.engine, "do_connect", refuse)
    return control
