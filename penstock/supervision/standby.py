"""A release without a pause: the next driver stands by, ready to run, until the running one has drained."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.control import AppRow, Control, DriverRow
from penstock.errors import ControlError
from penstock.settings import settings
from penstock.supervision import backends
from penstock.supervision.decision.standby import LAUNCH_TIMEOUT, WAIT_TIMEOUT, is_awaited

log = logging.getLogger("penstock.driver")

# Seconds between two looks of a standby at the driver before it.
LOOK_EVERY = 0.2
# Seconds from its launch in which a standby warms up its session; the release waits for that.
WARM_UP_TIMEOUT = 60.0


class StandbyWait:
    """The wait of a running driver for the standby of a release.

    Args:
        control: The control database.
        incarnation: The running driver.
        obstacle: Why there can be none; empty if there can.
    """

    def __init__(self, control: Control, incarnation: str, obstacle: Callable[[], str]) -> None:
        self._control, self._incarnation, self._obstacle = control, incarnation, obstacle
        self._release, self._since = 0, 0.0

    def is_over(self, app: AppRow, release: int) -> bool:
        """Whether the driver is to drain for the last release of its app: its standby is ready, or there is none.

        The first call of a release asks for its standby. One that is not ready in time is given up. ControlError while
        the control database is down.

        Args:
            app: The app.
            release: That of the driver. If it was that of a cut that was undone, there is no standby: the driver must
                not start the stream, which goes on with the state of the code before.
        """
        now = time.monotonic()
        if self._release != app.release_seq:
            is_undone = self._control.is_cut_undone(app.name, release)
            obstacle = f"the cut by release {release} was undone" if is_undone else self._obstacle()
            if obstacle:
                log.info("no standby for release %d: %s", app.release_seq, obstacle)
                return True
            self._control.request_standby(app.name, self._incarnation, app.release_seq)
            self._release, self._since = app.release_seq, now
            return False
        standby = self._control.driver(app.standby) if app.standby else None
        is_current = standby is not None and standby.release_seq == app.release_seq and standby.state != "ended"
        if standby is None or not is_current:
            is_possible = is_awaited(app, standby)
            return not is_possible or now - self._since > LAUNCH_TIMEOUT
        if backends.alive(standby) is not False:
            if standby.state == "launching" and now - self._since < WAIT_TIMEOUT:
                return False
            # Five reports that were missed: it would not take over.
            fresh_ms = 5000 * settings().progress_every
            if standby.state == "standby" and self._control.now() - standby.alive_at < fresh_ms:
                return True
        log.warning("standby %s of release %d is given up", standby.incarnation[:8], app.release_seq)
        self._control.give_up_standby(app.name, standby.incarnation)
        return True


def lost_place(app: AppRow, standby: DriverRow) -> str:
    """Why a driver that is not the one of its app will never be; empty if it is the app's standby."""
    if app.release_seq != standby.release_seq:
        return f"release {app.release_seq} followed"
    return "" if app.standby == standby.incarnation else f"driver {(app.incarnation or 'none')[:8]} has its place"


class StandbyProcess(Protocol):
    """What a standby does before its app is its own; see `lifecycle.Driver`."""

    def open(self) -> None: ...

    def warm_up(self, is_over: Callable[[], bool]) -> None: ...

    def health_check(self) -> None: ...

    def close(self) -> None: ...


def stand_by(
    control: Control, app: AppRow, driver: DriverRow, process: StandbyProcess, leaving: threading.Event
) -> str:
    """Make a standby ready, and wait until its app is its own.

    Args:
        control: The control database.
        app: The app.
        driver: The standby.
        process: What is made ready; it is closed again if the app never becomes its own.
        leaving: Set by a signal.

    Returns:
        Why the app never becomes its own; empty once it is.
    """
    if why := lost_place(app, driver):
        return why
    until = time.monotonic() + WARM_UP_TIMEOUT - (control.now() - driver.launched_at) / 1000
    process.open()
    process.warm_up(lambda: leaving.is_set() or time.monotonic() > until or _is_urgent(control, driver))
    log.info("standby %s of %s is ready", driver.incarnation[:8], driver.app)
    if why := _wait_for_place(control, driver, process.health_check, leaving):
        process.close()
    return why


def _is_urgent(control: Control, driver: DriverRow) -> bool:
    """Whether the driver before a standby has ended, or the standby has lost its place."""
    try:
        app = control.app(driver.app)
        before = control.driver(app.incarnation) if app and app.incarnation else None
    except ControlError:
        return False
    return app is None or bool(lost_place(app, driver)) or before is None or before.state == "ended"


def _wait_for_place(
    control: Control, driver: DriverRow, health_check: Callable[[], None], leaving: threading.Event
) -> str:
    """As `stand_by`, of a standby that is ready."""
    me, report_at = driver.incarnation, 0.0
    while not leaving.wait(LOOK_EVERY):
        try:
            app = control.app(driver.app)
            if app is None or "on" not in control.desired(driver.app).values():
                return "no stream of the app is wanted"
            # Also by a call whose answer was lost; then it is not reported as a standby any more.
            if app.incarnation == me:
                return ""
            if time.monotonic() >= report_at:
                health_check()
                if not control.report_standby(me):
                    return "it was given up"
                report_at = time.monotonic() + settings().progress_every
            if why := lost_place(app, driver):
                return why
            before = control.driver(app.incarnation) if app.incarnation else None
            if (before is None or before.state == "ended") and control.take_over(app.name, me):
                return ""
        except ControlError as e:
            log.warning("standby %s of %s looks again: %s", me[:8], driver.app, e)
        except Exception as e:
            return f"it cannot run: {type(e).__name__}: {e}"
    return "SIGTERM"
