"""Ends drivers: by decision of the supervisor, on request of their owner, and orphaned ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from penstock.control import Actor, Control, DriverRow, EndCode
from penstock.model.declaration import replaced_stream
from penstock.settings import settings
from penstock.supervision import backends, out_of_memory
from penstock.supervision.decision.decide import START_TIMEOUT
from penstock.supervision.decision.standby import standby_fault

log = logging.getLogger(__name__)


def clear(control: Control, d: DriverRow, why: str, actor: Actor, code: EndCode = "lost") -> bool:
    """End a driver: kill what is left of its session, mark it ended, record it. False if its processes do not go.

    On another host, and in a cluster whose master is down, nothing can be killed: the lease and the fencing of its
    transactions keep it harmless.
    """
    is_alive = backends.alive(d)
    if is_alive and not backends.kill(d) and backends.alive(d):
        return False
    row = control.driver(d.incarnation)
    if row is None or row.state == "ended":
        return True
    if full := out_of_memory.out_of_memory(row.log):
        why, code = full, "memory"
    if backends.alive(d) is None and (unsure := backends.uncertainty(d)):
        why = f"{why}; {unsure}"
    control.end_driver(d.incarnation, why, code)
    control.record(actor, "kill" if is_alive else "end", d.app, f"driver {d.incarnation[:8]}, {d.label}: {why}")
    log.warning("app %s: driver %s ended: %s", d.app, d.incarnation[:8], why)
    return True


def stop(control: Control, app: str, owner: str, why: str, timeout: float = 20.0) -> bool:
    """End an app's driver if `owner` still answers for it: ask it to drain, kill it after `timeout` seconds.

    True if this owner ended it. Ownership is checked again before the kill: another owner may have adopted it
    meanwhile. A standby is ended first, so that the next run launches the next driver.
    """

    def owned_driver() -> DriverRow | None:
        row = control.app(app)
        d = control.driver(row.incarnation) if row and row.incarnation else None
        return d if d and d.owner == owner and d.state != "ended" else None

    d = owned_driver()
    if d is None:
        return False
    actor = Actor(owner, "supervisor")
    row = control.app(app)
    standby = control.driver(row.standby) if row and row.standby else None
    if standby and standby.state != "ended" and control.give_up_standby(app, standby.incarnation):
        clear(control, standby, why, actor, "not begun")
    control.record(actor, "terminate", app, f"driver {d.incarnation[:8]}, {d.label}: {why}")
    control.mark_driver_asked_to_leave(d.incarnation)
    backends.terminate(d)
    deadline = time.monotonic() + timeout
    while backends.alive(d) and time.monotonic() < deadline:
        time.sleep(0.1)
    current = owned_driver()
    return current is not None and current.incarnation == d.incarnation and clear(control, current, why, actor, "asked")


def reap(control: Control, declared: set[str], actor: Actor) -> Iterator[str]:
    """End orphaned drivers and mark dead ones as ended; yields a line for each.

    declared: names of the declared apps. A driver that should drain gets the time to do so.
    """
    for d in control.drivers():
        why, code = _ownerless(control, d, declared)
        if why and clear(control, d, why, actor, code):
            yield f"app {d.app}: driver {d.incarnation[:8]}, {d.label}: {why}"


def _ownerless(control: Control, d: DriverRow, declared: set[str]) -> tuple[str, EndCode]:
    # Read after the drivers, because an app may have launched one just now.
    app, s, now = control.app(d.app), settings(), control.now()
    alive = backends.alive(d, now)
    silence = (now - d.alive_at) / 1000
    if alive is False:
        return "its process is gone", "lost"
    if alive is None and silence < max(START_TIMEOUT, s.stuck_after):
        return "", "asked"  # elsewhere and beating, or about to be recorded: not known, so not dead
    # That of a replacement is never declared: its stream is not wanted once the replacement has ended.
    if not replaced_stream(d.app) and (app is None or d.app not in declared):
        return "its app is not declared", "asked"
    wanted = "on" in control.desired(d.app).values()
    if app and app.standby == d.incarnation and app.incarnation != d.incarnation:
        before = control.driver(app.incarnation) if app.incarnation else None
        fault = standby_fault(app, d, alive, wanted, before.ended_at if before else None, now, s)
        gives_up = bool(fault) and control.give_up_standby(app.name, d.incarnation)
        return fault if gives_up else "", "not begun"
    if app and app.incarnation != d.incarnation:
        return f"driver {(app.incarnation or 'none')[:8]} has its place", "asked"
    if not wanted:
        since = control.stopped_since(d.app) or d.launched_at
        if (now - since) / 1000 > s.drain_timeout:
            return f"its app is not wanted, and it did not leave within {s.drain_timeout:.0f} s", "asked"
    return "", "asked"
