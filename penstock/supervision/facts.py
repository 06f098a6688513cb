"""What is known of an app and its driver: the material of a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.control import AppRow, Control, DriverRow
from penstock.supervision import processes


@dataclass(frozen=True)
class Evidence:
    """What a watcher saw over time and a single look cannot: it goes with the event that wakes the supervisor.

    silent: seconds the beat stayed as it is while the database answered; leaving: seconds since the driver should
    have begun to leave.
    """

    incarnation: str | None = None
    beat_at: int = 0
    silent: float = 0.0
    leaving: float = 0.0


@dataclass(frozen=True)
class Facts:
    """All that a decision is made of.

    recent: the app's drivers, newest first, while it has none that lives; now: the database's clock, epoch ms.
    """

    app: AppRow
    wanted: bool
    driver: DriverRow | None
    alive: bool | None
    headless: bool
    recent: Sequence[DriverRow]
    now: int
    evidence: Evidence = Evidence()

    @property
    def leaving(self) -> bool:
        """Whether the driver should leave, or says that it does."""
        d = self.driver
        return d is not None and (not self.wanted or d.release_seq < self.app.release_seq or d.state == "draining")


def facts_of(control: Control, app: str, evidence: Evidence | None = None) -> Facts | None:
    """The facts about an app as they are now; None if the control database does not know it."""
    row = control.app(app)
    if row is None:
        return None
    driver = control.driver(row.incarnation) if row.incarnation else None
    gone = driver is None or driver.state == "ended"
    recent = [d for d in control.drivers(live=False) if d.app == app] if gone else []
    wanted = "on" in control.desired(app).values()
    now = control.now()
    alive = processes.alive(driver) if driver else None
    headless = bool(alive and driver and processes.headless(driver))
    return Facts(row, wanted, driver, alive, headless, recent, now, evidence or Evidence())
