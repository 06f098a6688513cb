"""The next step towards one live driver for a wanted app, as a function of facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.control import DriverRow
from penstock.settings import Settings
from penstock.supervision.decision.facts import Evidence, Facts
from penstock.supervision.decision.standby import RECORD_TIMEOUT, can_launch, is_awaited, standby_fault

# A driver reports itself alive once its JVM answers: on an overloaded machine that took 100 s, and a kill makes it
# worse.
START_TIMEOUT = 180.0
# After the database was down or the watcher suspended, a driver gets this long to report before it counts as hung.
CONFIRM_SILENCE = 10.0
# A driver that lived this long has worked: its end is no part of a crash loop.
EARLY_DEATH = 30.0
# Seconds to wait after the n-th early death in a row: a crash loop must not use up the machine.
BACKOFF = (0.0, 0.0, 5.0, 10.0, 20.0, 40.0, 60.0)

# A driver reports each of its streams every few seconds: it does not know one that it has not reported for so long.
UNKNOWN_STREAM_TIMEOUT = 20.0

# A cluster is asked by a process that starts a JVM.
SUBMIT_TIMEOUT = 80.0
# How often the wait reason of a driver that waits for a worker is updated.
WAIT_REASON_EVERY = 60.0

SupervisionAction = Literal[
    "rest", "wait", "clear", "launch", "launch_standby", "clear_standby", "request_release", "record_wait_reason"
]


@dataclass(frozen=True)
class Decision:
    """The next action for an app, and why.

    Attributes:
        action: `clear` ends what is left of the current driver, `launch_standby` and `clear_standby` launch and end
            the one that is to take over from it, `request_release` asks for a driver that knows all wanted streams,
            `record_wait_reason` writes down what a cluster's driver waits for.
        wait: Seconds until a launch is due.
    """

    action: SupervisionAction
    why: str
    wait: float = 0.0


def decide(f: Facts, s: Settings) -> Decision:
    """The next step towards one live driver for a wanted app, and none for another."""
    if f.live_standby:
        ended_at = f.driver.ended_at if f.driver else None
        fault = standby_fault(f.app, f.live_standby, f.standby_alive, f.wanted, ended_at, f.now, s)
        if fault:
            return Decision("clear_standby", fault)
    if f.driver is None or f.driver.state == "ended":
        if not f.wanted:
            return Decision("rest", "not wanted")
        if f.live_standby:
            return Decision("rest", f"standby {f.live_standby.incarnation[:8]} takes over")
        remaining, why = _backoff(f)
        return (
            Decision("wait", f"{why}; next launch in {remaining:.0f} s", remaining)
            if remaining > 0
            else Decision("launch", why)
        )
    return _placement(f, f.driver) or _fault(f, f.driver, s) or _condition(f, f.driver)


def _placement(f: Facts, d: DriverRow) -> Decision | None:
    """The decision about a driver for which its cluster has no room, or had none until now."""
    if f.wait_reason:
        if f.leaving:
            return Decision("clear", "it is not wanted any more, and never got a worker")
        recorded = d.state == "queued" and (d.reason == f.wait_reason or f.now - d.alive_at < WAIT_REASON_EVERY * 1000)
        return Decision("rest" if recorded else "record_wait_reason", f.wait_reason)
    if d.submission and d.pid is None and d.state == "queued" and f.alive:
        return Decision("record_wait_reason", "its cluster starts it")
    return None


def _fault(f: Facts, d: DriverRow, s: Settings) -> Decision | None:
    evidence = f.evidence if f.evidence.incarnation == d.incarnation else Evidence()
    # A report of the future is of a clock that was set back since: only the watcher's own clock counts then.
    silence = (f.now - d.alive_at) / 1000 if d.alive_at <= f.now else evidence.silent_for
    if f.alive is False:
        return Decision("clear", "its process is gone")
    if f.leader_gone:
        return Decision("clear", "its JVM is gone, others of its session are left")
    record_timeout = SUBMIT_TIMEOUT if d.master else RECORD_TIMEOUT
    if d.pid is None and d.submission is None and (f.now - d.launched_at) / 1000 > record_timeout:
        return Decision("clear", f"no process was recorded within {record_timeout:.0f} s: its launcher died")
    starts = d.state == "launching" or d.pid is None
    timeout = max(START_TIMEOUT, s.stuck_after) if starts else s.stuck_after
    if (
        silence > timeout
        and evidence.alive_at == d.alive_at
        and evidence.silent_for >= min(CONFIRM_SILENCE, s.stuck_after)
    ):
        return Decision("clear", f"hung: no sign of life for {silence:.0f} s")
    if f.leaving and evidence.leaving_for > s.drain_timeout:
        return Decision("clear", f"did not leave within {s.drain_timeout:.0f} s")
    return None


def _condition(f: Facts, d: DriverRow) -> Decision:
    if not f.wanted:
        return Decision("rest", "not wanted; it drains")
    if d.release_seq < f.app.release_seq:
        if d.state != "draining" and can_launch(f.app, f.standby):
            return Decision("launch_standby", f"it takes over with release {f.app.release_seq}")
        if d.state != "draining" and is_awaited(f.app, f.standby):
            return Decision("rest", f"it waits for the standby of release {f.app.release_seq}")
        return Decision("rest", f"it drains for release {f.app.release_seq}")
    if (
        f.unknown_streams
        and f.evidence.incarnation == d.incarnation
        and f.evidence.incomplete_for >= UNKNOWN_STREAM_TIMEOUT
    ):
        return Decision("request_release", f"new to its driver: {', '.join(f.unknown_streams)}")
    where = "" if f.alive else " (not to be seen from here, but it beats)"
    return Decision("rest", f"{d.state}{where}")


def _backoff(f: Facts) -> tuple[float, str]:
    """(seconds until the next launch, why) from the app's launches under the current release."""
    if not f.recent:
        return 0.0, "first launch"
    last = f.recent[0]
    why = f"driver {last.incarnation[:8]} ended: {last.reason or 'no reason given'}"
    young = 0
    for d in f.recent:
        if d.release_seq != f.app.release_seq or max(d.alive_at, d.launched_at) - d.launched_at >= EARLY_DEATH * 1000:
            break
        young += 1
    if young > 1:
        why += f"; {young} in a row died young"
    ended = (f.now - (last.ended_at or f.now)) / 1000
    # If the clock was set back, it is unknown how long ago the driver ended; then nothing waits.
    return BACKOFF[min(young, len(BACKOFF) - 1)] - ended if ended >= 0 else 0.0, why
