"""Every read and write of the control database goes through `Control`."""

from __future__ import annotations

from functools import cache

from penstock.control.actions import Actions
from penstock.control.apps import Apps
from penstock.control.backfills import Backfills
from penstock.control.beats import Beats
from penstock.control.drivers import Drivers
from penstock.control.gaps import Gaps
from penstock.control.leases import Leases
from penstock.control.progress import Progress
from penstock.settings import settings


class Control(Apps, Drivers, Leases, Progress, Actions, Beats, Gaps, Backfills):
    """All of the control database."""


@cache
def connect(url: str | None = None) -> Control:
    """The control database of this process, or the one behind a URL."""
    s = settings()
    return Control(url or s.control, s.control_ca)
