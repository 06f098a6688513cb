"""The log file of an app's driver."""

from __future__ import annotations

from pathlib import Path

from penstock.control import Control
from penstock.errors import PenstockError
from penstock.host import session


def driver_log(control: Control, app: str) -> Path:
    """The log of the latest driver of an app.

    Raises:
        PenstockError: there is none yet, or it is not on this host.
    """
    row = control.app(app)
    driver = control.driver(row.incarnation) if row and row.incarnation else None
    if driver is None:
        raise PenstockError(f"app {app} has no log yet", hint="wait until its first driver is launched")
    path = Path(driver.log)
    if path.is_file():
        return path
    if driver.submission and driver.pid is None and driver.state != "ended":
        reason = driver.reason or f"{driver.master} starts it"
        raise PenstockError(f"app {app} has no log yet", got=reason, hint="wait until a worker runs its driver")
    host = driver.host.partition("/")[0]
    hint = f"look on host {host}" if driver.host != session.host() else "see that nothing clears the log folder"
    raise PenstockError(f"the log of app {app} is not here", got=path, hint=hint)
