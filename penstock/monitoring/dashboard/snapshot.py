"""One read of the control database for the operator page and `penstock streams`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from penstock.control import AppRow, Control, Desired, DriverRow, FaultRow, ProgressRow, ReplacementRow
from penstock.control.repositories.backfills import BackfillRow
from penstock.control.repositories.captures import CaptureRow, Captures
from penstock.control.repositories.data_loss import DataLossRow
from penstock.control.repositories.history import BATCH_PARTS
from penstock.monitoring.dashboard.alarms import LATELY_MS

# Of a report; the history has them.
UNREAD = ("behind_ms", *BATCH_PARTS)


@dataclass(frozen=True)
class Snapshot:
    """Rows of the control database; `now` was read first, so that no age is too small."""

    now: int
    apps: list[AppRow]
    desired: dict[str, dict[str, Desired]]
    """app -> stream -> on | off"""
    drivers: dict[str, DriverRow]
    """by incarnation; the current one of each app, where it has one"""
    progress: dict[str, ProgressRow]
    beats: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    holds: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    captures: dict[str, CaptureRow] = field(default_factory=dict)
    gaps: list[DataLossRow] = field(default_factory=list)
    before: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """the counts `late` and `dead` of each stream some time ago: see `alarms`"""
    runs: list[BackfillRow] = field(default_factory=list)
    """of backfills, the newest first"""
    changed: dict[str, int] = field(default_factory=dict)
    """when each stream was declared or its desired state changed, if known"""
    replacements: list[ReplacementRow] = field(default_factory=list)
    """the newest first"""

    faults: list[FaultRow] = field(default_factory=list)
    """as the meter noted them"""

    @cached_property
    def reported_by(self) -> Mapping[str, set[str]]:
        """names of the streams that each driver has reported, by incarnation"""
        names: dict[str, set[str]] = {}
        for row in self.progress.values():
            names.setdefault(row.incarnation, set()).add(row.name)
        return names

    @cached_property
    def live_drivers(self) -> Mapping[str, int]:
        """by app, how many of its drivers have not ended"""
        return Counter(row.app for row in self.drivers.values() if row.state != "ended")

    @cached_property
    def gaps_of(self) -> Mapping[str, list[DataLossRow]]:
        """by stream"""
        gaps: dict[str, list[DataLossRow]] = {}
        for gap in self.gaps:
            gaps.setdefault(gap.name, []).append(gap)
        return gaps


def read(control: Control) -> Snapshot:
    """Read all that the page needs; ControlError if the database does not answer."""
    now = control.now()
    apps = control.apps()
    drivers = {row.incarnation: row for row in control.drivers()}
    for app in apps:
        if app.incarnation and app.incarnation not in drivers and (row := control.driver(app.incarnation)):
            drivers[row.incarnation] = row
    supervised = control.supervised()
    return Snapshot(
        now,
        apps,
        {app.name: {name: one.desired for name, one in supervised.get(app.name, {}).items()} for app in apps},
        drivers,
        control.progress(without=UNREAD),
        control.heartbeats(),
        control.heartbeat_holds(),
        Captures(control).rows(),
        control.data_losses(),
        control.counts(now - LATELY_MS),
        control.backfill_runs(),
        {name: one.changed_at for streams in supervised.values() for name, one in streams.items() if one.changed_at},
        control.replacements(),
        control.faults(),
    )
