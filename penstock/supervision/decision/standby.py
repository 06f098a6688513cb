"""What becomes of a standby, the driver of a release that was launched beside the running one, as pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control import AppRow, DriverRow

if TYPE_CHECKING:
    from penstock.settings import Settings

# A launcher records the pid within milliseconds; a busy machine may take seconds, a dead launcher takes for ever.
RECORD_TIMEOUT = 20.0
# Seconds in which a supervisor must have launched the standby that the running driver asks for. Airflow starts a task
# for it.
LAUNCH_TIMEOUT = 15.0
# Seconds from its launch in which a standby must be ready, as any driver; and for which the running driver waits at
# most, in all. Its output goes on meanwhile, and stops for the start of another driver if the standby is given up.
READY_TIMEOUT, WAIT_TIMEOUT = 180.0, 195.0
# Seconds in which a standby that is ready must have taken over from a driver that has ended.
TAKEOVER_TIMEOUT = 5.0


def is_awaited(app: AppRow, standby: DriverRow | None) -> bool:
    """Whether the running driver of an app waits for a standby of the last release, which is not ready."""
    if app.standby_for != app.release_seq:
        return False
    return standby is None or standby.release_seq < app.release_seq or standby.state == "launching"


def can_launch(app: AppRow, standby: DriverRow | None) -> bool:
    """Whether the running driver of an app asks for a standby, and none was launched yet for the last release."""
    return app.standby_for == app.release_seq and (standby is None or standby.release_seq < app.release_seq)


def standby_fault(
    app: AppRow, standby: DriverRow, alive: bool | None, wanted: bool, ended_at: int | None, now: int, s: Settings
) -> str:
    """Why a standby that has not ended is of no use; empty if it is.

    Args:
        app: Its app.
        standby: The standby.
        alive: Whether anything of it lives; None if that cannot be known.
        wanted: Whether any stream of the app is wanted.
        ended_at: When the driver ended that it is to follow; None while that one lives. Epoch ms.
        now: The database's clock, epoch ms.
        s: The settings.
    """
    age, silence = (now - standby.launched_at) / 1000, (now - standby.alive_at) / 1000
    if not wanted:
        return "its app is not wanted"
    if standby.release_seq < app.release_seq:
        return f"release {app.release_seq} followed"
    if alive is False:
        return "its process is gone"
    if standby.state == "draining":
        return "it was given up"
    if standby.pid is None and age > RECORD_TIMEOUT:
        return f"no process was recorded within {RECORD_TIMEOUT:.0f} s: its launcher died"
    if standby.state == "launching":
        return f"it was not ready within {READY_TIMEOUT:.0f} s" if age > READY_TIMEOUT else ""
    if silence > s.stuck_after:
        return f"hung: no sign of life for {silence:.0f} s"
    if ended_at is not None and (now - ended_at) / 1000 > TAKEOVER_TIMEOUT:
        return f"it did not take over within {TAKEOVER_TIMEOUT:.0f} s"
    return ""
