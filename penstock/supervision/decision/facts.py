"""What is known of an app and its driver when a decision is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.control import AppRow, Control, Desired, DriverRow
from penstock.model.declaration import replaced_stream
from penstock.supervision import backends
from penstock.supervision.decision.standby import is_awaited

# After a release that the supervisor requested was refused, it is not requested again for so many ms.
REFUSED_FOR = 600_000


@dataclass(frozen=True)
class Evidence:
    """What a watcher observes over time; sent with the event that wakes the supervisor.

    Attributes:
        incarnation: The driver that was watched.
        alive_at: Its last liveness report.
        silent_for: Seconds without a new report while the database answered.
        leaving_for: Seconds since the driver should have begun to exit.
        incomplete_for: Seconds that the running driver did not know a wanted stream.
    """

    incarnation: str | None = None
    alive_at: int = 0
    silent_for: float = 0.0
    leaving_for: float = 0.0
    incomplete_for: float = 0.0


@dataclass(frozen=True)
class Facts:
    """What one check of an app finds; a decision is a function of it.

    Attributes:
        wanted: Whether any stream of the app is wanted.
        alive: Whether anything of the driver lives; None if that cannot be known.
        leader_gone: Whether the driver's JVM is gone and others of its session are left.
        recent: The app's drivers, newest first, while none lives.
        now: The database's clock, epoch ms.
        unknown_streams: Wanted streams that the running driver does not know, unless a release for them was refused
            lately.
        wait_reason: What a driver waits for that a cluster has not started yet.
        standby: The last standby of the app, unless it took over; it may have ended.
        standby_alive: As `alive`, for the standby.
    """

    app: AppRow
    wanted: bool
    driver: DriverRow | None
    alive: bool | None
    leader_gone: bool
    recent: Sequence[DriverRow]
    now: int
    evidence: Evidence = Evidence()
    unknown_streams: Sequence[str] = ()
    wait_reason: str | None = None
    standby: DriverRow | None = None
    standby_alive: bool | None = None

    @property
    def leaving(self) -> bool:
        """Whether the driver should leave, or says that it does."""
        d = self.driver
        if d is None:
            return False
        is_old = d.release_seq < self.app.release_seq and not is_awaited(self.app, self.standby)
        return not self.wanted or is_old or d.state == "draining"

    @property
    def live_standby(self) -> DriverRow | None:
        """The standby, if it has not ended."""
        return self.standby if self.standby and self.standby.state != "ended" else None


def facts_of(control: Control, app: str, evidence: Evidence | None = None, *, wait: bool = True) -> Facts | None:
    """The facts about an app as they are now; None if the control database does not know it.

    Args:
        wait: Whether to wait for the answer of a cluster's master, which takes seconds.
    """
    row = control.app(app)
    if row is None:
        return None
    driver = control.driver(row.incarnation) if row.incarnation else None
    has_ended = driver is None or driver.state == "ended"
    now = control.now()
    recent = _recent(control, app, driver, now) if has_ended else []
    desired = control.desired(app)
    alive = None if has_ended or driver is None else backends.alive(driver, now, wait=wait)
    leader_gone = bool(alive and driver and backends.leader_gone(driver))
    wait_reason = backends.wait_reason(driver, now, wait=wait) if driver else None
    unknown = _lacking(control, row, driver, desired, now) if driver and driver.state == "running" else []
    standby = control.driver(row.standby) if row.standby else None
    return Facts(
        row,
        "on" in desired.values(),
        driver,
        alive,
        leader_gone,
        recent,
        now,
        evidence or Evidence(),
        unknown,
        wait_reason,
        standby,
        backends.alive(standby, now, wait=wait) if standby and standby.state != "ended" else None,
    )


def _recent(control: Control, app: str, last: DriverRow | None, now: int) -> list[DriverRow]:
    """An app's drivers, newest first. Times order them: those that seem to come are of a clock that was set back since,
    and tell nothing but of the last one, which the app names."""
    others = [d for d in control.drivers(app, live=False) if d.launched_at <= now]
    return others if last is None else [last, *(d for d in others if d.incarnation != last.incarnation)]


def _lacking(control: Control, app: AppRow, driver: DriverRow, desired: Mapping[str, Desired], now: int) -> list[str]:
    if replaced_stream(app.name):
        return []  # no release makes it known
    if app.refused_at is not None and 0 <= now - app.refused_at < REFUSED_FOR:
        return []
    reporters = control.reporters(driver.app)
    return [name for name, want in desired.items() if want == "on" and reporters.get(name) != driver.incarnation]
