"""Every read and write of the control database goes through `Control`."""

from __future__ import annotations

from functools import cache

from penstock.control.repositories.actions import Actions
from penstock.control.repositories.apps import Apps
from penstock.control.repositories.backfills import Backfills
from penstock.control.repositories.data_loss import DataLosses
from penstock.control.repositories.drivers import Drivers
from penstock.control.repositories.heartbeats import Heartbeats
from penstock.control.repositories.leases import Leases
from penstock.control.repositories.progress import Progress
from penstock.settings import settings


class Control(Apps, Drivers, Leases, Progress, Actions, Heartbeats, DataLosses, Backfills):
    """All of the control database."""


@cache
def connect(url: str | None = None) -> Control:
    """The control database of this process, or the one behind a URL."""
    s = settings()
    return Control(url or s.control, s.control_ca)
