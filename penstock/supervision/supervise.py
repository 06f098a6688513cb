"""Keeps one driver per wanted app: short ticks that may be repeated, interrupted and run twice at once.

`Watch.look` only reads; it is what a trigger does every second. `Supervisor.tick` acts. Both reach their decision
through `decide`. Of two supervisors the control database lets one launch (`Control.claim`). What is unknown, because
the database is away or the driver is on another host, is never taken for dead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.control import Actor, AppRow, Control, DriverRow
from penstock.errors import ControlError, PenstockError
from penstock.settings import Settings, settings
from penstock.supervision import launch, processes

log = logging.getLogger(__name__)

# A launcher records the pid within milliseconds; a busy machine may take seconds, a dead launcher takes for ever.
RECORD_TIMEOUT = 20.0
# A driver beats once its JVM answers: on an overloaded machine that took 100 s, and to kill it then makes it worse.
START_TIMEOUT = 180.0
# After the database was away or the watcher slept, a driver gets this long to beat again before it is called hung.
CONFIRM = 10.0
# Two looks further apart than this (and than three of its own steps) say that the watcher itself was stopped.
GAP = 5.0
# A driver that lived this long has worked: its end is an accident and not a crash loop.
YOUNG = 30.0
# Seconds to wait after the n-th young death in a row: a crash loop must not eat the machine.
BACKOFF = (0.0, 0.0, 5.0, 10.0, 20.0, 40.0, 60.0)

Do = Literal["rest", "wait", "clear", "launch"]


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


@dataclass(frozen=True)
class Step:
    """What to do next and why. clear: end what is left of the current driver; wait: seconds until a launch is due."""

    do: Do
    why: str
    wait: float = 0.0


def decide(f: Facts, s: Settings) -> Step:
    """The next step towards one live driver for a wanted app, and none for another."""
    if f.driver is None or f.driver.state == "ended":
        if not f.wanted:
            return Step("rest", "not wanted")
        left, why = _backoff(f)
        return Step("wait", f"{why}; next launch in {left:.0f} s", left) if left > 0 else Step("launch", why)
    return _fault(f, f.driver, s) or _condition(f, f.driver)


def _fault(f: Facts, d: DriverRow, s: Settings) -> Step | None:
    silence = (f.now - d.beat_at) / 1000
    seen = f.evidence if f.evidence.incarnation == d.incarnation else Evidence()
    if f.alive is False:
        return Step("clear", "its process is gone")
    if f.headless:
        return Step("clear", "its JVM is gone, others of its session are left")
    if d.pid is None and (f.now - d.launched_at) / 1000 > RECORD_TIMEOUT:
        return Step("clear", f"no process was recorded within {RECORD_TIMEOUT:.0f} s: its launcher died")
    patience = max(START_TIMEOUT, s.stuck_after) if d.state == "launching" else s.stuck_after
    if silence > patience and seen.beat_at == d.beat_at and seen.silent >= min(CONFIRM, s.stuck_after):
        return Step("clear", f"hung: no sign of life for {silence:.0f} s")
    if f.leaving and seen.leaving > s.drain_timeout:
        return Step("clear", f"did not leave within {s.drain_timeout:.0f} s")
    return None


def _condition(f: Facts, d: DriverRow) -> Step:
    if not f.wanted:
        return Step("rest", "not wanted; it drains")
    if d.release_seq < f.app.release_seq:
        return Step("rest", f"it drains for release {f.app.release_seq}")
    where = "" if f.alive else " (not to be seen from here, but it beats)"
    return Step("rest", f"{d.state}{where}")


def _backoff(f: Facts) -> tuple[float, str]:
    """(seconds until the next launch, why) from the app's launches under the current release."""
    if not f.recent:
        return 0.0, "first launch"
    last = f.recent[0]
    why = f"driver {last.incarnation[:8]} ended: {last.reason or 'no reason given'}"
    young = 0
    for d in f.recent:
        if d.release_seq != f.app.release_seq or max(d.beat_at, d.launched_at) - d.launched_at >= YOUNG * 1000:
            break
        young += 1
    if young > 1:
        why += f"; {young} in a row died young"
    delay = BACKOFF[min(young, len(BACKOFF) - 1)]
    return delay - (f.now - (last.ended_at or f.now)) / 1000, why


def facts(control: Control, app: str, evidence: Evidence | None = None) -> Facts | None:
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


class Watch:
    """Looks at one app again and again, remembers what a single look cannot see, and changes nothing.

    clock: monotonic seconds.
    """

    def __init__(self, control: Control, app: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.control, self.app, self.clock = control, app, clock
        self.evidence = Evidence()
        self._looked: float | None = None
        self._silent_since = self._leaving_since = 0.0

    def look(self) -> Step:
        """The step that is due. ControlError while the database is away: nothing is known then."""
        try:
            found = facts(self.control, self.app)
        except ControlError:
            self._looked = None
            raise
        now = self.clock()
        if found is None:
            return Step("rest", "the control database does not know this app")
        self._note(found, now)
        self._looked = now
        return decide(replace(found, evidence=self.evidence), settings())

    def _note(self, f: Facts, now: float) -> None:
        d, old = f.driver, self.evidence
        incarnation = d.incarnation if d else None
        blind = self._looked is None or now - self._looked > max(GAP, 3 * settings().supervise_every)
        if blind or old.incarnation != incarnation or (d and old.beat_at != d.beat_at):
            self._silent_since = now
        # A driver cannot leave in order while the database is away: its time to do so starts again.
        if blind or old.incarnation != incarnation or not f.leaving:
            self._leaving_since = now
        self.evidence = Evidence(
            incarnation, d.beat_at if d else 0, now - self._silent_since, now - self._leaving_since
        )


class Supervisor:
    """Acts for one app on behalf of an owner.

    owner: who answers for the driver, e.g. a task instance. command: the command line that runs a given incarnation.
    """

    def __init__(self, control: Control, app: str, owner: str, command: Callable[[str], Sequence[str]]) -> None:
        self.control, self.app, self.owner, self.command = control, app, owner, command
        self.actor = Actor(owner, "supervisor")

    def tick(self, evidence: Evidence | None = None) -> Step:
        """Do what is due, then say what is left: `rest`, or `wait` until the next launch. ControlError as always."""
        for _ in range(5):  # clear, launch, adopt, and twice more for those who were faster
            found = facts(self.control, self.app, evidence)
            if found is None:
                return Step("rest", "the control database does not know this app")
            step = decide(found, settings())
            match step.do:
                case "clear" if found.driver:
                    if not clear(self.control, found.driver, step.why, self.actor):
                        return Step("wait", "processes of the last driver do not end", 1.0)
                case "launch":
                    self._launch(found, step.why)
                case _:
                    self._adopt(found)
                    if step.do == "wait":
                        self._record_once("wait", step.why, found)
                    return step
        return Step("wait", "others are at work on this app", 1.0)

    def _adopt(self, f: Facts) -> None:
        d = f.driver
        if d and d.state != "ended" and d.owner != self.owner:
            self.control.driver_set(d.incarnation, owner=self.owner)
            self.control.record(self.actor, "adopt", self.app, f"driver {d.incarnation[:8]}, pid {d.pid}")

    def _launch(self, f: Facts, why: str) -> None:
        path = launch.new_log(self.app)
        incarnation = self.control.claim(
            self.app,
            f.app.incarnation,
            host=processes.host(),
            spec_hash=launch.spec_hash(),
            owner=self.owner,
            log=str(path),
        )
        if incarnation is None:
            return
        try:
            pid, started = launch.start(self.command(incarnation), log=path)
        except PenstockError as e:
            self._failed(incarnation, e)
            return
        except Exception as e:  # a command that cannot even be built: it must end up in the record, not in a loop
            self._failed(incarnation, e)
            raise
        try:
            self.control.driver_set(incarnation, pid=pid, pid_started=started)
            self.control.record(self.actor, "launch", self.app, f"driver {incarnation[:8]}, pid {pid}; {why}")
        except ControlError:
            # Nobody would know of it. The row is ended later, as one whose launcher died.
            nameless = self._row(incarnation, pid, started)
            processes.kill(nameless)
            raise
        log.info("app %s: launched driver %s, pid %d, log %s (%s)", self.app, incarnation[:8], pid, path, why)

    def _failed(self, incarnation: str, e: Exception) -> None:
        why = f"it could not be launched: {e}"
        log.error("app %s: driver %s: %s", self.app, incarnation[:8], why)
        self.control.driver_ended(incarnation, why)
        self.control.record(self.actor, "end", self.app, f"driver {incarnation[:8]}: {why}")

    def _row(self, incarnation: str, pid: int, started: float) -> DriverRow:
        return DriverRow(
            incarnation=incarnation, app=self.app, host=processes.host(), pid=pid, pid_started=started, release_seq=0,
            spec_hash="", owner=self.owner, state="launching", launched_at=0, beat_at=0, ended_at=None, reason=None,
            log="",
        )  # fmt: skip

    def _record_once(self, verb: str, detail: str, f: Facts) -> None:
        """Record something about the last driver, unless it is recorded already."""
        name = f.recent[0].incarnation[:8] if f.recent else ""
        for a in self.control.actions(200):
            if a["verb"] == verb and a["target"] == self.app and name in (a["detail"] or ""):
                return
        self.control.record(self.actor, verb, self.app, detail)


def clear(control: Control, d: DriverRow, why: str, actor: Actor) -> bool:
    """End a driver: kill what is left of its session, mark it ended, record it. False if its processes do not go.

    On another host nothing can be killed: the lease and the fencing of its transactions keep it harmless.
    """
    there = processes.alive(d)
    if there and not processes.kill(d):
        return False
    row = control.driver(d.incarnation)
    if row is None or row.state == "ended":
        return True
    control.driver_ended(d.incarnation, why)
    control.record(actor, "kill" if there else "end", d.app, f"driver {d.incarnation[:8]}, pid {d.pid}: {why}")
    log.warning("app %s: driver %s ended: %s", d.app, d.incarnation[:8], why)
    return True


def stop(control: Control, app: str, owner: str, why: str, patience: float = 20.0) -> bool:
    """End an app's driver if `owner` still answers for it: ask it to drain, kill it after `patience` seconds.

    True if this owner ended it. Ownership is looked at again before the kill: somebody may have adopted it meanwhile.
    """

    def mine() -> DriverRow | None:
        row = control.app(app)
        d = control.driver(row.incarnation) if row and row.incarnation else None
        return d if d and d.owner == owner and d.state != "ended" else None

    d = mine()
    if d is None:
        return False
    actor = Actor(owner, "supervisor")
    control.record(actor, "terminate", app, f"driver {d.incarnation[:8]}, pid {d.pid}: {why}")
    processes.terminate(d)
    deadline = time.monotonic() + patience
    while processes.alive(d) and time.monotonic() < deadline:
        time.sleep(0.1)
    still = mine()
    return still is not None and still.incarnation == d.incarnation and clear(control, still, why, actor)


def reap(control: Control, declared: set[str], actor: Actor) -> Iterator[str]:
    """End what nobody owns and mark the dead as ended; yields a line for each.

    declared: names of the declared apps. A driver that should drain by itself gets the time to do so.
    """
    apps = {a.name: a for a in control.apps()}
    wanted = {name for name in apps if "on" in control.desired(name).values()}
    now = control.now()
    for d in control.drivers():
        why = _ownerless(control, d, apps.get(d.app), declared, wanted, now)
        if why and clear(control, d, why, actor):
            yield f"app {d.app}: driver {d.incarnation[:8]}, pid {d.pid}: {why}"


def _ownerless(
    control: Control, d: DriverRow, app: AppRow | None, declared: set[str], wanted: set[str], now: int
) -> str:
    s = settings()
    alive = processes.alive(d)
    silence = (now - d.beat_at) / 1000
    if alive is False:
        return "its process is gone"
    if alive is None and silence < max(START_TIMEOUT, s.stuck_after):
        return ""  # elsewhere and beating, or about to be recorded: not known, so not dead
    if app is None or d.app not in declared:
        return "its app is not declared"
    if app.incarnation != d.incarnation:
        return f"driver {(app.incarnation or 'none')[:8]} has its place"
    if d.app not in wanted and (now - _stopped_at(control, d)) / 1000 > s.drain_timeout:
        return f"its app is not wanted, and it did not leave within {s.drain_timeout:.0f} s"
    return ""


def _stopped_at(control: Control, d: DriverRow) -> int:
    """When the last stream of a driver's app was stopped, epoch ms, as far as the record goes back."""
    names = control.desired(d.app).keys()
    stops = [a["at"] for a in control.actions(200) if a["verb"] == "stop" and a["target"] in names]
    return max(stops, default=d.launched_at)
