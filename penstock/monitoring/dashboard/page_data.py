"""What the answers of the operator page are made of, computed once for all who ask within a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.control import Control, Fault
from penstock.model.declaration import CAPTURES_APP
from penstock.monitoring.dashboard.attempts import read_attempts
from penstock.monitoring.dashboard.declarations import Declarations
from penstock.monitoring.dashboard.model import Overview, StreamView
from penstock.monitoring.dashboard.platform_status import PlatformStatus, read_status
from penstock.monitoring.dashboard.states import StateLimits
from penstock.monitoring.dashboard.under_way import UnderWay, late_streams, read_lag_falls, under_way

# Faults that are shown.
FAULTS = 100
VIEWS = ("streams", "captures", "sinks", "backfills", "replacements")


@dataclass(frozen=True)
class PageData:
    """The present moment.

    Attributes:
        status: By the control database.
        declarations: What is declared; None while it is not known.
        disk_hash: Of the files on the disk.
        under_way: What takes long.
        attempts: What was tried about a fault, by its kind and name; see `read_attempts`.
    """

    status: PlatformStatus
    declarations: Declarations | None
    disk_hash: str
    under_way: list[UnderWay]
    attempts: Mapping[tuple[str, str], str]

    @property
    def view(self) -> Overview:
        return self.status.view

    @property
    def now(self) -> int:
        """Epoch ms."""
        return self.status.view.now

    @property
    def streams(self) -> Mapping[str, StreamView]:
        """By name, in order of their apps."""
        return self.status.by_name

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Declarations by name; none while they are not known."""
        return {} if self.declarations is None else self.declarations.rows

    def declared(self, name: str) -> Mapping[str, Any] | None:
        """The declaration of a stream, or of the view that an instance serves, if it is known."""
        return self.rows.get(name) or self.rows.get(name.partition("@")[0])

    @cached_property
    def delays(self) -> Mapping[str, int]:
        """By stream, how far its watermark is behind by declaration, in ms."""
        return {} if self.declarations is None else self.declarations.delays

    @cached_property
    def common(self) -> Mapping[str, Any]:
        """What every answer has."""
        faults = Counter(_view_of(fault) for fault in self.view.faults)
        return {
            "now": self.now,
            "freshness": self.view.freshness,
            "disk_hash": self.disk_hash,
            "attention": {view: faults[view] for view in VIEWS},
            "declarations_known": self.declarations is not None,
        }


def read_page_data(
    control: Control, limits: StateLimits, declarations: Declarations | None, disk_hash: str
) -> PageData:
    """Read the present moment.

    Raises:
        ControlError: The database does not answer.
    """
    status = read_status(control, limits)
    late = late_streams(status.streams)
    falls = read_lag_falls(control, [stream.name for stream in late], status.view.now)
    attempts = read_attempts(control, status.view.faults[:FAULTS], status.by_name, status.view.now)
    return PageData(status, declarations, disk_hash, under_way(status.view, late, falls), attempts)


def _view_of(fault: Fault) -> str:
    """The view of the page that shows what has a fault."""
    if fault.kind == "app":
        return "captures" if fault.name == CAPTURES_APP else "streams"
    return f"{fault.kind}s"
